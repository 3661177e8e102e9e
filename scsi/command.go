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
	// When says whether a logical unit has the command; nil: each has.
	When func(*LogicalUnit) bool
	Run  func(*Task) Next

	hasSA bool
	sa    uint16
	form  form
	// denied are the denials that matter to it.
	denied uint32
}

type commandFlags uint16

const (
	// ignoresUA: runs without reporting a pending unit attention (SAM-5 §5.14).
	ignoresUA commandFlags = 1 << iota
	// anyLUN: answers for a LUN without a logical unit; Task.lu is nil then.
	anyLUN
	// writesMedium: refused when the medium is write protected, and to those whom
	// reservations keep from writing.
	writesMedium
	// tellsBlocks: the CDB tells all blocks that the command writes.
	tellsBlocks
	// altersUnit: refused to the latter only.
	altersUnit
	// readsMedium: refused to those whom reservations keep from reading.
	readsMedium
	// passesReserve: allowed although another initiator has done RESERVE.
	passesReserve
	// beginsAtOnce: may change the medium in its first step, without data to be fetched before (Task.preempted).
	beginsAtOnce

	// The following run in a condition that refuses most commands (condition.go).

	passesNoMedium    // the medium has been ejected
	passesSanitize    // a sanitize operation is under way, or has failed
	passesStandby     // the target port group is in the standby state
	passesUnavailable // or unavailable, or offline
	passesTransition  // or changes its state
	// leavesSanitize: allowed when a sanitize operation has failed only.
	leavesSanitize

	passesAll = passesNoMedium | passesSanitize | passesStandby | passesUnavailable | passesTransition
	// writesBlocks: both.
	writesBlocks = writesMedium | tellsBlocks
	// describes: tells of the logical unit without touching medium or data.
	describes = passesNoMedium | passesSanitize | passesStandby
)

var (
	// rows is the command table, and opcodes finds its rows. Neither is changed after init.
	rows    []command
	opcodes *table
)

