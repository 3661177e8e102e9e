// Package rdma is the way to remote memory and to whoever serves it: devices, protection
// domains, memory regions, queue pairs, completion queues and a connection manager, after
// the verbs of the RDMA Consortium and the IBTA. Providers implement it: iwarp in user
// space, verbs for what the kernel drives. Nothing in it is one provider's alone; rdmatest is
// the suite that all of them pass.
//
//	Device ─┬─ Domain ── Region, Window       memory, and who may reach it
//	        ├─ CompletionQueue                 what has ended
//	        ├─ ReceiveQueue                    receives that queue pairs share
//	        ├─ QueuePair ─ Post, PostReceive   one connection
//	        └─ Listener ── Request             connections that are wanted
//
// Posting takes slices of work requests and polling fills slices of completions; batches
// are the normal case, and a batch costs one crossing into the provider.
//
// # One-shot
//
// A queue pair whose peer has agreed to it (QueuePair.OneShot) knows two more flags. A Send
// with Advertise makes the memory of its Region list reachable for the peer and carries the
// steering tag (STag) in its header; the STag comes back in the Work that was posted. A Send
// with Close ends an STag that the peer has advertised: the peer's provider takes access and
// resources back before it delivers the message. So one post starts an I/O, and one
// completion ends it. Where the peer has not agreed, neither flag may be used.
//
// # Endpoints
//
// The far end of a queue pair may be a store, or a part of one: Connect with its name. QueuePair.Endpoint
// then tells what it is. Read, Write and the operations for endpoints reach it; it never posts anything
// itself. Order and its rules O1 to O13 say what happens when, and what a completion promises.
//
// # Ownership
//
// Memory named by a work request belongs to the provider from Post until the request's
// completion, or, of an unsignalled one, until that of a later signalled one on the same
// queue pair. Memory of an advertised STag belongs to it until the completion that carries
// Closed, until Revoke, or until the queue pair is closed. The slices of work requests and
// scatter/gather lists themselves are only read during the call.
//
// The completion of a Send or Write to an ordinary peer says that the provider does not read the memory any more, and
// nothing that may be relied on of whether the peer has, or will ever have, the bytes. By provider:
//
//	provider           signalled                     unsignalled, at a later completion   inline
//	iwarp              copied by writev              copied                               copied by Post
//	siw                copied to the socket          below a page: copied; otherwise TCP  copied by Post
//	                                                 refers to the pages (LateSource)
//	rxe                acknowledged by the peer      acknowledged                         copied by Post
//	IB and RoCE cards  acknowledged by the peer      acknowledged                         copied by Post
//	iWARP cards        copied, or acknowledged by    the same                             copied by Post
//	                   the peer's TCP
//	local, remote      acknowledged by the peer      acknowledged                         local: copied by Post
//	nic                what its card has: iwarp, or local                                 copied by Post
//
// The completion of a Read Response is not told at the end that serves the Read: the memory may change when the peer has
// said, after its Read has completed, that it has the bytes, or when the memory is no longer registered. siw sends Read
// Responses of a page or more without a copy, too: TCP refers to the pages until the peer's TCP has acknowledged them,
// which it has when the peer's Read has completed. If the memory is deregistered and changes before that, the peer gets
// other bytes there, or the connection ends for a wrong CRC.
package rdma

import (
	"context"
	"errors"
	"fmt"
	"net"

	"golang.org/x/sys/unix"
)

// STag is a steering tag (RFC 5040 §1.1), the R_Key of the IBTA: the name of memory on the
// wire. 0 is never one.
type STag uint32

// Device is an RDMA device. Its methods may be called from any goroutine.
type Device interface {
	// Limits returns what the device can do. It does not change.
	Limits() Limits
	// NewDomain allocates a protection domain.
	NewDomain() (Domain, error)
	// NewCompletionQueue makes a queue for depth completions. After Arm, event is called
	// when a completion has come; see CompletionQueue. It may be nil for queues that are
	// only polled.
	NewCompletionQueue(depth int, event func()) (CompletionQueue, error)
	// NewReceiveQueue makes a queue for depth receives that queue pairs share.
	NewReceiveQueue(d Domain, depth int) (ReceiveQueue, error)
	// NewQueuePair makes a queue pair that is not connected yet. Receives can be posted.
	NewQueuePair(c QueuePairConfig) (QueuePair, error)
	// Connect connects qp with who listens at addr, or with an endpoint (Limits.Endpoints), and returns when messages can be
	// exchanged. A rejection is a *RejectedError. After an error qp can only be closed.
	Connect(ctx context.Context, qp QueuePair, addr string, p ConnParams) error
	// Listen waits for connections on addr (host:port).
	Listen(addr string) (Listener, error)
	// Counters returns what has crossed the device since it was opened.
	Counters() Counters
	// Close closes the device, of which nothing may be in use any more.
	Close() error
}

