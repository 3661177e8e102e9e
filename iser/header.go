package iser

import (
	"encoding/binary"

	"oneshot/transport/rdma"
)

// headerLen is the length of the iSER header in front of each PDU (RFC 7145 §9).
const headerLen = 28

// Opcodes of the iSER header, in the upper four bits of its first byte.
const (
	opControl    = 0x1 // iSCSI Control-Type PDU
	opHello      = 0x2
	opHelloReply = 0x3
)

// Flags of a Control-Type header.
const (
	flagWSV = 0x08 // the Write STag is valid
	flagRSV = 0x04 // the Read STag is valid
)

// header is the iSER header of a Control-Type PDU (RFC 7145 §9.2).
type header struct {
	write, read             rdma.STag // of the initiator's buffers; 0: not valid
	writeOffset, readOffset uint64    // Base Offsets
	// held: the STag was advertised in the DDP header, and the message that ends the command closes it.
	held bool
}

// parseHeader reads the header at the start of b. False: it is none of a Control-Type PDU.
func parseHeader(b []byte) (h header, ok bool) {
	if len(b) < headerLen || b[0]>>4 != opControl {
		return header{}, false
	}
	if b[0]&flagWSV != 0 {
		h.write, h.writeOffset = rdma.STag(binary.BigEndian.Uint32(b[4:])), binary.BigEndian.Uint64(b[8:])
	}
	if b[0]&flagRSV != 0 {
		h.read, h.readOffset = rdma.STag(binary.BigEndian.Uint32(b[16:])), binary.BigEndian.Uint64(b[20:])
	}
	return h, true
}

// appendHeader appends the header of a PDU of the target, which advertises nothing.
func appendHeader(b []byte) []byte {
	var h [headerLen]byte
	h[0] = opControl << 4
	return append(b, h[:]...)
}
