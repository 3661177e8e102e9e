package iser

import (
	"oneshot/internal/iserhdr"
	"oneshot/transport/rdma"
)

const (
	headerLen = iserhdr.Len
	opControl = iserhdr.OpControl
	opHello   = iserhdr.OpHello
	flagWSV   = iserhdr.FlagWSV
	flagRSV   = iserhdr.FlagRSV

	noZBVA       = iserhdr.NoZBVA
	noInvalidate = iserhdr.NoInvalidate
)

// header is what the headers of a command say: where the initiator's buffers are.
type header struct {
	write, read             rdma.STag // of the initiator's buffers; 0: not valid
	writeOffset, readOffset uint64    // Base Offsets
	// held: the STag was advertised in the DDP header, and the message that ends the command closes it.
	held bool
}

// parseHeader reads the iSER header at the start of b. False: it is none of a Control-Type PDU.
func parseHeader(b []byte) (header, bool) {
	h, ok := iserhdr.Parse(b)
	return header{
		write: rdma.STag(h.Write), writeOffset: h.WriteOffset, read: rdma.STag(h.Read), readOffset: h.ReadOffset,
	}, ok
}

// appendHeader appends the iSER header of a PDU of the target, which advertises nothing.
func appendHeader(b []byte) []byte { return iserhdr.Header{}.AppendTo(b) }
