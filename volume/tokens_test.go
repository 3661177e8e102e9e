package volume

import (
	"math/rand/v2"
	"testing"
)

// Whatever tokens and guards there are, each ends with its own bytes, and with nothing else.
func TestTokensEndWithTheirBytes(t *testing.T) {
	const size = 600 << stripeShift // stripes are used more than once
	v := open(t, Config{Store: newSliceStore(4096)})
	r := rand.New(rand.NewPCG(1, 2))
	var list []*Token
	var valid []bool
	some := func() Range { return Range{r.Int64N(size), 1 + r.Int64N(3<<stripeShift)} }
	for step := range 5000 {
		switch op := r.IntN(6); {
		case op < 3:
			x := &Token{v: v, ranges: []Range{some(), some()}[:1+r.IntN(2)], guards: op == 0}
			list, valid = append(list, v.newToken(x)), append(valid, true)
		case op == 3 && len(list) > 0:
			i := r.IntN(len(list)) // it may have ended
			list[i].Revoke()
			valid[i] = false
		case op > 3:
			x := some()
			over := op == 5
			v.touch(x.Off, x.N, over, nil)
			for i, y := range list {
				valid[i] = valid[i] && (over && y.guards || !y.meets(x.Off, x.N))
			}
		}
		n := int32(0)
		for i, x := range list {
			if x.revoked.Load() == valid[i] {
				t.Fatalf("step %d: the token for %v is valid: %v, want %v", step, x.ranges, !valid[i], valid[i])
			}
			if valid[i] {
				n++
			}
		}
		if got := v.tokens.count.Load(); got != n {
			t.Fatalf("step %d: %d tokens, want %d", step, got, n)
		}
	}
	v.RevokeAll()
	if n := v.tokens.count.Load(); n != 0 {
		t.Errorf("%d are left", n)
	}
}

// Who has changed bytes looks at no guard, however many commands wait in a store that hangs; nor does who comes to change bytes where nobody waits.
func TestGuardsInNobodysWay(t *testing.T) {
	v := open(t, Config{Store: newSliceStore(4096)})
	promise := v.NewToken(0, []Range{{5 << stripeShift, 512}})
	var guards []*Token
	for i := range int64(1000) {
		guards = append(guards, v.Guard([]Range{{3<<stripeShift + 512*i, 512}}))
	}
	looks := func(stripe int64, over bool) (n int) {
		set := setOf(stripe<<stripeShift, 512)
		v.tokens.mu.Lock()
		defer v.tokens.mu.Unlock()
		for i := range v.tokens.about(&set, over) {
			n += len(v.tokens.lists[i])
		}
		return n
	}
	if here, over, elsewhere := looks(3, false), looks(3, true), looks(4, false); here != 1001 || over != 1 || elsewhere != 1 {
		t.Errorf("%d, %d and %d tokens are looked at", here, over, elsewhere)
	}
	for _, g := range guards {
		g.Revoke()
	}
	if n := looks(3, false); n != 1 {
		t.Errorf("%d tokens are looked at in the end", n)
	}
	promise.Revoke()
}

// BenchmarkComesBack is a write that comes back from a store in which 32,000 commands wait.
func BenchmarkComesBack(b *testing.B) {
	v := open(b, Config{Store: newSliceStore(4096)})
	for i := range int64(32_000) {
		v.Guard([]Range{{4096 * i, 4096}})
	}
	for b.Loop() {
		v.touched(0, 4096)
	}
}
