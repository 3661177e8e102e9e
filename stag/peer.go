package stag

import (
	"errors"
	"math/rand/v2"
)

// Errors of Host 2's own calls.
var (
	ErrNotHeld     = errors.New("stag: STag was not advertised or is closed")
	ErrReads       = errors.New("stag: RDMA Reads on the STag have not completed; close it after them")
	ErrClosePosted = errors.New("stag: close of the STag is already posted")
)

// HeldState is what Host 2 knows of an STag (one-shot.md §4).
type HeldState uint8

const (
	Unknown     HeldState = iota
	Held                  // advertised to us
	Busy                  // RDMA Reads or Writes posted against it
	ClosePosted           // the closing Send is posted
)

func (s HeldState) String() string { return [...]string{"UNKNOWN", "HELD", "BUSY", "CLOSE-POSTED"}[s] }

// Peer is Host 2's table of the STags that the other end of one stream has advertised. It holds
// at most as many STags as the window allows, and those that were forgotten while operations on
// them are posted; that bounds its memory. One goroutine at a time may use it: the owner has a
// lock of its own.
//
//	heads    first entry by hash of the STag ─► entries, chained by next
//	entries  keep their index as long as they are in use, so that an operation can refer to its entry
type Peer struct {
	window int
	seed   uint32 // of the hash: the peer chooses the STags, but must not choose their chains
	held   int    // entries that count against the window

	entries []heldTag
	heads   []At // its length is a power of two, and the most entries before both grow
	free    At   // first entry that is not in use; the others follow by next
}

// At is the index of an STag in a Peer. It is valid until the STag is closed, or is forgotten and has no
// operations any more.
type At int32

const nowhere At = -1

type heldTag struct {
	tag    STag // 0: not in use
	next   At
	reads  int32
	writes int32
	closed bool // the close is posted
	gone   bool // forgotten, but operations are still posted
}

func (h *heldTag) state() HeldState {
	switch {
	case h.closed:
		return ClosePosted
	case h.reads+h.writes > 0:
		return Busy
	}
	return Held
}

// NewPeer returns a table for a stream whose window is the one granted to Host 1.
func NewPeer(window int) *Peer { return &Peer{window: window, seed: rand.Uint32(), free: nowhere} }

// Advertise handles the delivery of a Send with Advertise: the STag is Held from now on. Errors are of
// type *Error and the peer's fault: A1 STag 0, A2 advertised twice, A3 window exceeded.
func (p *Peer) Advertise(s STag) error {
	switch {
	case s == 0:
		return &Error{Advertise, InvalidSTag, s}
	case p.find(s) != nowhere:
		return &Error{Advertise, AlreadyHeld, s}
	case p.held >= p.window:
		return &Error{Advertise, WindowExceeded, s}
	}
	if p.free == nowhere {
		p.grow()
	}
	at, head := p.free, p.head(s)
	p.free = p.entries[at].next
	p.entries[at] = heldTag{tag: s, next: *head}
	*head = at
	p.held++
	return nil
}

// PostRead notes that an RDMA Read on a Held STag is posted, PostWrite does so for an RDMA Write. ReadDone
// and WriteDone note that the operation has completed.
func (p *Peer) PostRead(s STag) (At, error)  { return p.post(s, 1, 0) }
func (p *Peer) PostWrite(s STag) (At, error) { return p.post(s, 0, 1) }
func (p *Peer) ReadDone(at At, s STag)       { p.done(at, s, 1, 0) }
func (p *Peer) WriteDone(at At, s STag)      { p.done(at, s, 0, 1) }

func (p *Peer) post(s STag, reads, writes int32) (At, error) {
	at, h, err := p.open(s)
	if err == nil {
		h.reads, h.writes = h.reads+reads, h.writes+writes
	}
	return at, err
}

