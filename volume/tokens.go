package volume

import (
	"slices"
	"sync"
	"sync/atomic"
)

// Token stands for bytes of a volume as they are. It ends when any of them are about to change, and when they have been changed by
// what was under way when it was made. That of a volume that Moves ends with the term, too: who
// serves the volume then does not know it, and changes the bytes.
type Token struct {
	v       *Volume
	term    uint64
	ranges  []Range
	guards  bool // a late request (Request.Overdue), or a late operation of a handle
	of      any  // that *Request, or the operation's *Handle, whose own changes do not end the token
	revoked atomic.Bool
	stripes stripeSet // of the ranges
	at      int       // in its list of tokens, while it is not revoked; guarded by tokens.mu
}

// tokens are those of a volume.
type tokens struct {
	count    atomic.Int32 // looked at by each request that writes
	promises atomic.Int32 // of these, such as guard nothing
	mu       sync.Mutex
	lists    [2][]*Token        // promises, and guards: a store that hangs has one for each command that waits; guarded by mu
	guards   [stripeCount]int32 // how many guards are about a stripe; guarded by mu
	guarded  stripeSet          // where there are any; guarded by mu
	// mapped are ranges that somebody may write to at any time: no token can promise their bytes. Guarded by mu.
	mapped []Range
}

// NewToken makes a token for ranges, in the order of the data, as they are in a term of the volume. If somebody has mapped some of it to write there, the
// token has ended already.
func (v *Volume) NewToken(term uint64, ranges []Range) *Token {
	return v.newToken(&Token{v: v, term: term, ranges: ranges})
}

func (v *Volume) newToken(t *Token) *Token {
	for _, x := range t.ranges {
		set := setOf(x.Off, x.N)
		t.stripes.union(&set)
	}
	v.tokens.mu.Lock()
	defer v.tokens.mu.Unlock()
	if slices.ContainsFunc(v.tokens.mapped, func(x Range) bool { return t.meets(x.Off, x.N) }) {
		t.revoked.Store(true)
		return t
	}
	list := v.tokens.home(t)
	t.at = len(*list)
	*list = append(*list, t)
	v.tokens.counted(t, 1)
	return t
}

// home is the list that t is in. mu is held.
func (ts *tokens) home(t *Token) *[]*Token {
	if t.guards {
		return &ts.lists[1]
	}
	return &ts.lists[0]
}

// counted notes that t has come, or gone. mu is held.
func (ts *tokens) counted(t *Token, by int32) {
	ts.count.Add(by)
	if !t.guards {
		ts.promises.Add(by)
		return
	}
	for i := range ts.guards {
		if !t.stripes.has(i) {
			continue
		}
		if ts.guards[i] += by; ts.guards[i] == 0 {
			ts.guarded[i/64] &^= 1 << (i % 64)
		}
	}
	if by > 0 {
		ts.guarded.union(&t.stripes)
	}
}

// Volume is where the bytes are.
func (t *Token) Volume() *Volume { return t.v }

// Ranges are what it stands for.
func (t *Token) Ranges() []Range { return t.ranges }

// Valid reports whether none of the bytes have changed.
func (t *Token) Valid() bool { return !t.revoked.Load() && t.term == t.v.Term() }

// Size is the number of bytes that it stands for.
func (t *Token) Size() (n int64) {
	for _, x := range t.ranges {
		n += x.N
	}
	return n
}

// Ended reports whether any of the bytes have changed, or are about to. Valid looks at the term, too.
func (t *Token) Ended() bool { return t.revoked.Load() }

// Revoke ends the token.
func (t *Token) Revoke() {
	ts := &t.v.tokens
	ts.mu.Lock()
	defer ts.mu.Unlock()
	if !t.revoked.Load() {
		ts.drop(t)
	}
}

// Touch ends the tokens that stand for any of the bytes [off, off+n). It is called before they
// change.
func (v *Volume) Touch(off, n int64) { v.touch(off, n, false, nil) }

// touched is Touch for when they have changed and nobody has been told yet. What guards a request has heard of it before.
func (v *Volume) touched(off, n int64) { v.touch(off, n, true, nil) }

func (v *Volume) touch(off, n int64, over bool, by any) {
	ts := &v.tokens
	if ts.count.Load() == 0 || over && ts.promises.Load() == 0 {
		return
	}
	set := setOf(off, n)
	ts.mu.Lock()
	defer ts.mu.Unlock()
	for i := range ts.about(&set, over) {
		ts.revoke(&ts.lists[i], func(t *Token) bool {
			return t.stripes.meets(&set) && !(t.guards && by != nil && t.of == by) && t.meets(off, n)
		})
	}
}

// about is how many of the lists have tokens that a change of the stripes may end, which is over, or is about to be made. mu is held.
func (ts *tokens) about(set *stripeSet, over bool) int {
	if over || !set.meets(&ts.guarded) {
		return 1
	}
	return 2
}

// meets reports whether the token stands for any of the bytes [off, off+n).
func (t *Token) meets(off, n int64) bool {
	return slices.ContainsFunc(t.ranges, func(x Range) bool { return off < x.Off+x.N && x.Off < off+n })
}

// open says that somebody may write to x at any time from now on, until shut. It ends the tokens of it.
func (ts *tokens) open(x Range) {
	ts.mu.Lock()
	ts.mapped = append(ts.mapped, x)
	ts.mu.Unlock()
	ts.revokeAny(func(t *Token) bool { return t.meets(x.Off, x.N) })
}

// shut undoes open.
func (ts *tokens) shut(x Range) {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	i := slices.Index(ts.mapped, x)
	ts.mapped = slices.Delete(ts.mapped, i, i+1)
}

// RevokeAll ends all tokens: the data are about to go.
func (v *Volume) RevokeAll() { v.tokens.revokeAny(func(*Token) bool { return true }) }

// revokeAny ends the tokens for which f is true.
func (ts *tokens) revokeAny(f func(*Token) bool) {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	for i := range ts.lists {
		ts.revoke(&ts.lists[i], f)
	}
}

// revoke ends the tokens of a list for which f is true. mu is held.
func (ts *tokens) revoke(list *[]*Token, f func(*Token) bool) {
	for i := len(*list) - 1; i >= 0; i-- { // whoever takes the place of one that is dropped has been looked at
		if t := (*list)[i]; f(t) {
			ts.drop(t)
		}
	}
}

// drop ends a token that is in its list. mu is held.
func (ts *tokens) drop(t *Token) {
	t.revoked.Store(true)
	list := ts.home(t)
	last := len(*list) - 1
	moved := (*list)[last]
	(*list)[t.at], moved.at = moved, t.at
	(*list)[last] = nil
	*list = (*list)[:last]
	ts.counted(t, -1)
}
