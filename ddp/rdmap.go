package ddp

import "encoding/binary"

// Octets of the ULP headers that follow the DDP header.
const (
	readRequestLen    = 28
	immediateLen      = 8
	atomicRequestLen  = 52
	atomicResponseLen = 12
)

// RDMARead is the header of an RDMA Read Request (RFC 5040 §4.4). It is a value, for it has to
// outlive the receive buffer until the Response is sent.
type RDMARead struct {
	SinkSTag uint32 // of the requester, copied to the Response
	SinkTO   uint64
	Size     uint32 // octets; if 0, STags and TOs mean nothing
	SrcSTag  uint32 // of the responder: what to read
	SrcTO    uint64
}

// Advance returns the request that is left after n octets of the Response were sent, which is
// what a Terminate reports (RFC 5040 §4.8). N is at most r.Size.
func (r RDMARead) Advance(n uint32) RDMARead {
	r.SinkTO += uint64(n)
	r.SrcTO += uint64(n)
	r.Size -= n
	return r
}

// ParseReadRequest decodes the payload of a [ReadRequest] segment that [Format.Parse] passed.
func ParseReadRequest(payload []byte) RDMARead {
	p := payload[:readRequestLen]
	return RDMARead{
		SinkSTag: binary.BigEndian.Uint32(p),
		SinkTO:   binary.BigEndian.Uint64(p[4:]),
		Size:     binary.BigEndian.Uint32(p[12:]),
		SrcSTag:  binary.BigEndian.Uint32(p[16:]),
		SrcTO:    binary.BigEndian.Uint64(p[20:]),
	}
}

// AppendReadRequest appends an RDMA Read Request from its ULPDU Length to the end of its ULPDU.
func AppendReadRequest(b []byte, msn uint32, r RDMARead) []byte {
	b = appendFixed(b, ReadRequest, msn, readRequestLen)
	return appendReadHeader(b, r)
}

func appendReadHeader(b []byte, r RDMARead) []byte {
	b = binary.BigEndian.AppendUint32(b, r.SinkSTag)
	b = binary.BigEndian.AppendUint64(b, r.SinkTO)
	b = binary.BigEndian.AppendUint32(b, r.Size)
	b = binary.BigEndian.AppendUint32(b, r.SrcSTag)
	return binary.BigEndian.AppendUint64(b, r.SrcTO)
}

// appendFixed begins a message of one segment with n octets of ULP header. None of these
// messages looks different under one-shot.
func appendFixed(b []byte, m Message, msn uint32, n int) []byte {
	var standard Format
	return standard.AppendUntagged(b, Untagged{
		Control: standard.Control(m, true), QN: m.QN(), MSN: msn, Payload: n,
	})
}

// ParseImmediateData returns the eight octets of an [ImmediateData] or [ImmediateDataSE]
// segment that [Format.Parse] passed, as the number they are (RFC 7306 §6).
func ParseImmediateData(payload []byte) uint64 { return binary.BigEndian.Uint64(payload) }

// AppendImmediateData appends an Immediate Data message from its ULPDU Length to the end of its
// ULPDU. It must not be sent where [EncodingOpcodes] was negotiated.
func AppendImmediateData(b []byte, msn uint32, data uint64, solicited bool) []byte {
	m := ImmediateData
	if solicited {
		m = ImmediateDataSE
	}
	return binary.BigEndian.AppendUint64(appendFixed(b, m, msn, immediateLen), data)
}

// Atomic opcodes (RFC 7306 §5.2).
const (
	AtomicFetchAdd    = 0
	AtomicCompareSwap = 2
)

// Atomic is an Atomic Request (RFC 7306 §5.2.1).
type Atomic struct {
	Opcode      uint8 // 4 bits
	RequestID   uint32
	STag        uint32
	TO          uint64 // a multiple of 8
	AddSwapData uint64
	AddSwapMask uint64
	CompareData uint64
	CompareMask uint64
}

// ParseAtomicRequest decodes and checks the payload of an [AtomicRequest] segment that
// [Format.Parse] passed. The 28 reserved bits before the opcode are not checked.
func ParseAtomicRequest(payload []byte) (Atomic, error) {
	p := payload[:atomicRequestLen]
	a := Atomic{
		Opcode:      p[3] & 0xf,
		RequestID:   binary.BigEndian.Uint32(p[4:]),
		STag:        binary.BigEndian.Uint32(p[8:]),
		TO:          binary.BigEndian.Uint64(p[12:]),
		AddSwapData: binary.BigEndian.Uint64(p[20:]),
		AddSwapMask: binary.BigEndian.Uint64(p[28:]),
		CompareData: binary.BigEndian.Uint64(p[36:]),
		CompareMask: binary.BigEndian.Uint64(p[44:]),
	}
	switch {
	case a.Opcode != AtomicFetchAdd && a.Opcode != AtomicCompareSwap:
		return a, errAtomicOpcode
	case a.TO%8 != 0:
		return a, errAtomicAlign
	}
	return a, nil
}

// AppendAtomicRequest appends an Atomic Request from its ULPDU Length to the end of its ULPDU.
func AppendAtomicRequest(b []byte, msn uint32, a *Atomic) []byte {
	b = appendFixed(b, AtomicRequest, msn, atomicRequestLen)
	b = append(b, 0, 0, 0, a.Opcode&0xf)
	b = binary.BigEndian.AppendUint32(b, a.RequestID)
	b = binary.BigEndian.AppendUint32(b, a.STag)
	b = binary.BigEndian.AppendUint64(b, a.TO)
	b = binary.BigEndian.AppendUint64(b, a.AddSwapData)
	b = binary.BigEndian.AppendUint64(b, a.AddSwapMask)
	b = binary.BigEndian.AppendUint64(b, a.CompareData)
	return binary.BigEndian.AppendUint64(b, a.CompareMask)
}

// AtomicResult is an Atomic Response (RFC 7306 §5.2.2).
type AtomicResult struct {
	RequestID uint32 // of the Atomic Request it answers
	Original  uint64 // value before the operation
}

// ParseAtomicResponse decodes the payload of an [AtomicResponse] segment that [Format.Parse]
// passed.
func ParseAtomicResponse(payload []byte) AtomicResult {
	p := payload[:atomicResponseLen]
	return AtomicResult{RequestID: binary.BigEndian.Uint32(p), Original: binary.BigEndian.Uint64(p[4:])}
}

// AppendAtomicResponse appends an Atomic Response from its ULPDU Length to the end of its ULPDU.
func AppendAtomicResponse(b []byte, msn uint32, r AtomicResult) []byte {
	b = appendFixed(b, AtomicResponse, msn, atomicResponseLen)
	b = binary.BigEndian.AppendUint32(b, r.RequestID)
	return binary.BigEndian.AppendUint64(b, r.Original)
}
