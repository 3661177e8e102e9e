package ddp

import "encoding/binary"

// An MPA Request or Reply Frame (RFC 5044 §7.1, RFC 6581 §6):
//
//	0            16      17   18           20
//	| key        | flags | rev | PD_Length | private data, PD_Length octets |
//	                                       | IRD 2 | ORD 2 | of the ULP ... |  if S
const (
	keyLen         = 16
	keyRequest     = "MPA ID Req Frame"
	keyReply       = "MPA ID Rep Frame"
	offFlags       = 16
	offRevision    = 17
	offPDLength    = 18
	enhancedLen    = 4
	flagMarkers    = 0x80
	flagCRC        = 0x40
	flagReject     = 0x20
	flagEnhanced   = 0x10
	revision1      = 1
	revision2      = 2
	enhancedHigh   = 0x8000 // A in the first word, C in the second
	enhancedLow    = 0x4000 // B in the first word, D in the second
	enhancedNumber = 0x3fff

	// StartFrameHeader is how many octets tell the length of a startup frame.
	StartFrameHeader = 20
	// MaxPrivateData is the largest PD_Length.
	MaxPrivateData = 512
	// MaxStartFrame is the longest startup frame.
	MaxStartFrame = StartFrameHeader + MaxPrivateData

	// DepthUnknown as IRD or ORD leaves it to the ULPs to agree (RFC 6581 §9.1).
	DepthUnknown = 0x3fff
)

// StartFrame is an MPA Request or Reply.
type StartFrame struct {
	Reply    bool
	Markers  bool  // the sender wants markers in what it receives
	CRC      bool  // the sender wants CRCs
	Reject   bool  // Reply only: no connection
	Revision uint8 // 1 (RFC 5044) or 2 (RFC 6581)

	// HasEnhanced is the S flag, which only revision 2 knows: Enhanced is valid.
	HasEnhanced bool
	Enhanced    Enhanced

	// PrivateData is that of the ULP, without the enhanced part; at most 508 octets with it
	// and 512 without. Decoded, it aliases the frame.
	PrivateData []byte
}

// Enhanced is the control word of RFC 6581 §9.
type Enhanced struct {
	IRD        uint16 // incoming RDMA Reads the sender serves at a time, or DepthUnknown
	ORD        uint16 // outstanding RDMA Reads it wants, or DepthUnknown
	PeerToPeer bool   // A: the initiator opens with a ready-to-receive message
	RTRSend    bool   // B, C, D: kinds of zero-length message that may be that
	RTRWrite   bool
	RTRRead    bool
}

var (
	errKey        = &Error{MPAStartup, "not the key of the MPA frame that is due"}
	errPDLength   = &Error{MPAStartup, "PD_Length of an MPA frame is more than 512"}
	errStartCut   = &Error{MPAStartup, "MPA frame is not as long as its PD_Length says"}
	errRevision   = &Error{MPAStartup, "MPA revision is neither 1 nor 2"}
	errNoEnhanced = &Error{MPAStartup, "MPA frame with S has no room for IRD and ORD"}
)

// StartFrameLen returns the octets of the whole frame whose first [StartFrameHeader] octets b
// holds; reply says which of the two is due. Read exactly that many: what follows is an FPDU.
// After an error close the TCP connection without an answer (RFC 5044 §7.1.2).
func StartFrameLen(b []byte, reply bool) (int, error) {
	key := keyRequest
	if reply {
		key = keyReply
	}
	if len(b) < StartFrameHeader {
		return 0, errStartCut
	}
	if string(b[:keyLen]) != key {
		return 0, errKey
	}
	n := int(binary.BigEndian.Uint16(b[offPDLength:]))
	if n > MaxPrivateData {
		return 0, errPDLength
	}
	return StartFrameHeader + n, nil
}

// ParseStartFrame decodes the frame that is all of b. The reserved flags are not checked, and
// neither is R in a Request.
func ParseStartFrame(b []byte, reply bool) (StartFrame, error) {
	n, err := StartFrameLen(b, reply)
	if err != nil {
		return StartFrame{}, err
	}
	if n != len(b) {
		return StartFrame{}, errStartCut
	}
	flags := b[offFlags]
	s := StartFrame{
		Reply:       reply,
		Markers:     flags&flagMarkers != 0,
		CRC:         flags&flagCRC != 0,
		Reject:      flags&flagReject != 0 && reply,
		Revision:    b[offRevision],
		PrivateData: b[StartFrameHeader:],
	}
	if s.Revision != revision1 && s.Revision != revision2 {
		return s, errRevision
	}
	// In revision 1 the S bit is reserved.
	if flags&flagEnhanced == 0 || s.Revision == revision1 {
		return s, nil
	}
	if len(s.PrivateData) < enhancedLen {
		return s, errNoEnhanced
	}
	s.HasEnhanced = true
	s.Enhanced = parseEnhanced(s.PrivateData)
	s.PrivateData = s.PrivateData[enhancedLen:]
	return s, nil
}

func parseEnhanced(b []byte) Enhanced {
	ird, ord := binary.BigEndian.Uint16(b), binary.BigEndian.Uint16(b[2:])
	e := Enhanced{IRD: ird & enhancedNumber, ORD: ord & enhancedNumber}
	if ird&enhancedHigh != 0 { // without A, the other three mean nothing (RFC 6581 §9.2)
		e.PeerToPeer = true
		e.RTRSend = ird&enhancedLow != 0
		e.RTRWrite = ord&enhancedHigh != 0
		e.RTRRead = ord&enhancedLow != 0
	}
	return e
}

// AppendTo appends the frame. Private data that does not fit is a bug of the caller.
func (s *StartFrame) AppendTo(b []byte) []byte {
	key, flags, n := keyRequest, byte(0), len(s.PrivateData)
	if s.Reply {
		key = keyReply
	}
	flags |= bit[byte](s.Markers, flagMarkers) | bit[byte](s.CRC, flagCRC) | bit[byte](s.Reject, flagReject)
	if s.HasEnhanced {
		flags |= flagEnhanced
		n += enhancedLen
	}
	if n > MaxPrivateData {
		panic("ddp: private data longer than an MPA frame holds")
	}
	b = append(b, key...)
	b = append(b, flags, s.Revision)
	b = binary.BigEndian.AppendUint16(b, uint16(n))
	if s.HasEnhanced {
		b = s.Enhanced.appendTo(b)
	}
	return append(b, s.PrivateData...)
}

func (e Enhanced) appendTo(b []byte) []byte {
	ird, ord := e.IRD&enhancedNumber, e.ORD&enhancedNumber
	if e.PeerToPeer {
		ird |= enhancedHigh | bit[uint16](e.RTRSend, enhancedLow)
		ord |= bit[uint16](e.RTRWrite, enhancedHigh) | bit[uint16](e.RTRRead, enhancedLow)
	}
	b = binary.BigEndian.AppendUint16(b, ird)
	return binary.BigEndian.AppendUint16(b, ord)
}

func bit[T byte | uint16](set bool, v T) T {
	if set {
		return v
	}
	return 0
}
