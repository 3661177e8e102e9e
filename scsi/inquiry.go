package scsi

import (
	"encoding/binary"

	"oneshot/backend"
)

const (
	deviceTypeDisk = 0x00
	// noDevice: peripheral qualifier 3, device type 1Fh: the target cannot have a logical
	// unit here (SPC-4 §6.6.2).
	noDevice = 0x7f
)

// testUnitReady is SPC-4 §6.47.
func (t *Task) testUnitReady() Next { return t.good() }

// requestSense is SPC-4 §6.39: it returns, and clears, a pending unit attention; without one
// it tells of the condition that the logical unit is in.
func (t *Task) requestSense() Next {
	var s Sense
	if t.lu == nil {
		s = senseNoLUN
	} else if s, t.told = t.itl.takeUA(); t.told == 0 {
		s = t.itl.condition()
	}
	return t.reply(s.AppendTo(nil, t.CDB[1]&1 != 0), int(t.CDB[4]))
}

// inquiry is SPC-4 §6.6.
func (t *Task) inquiry() Next {
	alloc := int(binary.BigEndian.Uint16(t.CDB[3:]))
	evpd, page := t.CDB[1]&1 != 0, t.CDB[2]
	switch {
	case t.CDB[1]&^0x01 != 0: // CMDDT is obsolete
		return t.check(invalidField(1))
	case !evpd && page != 0:
		return t.check(invalidField(2))
	case !evpd:
		return t.reply(t.standardInquiry(), alloc)
	case t.lu == nil:
		return t.reply([]byte{noDevice, page, 0, 0}, alloc)
	}
	for _, v := range vpdPages {
		if v.code == page {
			if page == 0x83 {
				t.itl.identified()
			}
			return t.reply(vpd(t.itl.peripheral(), page, v.body(t)), alloc)
		}
	}
	return t.check(invalidField(2))
}

// peripheral is the PERIPHERAL QUALIFIER and DEVICE TYPE. SPC-4 §5.15.2.4.5: where the port group
// gives no access, the qualifier is 001b.
func (i *itl) peripheral() byte {
	if i.denied.Load()&(denyUnavailable|denyOffline) != 0 {
		return 0x20 | deviceTypeDisk
	}
	return deviceTypeDisk
}

// versionDescriptors (SPC-4 §6.6.2, table 144): SAM-5, iSCSI, SPC-4, SBC-3; no version claimed.
var versionDescriptors = [...]uint16{0x00a0, 0x0960, 0x0460, 0x04c0}

// standardInquiry is the standard INQUIRY data, SPC-4 §6.6.2.
func (t *Task) standardInquiry() []byte {
	data := make([]byte, 96)
	data[0] = noDevice
	data[2] = 0x06 // SPC-4
	data[3] = 0x12 // HISUP, response data format 2
	data[4] = byte(len(data) - 5)
	data[7] = 0x02 // CMDQUE
	vendor, product, revision := "ONESHOT", "", ""
	if lu := t.lu; lu != nil {
		data[0] = t.itl.peripheral()
		if lu.removable() {
			data[1] = 0x80 // RMB
		}
		data[5] = byte(lu.alua.tpgs) << 4 // TPGS
		data[5] |= 0x08                   // 3PC
		if lu.multiport() {
			data[6] = 0x10 // MULTIP
		}
		vendor, product, revision = lu.vendor, lu.product, lu.revision
	}
	putPadded(data[8:16], vendor)
	putPadded(data[16:32], product)
	putPadded(data[32:36], revision)
	for i, v := range versionDescriptors {
		binary.BigEndian.PutUint16(data[58+2*i:], v)
	}
	return data
}

// putPadded fills b with s and spaces.
func putPadded(b []byte, s string) {
	for i := copy(b, s); i < len(b); i++ {
		b[i] = ' '
	}
}

// vpdPages are the vital product data pages, sorted by code.
var vpdPages []vpdPage

type vpdPage struct {
	code byte
	body func(*Task) []byte
}

func init() { // breaks the cycle: the page of supported pages lists the pages
	vpdPages = []vpdPage{
		{0x00, vpdSupported},
		{0x80, vpdSerial},
		{0x83, vpdIdentification},
		{0x86, vpdExtended},
		{0x8f, vpdThirdParty},
		{0xb0, vpdBlockLimits},
		{0xb1, vpdCharacteristics},
		{0xb2, vpdProvisioning},
	}
}

// vpd puts the header before the body of a page.
func vpd(peripheral, code byte, body []byte) []byte {
	page := []byte{peripheral, code, byte(len(body) >> 8), byte(len(body))}
	return append(page, body...)
}

func vpdSupported(t *Task) []byte {
	var codes []byte
	for _, v := range vpdPages {
		codes = append(codes, v.code)
	}
	return codes
}

func vpdSerial(t *Task) []byte { return []byte(t.lu.serial) }

