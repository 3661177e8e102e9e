// Package backend holds the block stores: what a logical unit keeps its bytes in.
//
// A store is asked with operations. An operation is a value that the caller owns, fills
// and hands to Submit; the store answers at once when nothing blocks, and otherwise later
// and in any order, through the operation's Completer. Stores know bytes and offsets;
// blocks, commands and sense data are for package scsi.
package backend

import "fmt"

// Kind says what an operation does.
type Kind uint8

// The kinds of operation.
const (
	// Read fills Segs from [Off, Off+Len).
	Read Kind = iota
	// Write stores Segs at [Off, Off+Len).
	Write
	// Flush makes durable every write that had completed when it was submitted. Off and
	// Len are ignored.
	Flush
	// Discard gives the space of [Off, Off+Len) back; the range reads as zeroes afterwards.
	// Parts smaller than the store's discard granularity are overwritten with zeroes.
	Discard
	// WriteZeroes makes [Off, Off+Len) read as zeroes and keeps it allocated where the store
	// tells the difference.
	WriteZeroes
	// Status asks whether the byte at Off is mapped and how far that state extends, at most
	// to Off+Len: the answer is in Op.Mapped and Op.Extent.
	Status
)

var kindNames = [...]string{"read", "write", "flush", "discard", "write-zeroes", "status"}

func (k Kind) String() string {
	if int(k) < len(kindNames) {
		return kindNames[k]
	}
	return fmt.Sprintf("kind(%d)", uint8(k))
}

// Flags modify an operation.
type Flags uint8

const (
	// FUA (force unit access): a write completes only when its bytes are durable; a read
	// takes its bytes from the medium, after any volatile cache of the store has reached it.
	FUA Flags = 1 << iota
	// Fence: the operation does not start before every operation submitted to the store
	// earlier has completed.
	Fence
	// Barrier: everything submitted earlier is completed and durable before the operation
	// starts, and the operation itself is durable when it completes.
	Barrier
	// More: further operations follow at once, so a Batcher need not start this one before
	// Kick, which the caller has to call. Other stores ignore it.
	More
	// Atomic: a write leaves all of its bytes or none, whatever happens to the store or to the
	// machine. Only for an AtomicWriter, and of at most MaxAtomic bytes.
	Atomic
)

// Op is one operation. The caller owns it and everything it points to, lends both to the
// store with Submit, and has them back at completion.
type Op struct {
	Kind  Kind
	Flags Flags
	Off   int64    // bytes; a multiple of Info.BlockSize
	Len   int64    // bytes; a multiple of Info.BlockSize; the sum of Segs for Read and Write
	Segs  [][]byte // Read, Write: where the bytes go or come from, in order
	Done  Completer
	Term  uint64 // if not 0, that of a Termed store in which the operation has to take place, else it fails with a *MovedError
	Key   uint64 // if not 0, a command that compares and writes, by whoever has sent it: its Read and its Write of one range have it, see Did

	// Results, valid at completion.
	Err    error // nil, or one of this package's error types
	Mapped bool  // Status: the byte at Off has space of its own
	Extent int64 // Status: bytes from Off, within Len, that share this state; at least one block
	Did    bool  // Read with a Key: another process has served the store not long ago, and did the Write; nothing was written there since
	// Durable: what was changed is durable, though neither Flags nor the lack of a cache (Info.VolatileCache) says so. The caller clears it.
	Durable bool

	// Private is for the store while it has the operation.
	Private uint64
	next    *Op // in a Queue
}

// Completer is told of operations that did not complete within Submit. OpDone is called
// exactly once per such operation, from a goroutine of the store's; it must not block.
type Completer interface {
	OpDone(*Op)
}

// Corker is a Completer that acts on several completions more cheaply than on each by itself.
// A store that has several at hand calls Cork for each, then OpDone for each, and then Uncork
// of what Cork has returned, once per call, unless that is nil. Neither blocks.
type Corker interface {
	Completer
	Cork() Uncorker
}

// Uncorker acts on what was completed since Cork.
type Uncorker interface{ Uncork() }

// Cork calls c.Cork if c is a Corker, and returns nil if it is none. Stores use it, and wrappers, which pass on that
// more operations of a caller end at once.
func Cork(c Completer) Uncorker {
	if c, ok := c.(Corker); ok {
		return c.Cork()
	}
	return nil
}

// OverdueTicks is for how many ticks of a second a command, a request, or a work may be under way before it is late: whoever has sent it may have
// given it up, without anybody having heard of that here. No initiator, host or client gives a path up sooner than that for its silence.
const OverdueTicks = 3

// Aged is what the Completer of an operation may be, too, that its owner has had for a while before he submitted it. It is for who keeps
// what comes late from octets that others have changed since (volume.Handle).
type Aged interface {
	// Age returns for how many ticks of a second the owner has had it, and, if that is long, the guard of its range, which stays his.
	Age() (ticks uint8, g Guard)
}

// Guard has ended when somebody else has come to change octets that it stands for, or when it is revoked.
type Guard interface {
	Ended() bool
	Revoke()
}

// Age calls c.Age if c is Aged. Wrappers pass it on.
func Age(c Completer) (ticks uint8, g Guard) {
	if a, ok := c.(Aged); ok {
		return a.Age()
	}
	return 0, nil
}

// Leaver is what the Completer of an operation may be, too, whose owner can do without the memory that its Segs name.
type Leaver interface {
	// Leave leaves that memory to the store, which is about to complete the operation with an error although a medium that hangs may still
	// write there. The store calls free, once and from any goroutine, when it does not any more; the list of Segs it does not need after the
	// completion. Not ok: the owner needs the memory, and the store has to wait before it completes the operation.
	Leave() (free func(), ok bool)
}

