package scsi

import (
	"encoding/binary"

	"oneshot/volume/access"
)

func (t *Task) modeSelect6() Next { return t.modeSelect(int64(t.CDB[4])) }

func (t *Task) modeSelect10() Next {
	return t.modeSelect(int64(binary.BigEndian.Uint16(t.CDB[7:])))
}

// modeSelect is SPC-4 §6.9 with a parameter list of n bytes.
func (t *Task) modeSelect(n int64) Next {
	const pf, sp = 0x10, 0x01
	if t.CDB[1]&pf == 0 || t.CDB[1]&sp != 0 { // pages of a vendor's own format; saving
		return t.check(invalidField(1))
	}
	return t.takeParameters(n, (*Task).modeSelectParse)
}

func (t *Task) modeSelectParse() Next {
	bits, s, ok := t.lu.parseModeSelect(t.parameters(), t.CDB[0] == opModeSelect10)
	switch {
	case !ok:
		return t.check(s)
	case bits == modesKept:
		return t.good()
	case !t.lu.stays() && t.lu.agrees():
		return t.change(&access.Change{Op: access.SetModes, Modes: bits}, (*Task).modeSelected)
	}
	if t.lu.mode.bits.Swap(bits) != bits {
		t.lu.attention(uaModeChanged, t.Nexus)
	}
	return t.good()
}

// modeSelected answers when other nodes have agreed, or do not.
func (t *Task) modeSelected(c *access.Change) Next {
	if c.Result == access.Done {
		return t.good()
	}
	return t.notNow(c.Err)
}

// resetModes has the mode parameters be what they were at the start. Where nodes have to agree, m waits for that.
func (lu *LogicalUnit) resetModes(m *manager) {
	lu.mode.reset()
	if lu.modes() == 0 {
		return
	}
	c := &access.Change{Op: access.SetModes}
	m.left.Add(1)
	end := func() {
		if c.Result != access.Done {
			lu.log.notAgreed(c.Err)
			m.failed.Store(true)
		}
		m.released()
	}
	if lu.v.Access().Do(c, end) {
		end()
	}
}

const opModeSelect10 = 0x55

// modesKept stands for changeable mode parameters that a list is not about. They may change while it is being read.
const modesKept = ^uint32(0)

// parseModeSelect reads a mode parameter list (SPC-4 §7.5) and returns what the changeable
// mode parameters are after it, or modesKept. Nothing is changed if any part of it is bad.
func (lu *LogicalUnit) parseModeSelect(list []byte, long bool) (bits uint32, s Sense, ok bool) {
	c := cursor{b: list}
	var descriptors int
	if long {
		c.skip(4)
		longLBA := c.u8()&0x01 != 0
		c.skip(1)
		descriptors = int(c.u16())
		lu.checkBlockDescriptor(&c, descriptors, longLBA)
	} else {
		c.skip(3)
		descriptors = int(c.u8())
		lu.checkBlockDescriptor(&c, descriptors, false)
	}
	bits = modesKept
	for c.more() {
		bits = lu.modeSelectPage(&c, bits)
	}
	return bits, c.err, c.err == Sense{}
}

// checkBlockDescriptor accepts a block descriptor that says what is so.
func (lu *LogicalUnit) checkBlockDescriptor(c *cursor, n int, long bool) {
	at := c.at
	var blocks, size, most uint64
	switch {
	case n == 0:
		return
	case n == 8 && !long:
		blocks, size, most = uint64(c.u32()), uint64(c.u32()&0xffffff), 0xffffffff
	case n == 16 && long:
		blocks = c.u64()
		c.skip(4)
		size, most = uint64(c.u32()), ^uint64(0)
	default:
		c.fail(invalidParameter(at - 1))
		return
	}
	// SBC-3 §6.5.2: zero blocks and all ones stand for the capacity as it is.
	if size != uint64(lu.blockSize) || blocks != 0 && blocks != most && blocks != lu.blocks() {
		c.fail(invalidParameter(at))
	}
}

// modeSelectPage reads one page. What is not changeable must be as MODE SENSE reports it
// (SPC-4 §6.9.1), except for the PS bit.
func (lu *LogicalUnit) modeSelectPage(c *cursor, bits uint32) uint32 {
	at := c.at
	code := c.u8()
	n := int(c.u8())
	p := findModePage(code & 0x7f) // SPF set, a page with a subpage, is not found
	if p == nil {
		c.fail(invalidParameter(at))
		return bits
	}
	if n != p.length {
		c.fail(invalidParameter(at + 1))
		return bits
	}
	body := c.bytes(n)
	if c.err != (Sense{}) {
		return bits
	}
	current, mask := p.appendTo(nil, lu, pcCurrent)[2:], p.appendTo(nil, lu, pcChangeable)[2:]
	for i := range body {
		if (body[i]^current[i])&^mask[i] != 0 {
			c.fail(invalidParameter(at + 2 + i))
			return bits
		}
	}
	if p.code == controlPageCode {
		bits = controlBits(body)
	}
	return bits
}

// controlBits are the changeable bits of a Control page without its header.
func controlBits(body []byte) (bits uint32) {
	if body[0]&0x04 != 0 {
		bits |= modeDSense
	}
	if body[2]&0x08 != 0 {
		bits |= modeSWP
	}
	return bits
}

func findModePage(code byte) *modePage {
	for i := range modePages {
		if modePages[i].code == code {
			return &modePages[i]
		}
	}
	return nil
}

// cursor reads a parameter list, field after field. What reaches beyond the end is zero and
// leaves a parameter list length error. The first error stays.
type cursor struct {
	b   []byte // what is left
	at  int    // bytes read
	err Sense
}

func (c *cursor) fail(s Sense) {
	if c.err == (Sense{}) {
		c.err = s
	}
}

// more reports whether there is something left to read and no error.
func (c *cursor) more() bool { return len(c.b) > 0 && c.err == Sense{} }

// bytes returns the next n bytes.
func (c *cursor) bytes(n int) []byte {
	if n > len(c.b) {
		c.fail(senseParameterLen)
		c.b = nil
		return make([]byte, n)
	}
	b := c.b[:n]
	c.b, c.at = c.b[n:], c.at+n
	return b
}

func (c *cursor) skip(n int)  { c.bytes(n) }
func (c *cursor) u8() byte    { return c.bytes(1)[0] }
func (c *cursor) u16() uint16 { return binary.BigEndian.Uint16(c.bytes(2)) }
func (c *cursor) u32() uint32 { return binary.BigEndian.Uint32(c.bytes(4)) }
func (c *cursor) u64() uint64 { return binary.BigEndian.Uint64(c.bytes(8)) }