// Allocator is a Device that registers only memory that it has allocated itself, for it is in another process, which
// shares that memory. The same holds for memory to advertise.
type Allocator interface {
	// Alloc returns n bytes, all zero, at the beginning of a page.
	Alloc(n int) ([]byte, error)
	// Free gives memory of Alloc back, of which nothing may be registered or advertised any more.
	Free(b []byte) error
}

// Alloc returns n bytes, all zero, at the beginning of a page, that d can register, and what gives them back; the system's,
// unless d is an Allocator.
func Alloc(d Device, n int) (b []byte, free func([]byte) error, err error) {
	if a, ok := d.(Allocator); ok {
		b, err = a.Alloc(n)
		return b, a.Free, err
	}
	if b, err = unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS); err != nil {
		return nil, nil, fmt.Errorf("%d bytes of memory: %w", n, err)
	}
	return b, unix.Munmap, nil
}

// Limits are what a device can do.
type Limits struct {
	Name          string // of the device, for people
	MaxQueuePair  int    // queue pairs
	MaxWork       int    // work requests posted and not completed, per queue
	MaxSGE        int    // elements of the scatter/gather list of a Send, Write or Receive
	MaxReadSGE    int    // of a Read
	MaxMessage    int64  // bytes of one operation
	MaxReads      int    // Reads outstanding per queue pair, either way
	MaxInline     int    // bytes that Post copies, so that the memory is free at once
	MaxPrivate    int    // bytes of private data of the connection manager
	Windows       bool   // memory windows (Bind) can be had
	ReadSinkWrite bool   // a Read's sink needs AccessRemoteWrite (iWARP)
	OneShot       bool   // Advertise and Close, if the peer agrees
	// ReceiveWait: a Send that finds the ReceiveQueue empty waits, rather than ending the
	// connection. Everything that the peer sends behind it waits, too, Read Responses among it:
	// whoever needs those before it posts receives waits for ever.
	ReceiveWait bool
	// PartTakesReceive: the first part of a message takes a receive, and keeps it until the rest has come or the
	// connection has ended.
	PartTakesReceive bool
	// SendInvalidate: a Send with Invalidate can be posted.
	SendInvalidate bool
	// RegionInvalidate: regions can be registered with AccessRemoteInvalidate. Where windows can
	// be had, these can be invalidated in any case.
	RegionInvalidate bool
	// UnguardedInvalidate: the device does not look whether the peer may, nor does it tell of
	// it: who knows the STag of a region of the queue pair's domain can end it with a Send with
	// Invalidate.
	UnguardedInvalidate bool
	// UnguardedRead: the device does not look whether the peer may: who knows the STag of a region of the queue pair's domain
	// can read it. Over iWARP a Read Request tells the peer that of its sink.
	UnguardedRead bool
	// EndTold: Disconnected distinguishes an orderly close from an abort or a protocol violation.
	// Otherwise that is sure only where work of this end was under way, and such work may end
	// as flushed whatever the offence.
	EndTold bool
	// CountsRemote: Counters have the peer's Writes and Reads in them, which its messages are.
	CountsRemote bool
	// LateSource, if it is not 0, is a number of bytes: the device may read the memory of an unsignalled
	// Send or Write of so many bytes or more after later requests have completed. The provider has the
	// device signal each of these requests, so that the rule of "Ownership" holds, and keeps
	// the completions that the owner has not asked for to itself.
	LateSource int

	// Endpoints: Connect reaches endpoints.
	Endpoints bool
	// Orders are the bits that QueuePairConfig.Order may have. They mean something on endpoints.
	Orders Order
	// Flush: OpFlush, Barrier and Durable can be posted to endpoints.
	Flush bool
	// Atomics is against whom OpCompareSwap and OpFetchAdd are atomic.
	Atomics Atomics
}

