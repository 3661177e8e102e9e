package nvme

import (
	"bytes"
	"errors"
	"strings"
	"unicode"
	"unicode/utf8"
)

// ConnectDataLen is the length of the data of Connect.
const ConnectDataLen = 1024

// Offsets in the data of Connect, which its answers name, too (Base 2.0 figure 384).
const (
	OffHostID  = 0
	OffCNTLID  = 16
	OffSubNQN  = 256
	OffHostNQN = 512
	nqnField   = 256
)

// Offsets in the entry of Connect that its answers name (Base 2.0 figure 383).
const (
	OffConnectQID    = 42
	OffConnectSQSize = 44
)

// MaxNQN is the number of bytes of the longest NQN.
const MaxNQN = 223

// DynamicController in Connect asks for any controller.
const DynamicController = 0xffff

// LastCNTLID is the largest identifier of a controller (Base 2.0 §5.17.2.1).
const LastCNTLID = 0xffef

// DiscoveryNQN is the name of every discovery subsystem.
const DiscoveryNQN = "nqn.2014-08.org.nvmexpress.discovery"

// ConnectData is the data of Connect, of ConnectDataLen bytes.
type ConnectData []byte

// HostID identifies the host for reservations.
func (d ConnectData) HostID() [16]byte { return [16]byte(d) }

// CNTLID is the controller that is wanted.
func (d ConnectData) CNTLID() uint16 { return le.Uint16(d[OffCNTLID:]) }

// SubNQN is the subsystem that is wanted. False: the field is no text that ends in its 256 bytes.
func (d ConnectData) SubNQN() (string, bool) { return nqn(d[OffSubNQN:]) }

// HostNQN is the name of the host; see SubNQN.
func (d ConnectData) HostNQN() (string, bool) { return nqn(d[OffHostNQN:]) }

func nqn(b []byte) (string, bool) {
	n := bytes.IndexByte(b[:nqnField], 0)
	if n < 0 {
		return "", false
	}
	return string(b[:n]), true
}

// ConnectFields are the data of Connect, for hosts. The names have at most MaxNQN bytes.
type ConnectFields struct {
	HostID          [16]byte
	CNTLID          uint16
	SubNQN, HostNQN string
}

// AppendTo appends the data.
func (f *ConnectFields) AppendTo(b []byte) []byte {
	start := len(b)
	b = append(b, make([]byte, ConnectDataLen)...)
	d := b[start:]
	copy(d, f.HostID[:])
	le.PutUint16(d[OffCNTLID:], f.CNTLID)
	copy(d[OffSubNQN:OffSubNQN+MaxNQN], f.SubNQN)
	copy(d[OffHostNQN:OffHostNQN+MaxNQN], f.HostNQN)
	return b
}

// ConnectCommand is a Connect command (Base 2.0 §6.3); it aliases its entry.
type ConnectCommand struct{ SQE }

// RecordFormat is that of the data; only 0 is defined.
func (c ConnectCommand) RecordFormat() uint16 { return le.Uint16(c.SQE[40:]) }

// QID is the queue that is made; 0: the admin queue.
func (c ConnectCommand) QID() uint16 { return le.Uint16(c.SQE[OffConnectQID:]) }

// SQSize is one less than the number of entries of the queue.
func (c ConnectCommand) SQSize() uint16 { return le.Uint16(c.SQE[OffConnectSQSize:]) }

// NoFlowControl disables the flow control of the submission queue.
func (c ConnectCommand) NoFlowControl() bool { return c.SQE[46]&4 != 0 }

// KATO is the keep-alive timeout in milliseconds; 0: none.
func (c ConnectCommand) KATO() uint32 { return le.Uint32(c.SQE[48:]) }

// Bits of dword 0 of the answer to Connect, above the CNTLID (AUTHREQ, Base 2.0 figure 386).
const (
	ConnectATR  uint32 = 1 << 17 // the host has to authenticate itself before it does anything else
	ConnectASCR uint32 = 1 << 18 // and over a secure channel
)

// AuthCommand is Authentication Send or Receive (Base 2.0 §6.1, §6.2); it aliases its entry.
type AuthCommand struct{ SQE }

// authProtocol is SPSP0, SPSP1 and SECP of authentication over fabrics, as bytes 41 to 43 of the entry have them.
const authProtocol = 0xe90101

// AuthDWord10 is dword 10 of these commands.
const AuthDWord10 uint32 = authProtocol << 8

