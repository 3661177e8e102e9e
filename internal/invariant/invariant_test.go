package invariant

import "testing"

func TestCheck(t *testing.T) {
	Check(true, "holds")
	defer func() {
		if r := recover(); (r != nil) != Enabled {
			t.Errorf("Check(false) recovered %v with Enabled=%v", r, Enabled)
		}
	}()
	Check(false, "does not hold")
}

func TestFill(t *testing.T) {
	for _, n := range []int{0, 1, 2, 3, 4095, 4096} {
		b := make([]byte, n)
		Fill(b)
		for i, c := range b {
			if (c == Poison) != Enabled {
				t.Fatalf("%d bytes: byte %d is %#x with Enabled=%v", n, i, c, Enabled)
			}
		}
	}
}
