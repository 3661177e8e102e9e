package pdu

// Error is a mistake of the peer together with the answer that the wire has for it:
// a Reject with this reason and this header (§11.17).
type Error struct {
	Reason RejectReason
	BHS    [BHSLen]byte // the complete header of the PDU in error
	Err    error
}

// Error says what was wrong with which PDU.
func (e *Error) Error() string {
	return Header(e.BHS[:]).Opcode().String() + ": " + e.Reason.String() + ": " + e.Err.Error()
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

func malformed(h Header, r RejectReason, err error) error {
	return &Error{Reason: r, BHS: h.BHS(), Err: err}
}
