package scsi

import (
	"encoding/binary"
	"sync/atomic"
)

// modeState are the mode parameters of a logical unit that can be changed.
type modeState struct{ bits atomic.Uint32 }

const (
	modeDSense = 1 << iota // Control page: sense data in descriptor format
	modeSWP                // Control page: software write protect
)

func (m *modeState) reset() { m.bits.Store(0) }

// modes are the changeable mode parameters. Of a unit that several nodes show they are those of its volume, on which the nodes have agreed.
func (lu *LogicalUnit) modes() uint32 {
	if lu.stays() {
		return lu.mode.bits.Load()
	}
	return lu.v.Access().Modes()
}

func (lu *LogicalUnit) descriptorSense() bool { return lu.modes()&modeDSense != 0 }

func (lu *LogicalUnit) writeProtected() bool { return lu.readOnly || lu.modes()&modeSWP != 0 }

// Page control field of MODE SENSE (SPC-4 §6.11).
const (
	pcCurrent = iota
	pcChangeable
	pcDefault
	pcSaved
)

// modePage is a row of the table of mode pages.
type modePage struct {
	code   byte
	length int                                        // of the page after its two byte header
	fill   func(lu *LogicalUnit, pc int, page []byte) // fills a page whose header is there
}

// modePages are the mode pages, sorted by code.
var modePages = [...]modePage{
	{0x01, 0x0a, nil}, // Read-Write Error Recovery, SBC-3 §6.5.8
	{0x08, 0x12, (*LogicalUnit).cachingPage},
	{controlPageCode, 0x0a, (*LogicalUnit).controlPage},
	{0x1c, 0x0a, nil}, // Informational Exceptions Control, SPC-4 §7.5.13
}

// cachingPage is SBC-3 §6.5.5.
func (lu *LogicalUnit) cachingPage(pc int, page []byte) {
	if pc != pcChangeable && lu.info.VolatileCache {
		page[2] = 0x04 // WCE
	}
}

const controlPageCode = 0x0a

// controlPage is SPC-4 §7.5.8.
func (lu *LogicalUnit) controlPage(pc int, page []byte) {
	bits := lu.modes()
	switch pc {
	case pcChangeable:
		bits = 0
		if lu.agrees() {
			bits = modeDSense | modeSWP
		}
	case pcDefault:
		bits = 0
	}
	if bits&modeDSense != 0 {
		page[2] |= 0x04
	}
	if bits&modeSWP != 0 {
		page[4] |= 0x08
	}
	if pc != pcChangeable {
		page[3] = 0x10 // QUEUE ALGORITHM MODIFIER 1: unrestricted reordering of SIMPLE tasks
	}
}

func (t *Task) modeSense6() Next {
	body, s, ok := t.modePages()
	if !ok {
		return t.check(s)
	}
	block := t.modeBlockDescriptor(false)
	data := []byte{byte(3 + len(block) + len(body)), 0, t.lu.deviceSpecific(), byte(len(block))}
	return t.reply(append(append(data, block...), body...), int(t.CDB[4]))
}

func (t *Task) modeSense10() Next {
	body, s, ok := t.modePages()
	if !ok {
		return t.check(s)
	}
	long := t.CDB[1]&0x10 != 0 // LLBAA
	block := t.modeBlockDescriptor(long)
	data := make([]byte, 8)
	binary.BigEndian.PutUint16(data, uint16(6+len(block)+len(body)))
	data[3] = t.lu.deviceSpecific()
	if long && len(block) != 0 {
		data[4] = 0x01 // LONGLBA
	}
	binary.BigEndian.PutUint16(data[6:], uint16(len(block)))
	return t.reply(append(append(data, block...), body...), int(binary.BigEndian.Uint16(t.CDB[7:])))
}

// deviceSpecific is the DEVICE-SPECIFIC PARAMETER of the mode parameter header, SBC-3 §6.5.1.
func (lu *LogicalUnit) deviceSpecific() byte {
	const wp, dpofua = 0x80, 0x10
	if lu.writeProtected() {
		return wp | dpofua
	}
	return dpofua
}

// modeBlockDescriptor is SBC-3 §6.5.2, or nothing if DBD asks for nothing.
func (t *Task) modeBlockDescriptor(long bool) []byte {
	if t.CDB[1]&0x08 != 0 {
		return nil
	}
	if long {
		b := make([]byte, 16)
		binary.BigEndian.PutUint64(b, t.lu.blocks())
		binary.BigEndian.PutUint32(b[12:], uint32(t.lu.blockSize))
		return b
	}
	b := make([]byte, 8)
	binary.BigEndian.PutUint32(b, uint32(min(t.lu.blocks(), 0xffffffff)))
	binary.BigEndian.PutUint32(b[4:], uint32(t.lu.blockSize)) // three bytes: below 16 MiB
	return b
}

// modePages are the pages that a MODE SENSE asks for.
func (t *Task) modePages() ([]byte, Sense, bool) {
	pc, code, sub := int(t.CDB[2]>>6), t.CDB[2]&0x3f, t.CDB[3]
	if pc == pcSaved {
		return nil, senseNoSaving, false
	}
	if sub != 0 && (code != 0x3f || sub != 0xff) {
		return nil, invalidField(3), false
	}
	var body []byte
	for _, p := range modePages {
		if code == p.code || code == 0x3f {
			body = p.appendTo(body, t.lu, pc)
		}
	}
	if body == nil {
		return nil, invalidField(2), false
	}
	return body, Sense{}, true
}

func (p *modePage) appendTo(b []byte, lu *LogicalUnit, pc int) []byte {
	page := make([]byte, 2+p.length)
	page[0], page[1] = p.code, byte(p.length)
	if p.fill != nil {
		p.fill(lu, pc, page)
	}
	return append(b, page...)
}
