package rdma

import "time"

// Order says how the works of one queue pair to one endpoint may run and complete. "<" below is the order of
// posting. To ordinary peers all queue pairs are strict.
//
// A work is complete when its completion is in the queue. It is visible when every operation at the endpoint
// that starts later, through whatever queue pair, sees its bytes: a Write, Discard or atomic operation that
// is complete is visible. It is durable when its bytes are on the medium; in a store in memory nothing ever
// is, and what waits for durability waits for nothing.
//
//   - O1: Strict: effects and completions are those of one work after the other, except that a Write may
//     become visible before an earlier Read has read (RFC 5040 §5.5). A fence forbids that. To other queue pairs, too, an
//     atomic operation is visible when all before it are complete, and nothing behind it before. Of other works without a
//     fence, they may see one before an earlier one that it does not overlap.
//   - O2: FreeStart: works without a fence start in any order and in parallel, even on the same octets.
//     Overlapping Writes leave, octet by octet, the bytes of either. A Read that overlaps one reads, octet by
//     octet, old or new.
//   - O3: FreeFinish: completions come in any order, each signalled work exactly once, as soon as it is
//     complete. Without it they come in the order of posting, though works ran in parallel.
//   - O4: FreeFinish without FreeStart: works start in order, and each is reported as it ends.
//   - O5: Fence on w: w starts when all works < w are complete, in whatever way they ended. Works > w are not
//     held back: who wants w1 < w2 < w3 fences w2 and w3.
//   - O6: Broken chain: if a work since the last fence has failed, a work with Fence or Barrier is not
//     executed and completes with StatusFenced. The fence counts as seen, and the next may run. So a commit
//     record never follows a lost body.
//   - O7: Barrier on w: before w starts all works < w are complete and their effects durable; w itself is
//     durable when it completes. Barrier implies Fence.
//   - O8: OpFlush makes durable the works that were complete when it started; with Fence, all works < it. On a
//     strict queue pair it is always fenced.
//   - O9: Between queue pairs, whatever their providers: w2, posted after the completion of w1 was polled,
//     sees w1. Nothing else. What is not complete may be done again when a connection is lost and made anew: Writes
//     w1 < w2 as w1, w2, w1, w2, though somebody has seen w2 and written since where w1 writes. So a Write that lets
//     others change octets, as one does that releases a lock, has a Fence, or is posted when what is before it is complete.
//     A Read may fail the second time, though what had to come behind it was done after the first.
//   - O10: RelaxedOrder on a work of a strict queue pair is FreeStart for that work; its completion stays in
//     order.
//   - O11: Unsignalled with FreeFinish: there is no completion if the work ends well, and no later one stands
//     for it. Its memory is the owner's again after the completion of a later work with Fence.
//   - O12: Durable never comes before visible. What completed with StatusOK and Durable, or is covered by a
//     flush that completed, outlives a power cut. Without either it may vanish as a whole or in part, unit by
//     unit. A Write or Discard that has failed with StatusMedium, StatusSpace or StatusLost is done in any of its units, or in none.
//   - O13: Atomic operations are atomic among those of the endpoint, whatever the queue pair, and against
//     COMPARE AND WRITE of a logical unit on the same volume; where the store is memory that it lends, also
//     against single stores of 8 octets. Never against a longer Write.
type Order uint8

// OrderStrict is one after the other (O1). It is the default.
const OrderStrict Order = 0

// The freedoms, which may be combined.
const (
	FreeStart  Order = 1 << iota // O2
	FreeFinish                   // O3
)

// Rights are what a queue pair may do at an endpoint. A Read, Write or Discard of no octets needs none.
type Rights uint8

// The rights, with the letters that partition tables use.
const (
	RightRead    Rights = 1 << iota // r: OpRead
	RightWrite                      // w: OpWrite
	RightFlush                      // f: OpFlush, Barrier, Durable
	RightAtomics                    // a: OpCompareSwap, OpFetchAdd
	RightDiscard                    // d: OpDiscard
	RightManage                     // m: changes of the partition itself

	AllRights = RightRead | RightWrite | RightFlush | RightAtomics | RightDiscard | RightManage

	// RightSole is no right of a table, but a wish (ConnParams.Rights) that is granted to whoever may change octets: it ends the
	// queue pairs to the same partition that the same user has had before and that may change octets, and Connect returns when
	// nothing of theirs is under way. What is late of an earlier life of a program, or of a connection that it has given up, is
	// not done any more. Those that come later are not kept out: a later wish of this kind ends this queue pair (ErrReplaced).
	RightSole Rights = 1 << 7
)

// Changes reports whether octets may be changed with r.
func (r Rights) Changes() bool { return r&(RightWrite|RightAtomics|RightDiscard) != 0 }

