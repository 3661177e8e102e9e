// Package invariant holds the assertions about our own code that test builds pay for and
// others do not. Build with
//
//	go test -tags invariants ./...
//
// to have them. A peer's mistake is an error and is always checked; only what must hold
// whatever a peer sends belongs here.
//
// Enabled is a constant, so the compiler drops what stands behind it. A condition that
// costs something to compute is written
//
//	if invariant.Enabled { invariant.Check(expensive(), "…") }
package invariant

// Poison is the byte that test builds write over memory given back, so that a late reader
// is found: unlikely in data, in lengths and in pointers.
const Poison = 0xDB

// Check panics with what if cond does not hold, in builds with the tag invariants. It does
// nothing in others.
func Check(cond bool, what string) {
	if Enabled && !cond {
		panic("invariant broken: " + what)
	}
}

// Fill overwrites b with Poison in builds with the tag invariants. It does nothing in
// others.
func Fill(b []byte) {
	if !Enabled || len(b) == 0 {
		return
	}
	b[0] = Poison
	for n := 1; n < len(b); n *= 2 {
		copy(b[n:], b[:n])
	}
}
