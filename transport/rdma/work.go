package rdma

import (
	"encoding/binary"
	"fmt"
)

// Opcode is what a work request or completion is about.
type Opcode uint8

const (
	// OpSend sends SGL as one message into a receive of the peer. Flags may add Invalidate,
	// Advertise or Close, each with STag's meaning, one of them at most.
	OpSend Opcode = iota
	// OpWrite writes SGL to RemoteOffset of RemoteSTag.
	OpWrite
	// OpRead reads as many bytes as SGL holds from RemoteOffset of RemoteSTag into SGL, at
	// most Limits.MaxReadSGE elements. The peer's processor has no part in it.
	OpRead
	// OpBind gives Window the memory of SGL, one element, with Access, from tagged offset
	// of its address in the region's terms on. Post sets STag to the new name. The old one
	// has to be invalid.
	OpBind
	// OpLocalInvalidate ends the access of STag: of a window, or of a region that was
	// registered with AccessRemoteInvalidate. It waits for what refers to the memory.
	OpLocalInvalidate
	// OpReceive is the completion of a Receive; it is not posted.
	OpReceive

	// The operations below are for endpoints (QueuePair.Endpoint).

	// OpFlush makes durable everything written by this queue pair that is complete when it starts (O8).
	// RemoteOffset and the length of SGL[0], if there is one, hint at the range that matters.
	OpFlush
	// OpCompareSwap replaces the 8 octets at RemoteOffset, a multiple of 8, by Operand if they are Compare.
	// OpFetchAdd adds Operand to them, modulo 2⁶⁴. The numbers are in the byte order of the host. What was
	// there before goes to SGL, one element of 8 octets. O13 says against whom they are atomic.
	OpCompareSwap
	OpFetchAdd
	// OpDiscard has Length octets from RemoteOffset on read as zeroes from then on. The store gives the
	// space back where it can.
	OpDiscard
)

var opNames = [...]string{
	"Send", "Write", "Read", "Bind", "LocalInvalidate", "Receive", "Flush", "CompareSwap", "FetchAdd", "Discard",
}

func (o Opcode) String() string {
	if int(o) < len(opNames) {
		return opNames[o]
	}
	return fmt.Sprintf("opcode %d", uint8(o))
}

// Flags modify a work request.
type Flags uint16

const (
	// Signaled has a completion made when the request has ended well. Without it there is
	// only one if it has not, and the next signalled one stands for it.
	Signaled Flags = 1 << iota
	// Solicited marks a Send as worth an event at the peer.
	Solicited
	// Fence has the request wait for the Reads posted before it (RFC 5040 §5.5 rule 12). On an endpoint it
	// waits for every request posted before it (O5), and is not executed if one of them has failed (O6).
	Fence
	// Inline has Post copy the memory, Limits.MaxInline bytes at most.
	Inline
	// Invalidate, with OpSend: the peer's STag loses its access when the message is delivered
	// (Send with Invalidate).
	Invalidate
	// Advertise, with OpSend: the memory of Memory becomes reachable for the peer, with
	// Access, from tagged offset 0 on, before the first byte of the message leaves, and its
	// STag travels in the header. Post sets STag to it. There is no completion for it even
	// if Signaled is set; the completion that carries Closed and the STag ends it.
	Advertise
	// Close, with OpSend: the peer's provider frees STag, which it has advertised, before it
	// delivers the message. All Reads from it must have completed; Writes need not.
	Close
	// RelaxedOrder lets a provider that can do so execute the request before earlier ones. On an endpoint
	// that is FreeStart for this request alone (O10).
	RelaxedOrder
	// Barrier, on an endpoint: everything posted before is complete and durable before the request starts,
	// and the request itself is durable when it completes (O7). It implies Fence.
	Barrier
	// Durable, on a Write, Discard or atomic operation of an endpoint: it is durable when it completes.
	Durable
)

// ForEndpoints are the operations and flags that only an endpoint takes. A provider without endpoints
// refuses them with a *WorkError; it is for providers.
func (w *Work) ForEndpoints() bool {
	return w.Op > OpReceive && w.Op <= OpDiscard || w.Flags&(Barrier|Durable) != 0
}

// SGE is an element of a scatter/gather list: memory of a registered region.
type SGE struct {
	Bytes  []byte
	Region Region
}

