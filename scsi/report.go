package scsi

import "encoding/binary"

// reportLUNs is SPC-4 §6.33. There are no well known logical units.
func (t *Task) reportLUNs() Next {
	if t.CDB[2] > 0x02 {
		return t.check(invalidField(2))
	}
	alloc := binary.BigEndian.Uint32(t.CDB[6:])
	if alloc < 16 {
		return t.check(invalidField(6))
	}
	var list []*itl
	if t.CDB[2] != 0x01 { // well known logical units only
		for _, i := range *t.Nexus.table.Load() {
			if i.ua.And(^uaLUNsChanged)&uaLUNsChanged != 0 { // SPC-4 §6.33: the initiator knows now,
				t.told = toldLUNs
			}
		}
		list = *t.Nexus.table.Load() // except for what changes from here on: setLUs replaces the table first
	}
	out, next := t.room(8+8*len(list), int(alloc))
	out.putUint64(uint64(8*len(list)) << 32) // LUN LIST LENGTH, reserved
	for _, i := range list {
		out.putUint64(encodeLUN(i.lun))
	}
	return next
}

// Reporting options of REPORT SUPPORTED OPERATION CODES.
const (
	reportAll = iota
	reportOpcode
	reportServiceAction
	reportEither
)

// reportOpcodes is SPC-4 §6.35.
func (t *Task) reportOpcodes() Next {
	timeouts := t.CDB[2]&0x80 != 0 // RCTD
	alloc := int(min(binary.BigEndian.Uint32(t.CDB[6:]), 1<<16))
	option := t.CDB[2] & 0x07
	if option == reportAll {
		return t.reply(t.allOpcodes(timeouts), alloc)
	}
	e := &opcodes[t.CDB[3]]
	sa := binary.BigEndian.Uint16(t.CDB[4:])
	switch {
	case option > reportEither:
		return t.check(invalidField(2))
	case option == reportOpcode && e.actions != nil, option == reportServiceAction && e.plain != nil:
		return t.check(invalidField(2))
	}
	c := e.plain
	switch {
	case e.actions != nil && sa < uint16(len(e.actions)):
		c = e.actions[sa]
	case option != reportOpcode && sa != 0:
		c = nil
	}
	return t.reply(t.oneOpcode(c, timeouts), alloc)
}

// has reports whether the logical unit has the command.
func (lu *LogicalUnit) has(c *command) bool { return c != nil && (c.When == nil || c.When(lu)) }

// allOpcodes is the all_commands parameter data, SPC-4 §6.35.2.
func (t *Task) allOpcodes(timeouts bool) []byte {
	data := make([]byte, 4, 4+20*len(rows))
	for i := range rows {
		c := &rows[i]
		if !t.lu.has(c) {
			continue
		}
		var flags byte
		if c.hasSA {
			flags |= 0x01 // SERVACTV
		}
		if timeouts {
			flags |= 0x02 // CTDP
		}
		data = append(data, c.Usage[0], 0, byte(c.sa>>8), byte(c.sa), 0, flags, 0, byte(len(c.Usage)))
		if timeouts {
			data = append(data, noTimeouts...)
		}
	}
	binary.BigEndian.PutUint32(data, uint32(len(data)-4))
	return data
}

// noTimeouts is a command timeouts descriptor without any value, SPC-4 §6.35.4.
const noTimeouts = "\x00\x0a\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"

// oneOpcode is the one_command parameter data, SPC-4 §6.35.3.
func (t *Task) oneOpcode(c *command, timeouts bool) []byte {
	if !t.lu.has(c) {
		return []byte{0, 0x01, 0, 0} // not supported
	}
	data := []byte{0, 0x03, 0, byte(len(c.Usage))} // supported, as the standard says
	data = append(data, c.Usage...)
	if timeouts {
		data[1] |= 0x80 // CTDP
		data = append(data, noTimeouts...)
	}
	return data
}

// reportTMFs is SPC-4 §6.36.
func (t *Task) reportTMFs() Next {
	alloc := binary.BigEndian.Uint32(t.CDB[6:])
	if alloc < 4 {
		return t.check(invalidField(6))
	}
	// ABORT TASK, ABORT TASK SET, CLEAR TASK SET, LOGICAL UNIT RESET, QUERY TASK, TARGET RESET;
	// QUERY ASYNCHRONOUS EVENT, QUERY TASK SET, I_T NEXUS RESET.
	data := []byte{0xde, 0x07, 0, 0}
	if t.CDB[2]&0x80 != 0 { // REPD: the same with timeouts, of which there are none
		data = append(data, make([]byte, 12)...)
		data[3] = 0x0c
	}
	return t.reply(data, int(min(alloc, 1<<16)))
}
