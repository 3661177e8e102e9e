package nvme

import "net/netip"

// LID says which log page Get Log Page returns (Base 2.0 figure 195).
type LID uint8

// Log pages.
const (
	LogSupported LID = 0x00
	LogError     LID = 0x01
	LogSmart     LID = 0x02
	LogFirmware  LID = 0x03
	LogChanged   LID = 0x04 // namespaces
	LogEffects   LID = 0x05
	LogANA       LID = 0x0c // asymmetric namespace access
	LogDiscovery LID = 0x70

	LogReservation LID = 0x80 // notifications
	LogSanitize    LID = 0x81
)

// GetLogPage is a Get Log Page command; it aliases its entry.
type GetLogPage struct{ SQE }

// LID is the page.
func (c GetLogPage) LID() LID { return LID(c.SQE[40]) }

// Retain reports whether the event that the page belongs to stays as it is (RAE).
func (c GetLogPage) Retain() bool { return c.SQE[41]&0x80 != 0 }

// Specific is the field LSP, whose meaning depends on the page.
func (c GetLogPage) Specific() uint8 { return c.SQE[41] & 0x7f }

// Length is the number of bytes that are wanted, at most 2^34.
func (c GetLogPage) Length() int64 {
	return (int64(le.Uint16(c.SQE[44:]))<<16 + int64(le.Uint16(c.SQE[42:])) + 1) * 4
}

// Offset is where they begin, bytes.
func (c GetLogPage) Offset() uint64 { return le.Uint64(c.SQE[48:]) }

// ByIndex reports whether the offset is the index of an entry (OT).
func (c GetLogPage) ByIndex() bool { return c.SQE[56]&0x80 != 0 }

// ErrorEntryLen is the length of an entry of the error log.
const ErrorEntryLen = 64

// ErrorEntry is an entry of the error log (Base 2.0 figure 197).
type ErrorEntry struct {
	Count  uint64 // of errors so far, this one included; 0: there is no such entry
	SQID   uint16
	CID    uint16
	Status Status
	LBA    uint64
	NSID   uint32
	// Transport is what the command has come through.
	Transport TransportType
}

// AppendTo appends the entry.
func (e *ErrorEntry) AppendTo(b []byte) []byte {
	const noLocation = 0xffff
	b = le.AppendUint64(b, e.Count)
	b = le.AppendUint16(b, e.SQID)
	b = le.AppendUint16(b, e.CID)
	b = le.AppendUint16(b, uint16(e.Status)<<1)
	b = le.AppendUint16(b, noLocation)
	b = le.AppendUint64(b, e.LBA)
	b = le.AppendUint32(b, e.NSID)
	b = append(b, 0, uint8(e.Transport))
	return append(b, make([]byte, 34)...)
}

// SmartLen is the length of the SMART log.
const SmartLen = 512

// Smart has the fields of the SMART log that are counted here (Base 2.0 figure 199).
type Smart struct {
	BytesRead, BytesWritten uint64
	Reads, Writes           uint64 // commands
	MediaErrors             uint64
	Errors                  uint64 // entries of the error log so far
	Seconds                 uint64 // since the start
}

// dataUnit is the unit of bytes in the SMART log.
const dataUnit = 512 * 1000

// AppendTo appends the page.
func (s *Smart) AppendTo(b []byte) []byte {
	start := len(b)
	b = append(b, make([]byte, SmartLen)...)
	d := b[start:]
	le.PutUint16(d[1:], 300) // kelvin: there is no sensor
	d[3], d[4] = 100, 10     // available spare and its threshold, percent
	for _, f := range [...]struct {
		off int
		v   uint64
	}{
		{32, (s.BytesRead + dataUnit - 1) / dataUnit},
		{48, (s.BytesWritten + dataUnit - 1) / dataUnit},
		{64, s.Reads},
		{80, s.Writes},
		{128, s.Seconds / 3600},
		{160, s.MediaErrors},
		{176, s.Errors},
	} {
		le.PutUint64(d[f.off:], f.v)
	}
	return b
}

// AppendFirmware appends the firmware log: slot 1 has revision, of at most 8 characters (Base 2.0 figure 201).
func AppendFirmware(b []byte, revision string) []byte {
	start := len(b)
	b = append(b, make([]byte, 512)...)
	b[start] = 1 // the active slot
	pad(b[start+8:start+16], revision)
	return b
}

// Effects of a command, in the effects log (Base 2.0 figure 203).
const (
	EffectSupported uint32 = 1 << 0
	EffectContent   uint32 = 1 << 1 // of logical blocks may change
)

// EffectsLen is the length of the effects log.
const EffectsLen = 4096

// Effects is the effects log: what the commands do, by opcode.
type Effects struct{ Admin, IO map[Opcode]uint32 }