// open finds an STag on which operations may be posted.
func (p *Peer) open(s STag) (At, *heldTag, error) {
	at := p.find(s)
	if at == nowhere || p.entries[at].gone {
		return at, nil, ErrNotHeld
	}
	h := &p.entries[at]
	if h.closed {
		return at, h, ErrClosePosted
	}
	return at, h, nil
}

// done ignores STags that are not held: they were closed after Writes for which nobody waits.
func (p *Peer) done(at At, s STag, reads, writes int32) {
	h := p.entry(at, s)
	if h == nil {
		return
	}
	h.reads, h.writes = h.reads-reads, h.writes-writes
	if h.reads < 0 || h.writes < 0 {
		panic("stag: more operations completed than posted")
	}
	if h.gone && h.reads+h.writes == 0 {
		p.remove(at)
	}
}

// entry returns the entry of s, or nil if s is not at this index any more.
func (p *Peer) entry(at At, s STag) *heldTag {
	if at < 0 || int(at) >= len(p.entries) || s == 0 || p.entries[at].tag != s {
		return nil
	}
	return &p.entries[at]
}

// PostClose notes that the closing Send is posted: no operation may follow. RDMA Reads must have
// completed (R2), because a Send may overtake them; RDMA Writes are placed before the Send anyway.
func (p *Peer) PostClose(s STag) (At, error) {
	at, h, err := p.open(s)
	switch {
	case err != nil:
		return at, err
	case h.reads > 0:
		return at, ErrReads
	}
	h.closed = true
	return at, nil
}

// Closed notes that the closing Send has completed: the STag is Unknown again. Completions of
// RDMA Writes on it come earlier, as they were posted earlier, or are not reported at all.
func (p *Peer) Closed(at At, s STag) error {
	h := p.entry(at, s)
	if h == nil || !h.closed {
		return ErrNotHeld
	}
	p.held--
	p.remove(at)
	return nil
}

// Forget drops an STag without a close, because Host 1 revokes it itself after a task management
// function (R4). While operations on it are posted, it cannot be advertised again.
func (p *Peer) Forget(s STag) error {
	at, h, err := p.open(s)
	if err != nil {
		return err
	}
	p.held--
	if h.gone = true; h.reads+h.writes == 0 {
		p.remove(at)
	}
	return nil
}

// Len returns how many STags are advertised and not closed.
func (p *Peer) Len() int { return p.held }

// State returns the state of an STag.
func (p *Peer) State(s STag) HeldState {
	if at := p.find(s); at != nowhere && !p.entries[at].gone {
		return p.entries[at].state()
	}
	return Unknown
}

// head returns the head of the chain of an STag.
func (p *Peer) head(s STag) *At {
	h := (uint32(s) ^ p.seed) * 0x9e3779b1 // 2^32 / golden ratio, odd
	h ^= h >> 15
	return &p.heads[int(h)&(len(p.heads)-1)]
}

// find returns the index of an STag.
func (p *Peer) find(s STag) At {
	if len(p.heads) == 0 || s == 0 {
		return nowhere
	}
	at := *p.head(s)
	for at != nowhere && p.entries[at].tag != s {
		at = p.entries[at].next
	}
	return at
}

// remove removes an entry from its chain.
func (p *Peer) remove(at At) {
	link := p.head(p.entries[at].tag)
	for *link != at {
		link = &p.entries[*link].next
	}
	*link = p.entries[at].next
	p.entries[at] = heldTag{next: p.free}
	p.free = at
}

// minEntries is the first size of the table.
const minEntries = 16

// grow doubles a table that is full.
func (p *Peer) grow() {
	old := p.entries
	n := max(minEntries, 2*len(old))
	p.entries, p.heads = make([]heldTag, n), make([]At, n)
	copy(p.entries, old)
	for i := range p.heads {
		p.heads[i] = nowhere
	}
	for i := range p.entries {
		h := &p.entries[i]
		link := &p.free
		if i < len(old) {
			link = p.head(h.tag)
		}
		h.next, *link = *link, At(i)
	}
}
