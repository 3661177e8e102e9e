package scsi

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
)

// EXTENDED COPY(LID1), SPC-4 §6.4, as VMware and Windows use it: CSCD descriptors that name a
// logical unit of this target (E4h), and block to block segments (02h, 0Ah).

const (
	copyHeader      = 16
	cscdLen         = 32
	maxCopyTargets  = 16
	maxCopySegments = 64
	maxCopyList     = 4096     // bytes of all descriptors
	maxSegmentBytes = 32 << 20 // of one segment
	maxCopies       = 64       // of a nexus at a time

	segmentBlocks = 0x02 // block to block
	segmentBytes  = 0x0a // block to block, with byte offsets
	cscdIdent     = 0xe4 // identification descriptor
)

// copyDescriptors are the supported descriptor type codes, sorted.
var copyDescriptors = []byte{segmentBlocks, segmentBytes, cscdIdent}

// extendedCopy pulls the parameter list.
func (t *Task) extendedCopy() Next {
	n := int64(binary.BigEndian.Uint32(t.CDB[10:]))
	switch {
	case n == 0:
		return t.good()
	case n < copyHeader || n > copyHeader+maxCopyList:
		return t.check(senseParameterLen)
	}
	return t.takeParameters(n, (*Task).extendedCopyRun)
}

func (t *Task) extendedCopyRun() Next {
	list, s, ok := parseCopyList(t.parameters())
	if !ok {
		return t.check(s)
	}
	steps, s, ok := t.copySteps(list)
	result := &copyResult{}
	if list.keep {
		var busy Sense
		if result, busy = t.Nexus.copies.begin(listID{id: uint32(list.id)}, 0, t.lu.blockShift); result == nil {
			return t.check(busy)
		}
	}
	if !ok {
		result.end(s)
		return t.check(s)
	}
	return t.startCopy(steps, result, nil, false)
}

// copyList is a parameter list whose form is good.
type copyList struct {
	id       byte
	keep     bool // LIST ID USAGE: the result is to be kept
	targets  []cscd
	segments []copySegment
}

// cscd is a copy source or copy destination.
type cscd struct {
	codeSet, kind byte // of the designator
	designator    []byte
	blockLength   uint32 // bytes; 0: not said
	disk          bool
}

// copySegment is a segment descriptor.
type copySegment struct {
	from, to         uint16 // index of CSCD descriptors
	inBlocks         bool   // the length is in blocks
	ofDestination    bool   // DC: in blocks of the destination
	length           uint32
	srcLBA, dstLBA   uint64
	srcByte, dstByte uint16 // offsets in those blocks
}

// parseCopyList reads a parameter list of EXTENDED COPY(LID1).
func parseCopyList(b []byte) (list copyList, s Sense, ok bool) {
	const usage, discard = 0x18, 0x18
	bad := func(s Sense) (copyList, Sense, bool) { return copyList{}, s, false }
	targets, segments := int(binary.BigEndian.Uint16(b[2:])), int64(binary.BigEndian.Uint32(b[8:]))
	rest := b[copyHeader:]
	switch {
	case int64(targets)+segments > maxCopyList, targets%cscdLen != 0, int64(targets)+segments > int64(len(rest)):
		return bad(senseParameterLen)
	case binary.BigEndian.Uint32(b[12:]) != 0:
		return bad(Sense{Key: keyIllegalRequest, Code: 0x260b}) // INLINE DATA LENGTH EXCEEDED
	case targets/cscdLen > maxCopyTargets:
		return bad(Sense{Key: keyIllegalRequest, Code: 0x2606}) // TOO MANY TARGET DESCRIPTORS
	}
	list.id, list.keep = b[0], b[1]&usage != discard
	for at := 0; at < targets; at += cscdLen {
		d := rest[at : at+cscdLen]
		if d[0] != cscdIdent {
			return bad(Sense{Key: keyIllegalRequest, Code: 0x2607}) // UNSUPPORTED TARGET DESCRIPTOR TYPE CODE
		}
		list.targets = append(list.targets, parseCSCD(d))
	}
	rest = rest[targets : int64(targets)+segments]
	for len(rest) > 0 {
		if len(list.segments) == maxCopySegments {
			return bad(Sense{Key: keyIllegalRequest, Code: 0x2608}) // TOO MANY SEGMENT DESCRIPTORS
		}
		if len(rest) < 4 || len(rest)-4 < int(binary.BigEndian.Uint16(rest[2:])) {
			return bad(senseParameterLen)
		}
		n := 4 + int(binary.BigEndian.Uint16(rest[2:]))
		segment, known := parseSegment(rest[:n])
		if !known {
			return bad(Sense{Key: keyIllegalRequest, Code: 0x2609}) // UNSUPPORTED SEGMENT DESCRIPTOR TYPE CODE
		}
		list.segments = append(list.segments, segment)
		rest = rest[n:]
	}
	return list, Sense{}, true
}