// Known reports whether the command is about authentication over fabrics, rather than another security protocol.
func (c AuthCommand) Known() bool { return c.DWord(10)>>8 == authProtocol }

// Length is that of the message, or of the room for it, bytes.
func (c AuthCommand) Length() uint32 { return c.DWord(11) }

// InvalidParameter is dword 0 of the answer to a Connect with a parameter that is wrong: its offset in the data,
// or in the entry.
func InvalidParameter(inData bool, off int) uint32 {
	if inData {
		return 1<<16 | uint32(off)
	}
	return uint32(off)
}

// Property is a register of a controller, named by its offset (Base 2.0 §3.1.3).
type Property uint32

// Properties of controllers over fabrics.
const (
	PropCAP  Property = 0x00 // 8 bytes
	PropVS   Property = 0x08
	PropCC   Property = 0x14
	PropCSTS Property = 0x1c
	PropNSSR Property = 0x20
	PropCRTO Property = 0x68
)

// Fields of the property CC.
const (
	CCEnable     uint32 = 1
	CCCSS        uint32 = 7 << 4
	CCMPS        uint32 = 0xf << 7
	CCAMS        uint32 = 7 << 11
	CCSHN        uint32 = 3 << 14
	CCIOSQES     uint32 = 0xf << 16
	CCIOCQES     uint32 = 0xf << 20
	CCEntrySizes uint32 = 6<<16 | 4<<20 // those of queue entries, as powers of two
)

// Fields of the property CSTS.
const (
	CSTSReady            uint32 = 1
	CSTSFatal            uint32 = 2
	CSTSShutdownUnderWay uint32 = 1 << 2
	CSTSShutdownDone     uint32 = 2 << 2
	CSTSShutdown         uint32 = 3 << 2
)

// Capabilities are the fields of the property CAP that differ from 0.
type Capabilities struct {
	MQES    uint16 // one less than the entries of the largest queue
	Timeout uint8  // of changes of CSTS.RDY, 500 ms each
}

// Value is the property.
func (c Capabilities) Value() uint64 {
	const contiguous, nvmCommandSet = 1 << 16, 1 << 37
	return uint64(c.MQES) | contiguous | uint64(c.Timeout)<<24 | nvmCommandSet
}

var errNQN = errors.New(`a name of NVMe begins with "nqn.", a year and month, and a reversed domain, as in nqn.2026-11.com.example:disk, or is nqn.2014-08.org.nvmexpress:uuid: and a UUID`)

const (
	uuidPrefix = "nqn.2014-08.org.nvmexpress:uuid:"
	uuidLen    = 36
)

// CheckNQN returns an error if name is not the NQN of a host or a subsystem (Base 2.0 §4.5).
func CheckNQN(name string) error {
	rest, ok := cut(name, "nqn.")
	switch {
	case len(name) > MaxNQN:
		return errors.New("a name of NVMe has at most 223 bytes")
	case !ok || !isDate(rest):
		return errNQN
	}
	if uuid, ok := cut(name, uuidPrefix); ok && !isUUID(uuid) {
		return errors.New("after uuid: comes a UUID of 36 characters, as in 8a7c4a40-0e8a-4b43-9d1f-5a41b1d6c9e2")
	}
	if !utf8.ValidString(name) || strings.ContainsFunc(name, func(r rune) bool { return r == ' ' || unicode.IsControl(r) }) {
		return errors.New("a name of NVMe is UTF-8 without blanks and control characters")
	}
	return nil
}

func cut(s, prefix string) (string, bool) {
	if len(s) < len(prefix) || s[:len(prefix)] != prefix {
		return s, false
	}
	return s[len(prefix):], true
}

// isDate reports whether s begins with yyyy-mm, a dot, and something.
func isDate(s string) bool {
	if len(s) < len("yyyy-mm.x") || s[4] != '-' || s[7] != '.' || s[8] == ':' {
		return false
	}
	for _, i := range []int{0, 1, 2, 3, 5, 6} {
		if s[i] < '0' || s[i] > '9' {
			return false
		}
	}
	return s[5:7] >= "01" && s[5:7] <= "12"
}

func isUUID(s string) bool {
	if len(s) != uuidLen {
		return false
	}
	for i, c := range []byte(s) {
		switch {
		case i == 8 || i == 13 || i == 18 || i == 23:
			if c != '-' {
				return false
			}
		case c >= '0' && c <= '9', c >= 'a' && c <= 'f', c >= 'A' && c <= 'F':
		default:
			return false
		}
	}
	return true
}
