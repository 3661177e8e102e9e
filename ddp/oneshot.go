package ddp

import (
	"bytes"
	"encoding/binary"
)

// The one-shot container in the private data of both startup frames (one-shot.md §3), behind
// the four octets of the iSER CM header:
//
//	0      4         5         6       8         12
//	| OSR1 | version | words   | flags | window  | ... | CRC32C 4 |
const (
	containerMagic     = "OSR1"
	containerVersion   = 1
	containerWords     = 4
	containerMin       = 4 * containerWords
	offContainerFlags  = 6
	offContainerWindow = 8

	// CMHeaderLen is how many octets of ULP private data come before the container.
	CMHeaderLen = 4
	// ContainerLen is the length of the container in octets.
	ContainerLen = containerMin
	// MaxULPPrivateData is the most private data that Linux siw takes, in octets.
	MaxULPPrivateData = 251
)

// OneShotFlags is what a container offers (Request) or selects (Reply).
type OneShotFlags uint16

const (
	OfferOpcodes   OneShotFlags = 0x0001 // FIG 5A
	OfferFlags     OneShotFlags = 0x0002 // FIG 5B
	OfferEvery     OneShotFlags = 0x0004 // STag field in every header; always offered
	OfferValidated OneShotFlags = 0x0008 // STag field only where validated
	OfferAdvertise OneShotFlags = 0x0010
	OfferClose     OneShotFlags = 0x0020
	// OfferRefCheck says that the driver compares reference numbers. This project's always does, so
	// it neither offers nor selects it.
	OfferRefCheck OneShotFlags = 0x0040

	offerEncodings = OfferOpcodes | OfferFlags
	offerModes     = OfferEvery | OfferValidated
	offerFeatures  = OfferAdvertise | OfferClose | OfferRefCheck
	offerMoves     = OfferAdvertise | OfferClose
)

// OneShot is a one-shot container.
type OneShot struct {
	Flags OneShotFlags
	// Window is how many STags may be advertised and not closed: what Host 1 wants in a
	// Request, what Host 2 allows in a Reply, where 0 forbids advertising.
	Window uint32
}

// AppendTo appends the container of [ContainerLen] octets.
func (o OneShot) AppendTo(b []byte) []byte {
	start := len(b)
	b = append(b, containerMagic...)
	b = append(b, containerVersion, containerWords)
	b = binary.BigEndian.AppendUint16(b, uint16(o.Flags))
	b = binary.BigEndian.AppendUint32(b, o.Window)
	return binary.LittleEndian.AppendUint32(b, CRC(0, b[start:]))
}

// FindOneShot looks for a container in the private data of the ULP. Only frames with S have one,
// and such a frame sets C as well, for a damaged STag would reach the wrong memory. A container that
// is damaged counts as absent: the connection falls back to standard RDMAP. Unknown flags are
// dropped.
func FindOneShot(privateData []byte) (OneShot, bool) {
	if len(privateData) < CMHeaderLen+containerMin {
		return OneShot{}, false
	}
	c := privateData[CMHeaderLen:]
	words := int(c[5])
	if !bytes.HasPrefix(c, []byte(containerMagic)) || c[4] == 0 || words < containerWords || len(c) < 4*words {
		return OneShot{}, false
	}
	end := 4*words - CRCLen
	if binary.LittleEndian.Uint32(c[end:]) != CRC(0, c[:end]) {
		return OneShot{}, false
	}
	return OneShot{
		Flags:  OneShotFlags(binary.BigEndian.Uint16(c[offContainerFlags:])) & (offerEncodings | offerModes | offerFeatures),
		Window: binary.BigEndian.Uint32(c[offContainerWindow:]),
	}, true
}

// Select returns the container that Host 2 answers an offer with, where local is what it
// supports and the greatest window it allows. It prefers FIG 5B, which a standard peer would
// survive, and the STag field only where validated if local has it, for it is optional. It
// returns false if there is nothing in common: the Reply then goes without a container.
func Select(offer, local OneShot) (OneShot, bool) {
	common := offer.Flags & local.Flags
	reply := OneShot{Flags: common & offerFeatures, Window: min(offer.Window, local.Window)}
	switch {
	case common&OfferFlags != 0:
		reply.Flags |= OfferFlags
	case common&OfferOpcodes != 0:
		reply.Flags |= OfferOpcodes
	default:
		return OneShot{}, false
	}
	switch {
	case common&OfferValidated != 0:
		reply.Flags |= OfferValidated
	case common&OfferEvery != 0:
		reply.Flags |= OfferEvery
	default:
		return OneShot{}, false
	}
	return reply, common&offerMoves != 0
}

var errSelection = &Error{MPAStartup, "one-shot container of the MPA Reply is no selection from the offer"}

// CheckSelection is the initiator's check of a Reply container; offered is false if its Request
// had none. After an error, 2/0/04, it sends a Terminate and closes.
func CheckSelection(offer OneShot, offered bool, reply OneShot) error {
	f := reply.Flags
	if !offered || f&^offer.Flags != 0 || reply.Window > offer.Window ||
		!single(f&offerEncodings) || !single(f&offerModes) || f&offerMoves == 0 {
		return errSelection
	}
	return nil
}

func single(f OneShotFlags) bool { return f != 0 && f&(f-1) == 0 }

// Format returns the format of a connection on which o was selected, seen from the given end.
func (o OneShot) Format(host Host) Format {
	f := Format{
		Encoding:  EncodingOpcodes,
		Host:      host,
		Advertise: o.Flags&OfferAdvertise != 0,
		Close:     o.Flags&OfferClose != 0,
	}
	if o.Flags&OfferFlags != 0 {
		f.Encoding = EncodingFlags
	}
	if o.Flags&OfferValidated != 0 {
		f.Header = HeaderValidated
	}
	return f
}
