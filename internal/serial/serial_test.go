package serial

import (
	"testing"

	"pgregory.net/rapid"
)

func TestLess(t *testing.T) {
	for _, c := range []struct {
		s, t         SN
		less, lessEq bool
	}{
		{0, 0, false, true},
		{0, 1, true, true},
		{1, 0, false, false},
		{0xffffffff, 0, true, true},
		{0, 0xffffffff, false, false},
		{0xfffffff0, 0x10, true, true},
		{0, 0x7fffffff, true, true},
		{0x7fffffff, 0, false, false},
		{0x80000001, 0, true, true},
	} {
		if got := c.s.Less(c.t); got != c.less {
			t.Errorf("%#x.Less(%#x) = %v", c.s, c.t, got)
		}
		if got := c.s.LessEq(c.t); got != c.lessEq {
			t.Errorf("%#x.LessEq(%#x) = %v", c.s, c.t, got)
		}
	}
}

func TestInWindow(t *testing.T) {
	for _, c := range []struct {
		s, lo, hi SN
		in        bool
	}{
		{5, 5, 5, true},
		{4, 5, 5, false},
		{6, 5, 5, false},
		{5 + 1<<31, 5, 5, false},
		{5, 5, 4, false}, // a closed window admits nothing
		{4, 5, 4, false},
		{0, 0xfffffffe, 1, true},
		{1, 0xfffffffe, 1, true},
		{2, 0xfffffffe, 1, false},
		{0xfffffffd, 0xfffffffe, 1, false},
		{0, 0, 0xffffffff, false},
	} {
		if got := c.s.InWindow(c.lo, c.hi); got != c.in {
			t.Errorf("%#x.InWindow(%#x, %#x) = %v", c.s, c.lo, c.hi, got)
		}
	}
}

// RFC 1982 §3.1: adding n, 0 < n < 2³¹, gives a greater number.
func TestAddIsGreater(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := SN(rapid.Uint32().Draw(t, "s"))
		n := rapid.Uint32Range(1, 1<<31-1).Draw(t, "n")
		after := s.Add(n)
		if !s.Less(after) || after.Less(s) || !s.InWindow(s, after) || !after.InWindow(s, after) {
			t.Fatalf("%#x + %#x = %#x does not come after", s, n, after)
		}
		if after.Add(1).InWindow(s, after) || (s-1).InWindow(s, after) {
			t.Fatalf("window %#x..%#x holds its neighbours", s, after)
		}
	})
}
