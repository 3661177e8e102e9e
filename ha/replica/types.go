package replica

import (
	"iter"
	"math/bits"
	"time"
)

// ID numbers a node of the cluster, from 0 to 15.
type ID uint8

// Nodes is a set of nodes.
type Nodes uint16

// NodesOf returns the set of ids.
func NodesOf(ids ...ID) Nodes {
	var n Nodes
	for _, id := range ids {
		n = n.With(id)
	}
	return n
}

func (n Nodes) Has(id ID) bool      { return n&(1<<id) != 0 }
func (n Nodes) With(id ID) Nodes    { return n | 1<<id }
func (n Nodes) Without(id ID) Nodes { return n &^ (1 << id) }
func (n Nodes) Len() int            { return bits.OnesCount16(uint16(n)) }

// All yields the members, lowest number first.
func (n Nodes) All() iter.Seq[ID] {
	return func(yield func(ID) bool) {
		for id := ID(0); n>>id != 0; id++ {
			if n.Has(id) && !yield(id) {
				return
			}
		}
	}
}

// View is what the nodes have agreed on. Who proposes one gives it the version that follows the one that he knows;
// consensus accepts it only if that is still the newest.
type View struct {
	Version uint64
	Term    uint64 // grows with each primary
	Primary ID
	Life    uint32 // Config.Incarnation of a primary that has proposed itself: another life of it does not take this for its own
	InSync  Nodes  // S: the copies that hold everything that was acknowledged
	First   uint64 // the first sequence number of Term
	Planned bool   // the primary before handed over: its log ended with First-1, and Primary has all of it
}

// Config is the same on all nodes but for Self and Incarnation. Sizes are in bytes.
type Config struct {
	Self        ID
	Incarnation uint32 // another one at each start
	Copies      Nodes  // the nodes that have a copy
	Quorum      int

	// MinCopies is the fewest members of S with which something is written. With fewer, writes wait until enough copies
	// are level. The view may have fewer: a member that has lost its power leaves S, and returns.
	MinCopies int

	Stores  []Store // in the order of their places
	Granule int64   // of bitmaps
	Region  int64   // a multiple of Granule
	Heap    int64   // memory for data of records, a power of two of Units; a quarter, at least a Granule, is for copies and repairs
	Unit    int64   // what the heap allocates in
	Ring    int     // the most records in the log

	Heartbeat  time.Duration
	Lease      time.Duration // of the primary, from when it sent the beat that was answered
	Grace      time.Duration // of a member, from when it received a beat; longer than Lease by more than clocks differ
	Confirm    bool          // reads are confirmed by members; otherwise a lease is enough, which needs clocks that never stop
	SlowCopy   time.Duration // a copy that is behind by more is dropped; by 2/5 of it while the heap is half full
	FlushEvery time.Duration // the primary flushes by itself
	SaveEvery  time.Duration // bitmaps are saved, and regions cleared
	Copying    int           // granules on their way to a copy that is brought level
}

// Kind is what a record does.
type Kind uint8

const (
	KindWrite  Kind = iota + 1
	KindZero        // the range reads as zeroes; no data
	KindResync      // a granule of the primary's disk for Copy alone; nothing to do for others
	KindClean       // Copy has the granule: its bit is cleared
	KindGrow        // the store ends with the range, which reads as zeroes
	KindFit         // the same for Copy alone: the others have done it
	KindCheck       // all hash the range
	KindNone        // a KindResync whose data the sender does not have
	KindLost        // Copy does not have the range, and cannot get it: no member can read it
)

// Record is an entry of the log, in one order on all nodes.
type Record struct {
	Term, Seq uint64
	Kind      Kind
	Copy      ID // of KindResync, KindClean and KindFit
	Off, Len  int64
	Addr      int64 // where the data is in the heap, the same on all nodes
	Sum       uint32
	Key       uint64 // of a COMPARE AND WRITE: names initiator port and command; 0 for others
	Atomic    bool   // each copy writes all of it or nothing, whatever happens to it
}

// Digest is a hash of a range.
type Digest [16]byte

// HasDataFor says whether the record brings data to a copy.
func (r *Record) HasDataFor(id ID) bool {
	return r.Kind == KindWrite || r.Kind == KindResync && r.Copy == id
}

// changes says whether the record changes the disk of a copy.
func (r *Record) changes(id ID) bool {
	switch r.Kind {
	case KindZero, KindGrow:
		return true
	case KindFit, KindLost:
		return r.Copy == id
	}
	return r.HasDataFor(id)
}

// orders says whether the record waits on that node for earlier ones that it overlaps, and later ones for it.
func (r *Record) orders(id ID) bool { return r.Kind == KindCheck || r.changes(id) }

// isWritten says whether the record's range has, at this place in the order, what the host has written.
func (r *Record) isWritten() bool { return r.Kind == KindWrite || r.Kind == KindZero }

func (r *Record) overlaps(off, n int64) bool { return r.Off < off+n && off < r.Off+r.Len }

// Result is the end of a COMPARE AND WRITE that was done, kept for the initiator that asks again after a takeover.
type Result struct {
	Key, Term, Seq uint64
	Off, Len       int64
}

// Memory is what the log's shared memory holds when the process ends. It is gone when the power is.
type Memory struct {
	Base     uint64 // sequence number before the first of Log
	Log      []Record
	Applied  uint64
	Trim     uint64
	Results  []Result
	View     View   // the newest that the node has known: an older one is not believed
	Promised uint64 // version for which the node has given a promise, 0: none
	To       ID
}

// Saved is what the metadata on the node's disk holds.
type Saved struct {
	Mark    uint64 // all records up to it were durable
	Regions Bits
	Bitmaps [16]Bits // by copy
	View    View     // to which Bitmaps belong: an older one is not believed
	Missing Bits     // as of Mark: the sectors that this copy does not have, see missing.go

	// Unknown: the disk is not as the rest tells: another one, or set back. Nothing on it counts, and so nothing in
	// Memory. Whoever finds it out sets this durably before New, and makes the stores as large as they were; Save.Known
	// clears it.
	Unknown bool
}