// Fields of an identification descriptor (SPC-4 §7.8.6).
const (
	codeBinary, codeASCII, codeUTF8 = 1, 2, 3
	ofUnit, ofPort, ofDevice        = 0x00, 0x10, 0x20 // association
	protocolISCSI                   = 0x50
	hasProtocol                     = 0x80 // PIV

	idVendor, idNAA, idRelativePort, idPortGroup, idName = 1, 3, 4, 5, 8
)

// vpdIdentification is the Device Identification page, SPC-4 §7.8.6. The names depend on the
// target the command came through.
func vpdIdentification(t *Task) []byte {
	lu, port := t.lu, &t.Nexus.port
	b := appendID(nil, codeBinary, ofUnit|idNAA, lu.naa[:])
	b = appendID(b, codeASCII, ofUnit|idVendor, []byte(lu.vendorID()))
	b = appendID(b, protocolISCSI|codeBinary, hasProtocol|ofPort|idRelativePort, []byte{0, 0, byte(port.relative >> 8), byte(port.relative)})
	b = appendID(b, codeBinary, ofPort|idPortGroup, []byte{0, 0, byte(port.tag >> 8), byte(port.tag)})
	b = appendID(b, protocolISCSI|codeUTF8, hasProtocol|ofPort|idName, nameString(port.name()))
	return appendID(b, protocolISCSI|codeUTF8, hasProtocol|ofDevice|idName, nameString(t.Nexus.target.name))
}

func appendID(b []byte, protocolAndCode, associationAndType byte, id []byte) []byte {
	b = append(b, protocolAndCode, associationAndType, 0, byte(len(id)))
	return append(b, id...)
}

// nameString ends a SCSI name string as SPC-4 §7.8.6.11 asks: at least one zero, a multiple of
// four bytes.
func nameString(s string) []byte {
	b := append([]byte(s), 0)
	for len(b)%4 != 0 {
		b = append(b, 0)
	}
	return b
}

// vpdExtended is the Extended INQUIRY Data page, SPC-4 §7.8.7.
func vpdExtended(t *Task) []byte {
	b := make([]byte, 0x3c)
	b[5-4] = 0x07 // HEADSUP, ORDSUP, SIMPSUP
	if t.lu.info.VolatileCache {
		b[6-4] = 0x01 // V_SUP
	}
	return b
}

// vpdBlockLimits is SBC-3 §6.6.4. Offsets are those of the page.
func vpdBlockLimits(t *Task) []byte {
	lu := t.lu
	page := make([]byte, 64)
	page[5] = byte(t.maxCompareBlocks())
	binary.BigEndian.PutUint16(page[6:], uint16(lu.grain))
	binary.BigEndian.PutUint32(page[8:], uint32(t.maxTransfer()>>lu.blockShift))
	binary.BigEndian.PutUint32(page[12:], uint32(min(lu.info.OptimalIO, t.maxTransfer())>>lu.blockShift))
	if lu.thin() {
		binary.BigEndian.PutUint32(page[20:], maxUnmapBlocks)
		binary.BigEndian.PutUint32(page[24:], maxUnmapDescriptors)
		binary.BigEndian.PutUint32(page[28:], uint32(max(lu.info.DiscardGranularity>>lu.blockShift, 1)))
		page[32] = 0x80 // UGAVALID, alignment 0
	}
	binary.BigEndian.PutUint64(page[36:], maxWriteSameBytes>>lu.blockShift)
	if lu.atomicWrites() {
		binary.BigEndian.PutUint32(page[44:], uint32(t.maxAtomic()>>lu.blockShift)) // at any LBA, any length
	}
	return page[4:]
}

// maxCompareBlocks is the limit of COMPARE AND WRITE, whose data-out is twice as long.
func (t *Task) maxCompareBlocks() int64 {
	return min(min(maxCompareBytes, t.maxTransfer()/2)>>t.lu.blockShift, 255)
}

// vpdCharacteristics is the Block Device Characteristics page, SBC-3 §6.6.3.
func vpdCharacteristics(t *Task) []byte {
	b := make([]byte, 0x3c)
	if t.lu.thin() {
		b[7-4] = 0x40 // WABEREQ 01b: after a block erase blocks are read without an error
	}
	binary.BigEndian.PutUint16(b, 1) // non-rotating medium
	b[8-4] = 0x02                    // FUAB: SYNCHRONIZE CACHE and FUA are honoured
	return b
}

// vpdProvisioning is the Logical Block Provisioning page, SBC-3 §6.6.5.
func vpdProvisioning(t *Task) []byte {
	b := make([]byte, 4)
	if _, ok := backend.As[backend.Meter](t.lu.v.Store()); ok {
		b[0] = thresholdExponent // byte 4 of the page
	}
	if t.lu.thin() {
		b[5-4] = 0xe4 // LBPU, LBPWS, LBPWS10, LBPRZ
		b[6-4] = 2    // thin provisioned
	}
	return b
}
