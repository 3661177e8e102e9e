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
)

var opNames = [...]string{"Send", "Write", "Read", "Bind", "LocalInvalidate", "Receive"}

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
	// Fence has the request wait for the Reads posted before it.
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
	// RelaxedOrder lets a provider that can do so execute the request before earlier ones.
	RelaxedOrder
)

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

	RemoteSTag   STag // OpWrite, OpRead
	RemoteOffset uint64

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
)

var statusNames = [...]string{
	"ok", "flushed", "message too long for its receive", "local protection error",
	"remote access error", "remote operation error", "transport error",
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
	// Err, if Status is not StatusOK, says more, for people. It may be nil.
	Err error
}
