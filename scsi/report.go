package scsi

import "encoding/binary"

// reportLUNs is SPC-4 §6.33. There are no well known logical units.
func (t *Task) reportLUNs() Next {
	list := *t.Nexus.table.Load()
	switch t.CDB[2] {
	case 0x00, 0x02:
	case 0x01: // well known logical units only
		list = nil
	default:
		return t.check(invalidField(2))
	}
	alloc := binary.BigEndian.Uint32(t.CDB[6:])
	if alloc < 16 {
		return t.check(invalidField(6))
	}
	data := make([]byte, 8, 8+8*len(list))
	binary.BigEndian.PutUint32(data, uint32(8*len(list)))
	for _, i := range list {
		data = binary.BigEndian.AppendUint64(data, encodeLUN(i.lun))
		i.ua.And(^uaLUNsChanged) // SPC-4 §6.33: the initiator knows now
	}
	return t.reply(data, int(alloc))
}