const rightLetters = "rwfadm"

// String returns the letters of the rights.
func (r Rights) String() string {
	var b []byte
	for i := range len(rightLetters) {
		if r&(1<<i) != 0 {
			b = append(b, rightLetters[i])
		}
	}
	return string(b)
}

// Durability is what a flush of an endpoint outlives.
type Durability uint8

const (
	DurabilityNone    Durability = iota // nothing: the bytes go with the process
	DurabilityProcess                   // the end of the process that serves it
	DurabilityMedium                    // a power cut
)

func (d Durability) String() string {
	return [...]string{"none", "process", "medium"}[d]
}

// Endpoint describes the store at the far end of a queue pair.
type Endpoint struct {
	Name       string // STORE/PARTITION
	UUID       string // of the partition, RFC 9562 §4; empty: it has none
	STag       STag   // RemoteSTag of all works, of this queue pair alone
	Base       uint64 // RemoteOffset of its first octet
	Size       int64  // octets
	Unit       int    // RemoteOffset, as far as it differs from Base, and lengths are multiples of so many octets
	Rights     Rights // granted
	Durability Durability
	Direct     bool          // Reads and Writes reach the memory by themselves; then Writes have no Seq
	Aging      time.Duration // the store flushes by itself so often that a Write is durable after that; 0: it does not
}

// Generation is that of a number of Completion.Seq or Completion.Durable: its upper 16 bits. A store that is
// opened again numbers with another one, so that old and new numbers never meet. Who sees it change knows that
// what was above the old watermark may be gone.
func Generation(n uint64) uint16 { return uint16(n >> 48) }

// Atomics is against whom atomic operations are atomic (O13).
type Atomics uint8

const (
	AtomicsNone   Atomics = iota // there are none
	AtomicsDevice                // among those through this device
	AtomicsAll                   // among all, whatever the device, and against COMPARE AND WRITE
)

// Mapper is a QueuePair to an endpoint whose octets may be had as memory, without an operation or a copy. Of devices
// that bring operations to other processes none is one.
type Mapper interface {
	// Map maps octets [off, off+n) of the endpoint, counted from Endpoint.Base and in whole units, n > 0, to read them
	// or, with write, to read and write them. That needs the rights to do so. A store that does not keep its octets in
	// memory gives ErrUnsupported; a range or a right that is missing, a *WorkError, and the connection stands; as
	// many mappings as MaxWork, ErrFull.
	Map(off uint64, n int64, write bool) (*Mapping, error)
}

// Mapping is memory of an endpoint. What is written to it is visible at once, has no number, and is as durable as the
// endpoint says of the store (Durability). It has no order with works, but for what its user has seen complete. Nothing
// is atomic in it but single loads and stores of aligned 8 octets, and sync/atomic, also against atomic works.
//
// A mapping is an operation under way: the partition is not made smaller, deleted or closed before Unmap, nor is the
// volume sanitized; who wants that waits, or gives up. The mapping outlives its connection.
type Mapping struct {
	// Bytes is the memory, which must not be touched after Unmap, nor written to without the right to.
	Bytes []byte
	// Recalled is closed when the memory should be given back: a right was revoked, the partition changes, the
	// endpoint may not do such operations now, or the connection has ended.
	Recalled <-chan struct{}
	// Unmap gives the memory back. Calls after the first do nothing.
	Unmap func()
}

// Exposed is what an Exposer lets its peer reach: octets that the owner wants to hear of, each time that somebody
// reads or writes some. Its methods may be called from any goroutine, with locks of the provider held: they do not
// call the device, and do not block for long.
type Exposed interface {
	// ReadAt fills b from octet off on, WriteAt writes b there. The provider has checked right and range, and
	// keeps b. An error ends the connection, and the peer is told that access is refused.
	ReadAt(b []byte, off int64) error
	WriteAt(b []byte, off int64) error
}

// Exposer is a QueuePair that can let its peer reach octets by RDMA Read and Write that are not a region: the peer
// does not see the difference. An FPDU, or whatever the network carries a part of an operation in, is written only
// when all of it is there and its checksum was good: so an STag or offset that the network has damaged does no
// harm, nor does it change what is beside the range.
type Exposer interface {
	// Expose gives the peer of this queue pair, and nobody else, size octets of x, from tagged offset 0 on, with
	// AccessRemoteRead, AccessRemoteWrite or both. It lasts until Withdraw, or the end of the connection.
	Expose(x Exposed, size int64, a Access) (STag, error)
	// Withdraw ends the access. Calls that are under way go on, and it does not wait for them; none begins any more.
	Withdraw(s STag)
}
