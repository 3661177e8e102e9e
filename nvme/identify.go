package nvme

import "bytes"

// IdentifyLen is the length of every Identify data structure.
const IdentifyLen = 4096

// CNS says what Identify returns (Base 2.0 figure 273).
type CNS uint8

// Values of CNS.
const (
	CNSNamespace        CNS = 0x00
	CNSController       CNS = 0x01
	CNSActiveNamespaces CNS = 0x02
	CNSDescriptors      CNS = 0x03
	CNSCSINamespace     CNS = 0x05
	CNSCSIController    CNS = 0x06
	CNSCSIActive        CNS = 0x07
	CNSIndependent      CNS = 0x08
	CNSAttached         CNS = 0x12 // controllers of a namespace
	CNSControllers      CNS = 0x13 // of the subsystem
)

// AllNamespaces is the NSID that stands for all namespaces.
const AllNamespaces = 0xffffffff

// ControllerType is the field CNTRLTYPE.
type ControllerType uint8

// Types of controllers.
const (
	IOController        ControllerType = 1
	DiscoveryController ControllerType = 2
)

// Version of the Base specification that controllers claim: 1.4.
const Version = 0x00010400

// Controller has the fields of the Identify Controller data structure that are not 0, or not the same for all
// controllers over fabrics (Base 2.0 figure 275).
type Controller struct {
	Serial    string // ASCII, at most 20 characters
	Model     string // ASCII, at most 40
	Firmware  string // ASCII, at most 8
	CMIC      uint8
	MDTS      uint8 // the largest transfer is 2^MDTS pages of 4096 bytes
	CNTLID    uint16
	RTD3E     uint32 // time for a shutdown, microseconds
	OAES      uint32 // asynchronous events
	CTRATT    uint32
	Type      ControllerType
	CRDT1     uint16 // delay of retries, 100 ms
	ACL, AERL uint8  // one less than the Aborts, and the Asynchronous Event Requests, that may be outstanding
	LPA       uint8
	ELPE      uint8  // one less than the entries of the error log
	KAS       uint16 // granularity of the keep-alive timeout, 100 ms
	SANICAP   uint32
	MaxCmd    uint16
	ANATT     uint8 // longest time in state "change", seconds
	ANACAP    uint8
	ANAGroups uint32 // ANAGRPMAX and NANAGRPID: the largest number of a group, and how many there are
	NN        uint32 // largest NSID
	MNAN      uint32 // most namespaces; not 0 with ANA
	ONCS      uint16
	FUSES     uint16
	VWC       uint8
	ACWU      uint16 // one less than the blocks of the largest Compare and Write
	OCFS      uint16 // formats of descriptors of Copy
	SGLS      uint32
	SubNQN    string
	IOCCSZ    uint32 // largest capsule of a command, 16 bytes
	IORCSZ    uint32 // largest capsule of a response, 16 bytes
	MSDBD     uint8  // descriptors of a command
	OFCS      uint16 // optional fabrics commands
}

// Offsets in the Identify Controller data structure.
const (
	offSerial   = 4
	offModel    = 24
	offFirmware = 64
	offCMIC     = 76
	offRTD3E    = 88
	offCType    = 111
	offCRDT1    = 128
	offACL      = 258
	offKAS      = 320
	offSANICAP  = 328
	offANATT    = 342
	offSQES     = 512
	offSubNQN   = 768
	offIOCCSZ   = 1792
)

