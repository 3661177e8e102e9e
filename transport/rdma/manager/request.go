// Package manager turns transfers between memory of any shape into work requests: it
// coalesces what is small and contiguous, and divides what is larger than a device or a
// queue allows. It keeps track of how far a request has come, so that it stops when work
// requests run out and goes on when they return.
//
//	Request   one transfer: local elements ⇄ remote ranges, cut into descriptors
//	Queue     the send queue of a queue pair: requests and messages, as far as there is room;
//	          requests that continue each other at the peer share a descriptor
//
// A descriptor is one rdma.Work: a scatter/gather list of local memory and one contiguous
// range of remote memory. Each is as long as the limits allow; that makes them as few as
// possible, since every part of what fits into a descriptor would fit into one too.
package manager

import (
	"fmt"
	"unsafe"

	"oneshot/transport/rdma"
)

// Limits bound a descriptor.
type Limits struct {
	Bytes    int64 // of one operation
	Elements int   // of a scatter/gather list
}

// ReadLimits and WriteLimits are those of a device. chunk bounds the bytes further, so that
// one transfer does not hold up others for long; 0: not.
func ReadLimits(l rdma.Limits, chunk int64) Limits  { return limits(l, l.MaxReadSGE, chunk) }
func WriteLimits(l rdma.Limits, chunk int64) Limits { return limits(l, l.MaxSGE, chunk) }

func limits(l rdma.Limits, elements int, chunk int64) Limits {
	bytes := l.MaxMessage
	if chunk > 0 {
		bytes = min(bytes, chunk)
	}
	return Limits{Bytes: bytes, Elements: elements}
}

// Remote is a range of the peer's memory.
type Remote struct {
	STag   rdma.STag
	Offset uint64 // tagged offset
	Len    uint64 // octets
}

// Request is one transfer, of any length: the octets of the local elements, in order, from or
// to those of the remote ranges, in order. The zero value is a transfer of nothing. It is
// used by one goroutine at a time.
type Request struct {
	op      rdma.Opcode
	limits  Limits
	locals  []rdma.SGE
	remotes []Remote
	pos     position
	size    uint64 // octets
	count   int    // descriptors in all
	filled  int    // descriptors handed out
	single  bool   // one element, one range, one descriptor
}

// position is how far a request has come.
type position struct {
	local, remote int    // current element and range
	in            int    // octets of the element that are dealt with
	of            uint64 // of the range
}

// Init makes r a transfer with op OpRead or OpWrite. locals and remotes are borrowed until
// the last descriptor is filled; they hold the same number of octets, and empty ones are
// skipped.
func (r *Request) Init(op rdma.Opcode, l Limits, locals []rdma.SGE, remotes []Remote) error {
	if l.Bytes <= 0 || l.Elements <= 0 || op != rdma.OpRead && op != rdma.OpWrite {
		return fmt.Errorf("rdma manager: %v with %d bytes and %d elements per operation", op, l.Bytes, l.Elements)
	}
	var here, there uint64
	for _, e := range locals {
		here += uint64(len(e.Bytes))
	}
	for _, e := range remotes {
		if e.Offset+e.Len < e.Offset && e.Offset+e.Len != 0 || there+e.Len < there {
			return fmt.Errorf("rdma manager: %d octets at %#x of STag %#x wrap", e.Len, e.Offset, e.STag)
		}
		there += e.Len
	}
	if here != there {
		return fmt.Errorf("rdma manager: %d octets here and %d there", here, there)
	}
	// Field by field: a literal would be made elsewhere and copied.
	r.op, r.limits, r.locals, r.remotes = op, l, locals, remotes
	r.pos, r.size, r.count, r.filled = position{}, here, 0, 0
	if r.single = len(locals) == 1 && len(remotes) == 1 && here > 0 && here <= uint64(l.Bytes); r.single {
		r.count = 1
		return nil
	}
	r.skip(&r.pos)
	for p := r.pos; p.local < len(locals); r.count++ {
		r.next(&p, nil)
	}
	return nil
}

// Clear makes r a transfer of nothing.
func (r *Request) Clear() { *r = Request{} }

// Count returns how many descriptors the transfer takes in all, and Left how many of them
// have not been filled.
func (r *Request) Count() int { return r.count }
func (r *Request) Left() int  { return r.count - r.filled }

