package tcp

import (
	"errors"
	"fmt"

	"oneshot/iscsi/pdu"
)

// Errors of a peer that end its connection: error recovery level 0 has no other answer
// (RFC 7143 §7.1.5).
var (
	errHeaderDigest = errors.New("a header digest does not match: bytes were damaged on the way; look for faulty links or offloads")
	errDataDigest   = errors.New("a data digest of a request does not match: bytes were damaged on the way; look for faulty links or offloads")
)

// dataError is a breach of the rules for data-out (RFC 7143 §7.9).
type dataError struct {
	itt  uint32
	what string
}

func (e *dataError) Error() string { return fmt.Sprintf("command with tag %#x: %s", e.itt, e.what) }

// segmentError is a data segment longer than was agreed.
type segmentError struct {
	opcode   pdu.Opcode
	len, max int
}

func (e *segmentError) Error() string {
	return fmt.Sprintf("%v with a data segment of %d bytes, over the MaxRecvDataSegmentLength of %d", e.opcode, e.len, e.max)
}
