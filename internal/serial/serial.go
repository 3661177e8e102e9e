// Package serial is the arithmetic of sequence numbers that wrap (RFC 1982 with
// SERIAL_BITS = 32), as RFC 7143 §4.2.2 asks for CmdSN, StatSN, DataSN and R2TSN.
package serial

// SN is a 32-bit sequence number. It wraps, so that SNs are compared with the
// methods here and never with < or >.
type SN uint32

// Less reports whether s comes before t. RFC 1982 §3.2 leaves two numbers that
// lie exactly 2³¹ apart undefined; here each is then Less than the other.
func (s SN) Less(t SN) bool { return int32(s-t) < 0 }

// LessEq reports whether s is t or comes before it.
func (s SN) LessEq(t SN) bool { return s == t || s.Less(t) }

// Add returns the number n steps after s.
func (s SN) Add(n uint32) SN { return s + SN(n) }

// InWindow reports whether s is one of lo, lo+1, … hi. The window is empty when
// hi is lo-1, as MaxCmdSN = ExpCmdSN-1 says of a full queue (RFC 7143 §4.2.2.1),
// and for any other hi before lo.
func (s SN) InWindow(lo, hi SN) bool { return lo.LessEq(hi) && s-lo <= hi-lo }
