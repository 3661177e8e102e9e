package ddp

// Encoding is how a Send says that it advertises or closes an STag.
type Encoding uint8

const (
	EncodingNone    Encoding = iota // standard RDMAP, no one-shot
	EncodingOpcodes                 // FIG 5A: opcodes 0x8 and 0xC
	EncodingFlags                   // FIG 5B: bits 12 and 13 of the control word
)

func (e Encoding) String() string { return [...]string{"none", "opcodes", "flags"}[e] }

// HeaderMode says which untagged headers have the 32-bit STag field.
type HeaderMode uint8

const (
	HeaderEvery     HeaderMode = iota // all, as RFC 5041 has it
	HeaderValidated                   // not those of Send and Send SE without marking
)

func (m HeaderMode) String() string { return [...]string{"every", "validated"}[m] }

// Host is the role of an end in one-shot RDMA.
type Host uint8

const (
	HostNone Host = iota // no one-shot
	Host1                // owns the buffers: sends advertise, receives close; the MPA initiator
	Host2                // moves the data: receives advertise, sends close; the MPA responder
)

// Format holds what determines the headers of a connection. The zero value is plain RFC 5040. A
// Format does not change while the connection has FPDUs in flight.
type Format struct {
	Encoding  Encoding
	Header    HeaderMode
	Host      Host // this end
	Advertise bool // negotiated features
	Close     bool
}

// HeaderLen returns the length in octets of the DDP header that begins with c. So a receiver knows
// the length from the first two octets.
func (f *Format) HeaderLen(c Control) int {
	if c.Tagged() {
		return TaggedLen
	}
	op := c.Opcode()
	if f.Header == HeaderValidated && (op == opSend || op == opSendSE) &&
		(f.Encoding != EncodingFlags || c&controlMarking == 0) {
		return UntaggedNoSTag
	}
	return UntaggedLen
}

// Prefix returns how many octets of the FPDU that starts with b must be there for
// [Format.Parse] and for the decoders of messages of fixed size; b holds at least
// [PrefixMin] octets. It returns an error if the ULPDU cannot hold its header.
func (f *Format) Prefix(b []byte) (int, error) {
	c := Control(b[2])<<8 | Control(b[3])
	n, header := int(b[0])<<8|int(b[1]), f.HeaderLen(c)
	if n < header {
		return 0, errULPDUShort
	}
	m, err := f.message(c)
	if err != nil || n-header < rows[m].size {
		return LengthLen + header, nil // Parse reports the error, in the order of the checks
	}
	return LengthLen + header + rows[m].size, nil
}

// PrefixMin is how many octets of an FPDU [Format.Prefix] needs, and PrefixMax the largest number that
// it returns.
const (
	PrefixMin = 4
	PrefixMax = LengthLen + UntaggedLen + readRequestLen
)

// Segment is a checked DDP segment. It aliases the receive buffer.
type Segment struct {
	Header  Header
	Message Message
	ULPDU   int // octets: header and payload
}

// PayloadLen returns how many octets follow the header.
func (s Segment) PayloadLen() int { return s.ULPDU - len(s.Header) }

// PayloadOffset returns where in the FPDU the payload begins.
func (s Segment) PayloadOffset() int { return LengthLen + len(s.Header) }

// Parse checks the header of the FPDU whose ULPDU Length field is at b[0]: length, DDP and RDMAP
// version, opcode and marking, queue number, and the fixed properties of the message, in this
// order. b holds at least as many octets as [Format.Prefix] asks for, not necessarily the payload.
// Parse ignores reserved bits, and the 32-bit field in messages that do not use it.
func (f *Format) Parse(b []byte) (Segment, error) {
	if len(b) < PrefixMin {
		return Segment{}, errCut
	}
	c := Control(b[2])<<8 | Control(b[3])
	n, header := int(b[0])<<8|int(b[1]), f.HeaderLen(c)
	s := Segment{ULPDU: n}
	if n < header {
		return s, errULPDUShort
	}
	if len(b) < LengthLen+header {
		return s, errCut
	}
	s.Header = Header(b[LengthLen : LengthLen+header : LengthLen+header])
	if err := c.checkVersions(); err != nil {
		return s, err
	}
	var err error
	if s.Message, err = f.message(c); err != nil || c.Tagged() {
		return s, err
	}
	return s, s.checkUntagged()
}

func (s Segment) checkUntagged() error {
	r := &rows[s.Message]
	if s.Header.QN() != r.qn {
		if s.Message == SendAdvertise || s.Message == SendClose {
			return errMarking
		}
		return errQN
	}
	if r.size == 0 {
		return nil
	}
	switch n := s.PayloadLen(); {
	case n < r.size || r.exact && n > r.size:
		return errMessageLength
	case s.Header.MO() != 0:
		return errFixedMO
	case !s.Header.Control().Last():
		return errNotLast
	}
	return nil
}