// Access is what may be done with a region or window.
type Access uint8

const (
	AccessLocalWrite Access = 1 << iota // sink of Receives and Reads
	AccessRemoteRead
	AccessRemoteWrite
	AccessRemoteInvalidate // the peer's Send with Invalidate may end it
)

// Domain is a protection domain: queue pairs reach only the memory of their own.
type Domain interface {
	// Register makes memory known to the device. b stays where it is and is not Go heap
	// that moves or is freed: an arena, or memory that the caller keeps alive until
	// Deregister. Without remote access the region has no tagged offset of interest.
	Register(b []byte, a Access) (Region, error)
	// NewWindow allocates a memory window, to be bound by work requests.
	NewWindow() (Window, error)
	// Close frees the domain, of which nothing may be in use any more.
	Close() error
}

// Placer is a Domain of a device that lets its owner choose how peers name memory.
type Placer interface {
	// RegisterAt makes memory known to peers, and to nobody else, under the STag s and from tagged offset base on. s is one that
	// IsPlaced allows; ErrInUse says that memory of the device has that index already. So several machines can have the same
	// octets under the same name.
	//
	// The memory may change while peers read it: each Read gets, octet by octet, what was there at some time while it was
	// served, and never breaks the connection. Own work requests cannot name the region.
	RegisterAt(b []byte, a Access, s STag, base uint64) (Region, error)
}

// Barrer is a QueuePair that can keep its peer from the memory of its domain. Its methods may be called from any goroutine.
type Barrer interface {
	// Bar keeps the peer from all memory that was not advertised to it: other STags are refused as those of another connection are
	// (RFC 5041 §8.2). It is called before there is a connection. The owner posts no Read before Admit.
	Bar()
	// Admit ends what Bar has begun.
	Admit()
}

// Granter is a Domain of a device whose owner chooses how peers name memory, and takes it back at any moment: a domain with
// one queue pair gives it to one peer.
type Granter interface {
	// Grant is RegisterAt for memory that goes straight to the wire and comes straight from there. If it changes while a
	// peer reads it, that peer's connection may break.
	Grant(b []byte, a Access, s STag, base uint64) (Grant, error)
}

// Grant is memory that peers have for a time.
type Grant interface {
	// Revoke ends the access: no Read or Write of a peer begins any more. False: one is under way, which a peer that does not go
	// on may keep there. Abort of its queue pair ends it.
	Revoke() (quiet bool)
	// Free revokes, and waits for what is under way: then nobody reads or writes the memory any more. The name is free.
	Free() error
}

// IsPlaced reports whether RegisterAt and Grant take s: its index, the upper 24 bits, is one of the 4,096 highest.
func IsPlaced(s STag) bool { return s>>8 >= 0xfff000 }

// Region is registered memory.
type Region interface {
	Bytes() []byte
	// STag names the region for the peer, if it has remote access.
	STag() STag
	// Base is the tagged offset of its first byte.
	Base() uint64
	// Deregister ends all access. It blocks until operations under way have left the memory. After an error of the device the
	// access may still be there, and Deregister can be called again.
	Deregister() error
}

// Window is a right to a part of a region that costs a work request to give and one to take,
// the peer's Send with Invalidate, or the end of the queue pair. It is of type 2 (IBTA
// 10.6.7.2): bound to the queue pair on which Bind was posted.
type Window interface {
	// STag is what the last Bind posted gives; it changes with every Bind.
	STag() STag
	Free() error
}

// CompletionQueue holds completions in the order in which they happened, of any number of
// queue pairs. It never overflows as long as the queue pairs that use it have no more work
// requests and receives posted together than its depth.
type CompletionQueue interface {
	// Poll takes up to len(c) completions and returns how many. It never blocks.
	Poll(c []Completion) int
	// Arm asks for one call of event when the next completion comes. False: there are
	// completions already, event will not be called for them, poll on. Calls of event do
	// not overlap. It runs in a goroutine of the provider, which serves the connection that
	// had the completion: it may poll, post and arm, and must not block for long.
	Arm() bool
	Close() error
}