// Fill makes descriptors out of what is left, as far as ws and the elements of sgl go, and
// returns how many of each it has used. Op, SGL, RemoteSTag and RemoteOffset are set, the
// rest is cleared. The scatter/gather lists lie in sgl, which has to stay until the
// descriptors are posted. A descriptor that does not fit into the rest of sgl is left for
// another time: sgl must have room for Limits.Elements at the beginning.
func (r *Request) Fill(ws []rdma.Work, sgl []rdma.SGE) (works, elements int) {
	if len(sgl) == 0 {
		return 0, 0
	}
	for works < len(ws) && r.filled < r.count {
		p := r.pos
		list := sgl[elements:elements:len(sgl)]
		remote := r.remotes[p.remote]
		at := remote.Offset + p.of
		list, ok := r.next(&p, list)
		if !ok {
			break
		}
		ws[works] = rdma.Work{Op: r.op, SGL: list, RemoteSTag: remote.STag, RemoteOffset: at}
		works++
		elements += len(list)
		r.pos = p
		r.filled++
	}
	return works, elements
}

// continues reports whether all of r is one descriptor, not filled yet, whose remote range begins
// where that of w ends, and whether both together, w having size octets, keep to l.
func (r *Request) continues(w *rdma.Work, size uint64, l Limits) bool {
	if r.filled > 0 || r.count != 1 || r.op != w.Op || size+r.size > uint64(l.Bytes) {
		return false
	}
	x := &r.remotes[r.pos.remote]
	at := x.Offset + r.pos.of
	return x.STag == w.RemoteSTag && at > w.RemoteOffset && at-w.RemoteOffset == size
}

// fillBehind appends the elements of r, which continues w, to the list of w. sgl is the memory right
// behind that list; most is how long the list may become. It returns how many elements of sgl it has
// used. False: there is no room, and nothing has changed.
func (r *Request) fillBehind(w *rdma.Work, sgl []rdma.SGE, most int) (used int, ok bool) {
	last := &w.SGL[len(w.SGL)-1]
	first := &r.locals[r.pos.local]
	joins := first.Region == last.Region && address(first.Bytes[r.pos.in:]) == address(last.Bytes)+uintptr(len(last.Bytes))
	room := most - len(w.SGL)
	if joins {
		room++ // the first element becomes a part of the last one
	}
	p := r.pos
	list, ok := r.next(&p, sgl[:0:min(len(sgl), room)])
	if !ok {
		return 0, false
	}
	r.pos, r.filled = p, r.count
	if joins {
		last.Bytes = unsafe.Slice(unsafe.SliceData(last.Bytes), len(last.Bytes)+len(list[0].Bytes))
		list = list[1:]
	}
	w.SGL = append(w.SGL, list...)
	return len(list), true
}

// next moves p over the next descriptor and, if list is not nil, appends its elements there.
// False: list has no room for them.
func (r *Request) next(p *position, list []rdma.SGE) ([]rdma.SGE, bool) {
	if r.single { // as most are: nothing is to be cut
		if cap(list) == 0 {
			return nil, false
		}
		*p = position{local: 1, remote: 1}
		b := r.locals[0].Bytes
		return append(list, rdma.SGE{Bytes: b[:len(b):len(b)], Region: r.locals[0].Region}), true
	}
	room := uint64(r.limits.Bytes)
	elements := 0
	var end uintptr // address behind the last element
	var region rdma.Region
	for room > 0 && p.local < len(r.locals) {
		e := &r.locals[p.local]
		b := e.Bytes[p.in:]
		joins := elements > 0 && end == address(b) && region == e.Region
		if !joins && elements == r.limits.Elements {
			break
		}
		rest := &r.remotes[p.remote]
		n := min(uint64(len(b)), room, rest.Len-p.of)
		switch {
		case list == nil:
		case joins:
			last := &list[len(list)-1].Bytes
			*last = unsafe.Slice(unsafe.SliceData(*last), len(*last)+int(n))
		case len(list) == cap(list):
			return nil, false
		default:
			list = append(list, rdma.SGE{Bytes: b[:n:n], Region: e.Region})
		}
		if !joins {
			elements++
		}
		end, region = address(b)+uintptr(n), e.Region
		room -= n
		p.in += int(n)
		p.of += n
		stag, at := rest.STag, rest.Offset+p.of
		ended := p.of == rest.Len
		r.skip(p)
		if ended && (p.remote == len(r.remotes) || r.remotes[p.remote].STag != stag || r.remotes[p.remote].Offset != at) {
			break
		}
	}
	return list, true
}

// skip moves p over elements and ranges that are dealt with, or empty.
func (r *Request) skip(p *position) {
	for p.local < len(r.locals) && p.in == len(r.locals[p.local].Bytes) {
		p.local, p.in = p.local+1, 0
	}
	for p.remote < len(r.remotes) && p.of == r.remotes[p.remote].Len {
		p.remote, p.of = p.remote+1, 0
	}
}

func address(b []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(b))) }
