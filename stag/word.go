package stag

// STag is a steering tag: slot index << 8 | key. 0 is never one.
type STag uint32

const keyBits = 8

func (s STag) index() uint32 { return uint32(s) >> keyBits }
func (s STag) key() uint8    { return uint8(s) }

// State is the state of an STag (for one-shot STags: one-shot.md §4).
type State uint8

const (
	Free State = iota

	Valid         // conventional region, access allowed
	Invalid       // conventional region, invalidated
	deregistering // conventional region, Deregister waits for references

	Reserved   // allocated, its value returned to the driver
	Bound      // memory, rights and stream set: access allowed
	Advertised // its Send was given to TCP: access allowed
	Closing    // closed by the peer, references left
	Released   // closed; the driver has not consumed the completion yet
	Revoked    // taken back locally, or the stream ended
)

func (s State) String() string {
	return [...]string{
		"FREE", "VALID", "INVALID", "DEREGISTERING",
		"RESERVED", "BOUND", "ADVERTISED", "CLOSING", "RELEASED", "REVOKED",
	}[s]
}

// accessible reports whether new access is allowed.
func (s State) accessible() bool { return s == Valid || s == Bound || s == Advertised }

// Access is what may be done with a region.
type Access uint8

const (
	AccessRemoteRead       Access = 1 << iota // RDMA Read by the peer: the source of a storage write
	AccessRemoteWrite                         // RDMA Write by the peer: the sink of a storage read
	AccessLocalWrite                          // sink of RDMA Reads of our own
	AccessRemoteInvalidate                    // Send with Invalidate; one-shot STags need no leave
)

var accessOf = [opCount]Access{
	RemoteWrite: AccessRemoteWrite, ReadResponse: AccessLocalWrite, RemoteRead: AccessRemoteRead,
}

// word holds those parts of a slot that have to change together:
//
//	63       48  47   40  39    32  31   28  27        0
//	generation | key    | access  | state  | references
//
// Generation and key count the uses of the slot, as one number. A compare-and-swap that
// succeeds thus proves that everything read from the slot since the word was loaded belongs
// to the same use.
type word uint64

const (
	refsMask    word = 1<<28 - 1
	stateShift       = 28
	stateMask   word = 0xf << stateShift
	accessShift      = 32
	accessMask  word = 0xff << accessShift
	useShift         = 40
)

func (w word) refs() uint32   { return uint32(w & refsMask) }
func (w word) state() State   { return State(w & stateMask >> stateShift) }
func (w word) access() Access { return Access(w & accessMask >> accessShift) }
func (w word) key() uint8     { return uint8(w >> useShift) }

func (w word) withState(s State) word { return w&^stateMask | word(s)<<stateShift }
func (w word) withAccess(a Access) word {
	return w&^accessMask | word(a)<<accessShift
}

// nextUse returns the word of the next use of a slot without references.
func (w word) nextUse(s State) word { return (w>>useShift+1)<<useShift | word(s)<<stateShift }

// useOf returns the word of the next use of a slot without references that has that key.
func (w word) useOf(key uint8) word {
	use := w>>useShift + 1
	return (use+word(key-uint8(use)))<<useShift | word(Valid)<<stateShift
}
