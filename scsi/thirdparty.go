package scsi

import (
	"encoding/binary"
	"time"
)

// vpdThirdParty is the Third-party Copy page, SPC-4 §7.8.17.
func vpdThirdParty(t *Task) []byte {
	b := appendDescriptor(nil, 0x0000, blockRODLimits(t.lu))
	b = appendDescriptor(b, 0x0001, []byte{ // supported commands
		11,                        // bytes that follow
		0x83, 3, 0x00, 0x10, 0x11, // EXTENDED COPY(LID1), POPULATE TOKEN, WRITE USING TOKEN
		0x84, 4, 0x00, 0x03, 0x05, 0x07, // status, operating parameters, status(LID4), ROD token information
	})
	b = appendDescriptor(b, 0x0004, copyLimits())
	b = appendDescriptor(b, 0x0008, append([]byte{byte(len(copyDescriptors))}, copyDescriptors...))
	b = appendDescriptor(b, 0x0106, rodFeatures())
	b = appendDescriptor(b, 0x0108, rodTypes())
	return appendDescriptor(b, 0x8001, generalCopies())
}

// appendDescriptor appends a third-party copy descriptor, padded to a multiple of four bytes.
func appendDescriptor(b []byte, kind uint16, body []byte) []byte {
	for len(body)%4 != 0 {
		body = append(body, 0)
	}
	b = binary.BigEndian.AppendUint16(b, kind)
	b = binary.BigEndian.AppendUint16(b, uint16(len(body)))
	return append(b, body...)
}

// In the following, as in the standards, offsets are those of the descriptor, whose header of
// four bytes comes before the body.

// blockRODLimits is SBC-3 §6.6.6.3.
func blockRODLimits(lu *LogicalUnit) []byte {
	d := make([]byte, 0x20+4)
	binary.BigEndian.PutUint16(d[10:], maxRODRanges)
	binary.BigEndian.PutUint32(d[12:], uint32(rodInactivity/time.Second))
	binary.BigEndian.PutUint32(d[16:], uint32(rodInactivity0/time.Second))
	binary.BigEndian.PutUint64(d[20:], maxRODBytes>>lu.blockShift)
	binary.BigEndian.PutUint64(d[28:], maxRODBytes>>lu.blockShift)
	return d[4:]
}

// copyLimits is the parameter data descriptor, SPC-4 §7.8.17.5.
func copyLimits() []byte {
	d := make([]byte, 0x1c+4)
	binary.BigEndian.PutUint16(d[8:], maxCopyTargets)
	binary.BigEndian.PutUint16(d[10:], maxCopySegments)
	binary.BigEndian.PutUint32(d[12:], maxCopyList)
	return d[4:]
}

// rodFeatures is the ROD token features descriptor, SPC-4 §7.8.17.9.
func rodFeatures() []byte {
	const blockFeatures = 48
	d := make([]byte, 48+blockFeatures)
	binary.BigEndian.PutUint32(d[24:], uint32(rodInactivity/time.Second)) // lifetimes are not limited otherwise
	binary.BigEndian.PutUint16(d[46:], blockFeatures)
	block := d[48:]
	block[0] = deviceTypeDisk
	binary.BigEndian.PutUint16(block[2:], blockFeatures-4)
	binary.BigEndian.PutUint64(block[8:], maxRODBytes)
	binary.BigEndian.PutUint64(block[16:], maxRODBytes)
	return d[4:]
}

// rodTypes is the supported ROD types descriptor, SPC-4 §7.8.17.10.
func rodTypes() []byte {
	const each, tokenIn, tokenOut = 64, 0x02, 0x01
	d := make([]byte, 8+2*each)
	binary.BigEndian.PutUint16(d[6:], 2*each)
	for i, kind := range []uint32{rodChangeVulnerable, rodZero} {
		row := d[8+i*each:]
		binary.BigEndian.PutUint32(row, kind)
		row[4] = tokenIn
		if kind != rodZero {
			row[4] |= tokenOut
		}
	}
	return d[4:]
}

// generalCopies is the general copy operations descriptor, SPC-4 §7.8.17.13.
func generalCopies() []byte {
	d := make([]byte, 0x20+4)
	binary.BigEndian.PutUint32(d[4:], maxCopies)
	binary.BigEndian.PutUint32(d[8:], maxCopyResults)
	binary.BigEndian.PutUint32(d[12:], maxSegmentBytes)
	return d[4:]
}
