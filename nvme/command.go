// Package nvme has the codecs of NVM Express: submission and completion queue entries, SGL descriptors,
// statuses, Identify data structures and log pages (NVM Express Base Specification 2.0, NVM Command Set
// Specification 1.0). It is a leaf: transports have codecs of their own (nvme/tcp/pdu), and controllers are
// package nvmf's.
//
// All integers are little-endian. Parsers alias what they are given, and check its length once; afterwards no
// accessor fails. Encoders append, and write every byte.
package nvme

import "encoding/binary"

var le = binary.LittleEndian

// Lengths of queue entries, bytes.
const (
	SQELen = 64
	CQELen = 16
)

// Opcode is an operation code. Admin and I/O commands have codes of their own.
type Opcode uint8

// Admin commands (Base 2.0 figure 138).
const (
	AdminGetLogPage  Opcode = 0x02
	AdminIdentify    Opcode = 0x06
	AdminAbort       Opcode = 0x08
	AdminSetFeatures Opcode = 0x09
	AdminGetFeatures Opcode = 0x0a
	AdminAsyncEvent  Opcode = 0x0c
	AdminKeepAlive   Opcode = 0x18
	AdminSanitize    Opcode = 0x84

	// Fabrics is for all commands of NVMe over Fabrics, on every queue.
	Fabrics Opcode = 0x7f
)

// I/O commands of the NVM command set (NVM 1.0 figure 18).
const (
	Flush       Opcode = 0x00
	Write       Opcode = 0x01
	Read        Opcode = 0x02
	Compare     Opcode = 0x05
	WriteZeroes Opcode = 0x08
	DSM         Opcode = 0x09 // Dataset Management
	Verify      Opcode = 0x0c
	Copy        Opcode = 0x19

	ReservationRegister Opcode = 0x0d
	ReservationReport   Opcode = 0x0e
	ReservationAcquire  Opcode = 0x11
	ReservationRelease  Opcode = 0x15
)

// FCType says which fabrics command it is (Base 2.0 §6).
type FCType uint8

// Fabrics commands.
const (
	PropertySet FCType = 0x00
	Connect     FCType = 0x01
	PropertyGet FCType = 0x04
	AuthSend    FCType = 0x05
	AuthReceive FCType = 0x06
	Disconnect  FCType = 0x08
)

// Fuse says which part of a fused operation a command is.
type Fuse uint8

// Parts of fused operations; 3 is reserved.
const (
	NotFused    Fuse = 0
	FusedFirst  Fuse = 1
	FusedSecond Fuse = 2
)

// Offsets in a submission queue entry (Base 2.0 figure 87).
const (
	offFlags  = 1
	offCID    = 2
	offNSID   = 4 // fabrics commands: FCTYPE
	offSGL    = 24
	offDWord  = 40 // dword 10
	psdtShift = 6
)

// PSDTSGL is the only value of PSDT over fabrics: the data pointer is an SGL, and so are no metadata.
const PSDTSGL = 1

// SQE is a submission queue entry of SQELen bytes.
type SQE []byte

// Opcode is what the command does.
func (e SQE) Opcode() Opcode { return Opcode(e[0]) }

// Fuse says whether the command is a part of a fused operation.
func (e SQE) Fuse() Fuse { return Fuse(e[offFlags] & 3) }

// PSDT says what the data pointer is; see PSDTSGL.
func (e SQE) PSDT() uint8 { return e[offFlags] >> psdtShift }

// CID is the command identifier, which the completion echoes.
func (e SQE) CID() uint16 { return le.Uint16(e[offCID:]) }

// NSID is the namespace.
func (e SQE) NSID() uint32 { return le.Uint32(e[offNSID:]) }

// FCType is the kind of a fabrics command.
func (e SQE) FCType() FCType { return FCType(e[offNSID]) }

// SGL is the descriptor of the data.
func (e SQE) SGL() SGL { return ParseSGL(e[offSGL:]) }

// DWord is command dword n, 10 to 15.
func (e SQE) DWord(n int) uint32 { return le.Uint32(e[offDWord+4*(n-10):]) }

// QWord is command dwords n and n+1, n from 10 to 14.
func (e SQE) QWord(n int) uint64 { return le.Uint64(e[offDWord+4*(n-10):]) }