// ReceiveQueue is a queue of receives.
type ReceiveQueue interface {
	// PostReceive adds rs, in order. It returns how many were taken; fewer than all come
	// with an error.
	PostReceive(rs []Receive) (int, error)
	Close() error
}

// QueuePairConfig says how a queue pair is to be. Zero values are not replaced, except
// where that is said.
type QueuePairConfig struct {
	Domain  Domain
	SendCQ  CompletionQueue // completions of Post
	RecvCQ  CompletionQueue // completions of PostReceive
	MaxWork int             // work requests posted and not completed
	MaxRecv int             // receives posted; without meaning if Receives is set
	MaxSGE  int             // elements of a scatter/gather list; 0: Limits.MaxSGE
	// Receives, if set, is where the queue pair takes its receives from.
	Receives ReceiveQueue
	// Disconnected, if set, is called once after the connection has ended for any reason,
	// with nil if the peer ended it in good order, in a goroutine of the provider, before
	// or after the completions of what was posted. It must not block.
	Disconnected func(error)
	// Context is the owner's; the provider returns it in completions.
	Context any
	// Order is how works of an endpoint may run and complete; Limits.Orders says what the device can do.
	Order Order
	// Alone, if set, reports whether nobody waits for an event of the completion queues. A provider whose goroutine reads
	// from the wire then lets who calls Await (Awaiter) read in its place. The provider may call it with locks held.
	Alone func() bool
}

// PeerEnder is a QueuePair that can tell sooner than Disconnected does whether the peer has closed its
// end: the network may know before the provider's goroutine has come to it. What the peer sent before may
// still be on its way.
type PeerEnder interface{ PeerEnded() bool }

// QueuePair is one connection. Post, PostReceive and Revoke may be called from any
// goroutine; what is posted by one is sent in order.
//
// When the connection ends, everything posted completes, with StatusFlushed if nothing else,
// signalled or not; receives that came from a ReceiveQueue stay there. After that Post fails
// with ErrDisconnected.
type QueuePair interface {
	// Post posts ws, in order, with one doorbell. It returns how many were taken; fewer
	// than all come with an error: ErrFull, ErrWindow, ErrDisconnected, or a *WorkError
	// that says what is wrong with the next. It never blocks.
	Post(ws []Work) (int, error)
	// PostReceive is that of ReceiveQueue, for queue pairs with their own receives.
	PostReceive(rs []Receive) (int, error)
	// OneShot returns what was agreed, or nil.
	OneShot() *OneShot
	// Endpoint describes the store at the far end, or is nil if the peer is an ordinary one. It does not
	// change: an endpoint that changes ends its queue pairs.
	Endpoint() *Endpoint
	// Reads returns how many Reads may be outstanding at a time. More can be posted; they
	// wait.
	Reads() int
	// Revoke takes the access of an advertised STag away that the peer will not close.
	// done is called when nothing refers to the memory any more, perhaps before Revoke
	// returns, and at the latest when the connection has ended. At the end that the STag was
	// advertised to, Revoke forgets it: it counts no longer against the window, and is not
	// to be closed.
	Revoke(s STag, done func()) error
	// PeerData returns the private data that the peer has sent, without the container of
	// one-shot.
	PeerData() []byte
	LocalAddr() net.Addr
	RemoteAddr() net.Addr
	Context() any
	Counters() Counters
	// Disconnect ends the connection in good order, after what is posted has been sent.
	Disconnect()
	// Abort ends it at once. An err with a method Terminate() (layer, etype, code uint8),
	// as stag.Error has it, is told to the peer.
	Abort(err error)
	// Close aborts, waits until everything posted has completed or, if the completion queue
	// is not polled, is in the queue, and frees the queue pair. It must not be called from
	// an event or from Disconnected. After an offence it may take as long as the peer is
	// given to hear of it.
	Close() error
}

// Awaiter is a queue pair whose owner can wait for completions in his own goroutine, which makes them: no other
// one has to be woken, nor to wake him.
type Awaiter interface {
	// Await returns when there may be completions, after a millisecond or so in any case. It returns false at once if
	// there is nothing to wait for in this way: then Arm is the way, and Await once more before one sleeps, because the
	// provider may have stepped aside in between. No lock is held that the event function takes.
	Await() bool
}

