package soft

import "oneshot/transport/rdma"

// What providers of endpoints check of a work request before it is posted. The text that a function returns, if any, says
// what is wrong with the work.

// EndpointWork returns what the work needs of its own memory, and whether it changes the endpoint.
func EndpointWork(p *rdma.Work) (need rdma.Access, writes bool, what string) {
	const never = rdma.Invalidate | rdma.Advertise | rdma.Close | rdma.Solicited | rdma.Inline
	if p.Flags&never != 0 {
		return 0, false, "flag that no work of an endpoint may have"
	}
	switch p.Op {
	case rdma.OpRead:
		need = rdma.AccessLocalWrite
	case rdma.OpWrite, rdma.OpDiscard:
		writes = true
	case rdma.OpCompareSwap, rdma.OpFetchAdd:
		need, writes = rdma.AccessLocalWrite, true
	case rdma.OpFlush:
	default:
		return 0, false, "operation that cannot be posted to an endpoint"
	}
	if p.Flags&rdma.Durable != 0 && !writes {
		return 0, false, "Durable on what writes nothing"
	}
	return need, writes, ""
}

// EndpointRange returns where in an endpoint the n bytes begin, n > 0, that a work with this RemoteOffset reaches.
func EndpointRange(e *rdma.Endpoint, remoteOffset uint64, n int64) (off int64, what string) {
	at, unit := remoteOffset-e.Base, int64(e.Unit)
	switch {
	case at%uint64(unit) != 0 || n%unit != 0:
		return 0, "range that is not of whole units (Endpoint.Unit)"
	case at > uint64(e.Size) || uint64(n) > uint64(e.Size)-at:
		return 0, "range outside of the endpoint (Endpoint.Size)"
	}
	return int64(at), ""
}

// EndpointAtomic returns where the 8 bytes are that an atomic operation changes. n is the length of its memory, in that
// many elements.
func EndpointAtomic(e *rdma.Endpoint, p *rdma.Work, n int64, elements int) (off int64, what string) {
	at := p.RemoteOffset - e.Base
	switch {
	case n != 8 || elements != 1:
		return 0, "an atomic operation has one element of 8 octets for the old value"
	case at%8 != 0:
		return 0, "an atomic operation is on 8 octets at a multiple of 8"
	case e.Size < 8 || at > uint64(e.Size)-8:
		return 0, "range outside of the endpoint (Endpoint.Size)"
	}
	return int64(at), ""
}
