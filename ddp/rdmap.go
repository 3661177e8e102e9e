package ddp

import "encoding/binary"

// readRequestLen is how many octets of ULP header follow the DDP header of an RDMA Read Request.
const readRequestLen = 28

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
