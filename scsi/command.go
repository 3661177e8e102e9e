package scsi

// command is one row of the command table: an operation code and, where there is one, a
// service action. Dispatch, REPORT SUPPORTED OPERATION CODES, traces and metrics read it.
type command struct {
	Name string
	// Usage is the CDB usage data (SPC-4 §6.35.3): the operation code, then a one for each
	// bit that is looked at. In the byte of the service action it holds its value. Its
	// length is that of the CDB.
	Usage string
	Flags commandFlags
	Run   func(*Task) Next

	hasSA bool
	sa    uint16
}

type commandFlags uint8

const (
	// ignoresUA: runs without reporting a pending unit attention (SAM-5 §5.14).
	ignoresUA commandFlags = 1 << iota
	// anyLUN: answers for a LUN without a logical unit; Task.lu is nil then.
	anyLUN
	// writesMedium: refused when the medium is write protected.
	writesMedium
)

// opcodes finds the rows. It is never changed after init.
var opcodes *table

func init() { // REPORT SUPPORTED OPERATION CODES is in the table and reads it
	opcodes = newTable(rows...)
}

// rows is the command table.
var rows = []command{
	// SPC-4
	{Name: "TEST UNIT READY", Usage: "\x00\x00\x00\x00\x00\x04", Run: (*Task).testUnitReady},
	{Name: "REQUEST SENSE", Usage: "\x03\x01\x00\x00\xff\x04", Flags: ignoresUA | anyLUN, Run: (*Task).requestSense},
	{Name: "INQUIRY", Usage: "\x12\x01\xff\xff\xff\x04", Flags: ignoresUA | anyLUN, Run: (*Task).inquiry},
	{Name: "MODE SENSE(6)", Usage: "\x1a\x08\xff\xff\xff\x04", Run: (*Task).modeSense6},
	{Name: "MODE SENSE(10)", Usage: "\x5a\x08\xff\xff\x00\x00\x00\xff\xff\x04", Run: (*Task).modeSense10},
	{Name: "REPORT LUNS", Usage: "\xa0\x00\xff\x00\x00\x00\xff\xff\xff\xff\x00\x04", Flags: ignoresUA | anyLUN, Run: (*Task).reportLUNs},

	// SBC-3
	{Name: "READ(6)", Usage: "\x08\x1f\xff\xff\xff\x04", Run: (*Task).read6},
	{Name: "READ(10)", Usage: "\x28\x18\xff\xff\xff\xff\x00\xff\xff\x04", Run: (*Task).read10},
	{Name: "READ(12)", Usage: "\xa8\x18\xff\xff\xff\xff\xff\xff\xff\xff\x00\x04", Run: (*Task).read12},
	{Name: "READ(16)", Usage: "\x88\x18\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x00\x04", Run: (*Task).read16},
	{Name: "WRITE(6)", Usage: "\x0a\x1f\xff\xff\xff\x04", Flags: writesMedium, Run: (*Task).write6},
	{Name: "WRITE(10)", Usage: "\x2a\x18\xff\xff\xff\xff\x00\xff\xff\x04", Flags: writesMedium, Run: (*Task).write10},
	{Name: "WRITE(12)", Usage: "\xaa\x18\xff\xff\xff\xff\xff\xff\xff\xff\x00\x04", Flags: writesMedium, Run: (*Task).write12},
	{Name: "WRITE(16)", Usage: "\x8a\x18\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x00\x04", Flags: writesMedium, Run: (*Task).write16},
	{Name: "READ CAPACITY(10)", Usage: "\x25\x00\x00\x00\x00\x00\x00\x00\x00\x04", Run: (*Task).readCapacity10},
	{Name: "READ CAPACITY(16)", Usage: "\x9e\x10\x00\x00\x00\x00\x00\x00\x00\x00\xff\xff\xff\xff\x00\x04", Run: (*Task).readCapacity16, hasSA: true, sa: 0x10},
	{Name: "SYNCHRONIZE CACHE(10)", Usage: "\x35\x02\xff\xff\xff\xff\x00\xff\xff\x04", Run: (*Task).synchronizeCache10},
	{Name: "SYNCHRONIZE CACHE(16)", Usage: "\x91\x02\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x00\x04", Run: (*Task).synchronizeCache16},
}

// table finds rows by operation code and, under it, by service action.
type table [256]struct {
	plain   *command
	actions *[32]*command
}

func newTable(rows ...command) *table {
	t := new(table)
	for i := range rows {
		c := &rows[i]
		e := &t[c.Usage[0]]
		if !c.hasSA {
			e.plain = c
			continue
		}
		if e.actions == nil {
			e.actions = new([32]*command)
		}
		e.actions[c.sa] = c
	}
	return t
}

// lookupCommand finds the row of a CDB, or nil.
func lookupCommand(cdb []byte) *command {
	if len(cdb) < 6 {
		return nil
	}
	e := &opcodes[cdb[0]]
	if e.actions != nil {
		return e.actions[cdb[1]&0x1f]
	}
	return e.plain
}
