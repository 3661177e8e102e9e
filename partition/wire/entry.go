package wire

const entryLen = 32

// Entry is what LIST and INFO tell of a partition.
//
//	0   UUID (16)
//	10  size in octets (8)
//	18  unit in octets (4)
//	1c  rights of the one who asks (1), durability (1), length of the name (1), 0 (1)
//	20  name: STORE/PARTITION
type Entry struct {
	UUID       [16]byte
	Size       uint64
	Unit       uint32
	Rights     uint8
	Durability uint8
	Name       string
}

// Len is how many octets AppendTo appends.
func (e *Entry) Len() int { return entryLen + len(e.Name) }

// AppendTo appends the entry. The name has at most MaxPartition octets.
func (e *Entry) AppendTo(b []byte) []byte {
	b = append(b, e.UUID[:]...)
	b = be.AppendUint64(b, e.Size)
	b = be.AppendUint32(b, e.Unit)
	b = append(b, e.Rights, e.Durability, byte(len(e.Name)), 0)
	return append(b, e.Name...)
}

// ParseEntry reads the first entry of b, and returns what is behind it.
func ParseEntry(b []byte) (e Entry, rest []byte, err error) {
	if len(b) < entryLen || len(b) < entryLen+int(b[30]) {
		return e, nil, errShort
	}
	n := entryLen + int(b[30])
	e = Entry{
		UUID: [16]byte(b[:16]), Size: be.Uint64(b[16:]), Unit: be.Uint32(b[24:]), Rights: b[28], Durability: b[29],
		Name: string(b[entryLen:n]),
	}
	switch {
	case b[31] != 0:
		return e, nil, errReserved
	case e.Durability > 2:
		return e, nil, errStatus
	case !printable(e.Name):
		return e, nil, errText
	}
	return e, b[n:], nil
}