// ConnParams are what the two ends tell each other when they connect.
type ConnParams struct {
	// PrivateData is the upper layer's, at most Limits.MaxPrivate bytes, and 20 less if
	// OneShot is set: its container stands behind the first four bytes, which are there,
	// zero, even if the data is shorter.
	PrivateData []byte
	// InitiatorDepth is how many Reads this end wants outstanding, ResponderResources how
	// many it serves. 0: as many as the device can.
	InitiatorDepth, ResponderResources int
	// OneShot, if set, is offered by Connect, and is what Accept may agree to.
	OneShot *OneShotOffer
	// Rights are wanted of an endpoint; 0: all that this user may have. Beside these, or alone, RightSole may be wanted.
	Rights Rights
	// Former, if set, is a queue pair of the same device and to the same endpoint, which its owner has closed, and whose works he is
	// about to post again. Connect returns when nothing of it is under way at the endpoint, and fails with ErrReplaced if
	// somebody has been granted RightSole since.
	Former QueuePair
}

// OneShotOffer is what an end is willing to do.
type OneShotOffer struct {
	Flags, Opcodes bool // encodings: FIG 5B, FIG 5A; flags are preferred
	Validated      bool // the STag field may be left out where it has no meaning (mode V)
	Advertise      bool
	Close          bool
	// Window: Connect: STags that this end wants outstanding; Accept: the most it allows.
	Window uint32
}

// OneShot is what two ends have agreed.
type OneShot struct {
	Opcodes   bool // FIG 5A, otherwise FIG 5B
	Validated bool // mode V, otherwise mode E
	Advertise bool
	Close     bool
	Window    uint32
}

// Listener waits for connections.
type Listener interface {
	// Accept returns the next request. It fails with net.ErrClosed after Close.
	Accept() (Request, error)
	Addr() net.Addr
	// Close ends the listener; requests that were returned stay. The owner calls it also after Accept has failed.
	Close() error
}

// Request is a connection that a peer wants. Accept or Reject ends it; the provider gives up
// by itself when the owner takes too long.
type Request interface {
	// Device is where the queue pair has to be made.
	Device() Device
	PeerData() []byte
	LocalAddr() net.Addr
	RemoteAddr() net.Addr
	// Accept connects qp, which becomes usable at once: receives have to be posted before.
	// What is posted to send may have to wait until the peer has sent something.
	Accept(qp QueuePair, p ConnParams) error
	// Reject refuses, and tells the peer data.
	Reject(data []byte) error
}

// Errors of calls.
var (
	// ErrFull: MaxWork or MaxRecv requests are posted; go on when some have completed.
	ErrFull = errors.New("rdma: queue is full")
	// ErrWindow: as many STags are advertised as the peer allows; go on after a Closed.
	ErrWindow = errors.New("rdma: the peer's window of advertised STags is used up")
	// ErrDisconnected: the connection has ended or was never made.
	ErrDisconnected = errors.New("rdma: not connected")
	// ErrNoEndpoint: there is no endpoint of that name, or none for this user.
	ErrNoEndpoint = errors.New("rdma: no such endpoint")
	// ErrReplaced is what an error is (errors.Is) that says that the same user has come to the endpoint with another queue pair, as
	// the only one who changes octets (RightSole). Works that have failed for it are not to be repeated.
	ErrReplaced = errors.New("rdma: the same user writes to the endpoint from elsewhere now")
	// ErrRemoteAccess is what an error is (errors.Is) that says why a connection has ended, if the peer has refused
	// access to its memory.
	ErrRemoteAccess = errors.New("rdma: the peer refuses access to its memory")
	// ErrInUse: other memory has that name.
	ErrInUse = errors.New("rdma: other memory is registered under that steering tag")
	// ErrUnsupported: the device cannot do that; see Limits.
	ErrUnsupported = errors.New("rdma: not supported by the device")
	// ErrDeviceLost is what an error is (errors.Is) that says that the device has gone for good: nothing can be made of it
	// any more.
	ErrDeviceLost = errors.New("rdma: the device has gone")
)

// RejectedError says that the peer refused the connection.
type RejectedError struct {
	Addr        string
	PrivateData []byte // of the refusal
}

func (e *RejectedError) Error() string {
	return "rdma: " + e.Addr + " refuses the connection"
}