// AppendTo appends the structure.
func (c *Controller) AppendTo(b []byte) []byte {
	start := len(b)
	b = append(b, make([]byte, IdentifyLen)...)
	d := b[start:]
	pad(d[offSerial:offSerial+20], c.Serial)
	pad(d[offModel:offModel+40], c.Model)
	pad(d[offFirmware:offFirmware+8], c.Firmware)
	d[72] = 6 // RAB, recommended arbitration burst: 2^6 commands
	d[offCMIC], d[offCMIC+1] = c.CMIC, c.MDTS
	le.PutUint16(d[78:], c.CNTLID)
	le.PutUint32(d[80:], Version)
	le.PutUint32(d[offRTD3E:], c.RTD3E)
	le.PutUint32(d[92:], c.OAES)
	le.PutUint32(d[96:], c.CTRATT)
	d[offCType] = uint8(c.Type)
	le.PutUint16(d[offCRDT1:], c.CRDT1)
	d[offACL], d[offACL+1] = c.ACL, c.AERL
	d[260] = 0x03 // FRMW: one slot, read-only
	d[261], d[262] = c.LPA, c.ELPE
	le.PutUint16(d[266:], 343) // WCTEMP and CCTEMP, kelvin: not 0 from version 1.2 on
	le.PutUint16(d[268:], 353)
	le.PutUint16(d[offKAS:], c.KAS)
	le.PutUint32(d[offSANICAP:], c.SANICAP)
	d[offANATT], d[offANATT+1] = c.ANATT, c.ANACAP
	le.PutUint32(d[344:], c.ANAGroups)
	le.PutUint32(d[348:], c.ANAGroups)
	d[offSQES], d[offSQES+1] = 0x66, 0x44 // queue entries of 2^6 and 2^4 bytes
	le.PutUint16(d[514:], c.MaxCmd)
	le.PutUint32(d[516:], c.NN)
	le.PutUint16(d[520:], c.ONCS)
	le.PutUint16(d[522:], c.FUSES)
	d[525] = c.VWC
	le.PutUint16(d[532:], c.ACWU)
	le.PutUint16(d[534:], c.OCFS)
	le.PutUint32(d[536:], c.SGLS)
	le.PutUint32(d[540:], c.MNAN)
	copy(d[offSubNQN:offSubNQN+MaxNQN], c.SubNQN)
	le.PutUint32(d[offIOCCSZ:], c.IOCCSZ)
	le.PutUint32(d[1796:], c.IORCSZ)
	d[1803] = c.MSDBD
	le.PutUint16(d[1804:], c.OFCS)
	return b
}

// pad copies s to dst and fills that with blanks, as ASCII fields are.
func pad(dst []byte, s string) {
	for i := copy(dst, s); i < len(dst); i++ {
		dst[i] = ' '
	}
}

// Bits of fields of Controller.
const (
	CMICPorts       = 1 << 0
	CMICControllers = 1 << 1
	CMICANA         = 1 << 3

	OAESNamespace = 1 << 8
	OAESANA       = 1 << 11
	OAESDiscovery = 1 << 31

	CTRATTHostID128 = 1 << 0
	CTRATTTBKAS     = 1 << 6 // traffic keeps the controller alive

	LPASmart    = 1 << 0 // of each namespace
	LPAEffects  = 1 << 1
	LPAExtended = 1 << 2 // pages of any length, from any offset

	ONCSCompare     = 1 << 0
	ONCSDSM         = 1 << 2
	ONCSWriteZeroes = 1 << 3
	ONCSReserve     = 1 << 5
	ONCSVerify      = 1 << 7
	ONCSCopy        = 1 << 8

	OCFSFormat0 = 1 << 0 // of descriptors of Copy

	SANICAPBlock     = 1 << 1 // Block Erase
	SANICAPOverwrite = 1 << 2
	SANICAPNoNDAS    = 1 << 29 // blocks may be deallocated by it, whether the host wants that or not
	SANICAPNoModify  = 1 << 30 // the medium is not changed any more when it is over

	ANACAPStates = 0x1f   // all are reported
	ANACAPStatic = 1 << 6 // the group of a namespace does not change while it is there

	FUSESCompareWrite = 1 << 0

	VWCPresent     = 1 << 0
	VWCNoBroadcast = 2 << 1 // Flush does not take AllNamespaces

	SGLSSupported = 1 << 0
	SGLSKeyed     = 1 << 2
	SGLSOffset    = 1 << 20 // in-capsule data
	SGLSTransport = 1 << 21

	OFCSDisconnect = 1 << 0
)