// SGL descriptor types with their subtypes (Base 2.0 §4.1.2), as in the last byte of a descriptor.
const (
	SGLInCapsule       uint8 = 0x01 // data block at an offset in the capsule
	SGLKeyed           uint8 = 0x40 // data block in memory that a key names
	SGLKeyedInvalidate uint8 = 0x4f // the same, and the completion may invalidate the key
	SGLTransport       uint8 = 0x5a // data that the transport moves
)

// keyed reports whether descriptors of that type have a key, whatever their subtype.
func keyed(t uint8) bool { return t>>4 == SGLKeyed>>4 }

// SGL is a descriptor of where data are, of 16 bytes on the wire.
type SGL struct {
	Address uint64 // of SGLInCapsule: offset in bytes; with a key: of the memory that it names
	Length  uint32 // bytes; with a key: less than 2^24
	Key     uint32
	Type    uint8
}

// ParseSGL reads a descriptor from the first 16 bytes of b.
func ParseSGL(b []byte) SGL {
	s := SGL{Address: le.Uint64(b), Length: le.Uint32(b[8:]), Type: b[15]}
	if keyed(s.Type) {
		s.Length, s.Key = s.Length&(1<<24-1), le.Uint32(b[11:])
	}
	return s
}

// AppendTo appends the descriptor.
func (s SGL) AppendTo(b []byte) []byte {
	b = le.AppendUint64(b, s.Address)
	b = le.AppendUint32(b, s.Length)
	b = append(b, 0, 0, 0, s.Type)
	if keyed(s.Type) {
		le.PutUint32(b[len(b)-5:], s.Key)
	}
	return b
}

// Command is a submission queue entry by its fields, for hosts. DWords are 10 to 15.
type Command struct {
	Opcode Opcode
	Fuse   Fuse
	CID    uint16
	NSID   uint32 // of a fabrics command: the FCType
	SGL    SGL
	DWords [6]uint32
}

// AppendTo appends the entry.
func (c *Command) AppendTo(b []byte) []byte {
	b = append(b, byte(c.Opcode), byte(c.Fuse)|PSDTSGL<<psdtShift)
	b = le.AppendUint16(b, c.CID)
	b = le.AppendUint32(b, c.NSID)
	b = append(b, make([]byte, 16)...) // dwords 2 and 3, and the metadata pointer
	b = c.SGL.AppendTo(b)
	for _, d := range c.DWords {
		b = le.AppendUint32(b, d)
	}
	return b
}

// CopyRangeLen is the length of a descriptor of a source of Copy, in format 0, bytes (NVM 1.0 figure 40).
const CopyRangeLen = 32

// ParseCopyRange reads a descriptor: the first block of the source, and how many blocks it has.
func ParseCopyRange(b []byte) (lba, count uint64) {
	return le.Uint64(b[8:]), uint64(le.Uint16(b[16:])) + 1
}

// AppendCopyRange appends a descriptor of 1 to 65536 blocks.
func AppendCopyRange(b []byte, lba uint64, count uint32) []byte {
	b = le.AppendUint64(append(b, make([]byte, 8)...), lba)
	b = le.AppendUint16(b, uint16(count-1))
	return append(b, make([]byte, 14)...)
}

// CQE is a completion queue entry. The phase tag is not used over fabrics.
type CQE struct {
	DW0, DW1 uint32
	SQHD     uint16 // head of the submission queue
	SQID     uint16
	CID      uint16
	Status   Status
}

// AppendTo appends the CQELen bytes of the entry.
func (e *CQE) AppendTo(b []byte) []byte {
	b = le.AppendUint32(b, e.DW0)
	b = le.AppendUint32(b, e.DW1)
	b = le.AppendUint16(b, e.SQHD)
	b = le.AppendUint16(b, e.SQID)
	b = le.AppendUint16(b, e.CID)
	return le.AppendUint16(b, uint16(e.Status)<<1)
}

// ParseCQE reads an entry from the first CQELen bytes of b.
func ParseCQE(b []byte) CQE {
	return CQE{
		DW0: le.Uint32(b), DW1: le.Uint32(b[4:]), SQHD: le.Uint16(b[8:]), SQID: le.Uint16(b[10:]), CID: le.Uint16(b[12:]),
		Status: Status(le.Uint16(b[14:]) >> 1),
	}
}