// Work is a work request. Which fields count depends on Op and Flags.
type Work struct {
	ID    uint64 // the owner's; comes back in the completion
	Op    Opcode
	Flags Flags
	SGL   []SGE

	RemoteSTag   STag // OpWrite, OpRead, OpCompareSwap, OpFetchAdd, OpDiscard
	RemoteOffset uint64
	Length       int64  // OpDiscard: octets
	Compare      uint64 // OpCompareSwap
	Operand      uint64 // OpCompareSwap: the new value; OpFetchAdd: what is added

	// STag: Invalidate, Close, OpLocalInvalidate: the STag meant. Advertise, OpBind: set by
	// Post.
	STag   STag
	Access Access // Advertise, OpBind: the peer's rights
	// Memory is what Advertise makes reachable, in pieces that need not lie together. A piece without a
	// Region is made known by the call itself, and forgotten when the STag ends.
	Memory []SGE
	Window Window // OpBind
	// Stamp, with OpBind, is where Post writes the new STag, four octets, big-endian, before what is
	// posted behind it leaves: a message in the same batch can name the window. nil: nowhere.
	Stamp []byte
}

// PutStamp writes s to Stamp, if there is one. It is for providers.
func (w *Work) PutStamp(s STag) {
	if w.Stamp != nil {
		binary.BigEndian.PutUint32(w.Stamp, uint32(s))
	}
}

// Receive is memory for one message of the peer.
type Receive struct {
	ID  uint64
	SGL []SGE
}

// WorkError says what is wrong with a work request. Nothing of it was done.
type WorkError struct {
	Index int // in the slice that was posted
	Op    Opcode
	What  string
}

func (e *WorkError) Error() string {
	return fmt.Sprintf("rdma: work request %d (%v): %s", e.Index, e.Op, e.What)
}

// Status says how a request has ended.
type Status uint8

const (
	StatusOK Status = iota
	// StatusFlushed: the connection ended before the request was done.
	StatusFlushed
	// StatusLocalLength: a message was longer than its Receive.
	StatusLocalLength
	// StatusLocalProtection: memory of the request is not, or no longer, registered.
	StatusLocalProtection
	// StatusRemoteAccess: the peer says that the STag or range does not allow it.
	StatusRemoteAccess
	// StatusRemoteOperation: the peer could not do it, or says that we broke the protocol.
	StatusRemoteOperation
	// StatusTransport: the peer does not answer, or broke the protocol.
	StatusTransport

	// The four below are of endpoints, and do not end the queue pair.

	// StatusMedium: the medium could not read or write. Err wraps what the store says.
	StatusMedium
	// StatusSpace: the medium has no room for a write.
	StatusSpace
	// StatusFenced: the request had a Fence or Barrier, and was not executed, for a request before it has
	// failed (O6).
	StatusFenced
	// StatusLost: durability was lost earlier: the store could not make durable what it had taken, and
	// promises nothing until it is opened again.
	StatusLost
)

var statusNames = [...]string{
	"ok", "flushed", "message too long for its receive", "local protection error",
	"remote access error", "remote operation error", "transport error",
	"medium error", "no space", "fenced: a request before it has failed", "durability was lost earlier",
}

func (s Status) String() string {
	if int(s) < len(statusNames) {
		return statusNames[s]
	}
	return fmt.Sprintf("status %d", uint8(s))
}

// CompletionFlags say more about a completion of a Receive.
type CompletionFlags uint8

const (
	// Invalidated: the peer's Send has invalidated STag.
	Invalidated CompletionFlags = 1 << iota
	// Advertised: the message advertises STag, whose memory can be read or written from now
	// on, until a Send with Close.
	Advertised
	// Closed: STag, which this end has advertised, is freed, and so is its memory.
	Closed
)

// Completion says that a request has ended.
type Completion struct {
	ID        uint64
	Op        Opcode
	Status    Status
	Flags     CompletionFlags
	Bytes     int  // of a Receive or Read
	STag      STag // see Flags
	QueuePair QueuePair
	// Seq, of a Write, Discard or atomic operation on an endpoint, is its number: each takes the next one of
	// its partition when it becomes visible. 0: the endpoint does not count.
	Seq uint64
	// Durable is the number up to which all of the partition's are known to be durable. It never goes back
	// while the partition is open.
	Durable uint64
	// Err, if Status is not StatusOK, says more, for people. It may be nil.
	Err error
}