// Namespace has the fields of the Identify Namespace data structure of the NVM command set that are not 0, or not
// the same for all (NVM 1.0 figure 97). There is one format, without metadata.
type Namespace struct {
	Blocks     uint64 // NSZE and NCAP
	Used       uint64 // NUSE
	NSFEAT     uint8
	NMIC       uint8
	RESCAP     uint8
	DLFEAT     uint8
	NACWU      uint16 // one less than the blocks of the largest Compare and Write
	Bytes      uint64 // NVMCAP
	NPWG, NPWA uint16 // granularity and alignment of good writes, one less, blocks
	NPDG, NPDA uint16 // the same of deallocations
	NOWS       uint16 // size of optimal writes, one less, blocks
	MSSRL      uint16 // blocks of one source of Copy
	MCL        uint32 // blocks of all of them
	MSRC       uint8  // one less than how many there can be
	ANAGroup   uint32
	ReadOnly   bool
	NGUID      [16]byte
	BlockShift uint8 // LBADS: a block has 2^BlockShift bytes
}

// Bits of fields of Namespace.
const (
	NSFEATAtomic  = 1 << 1 // NACWU is that of the namespace
	NSFEATOptimal = 1 << 4 // NPWG to NOWS are valid

	NMICShared = 1 << 0

	RESCAPPersist = 1 << 0    // reservations can outlive a loss of power
	RESCAPTypes   = 0x3f << 1 // all of them
	RESCAPIgnore  = 1 << 7    // IEKEY is that of version 1.3 and later

	DLFEATZeroes     = 1      // deallocated blocks read as zeroes
	DLFEATWriteZeros = 1 << 3 // Write Zeroes can deallocate
)

// AppendTo appends the structure.
func (n *Namespace) AppendTo(b []byte) []byte {
	start := len(b)
	b = append(b, make([]byte, IdentifyLen)...)
	d := b[start:]
	le.PutUint64(d, n.Blocks)
	le.PutUint64(d[8:], n.Blocks)
	le.PutUint64(d[16:], n.Used)
	d[24] = n.NSFEAT
	d[30] = n.NMIC
	d[31] = n.RESCAP
	d[33] = n.DLFEAT
	le.PutUint16(d[38:], n.NACWU)
	le.PutUint64(d[48:], n.Bytes)
	for i, v := range [...]uint16{n.NPWG, n.NPWA, n.NPDG, n.NPDA, n.NOWS} {
		le.PutUint16(d[64+2*i:], v)
	}
	le.PutUint16(d[74:], n.MSSRL)
	le.PutUint32(d[76:], n.MCL)
	d[80] = n.MSRC
	le.PutUint32(d[92:], n.ANAGroup)
	if n.ReadOnly {
		d[99] = 1 // NSATTR: write protected
	}
	copy(d[104:], n.NGUID[:])
	d[130] = n.BlockShift
	return b
}

// Descriptors are the names of a namespace, for CNSDescriptors (Base 2.0 figure 277).
type Descriptors struct {
	UUID, NGUID [16]byte
}

// AppendTo appends the list, of IdentifyLen bytes.
func (n *Descriptors) AppendTo(b []byte) []byte {
	const nguid, uuid, csi = 2, 3, 4
	start := len(b)
	b = append(b, uuid, 16, 0, 0)
	b = append(b, n.UUID[:]...)
	b = append(b, nguid, 16, 0, 0)
	b = append(b, n.NGUID[:]...)
	b = append(b, csi, 1, 0, 0, 0) // the NVM command set
	return append(b, make([]byte, start+IdentifyLen-len(b))...)
}

// AppendNSIDs appends a list of namespaces of IdentifyLen bytes: the first of ids, at most 1024, which ascend.
func AppendNSIDs(b []byte, ids []uint32) []byte {
	start := len(b)
	for _, id := range ids[:min(len(ids), IdentifyLen/4)] {
		b = le.AppendUint32(b, id)
	}
	return append(b, make([]byte, start+IdentifyLen-len(b))...)
}

// MaxControllers is the number of controllers in a list of them.
const MaxControllers = IdentifyLen/2 - 1