// Leave calls c.Leave if c is a Leaver.
func Leave(c Completer) (free func(), ok bool) {
	if l, isLeaver := c.(Leaver); isLeaver {
		return l.Leave()
	}
	return nil, false
}

// Info describes a store. It does not change while the store is open, except the size, where
// the store is a Resizer.
type Info struct {
	Size               int64 // bytes
	BlockSize          int   // unit and alignment of Off and Len, a power of two
	PhysicalBlockSize  int   // bytes, a power of two: what the medium writes in one piece; 0: BlockSize
	DiscardGranularity int64 // bytes; 0: Discard never gives space back
	StatusUnknown      bool  // Status says "mapped" of everything: the store cannot tell where it gave space back
	OptimalIO          int64 // bytes; 0: none preferred
	VolatileCache      bool  // completed writes may be lost by a power cut until flushed
}

// Store is a block store. Submit and Info may be called from any number of goroutines;
// Close only when no operation is outstanding.
type Store interface {
	Info() Info
	// Submit starts op and reports whether it has completed already: true, the results are
	// in op and Done is not called; false, op.Done.OpDone(op) follows. A store refuses an
	// operation outside its size by completing it with a *RangeError.
	Submit(op *Op) bool
	// Close makes durable what has been written, and releases the store.
	Close() error
}

// AtomicWriter is a store that takes writes with the flag Atomic.
type AtomicWriter interface {
	Store
	// MaxAtomic returns how many bytes such a write can have. It never changes.
	MaxAtomic() int64
}

// Lender is a store that lives in memory and can lend it, so that bytes go between wire and
// medium without a copy in between.
type Lender interface {
	Store
	// Lend appends to segs the memory of [off, off+n), which must lie within the store, and
	// returns the extended slice.
	//
	// Without write the caller reads. The memory stays valid until Close, and shows what others
	// write to it meanwhile.
	//
	// With write the range is of whole blocks, and lent until Commit, which has to follow: soon,
	// and without waiting for anything in between, neither this store nor another. So long nobody
	// else changes these blocks, whether by Submit or in lent memory, so that a block is always
	// one writer's. Bytes that the caller does not change stay.
	Lend(segs [][]byte, off, n int64, write bool) [][]byte
	// Commit ends a Lend with write of the same range: the bytes are in the store, as if they had
	// been written with Submit, and the range counts as mapped.
	Commit(off, n int64)
	// Map has the memory of [off, off+n), as Lend without write returns it, be written to by its user until Unmap of
	// the same range, for as long as he likes and beside everybody else. Meanwhile the range counts as mapped, and
	// Discard clears it without giving space back. Nothing keeps such bytes from being mixed with those of others.
	Map(off, n int64)
	Unmap(off, n int64)
}

// Batcher is a store that starts operations more cheaply in batches: those submitted with
// More begin, at the latest, with Kick. Kick is called from any number of goroutines and does
// not block; it may start operations of other callers too.
type Batcher interface {
	Store
	Kick()
}

// Prompt is a store that can tell which reads need not wait.
type Prompt interface {
	Store
	// ReadNow does op, a Read without flags, if that takes no waiting, and reports whether it did. If it did not, the read would have to wait or
	// has failed: the bytes that op.Segs refer to may have changed, op itself has not, and may be given to Submit. op.Done is not called in either
	// case. ReadNow may be called from any number of goroutines.
	ReadNow(op *Op) bool
}

// Awaiter is a store whose completions somebody can wait for where he is, in place of a goroutine of the store
// that would have to wake him.
type Awaiter interface {
	Store
	// Await waits until the store has completed something, and calls the Completers before it returns: those of
	// others, too. It returns after a millisecond or so in any case. It returns false at once when there is nothing
	// to wait for, or others see to it. Who calls it holds no lock that a Completer takes. After Submit has been
	// called for the last time, Close may be called as soon as nothing is outstanding, as always.
	Await() bool
}

// RangeError says that an operation reaches beyond the store. It is the caller's mistake.
type RangeError struct {
	Kind          Kind
	Off, Len, Max int64 // bytes
}

func (e *RangeError) Error() string {
	return fmt.Sprintf("%s of %d bytes at %d is outside the store of %d bytes", e.Kind, e.Len, e.Off, e.Max)
}

// MediumError says that bytes could not be read or written. Off is the first of them as
// far as the store can tell.
type MediumError struct {
	Kind Kind
	Off  int64 // bytes
	Err  error
}

func (e *MediumError) Error() string { return fmt.Sprintf("%s at byte %d: %v", e.Kind, e.Off, e.Err) }
func (e *MediumError) Unwrap() error { return e.Err }

// SpaceError says that the medium below the store has no room for a write.
type SpaceError struct {
	Off int64 // bytes
	Err error
}

func (e *SpaceError) Error() string {
	return fmt.Sprintf("no space for the write at byte %d: %v", e.Off, e.Err)
}
func (e *SpaceError) Unwrap() error { return e.Err }

// DeniedError says that somebody who may decide that does not allow an operation now: a reservation, say.
type DeniedError struct {
	Kind Kind
	Why  string
	Late bool // it was allowed once; its user has been given up since, or may have been
}

func (e *DeniedError) Error() string { return fmt.Sprintf("%s is not allowed: %s", e.Kind, e.Why) }

// Check returns a *RangeError if op reaches outside a store of size bytes.
func (op *Op) Check(size int64) error {
	if op.Kind == Flush {
		return nil
	}
	if op.Off < 0 || op.Len < 0 || op.Off > size || op.Len > size-op.Off {
		return &RangeError{Kind: op.Kind, Off: op.Off, Len: op.Len, Max: size}
	}
	return nil
}
