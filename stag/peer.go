package stag

import (
	"errors"
	"math/rand/v2"
	"sync"
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

// Peer is Host 2's table of the STags that the other end of one stream has advertised. There
// are never more than the window allows, except those forgotten while operations are posted;
// so much memory it takes at most. Its methods may
// be called from any goroutine; streams share nothing.
type Peer struct {
	window int
	seed   uint32 // the peer chooses the STags, but not where they end up here

	mu      sync.Mutex
	held    int       // entries that count against the window; guarded by mu, like all below
	used    int       // all entries
	entries []heldTag // open addressing, linear probing; a power of two, at most half full
}

type heldTag struct {
	tag    STag // 0: no entry
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
func NewPeer(window int) *Peer { return &Peer{window: window, seed: rand.Uint32()} }

// Advertise is the delivery of a Send with Advertise: the STag is Held from now on. Errors, of
// type *Error, are those of the peer: A1 STag 0, A2 advertised twice, A3 window exceeded.
func (p *Peer) Advertise(s STag) error {
	if s == 0 {
		return &Error{Advertise, InvalidSTag, s}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.find(s) != nil:
		return &Error{Advertise, AlreadyHeld, s}
	case p.held >= p.window:
		return &Error{Advertise, WindowExceeded, s}
	}
	if 2*(p.used+1) > len(p.entries) {
		p.grow()
	}
	p.insert(heldTag{tag: s})
	p.held++
	p.used++
	return nil
}

// PostRead notes an RDMA Read posted against a Held STag, PostWrite an RDMA Write; ReadDone and
// WriteDone note that it completed.
func (p *Peer) PostRead(s STag) error  { return p.post(s, 1, 0) }
func (p *Peer) PostWrite(s STag) error { return p.post(s, 0, 1) }
func (p *Peer) ReadDone(s STag)        { p.done(s, 1, 0) }
func (p *Peer) WriteDone(s STag)       { p.done(s, 0, 1) }

func (p *Peer) post(s STag, reads, writes int32) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	h := p.find(s)
	switch {
	case h == nil, h.gone:
		return ErrNotHeld
	case h.closed:
		return ErrClosePosted
	}
	h.reads, h.writes = h.reads+reads, h.writes+writes
	return nil
}

// done ignores STags that are not held: they were closed behind Writes that nobody waits for.
func (p *Peer) done(s STag, reads, writes int32) {
	p.mu.Lock()
	defer p.mu.Unlock()
	h := p.find(s)
	if h == nil {
		return
	}
	h.reads, h.writes = h.reads-reads, h.writes-writes
	if h.reads < 0 || h.writes < 0 {
		panic("stag: more operations completed than posted")
	}
	if h.gone && h.reads+h.writes == 0 {
		p.remove(h)
	}
}

// PostClose notes that the closing Send is posted: no operation may follow. RDMA Reads must have
// completed (R2), for a Send may overtake them; RDMA Writes are placed before the Send anyway.
func (p *Peer) PostClose(s STag) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	h := p.find(s)
	switch {
	case h == nil, h.gone:
		return ErrNotHeld
	case h.closed:
		return ErrClosePosted
	case h.reads > 0:
		return ErrReads
	}
	h.closed = true
	return nil
}

// Closed notes that the closing Send has completed: the STag is Unknown again. Completions of
// RDMA Writes on it come earlier, as they were posted earlier, or are not reported at all.
func (p *Peer) Closed(s STag) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	h := p.find(s)
	if h == nil || !h.closed {
		return ErrNotHeld
	}
	p.held--
	p.remove(h)
	return nil
}

// Forget drops an STag without a close, because Host 1 revokes it by itself after a task
// management function (R4). Operations still posted keep it from being advertised again until
// they have completed.
func (p *Peer) Forget(s STag) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	h := p.find(s)
	switch {
	case h == nil, h.gone:
		return ErrNotHeld
	case h.closed:
		return ErrClosePosted
	}
	p.held--
	if h.gone = true; h.reads+h.writes == 0 {
		p.remove(h)
	}
	return nil
}

// Len returns how many STags are advertised and not closed.
func (p *Peer) Len() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.held
}

// State returns the state of an STag.
func (p *Peer) State(s STag) HeldState {
	p.mu.Lock()
	defer p.mu.Unlock()
	if h := p.find(s); h != nil && !h.gone {
		return h.state()
	}
	return Unknown
}

// home is where the search for an STag begins.
func (p *Peer) home(s STag) int {
	h := (uint32(s) ^ p.seed) * 0x9e3779b1 // 2^32 / golden ratio, odd
	h ^= h >> 15
	h *= 0x85ebca6b
	h ^= h >> 13
	return int(h) & (len(p.entries) - 1)
}

// find returns the entry of an STag, nil if there is none.
func (p *Peer) find(s STag) *heldTag {
	if len(p.entries) == 0 || s == 0 {
		return nil
	}
	for i := p.home(s); ; i = (i + 1) & (len(p.entries) - 1) {
		switch p.entries[i].tag {
		case s:
			return &p.entries[i]
		case 0:
			return nil
		}
	}
}

func (p *Peer) insert(h heldTag) {
	i := p.home(h.tag)
	for p.entries[i].tag != 0 {
		i = (i + 1) & (len(p.entries) - 1)
	}
	p.entries[i] = h
}

// remove empties an entry and moves up those that were pushed behind it.
func (p *Peer) remove(h *heldTag) {
	p.used--
	mask := len(p.entries) - 1
	hole := p.home(h.tag)
	for &p.entries[hole] != h {
		hole = (hole + 1) & mask
	}
	for i := (hole + 1) & mask; p.entries[i].tag != 0; i = (i + 1) & mask {
		if home := p.home(p.entries[i].tag); (i-home)&mask >= (i-hole)&mask {
			p.entries[hole], hole = p.entries[i], i
		}
	}
	p.entries[hole] = heldTag{}
}

// minEntries is the first size of the table, enough for a depth of 8.
const minEntries = 16

func (p *Peer) grow() {
	old := p.entries
	p.entries = make([]heldTag, max(minEntries, 2*len(old)))
	for _, h := range old {
		if h.tag != 0 {
			p.insert(h)
		}
	}
}
