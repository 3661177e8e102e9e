package scsi

import "encoding/binary"

// readCapacity10 is SBC-3 §5.15.
func (t *Task) readCapacity10() Next {
	data := make([]byte, 8)
	binary.BigEndian.PutUint32(data, uint32(min(t.lu.blocks()-1, 0xffffffff)))
	binary.BigEndian.PutUint32(data[4:], uint32(t.lu.blockSize))
	return t.reply(data, len(data))
}

// readCapacity16 is SBC-3 §5.16.
func (t *Task) readCapacity16() Next {
	data := make([]byte, 32)
	binary.BigEndian.PutUint64(data, t.lu.blocks()-1)
	binary.BigEndian.PutUint32(data[8:], uint32(t.lu.blockSize))
	data[13] = byte(t.lu.physShift)
	if t.lu.thin() {
		data[14] = 0xc0 // LBPME, LBPRZ
	}
	return t.reply(data, int(min(binary.BigEndian.Uint32(t.CDB[10:]), 32)))
}

// thin reports whether unmapped blocks give space back: logical block provisioning.
func (lu *LogicalUnit) thin() bool { return lu.v.Thin() }

// stays reports whether this process alone serves the volume. If not, the unit has no commands whose effect would have
// to hold where another process serves it: RESERVE and SANITIZE.
func (lu *LogicalUnit) stays() bool { return !lu.v.Moves() }

// agrees reports whether persistent reservations and mode parameters hold wherever the volume is served.
func (lu *LogicalUnit) agrees() bool { return lu.stays() || lu.v.Access().Shared() }

func (lu *LogicalUnit) thinAndStays() bool { return lu.thin() && lu.stays() }