func init() { // not in the declarations: commands that report the table are in it
	rows = []command{
		// SPC-4
		{Name: "TEST UNIT READY", Usage: "\x00\x00\x00\x00\x00\x04", Run: (*Task).testUnitReady},
		{Name: "REQUEST SENSE", Usage: "\x03\x01\x00\x00\xff\x04", Flags: ignoresUA | anyLUN | passesReserve | passesAll, Run: (*Task).requestSense},
		{Name: "INQUIRY", Usage: "\x12\x01\xff\xff\xff\x04", Flags: ignoresUA | anyLUN | passesReserve | passesAll, Run: (*Task).inquiry},
		{Name: "MODE SELECT(6)", Usage: "\x15\x11\x00\x00\xff\x04", Flags: altersUnit | passesNoMedium | passesStandby, Run: (*Task).modeSelect6},
		{Name: "MODE SELECT(10)", Usage: "\x55\x11\x00\x00\x00\x00\x00\xff\xff\x04", Flags: altersUnit | passesNoMedium | passesStandby, Run: (*Task).modeSelect10},
		{Name: "MODE SENSE(6)", Usage: "\x1a\x08\xff\xff\xff\x04", Flags: readsMedium | passesNoMedium | passesStandby, Run: (*Task).modeSense6},
		{Name: "MODE SENSE(10)", Usage: "\x5a\x18\xff\xff\x00\x00\x00\xff\xff\x04", Flags: readsMedium | passesNoMedium | passesStandby, Run: (*Task).modeSense10},
		{Name: "SEND DIAGNOSTIC", Usage: "\x1d\xe4\x00\xff\xff\x04", Flags: readsMedium | altersUnit | passesStandby, Run: (*Task).sendDiagnostic},
		{Name: "REPORT LUNS", Usage: "\xa0\x00\xff\x00\x00\x00\xff\xff\xff\xff\x00\x04", Flags: ignoresUA | anyLUN | passesReserve | passesAll, Run: (*Task).reportLUNs},
		{Name: "REPORT SUPPORTED OPERATION CODES", Usage: "\xa3\x0c\x87\xff\xff\xff\xff\xff\xff\xff\x00\x04", Flags: readsMedium | describes, hasSA: true, sa: 0x0c, Run: (*Task).reportOpcodes},
		{Name: "REPORT SUPPORTED TASK MANAGEMENT FUNCTIONS", Usage: "\xa3\x0d\x80\x00\x00\x00\xff\xff\xff\xff\x00\x04", Flags: readsMedium | describes, hasSA: true, sa: 0x0d, Run: (*Task).reportTMFs},
		{Name: "REPORT TARGET PORT GROUPS", Usage: "\xa3\xea\x00\x00\x00\x00\xff\xff\xff\xff\x00\x04", Flags: passesAll | passesReserve, When: (*LogicalUnit).hasALUA, hasSA: true, sa: 0x0a, Run: (*Task).reportTargetPortGroups},
		{Name: "SET TARGET PORT GROUPS", Usage: "\xa4\x0a\x00\x00\x00\x00\xff\xff\xff\xff\x00\x04", Flags: altersUnit | describes | passesUnavailable, When: (*LogicalUnit).hasExplicit, hasSA: true, sa: 0x0a, Run: (*Task).setTargetPortGroups},
		{Name: "EXTENDED COPY(LID1)", Usage: "\x83\x00\x00\x00\x00\x00\x00\x00\x00\x00\xff\xff\xff\xff\x00\x04", Flags: readsMedium | altersUnit, hasSA: true, sa: 0x00, Run: (*Task).extendedCopy},
		{Name: "POPULATE TOKEN", Usage: "\x83\x10\x00\x00\x00\x00\xff\xff\xff\xff\xff\xff\xff\xff\x00\x04", Flags: readsMedium, hasSA: true, sa: 0x10, Run: (*Task).populateToken},
		{Name: "WRITE USING TOKEN", Usage: "\x83\x11\x00\x00\x00\x00\xff\xff\xff\xff\xff\xff\xff\xff\x00\x04", Flags: writesMedium, hasSA: true, sa: 0x11, Run: (*Task).writeUsingToken},
		{Name: "RECEIVE COPY STATUS(LID1)", Usage: "\x84\x00\xff\x00\x00\x00\x00\x00\x00\x00\xff\xff\xff\xff\x00\x04", Flags: passesNoMedium, hasSA: true, sa: 0x00, Run: (*Task).receiveCopyStatus},
		{Name: "RECEIVE COPY OPERATING PARAMETERS", Usage: "\x84\x03\x00\x00\x00\x00\x00\x00\x00\x00\xff\xff\xff\xff\x00\x04", Flags: passesNoMedium, hasSA: true, sa: 0x03, Run: (*Task).receiveCopyParameters},
		{Name: "RECEIVE COPY STATUS(LID4)", Usage: "\x84\x05\xff\xff\xff\xff\x00\x00\x00\x00\xff\xff\xff\xff\x00\x04", Flags: passesNoMedium, hasSA: true, sa: 0x05, Run: (*Task).receiveCopyStatus4},
		{Name: "RECEIVE ROD TOKEN INFORMATION", Usage: "\x84\x07\xff\xff\xff\xff\x00\x00\x00\x00\xff\xff\xff\xff\x00\x04", Flags: passesNoMedium, hasSA: true, sa: 0x07, Run: (*Task).receiveRODTokenInformation},
		{Name: "LOG SENSE", Usage: "\x4d\x01\xff\xff\x00\xff\xff\xff\xff\x04", Flags: describes, Run: (*Task).logSense},
		{Name: "PERSISTENT RESERVE IN, READ KEYS", Usage: "\x5e\x00\x00\x00\x00\x00\x00\xff\xff\x04", Flags: describes, When: (*LogicalUnit).agrees, hasSA: true, sa: 0x00, Run: (*Task).readKeys},
		{Name: "PERSISTENT RESERVE IN, READ RESERVATION", Usage: "\x5e\x01\x00\x00\x00\x00\x00\xff\xff\x04", Flags: describes, When: (*LogicalUnit).agrees, hasSA: true, sa: 0x01, Run: (*Task).readReservation},
		{Name: "PERSISTENT RESERVE IN, REPORT CAPABILITIES", Usage: "\x5e\x02\x00\x00\x00\x00\x00\xff\xff\x04", Flags: describes, When: (*LogicalUnit).agrees, hasSA: true, sa: 0x02, Run: (*Task).reportCapabilities},
		{Name: "PERSISTENT RESERVE IN, READ FULL STATUS", Usage: "\x5e\x03\x00\x00\x00\x00\x00\xff\xff\x04", Flags: describes, When: (*LogicalUnit).agrees, hasSA: true, sa: 0x03, Run: (*Task).readFullStatus},
		{Name: "PERSISTENT RESERVE OUT, REGISTER", Usage: "\x5f\x00\x00\x00\x00\xff\xff\xff\xff\x04", Flags: passesNoMedium | passesStandby, When: (*LogicalUnit).agrees, hasSA: true, sa: 0x00, Run: (*Task).persistentReserveOut},
		{Name: "PERSISTENT RESERVE OUT, RESERVE", Usage: "\x5f\x01\xff\x00\x00\xff\xff\xff\xff\x04", Flags: passesNoMedium | passesStandby, When: (*LogicalUnit).agrees, hasSA: true, sa: 0x01, Run: (*Task).persistentReserveOut},
		{Name: "PERSISTENT RESERVE OUT, RELEASE", Usage: "\x5f\x02\xff\x00\x00\xff\xff\xff\xff\x04", Flags: passesNoMedium | passesStandby, When: (*LogicalUnit).agrees, hasSA: true, sa: 0x02, Run: (*Task).persistentReserveOut},
		{Name: "PERSISTENT RESERVE OUT, CLEAR", Usage: "\x5f\x03\x00\x00\x00\xff\xff\xff\xff\x04", Flags: passesNoMedium | passesStandby, When: (*LogicalUnit).agrees, hasSA: true, sa: 0x03, Run: (*Task).persistentReserveOut},
		{Name: "PERSISTENT RESERVE OUT, PREEMPT", Usage: "\x5f\x04\xff\x00\x00\xff\xff\xff\xff\x04", Flags: passesNoMedium | passesStandby, When: (*LogicalUnit).agrees, hasSA: true, sa: 0x04, Run: (*Task).persistentReserveOut},
		{Name: "PERSISTENT RESERVE OUT, PREEMPT AND ABORT", Usage: "\x5f\x05\xff\x00\x00\xff\xff\xff\xff\x04", Flags: passesNoMedium | passesStandby, When: (*LogicalUnit).agrees, hasSA: true, sa: 0x05, Run: (*Task).persistentReserveOut},
		{Name: "PERSISTENT RESERVE OUT, REGISTER AND IGNORE EXISTING KEY", Usage: "\x5f\x06\x00\x00\x00\xff\xff\xff\xff\x04", Flags: passesNoMedium | passesStandby, When: (*LogicalUnit).agrees, hasSA: true, sa: 0x06, Run: (*Task).persistentReserveOut},
		{Name: "PERSISTENT RESERVE OUT, REGISTER AND MOVE", Usage: "\x5f\x07\x00\x00\x00\xff\xff\xff\xff\x04", Flags: passesNoMedium | passesStandby, When: (*LogicalUnit).agrees, hasSA: true, sa: 0x07, Run: (*Task).persistentReserveOut},

		// SPC-2
		{Name: "RESERVE(6)", Usage: "\x16\x1f\x00\x00\x00\x04", Flags: passesNoMedium, When: (*LogicalUnit).stays, Run: (*Task).reserve},
		{Name: "RESERVE(10)", Usage: "\x56\x13\x00\x00\x00\x00\x00\x00\x00\x04", Flags: passesNoMedium, When: (*LogicalUnit).stays, Run: (*Task).reserve},
		{Name: "RELEASE(6)", Usage: "\x17\x1f\x00\x00\x00\x04", Flags: passesReserve | passesNoMedium, When: (*LogicalUnit).stays, Run: (*Task).releaseUnit},
		{Name: "RELEASE(10)", Usage: "\x57\x13\x00\x00\x00\x00\x00\x00\x00\x04", Flags: passesReserve | passesNoMedium, When: (*LogicalUnit).stays, Run: (*Task).releaseUnit},

		// SBC-3
		{Name: "READ(6)", Usage: "\x08\x1f\xff\xff\xff\x04", Flags: readsMedium, Run: (*Task).read},
		{Name: "READ(10)", Usage: "\x28\x18\xff\xff\xff\xff\x00\xff\xff\x04", Flags: readsMedium, Run: (*Task).read},
		{Name: "READ(12)", Usage: "\xa8\x18\xff\xff\xff\xff\xff\xff\xff\xff\x00\x04", Flags: readsMedium, Run: (*Task).read},
		{Name: "READ(16)", Usage: "\x88\x18\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x00\x04", Flags: readsMedium, Run: (*Task).read},
		{Name: "WRITE(6)", Usage: "\x0a\x1f\xff\xff\xff\x04", Flags: writesBlocks, Run: (*Task).write},
		{Name: "WRITE(10)", Usage: "\x2a\x18\xff\xff\xff\xff\x00\xff\xff\x04", Flags: writesBlocks, Run: (*Task).write},
		{Name: "WRITE(12)", Usage: "\xaa\x18\xff\xff\xff\xff\xff\xff\xff\xff\x00\x04", Flags: writesBlocks, Run: (*Task).write},
		{Name: "WRITE(16)", Usage: "\x8a\x18\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x00\x04", Flags: writesBlocks, Run: (*Task).write},
		{Name: "WRITE AND VERIFY(10)", Usage: "\x2e\x16\xff\xff\xff\xff\x00\xff\xff\x04", Flags: writesBlocks, Run: (*Task).writeAndVerify},
		{Name: "WRITE AND VERIFY(12)", Usage: "\xae\x16\xff\xff\xff\xff\xff\xff\xff\xff\x00\x04", Flags: writesBlocks, Run: (*Task).writeAndVerify},
		{Name: "WRITE AND VERIFY(16)", Usage: "\x8e\x16\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x00\x04", Flags: writesBlocks, Run: (*Task).writeAndVerify},
		{Name: "VERIFY(10)", Usage: "\x2f\x16\xff\xff\xff\xff\x00\xff\xff\x04", Flags: readsMedium, Run: (*Task).verify},
		{Name: "VERIFY(12)", Usage: "\xaf\x16\xff\xff\xff\xff\xff\xff\xff\xff\x00\x04", Flags: readsMedium, Run: (*Task).verify},
		{Name: "VERIFY(16)", Usage: "\x8f\x16\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x00\x04", Flags: readsMedium, Run: (*Task).verify},
		{Name: "PRE-FETCH(10)", Usage: "\x34\x02\xff\xff\xff\xff\x00\xff\xff\x04", Flags: readsMedium, Run: (*Task).prefetch},
		{Name: "PRE-FETCH(16)", Usage: "\x90\x02\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x00\x04", Flags: readsMedium, Run: (*Task).prefetch},
		{Name: "SYNCHRONIZE CACHE(10)", Usage: "\x35\x02\xff\xff\xff\xff\x00\xff\xff\x04", Flags: altersUnit, Run: (*Task).synchronizeCache},
		{Name: "SYNCHRONIZE CACHE(16)", Usage: "\x91\x02\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x00\x04", Flags: altersUnit, Run: (*Task).synchronizeCache},
		{Name: "WRITE SAME(10)", Usage: "\x41\x18\xff\xff\xff\xff\x00\xff\xff\x04", Flags: writesBlocks, Run: (*Task).writeSame},
		{Name: "WRITE SAME(16)", Usage: "\x93\x19\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x00\x04", Flags: writesBlocks | beginsAtOnce, Run: (*Task).writeSame},
		{Name: "ORWRITE(16)", Usage: "\x8b\x18\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x00\x04", Flags: writesBlocks, Run: (*Task).orWrite},
		{Name: "COMPARE AND WRITE", Usage: "\x89\x18\xff\xff\xff\xff\xff\xff\xff\xff\x00\x00\x00\xff\x00\x04", Flags: writesBlocks, form: formCompare, Run: (*Task).compareAndWrite},
		{Name: "UNMAP", Usage: "\x42\x01\x00\x00\x00\x00\x00\xff\xff\x04", Flags: writesMedium, When: (*LogicalUnit).thin, Run: (*Task).unmapBlocks},
		{Name: "READ CAPACITY(10)", Usage: "\x25\x00\x00\x00\x00\x00\x00\x00\x00\x04", Flags: passesReserve | passesStandby, Run: (*Task).readCapacity10},
		{Name: "READ CAPACITY(16)", Usage: "\x9e\x10\x00\x00\x00\x00\x00\x00\x00\x00\xff\xff\xff\xff\x00\x04", Flags: passesReserve | passesStandby, hasSA: true, sa: 0x10, Run: (*Task).readCapacity16},
		{Name: "GET LBA STATUS", Usage: "\x9e\x12\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x00\x04", Flags: readsMedium, hasSA: true, sa: 0x12, Run: (*Task).getLBAStatus},
		{Name: "WRITE ATOMIC(16)", Usage: "\x9c\x18\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x00\x04", Flags: writesBlocks, When: (*LogicalUnit).atomicWrites, form: formAtomic, Run: (*Task).writeAtomic},
		{Name: "SANITIZE, OVERWRITE", Usage: "\x48\xa1\x00\x00\x00\x00\x00\xff\xff\x04", Flags: writesMedium | leavesSanitize, When: (*LogicalUnit).stays, hasSA: true, sa: sanitizeOverwrite, Run: (*Task).sanitizeOverwrite},
		{Name: "SANITIZE, BLOCK ERASE", Usage: "\x48\xa2\x00\x00\x00\x00\x00\xff\xff\x04", Flags: writesMedium | beginsAtOnce | leavesSanitize, When: (*LogicalUnit).thinAndStays, hasSA: true, sa: sanitizeBlockErase, Run: (*Task).sanitizeBlockErase},
		{Name: "SANITIZE, EXIT FAILURE MODE", Usage: "\x48\x1f\x00\x00\x00\x00\x00\xff\xff\x04", Flags: altersUnit | leavesSanitize, When: (*LogicalUnit).stays, hasSA: true, sa: sanitizeExit, Run: (*Task).sanitizeExit},
		{Name: "READ DEFECT DATA(10)", Usage: "\x37\x00\x1f\x00\x00\x00\x00\xff\xff\x04", Flags: readsMedium, Run: (*Task).readDefectData10},
		{Name: "READ DEFECT DATA(12)", Usage: "\xb7\x1f\x00\x00\x00\x00\xff\xff\xff\xff\x00\x04", Flags: readsMedium, Run: (*Task).readDefectData12},
		{Name: "PREVENT ALLOW MEDIUM REMOVAL", Usage: "\x1e\x00\x00\x00\x03\x04", Flags: passesNoMedium, When: (*LogicalUnit).removable, Run: (*Task).preventAllow},
		{Name: "START STOP UNIT", Usage: "\x1b\x01\x00\x00\xf7\x04", Flags: passesNoMedium, Run: (*Task).startStopUnit},
	}
	opcodes = newTable(rows)
}

// Command is the name of the command as in the standards, or "" if the target does not know
// it. It is valid from Start to Release.
func (t *Task) Command() string {
	if t.cmd == nil {
		return ""
	}
	return t.cmd.Name
}

// table finds rows by operation code and, under it, by service action.
type table [256]struct {
	plain   *command
	actions *[32]*command
}

func newTable(rows []command) *table {
	t := new(table)
	for i := range rows {
		c := &rows[i]
		c.denied = denials(c.Flags)
		c.form = c.formOf()
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

func denials(f commandFlags) (d uint32) {
	if f&(writesMedium|altersUnit) != 0 {
		d |= denyWrites
	}
	if f&readsMedium != 0 {
		d |= denyReads
	}
	if f&passesReserve == 0 {
		d |= denyMost
	}
	for _, c := range conditions {
		if f&c.passes == 0 {
			d |= c.deny
		}
	}
	return d
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