// AppendTo appends the page.
func (e *Effects) AppendTo(b []byte) []byte {
	start := len(b)
	b = append(b, make([]byte, EffectsLen)...)
	for op, v := range e.Admin {
		le.PutUint32(b[start+4*int(op):], v)
	}
	for op, v := range e.IO {
		le.PutUint32(b[start+1024+4*int(op):], v)
	}
	return b
}

// AppendSupported appends the log of supported pages (Base 2.0 figure 196).
func AppendSupported(b []byte, pages []LID) []byte {
	start := len(b)
	b = append(b, make([]byte, 1024)...)
	for _, p := range pages {
		b[start+4*int(p)] = 1
	}
	return b
}

// AppendChanged appends the log of changed namespaces: ids, or that there are too many of them.
func AppendChanged(b []byte, ids []uint32) []byte {
	if len(ids) > IdentifyLen/4 {
		ids = []uint32{AllNamespaces}
	}
	return AppendNSIDs(b, ids)
}

// DiscoveryEntryLen is the length of the header of the discovery log, and of each entry.
const DiscoveryEntryLen = 1024

// AppendDiscoveryHeader appends the header of a discovery log with so many entries.
func AppendDiscoveryHeader(b []byte, generation uint64, entries int) []byte {
	b = le.AppendUint64(b, generation)
	b = le.AppendUint64(b, uint64(entries))
	return append(b, make([]byte, DiscoveryEntryLen-16)...)
}

// EntryType is the type of the subsystem of a discovery log entry.
type EntryType uint8

// Types of entries.
const (
	EntryReferral EntryType = 1 // another discovery service
	EntryNVM      EntryType = 2
	EntryCurrent  EntryType = 3 // the discovery service that answers
)

// TransportType is a kind of transport (TRTYPE).
type TransportType uint8

// Transports.
const (
	TransportRDMA TransportType = 1
	TransportTCP  TransportType = 3
)

// DiscoveryEntry is an entry of the discovery log of a subsystem, over TCP without TLS, or over RDMA (Base 2.0 figure 264).
type DiscoveryEntry struct {
	Transport TransportType
	Type      EntryType
	Port      uint16 // names the port in the subsystem
	ASQSize   uint16 // entries of the largest admin queue
	Address   netip.AddrPort
	SubNQN    string
}

// AppendTo appends the entry.
func (e *DiscoveryEntry) AppendTo(b []byte) []byte {
	const ipv4, ipv6 = 1, 2
	const noFlowControl, noSecureChannel = 1 << 2, 2
	const persistent = 1 << 1 // EPCSD: a host may stay connected, and be told of changes
	start := len(b)
	b = append(b, make([]byte, DiscoveryEntryLen)...)
	d := b[start:]
	d[0], d[1], d[2], d[3] = uint8(e.Transport), ipv4, uint8(e.Type), noFlowControl|noSecureChannel
	addr := e.Address.Addr().Unmap()
	if addr.Is6() {
		d[1] = ipv6
	}
	le.PutUint16(d[4:], e.Port)
	le.PutUint16(d[6:], DynamicController)
	le.PutUint16(d[8:], e.ASQSize)
	if e.Type == EntryCurrent {
		le.PutUint16(d[10:], persistent)
	}
	// ASCII fields are padded with blanks in the standard, and end with NUL for everybody: hosts take both.
	copyText(d[32:64], portText(e.Address.Port()))
	copyText(d[256:512], e.SubNQN)
	copyText(d[512:768], addr.String())
	if e.Transport == TransportRDMA {
		// Reliable and connected; the kind of network is not told; by the connection manager (RDMA 1.0 figure 9).
		const qpType, provider, rdmaCM = 1, 1, 1
		d[768], d[769], d[770] = qpType, provider, rdmaCM
	}
	return b
}

func copyText(dst []byte, s string) { copy(dst[:len(dst)-1], s) }

func portText(port uint16) string {
	var b [5]byte
	i := len(b)
	for {
		i--
		b[i] = byte('0' + port%10)
		if port /= 10; port == 0 {
			return string(b[i:])
		}
	}
}

// Discovered is an entry of a discovery log as a host reads it. Its texts are as the discovery service has them.
type Discovered struct {
	Type      EntryType
	Transport TransportType
	Address   string
	Service   string // the port
	SubNQN    string
}

// ParseDiscovered reads an entry of DiscoveryEntryLen bytes.
func ParseDiscovered(d []byte) Discovered {
	return Discovered{Type: EntryType(d[2]), Transport: TransportType(d[0]), Service: text(d[32:64]), SubNQN: text(d[256:512]), Address: text(d[512:768])}
}

// ParseDiscoveryHeader reads the header of a discovery log: its generation, and how many entries it has.
func ParseDiscoveryHeader(d []byte) (generation, entries uint64) {
	return le.Uint64(d), le.Uint64(d[8:])
}