// parseCSCD reads an identification descriptor CSCD descriptor, SPC-4 §6.4.5.3. LU ID TYPE and NUL
// are obsolete.
func parseCSCD(d []byte) cscd {
	return cscd{
		disk: d[1]&0x1f == deviceTypeDisk, codeSet: d[4] & 0x0f, kind: d[5] & 0x3f,
		designator:  bytes.Clone(d[8 : 8+min(int(d[7]), 20)]),
		blockLength: binary.BigEndian.Uint32(d[28:]) & 0xffffff,
	}
}

// parseSegment reads a segment descriptor, SPC-4 §6.4.6.4 and .12.
func parseSegment(d []byte) (s copySegment, ok bool) {
	const dc = 0x02
	s = copySegment{}
	switch {
	case d[0] == segmentBlocks && len(d) == 28:
		s.inBlocks, s.ofDestination = true, d[1]&dc != 0
		s.length = uint32(binary.BigEndian.Uint16(d[10:]))
	case d[0] == segmentBytes && len(d) == 32:
		s.length = binary.BigEndian.Uint32(d[8:])
		s.srcByte, s.dstByte = binary.BigEndian.Uint16(d[28:]), binary.BigEndian.Uint16(d[30:])
	default:
		return s, false
	}
	s.from, s.to = binary.BigEndian.Uint16(d[4:]), binary.BigEndian.Uint16(d[6:])
	s.srcLBA, s.dstLBA = binary.BigEndian.Uint64(d[12:]), binary.BigEndian.Uint64(d[20:])
	return s, true
}

// copySteps finds what a list is about. Logical units are those that the nexus sees.
func (t *Task) copySteps(list copyList) (steps []copyStep, s Sense, ok bool) {
	units := make([]*LogicalUnit, len(list.targets))
	for i := range list.targets {
		c := &list.targets[i]
		lu := t.Nexus.find(c)
		switch {
		case lu == nil:
			return nil, senseCopyUnreachable, false
		case !c.disk, c.blockLength != 0 && int64(c.blockLength) != lu.blockSize:
			return nil, senseCopyWrongType, false
		}
		units[i] = lu
	}
	for i := range list.segments {
		x := &list.segments[i]
		if int(x.from) >= len(units) || int(x.to) >= len(units) {
			return nil, senseCopyUnreachable, false
		}
		step, s := x.step(units[x.from], units[x.to])
		if s != (Sense{}) {
			return nil, s, false
		}
		steps = append(steps, step)
	}
	return steps, Sense{}, true
}

// step is a segment in bytes.
func (x *copySegment) step(from, to *LogicalUnit) (copyStep, Sense) {
	n := int64(x.length)
	switch {
	case x.ofDestination:
		n <<= to.blockShift
	case x.inBlocks:
		n <<= from.blockShift
	}
	src, okS := from.byteAt(x.srcLBA, x.srcByte)
	dst, okD := to.byteAt(x.dstLBA, x.dstByte)
	unit := max(from.blockSize, to.blockSize) // nothing is padded, and no block is changed in part
	switch {
	case n > maxSegmentBytes:
		return copyStep{}, Sense{Key: keyIllegalRequest, Code: 0x2600}
	case !okS || !okD:
		return copyStep{}, senseCopyAborted
	case n&(unit-1) != 0 || src&(from.blockSize-1) != 0 || dst&(to.blockSize-1) != 0:
		return copyStep{}, Sense{Key: keyCopyAborted, Code: 0x260a} // UNEXPECTED INEXACT SEGMENT
	}
	return copyStep{from: from, to: to, src: src, dst: dst, n: n}, Sense{}
}

// byteAt is the offset of a byte of block lba; false: there is no such block.
func (lu *LogicalUnit) byteAt(lba uint64, off uint16) (int64, bool) {
	if lba > lu.blocks() || lba > math.MaxInt64>>lu.blockShift-1 {
		return 0, false
	}
	return int64(lba)<<lu.blockShift + int64(off), true
}

// find returns the logical unit that a CSCD descriptor names, or nil.
func (n *Nexus) find(c *cscd) *LogicalUnit {
	for _, i := range *n.table.Load() {
		switch {
		case c.codeSet == codeBinary && c.kind == ofUnit|idNAA && bytes.Equal(c.designator, i.lu.naa[:]),
			c.codeSet == codeASCII && c.kind == ofUnit|idVendor && string(c.designator) == i.lu.vendorID():
			return i.lu
		}
	}
	return nil
}

// vendorID is the T10 vendor ID based designator.
func (lu *LogicalUnit) vendorID() string { return fmt.Sprintf("%-8s%s", lu.vendor, lu.serial) }
