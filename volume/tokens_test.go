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