// AppendControllers appends a list of controllers of IdentifyLen bytes: the first of ids, at most MaxControllers.
func AppendControllers(b []byte, ids []uint16) []byte {
	start := len(b)
	ids = ids[:min(len(ids), MaxControllers)]
	b = le.AppendUint16(b, uint16(len(ids)))
	for _, id := range ids {
		b = le.AppendUint16(b, id)
	}
	return append(b, make([]byte, start+IdentifyLen-len(b))...)
}

// IOLimits are the limits of commands of the NVM command set, for CNSCSIController (NVM 1.0 figure 102).
type IOLimits struct {
	VerifyShift uint8  // the largest Verify: 2^VerifyShift pages of 4096 bytes; 0: no limit
	ZeroesShift uint8  // the largest Write Zeroes; 0: no limit
	Ranges      uint8  // of Dataset Management; 0: no limit
	RangeBlocks uint32 // of one of its ranges; 0: no limit
	Blocks      uint64 // of all its ranges; 0: no limit
}

// AppendTo appends the structure.
func (l *IOLimits) AppendTo(b []byte) []byte {
	start := len(b)
	b = append(b, l.VerifyShift, l.ZeroesShift, 0, l.Ranges)
	b = le.AppendUint32(b, l.RangeBlocks)
	b = le.AppendUint64(b, l.Blocks)
	return append(b, make([]byte, start+IdentifyLen-len(b))...)
}

// Independent is the data structure of CNSIndependent (Base 2.0 figure 280).
type Independent struct {
	NMIC, RESCAP uint8
	ANAGroup     uint32
	ReadOnly     bool
}

// AppendTo appends the structure.
func (n *Independent) AppendTo(b []byte) []byte {
	const ready = 1
	protected := byte(0)
	if n.ReadOnly {
		protected = 1
	}
	start := len(b)
	b = append(b, 0, n.NMIC, n.RESCAP, 0)
	b = le.AppendUint32(b, n.ANAGroup)
	b = append(b, protected, 0, 0, 0, 0, 0, ready)
	return append(b, make([]byte, start+IdentifyLen-len(b))...)
}

// ParseController reads the fields that hosts look at from an Identify Controller data structure of IdentifyLen bytes.
func ParseController(d []byte) Controller {
	return Controller{
		Serial: text(d[offSerial:offModel]), Model: text(d[offModel:offFirmware]), Firmware: text(d[offFirmware : offFirmware+8]),
		MDTS: d[77], CNTLID: le.Uint16(d[78:]), Type: ControllerType(d[offCType]), KAS: le.Uint16(d[offKAS:]), MaxCmd: le.Uint16(d[offSQES+2:]),
		NN: le.Uint32(d[516:]), FUSES: le.Uint16(d[522:]), IOCCSZ: le.Uint32(d[offIOCCSZ:]),
	}
}

// ParseNamespace reads the fields that hosts look at from an Identify Namespace data structure of IdentifyLen bytes. Of a
// namespace that is not active, all of them are 0.
func ParseNamespace(d []byte) Namespace {
	const offFLBAS, offFormats, formatLen = 26, 128, 4
	format := offFormats + formatLen*int(d[offFLBAS]&0xf|d[offFLBAS]>>1&0x30)
	return Namespace{Blocks: le.Uint64(d), ReadOnly: d[99]&1 != 0, NGUID: [16]byte(d[104:]), BlockShift: d[format+2]}
}

// ParseDescriptors reads Namespace Identification Descriptors of IdentifyLen bytes.
func ParseDescriptors(d []byte) (n Descriptors) {
	const nguid, uuid, idLen, head = 2, 3, 16, 4
	for len(d) >= head && d[1] > 0 {
		end := head + int(d[1])
		if end > len(d) {
			break
		}
		if d[1] == idLen {
			switch d[0] {
			case nguid:
				n.NGUID = [16]byte(d[head:])
			case uuid:
				n.UUID = [16]byte(d[head:])
			}
		}
		d = d[end:]
	}
	return n
}

// text is an ASCII field that is padded with blanks, or ends with NUL.
func text(b []byte) string {
	if n := bytes.IndexByte(b, 0); n >= 0 {
		b = b[:n]
	}
	return string(bytes.TrimRight(b, " "))
}
