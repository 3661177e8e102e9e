package initiator

import "fmt"

// commandNames are those of SPC-4 and SBC-3 that disks know.
var commandNames = map[byte]string{
	0x00: "TEST UNIT READY", 0x03: "REQUEST SENSE", 0x08: "READ(6)", 0x0a: "WRITE(6)", 0x12: "INQUIRY", 0x15: "MODE SELECT(6)",
	0x16: "RESERVE(6)", 0x17: "RELEASE(6)", 0x1a: "MODE SENSE(6)", 0x1b: "START STOP UNIT", 0x1d: "SEND DIAGNOSTIC",
	0x1e: "PREVENT ALLOW MEDIUM REMOVAL", 0x25: "READ CAPACITY(10)", 0x28: "READ(10)", 0x2a: "WRITE(10)", 0x2e: "WRITE AND VERIFY(10)",
	0x2f: "VERIFY(10)", 0x35: "SYNCHRONIZE CACHE(10)", 0x41: "WRITE SAME(10)", 0x42: "UNMAP", 0x48: "SANITIZE", 0x4d: "LOG SENSE",
	0x55: "MODE SELECT(10)", 0x5a: "MODE SENSE(10)", 0x5e: "PERSISTENT RESERVE IN", 0x5f: "PERSISTENT RESERVE OUT", 0x83: "EXTENDED COPY",
	0x84: "RECEIVE COPY RESULTS", 0x88: "READ(16)", 0x89: "COMPARE AND WRITE", 0x8a: "WRITE(16)", 0x8b: "ORWRITE(16)",
	0x8e: "WRITE AND VERIFY(16)", 0x8f: "VERIFY(16)", 0x91: "SYNCHRONIZE CACHE(16)", 0x93: "WRITE SAME(16)", 0x9c: "WRITE ATOMIC(16)",
	0x9e: "SERVICE ACTION IN(16)", 0xa0: "REPORT LUNS", 0xa3: "MAINTENANCE IN", 0xa4: "MAINTENANCE OUT", 0xa8: "READ(12)",
	0xaa: "WRITE(12)", 0xae: "WRITE AND VERIFY(12)", 0xaf: "VERIFY(12)",
}

func commandName(op byte) string {
	if s := commandNames[op]; s != "" {
		return s
	}
	return fmt.Sprintf("command %02xh", op)
}

// senseNames say what additional sense codes and qualifiers mean, 0xAAQQ (SPC-4 annex F).
var senseNames = map[uint16]string{
	0x0000: "no additional information", 0x0006: "I/O process terminated", 0x0016: "operation in progress",
	0x0400: "the unit is not ready", 0x0401: "the unit is becoming ready", 0x0402: "the unit has to be started",
	0x0403: "the unit needs somebody's help", 0x0404: "the unit is being formatted", 0x040a: "the access state is changing",
	0x040b: "the port is in standby", 0x040c: "the port is unavailable", 0x0412: "the unit is offline", 0x041b: "the unit is being sanitized",
	0x0b00: "warning", 0x0c00: "write error", 0x0c0c: "data came that was not asked for", 0x0c0d: "not enough data came",
	0x0d02: "the other end of the copy is not reachable", 0x0e03: "invalid field in the command information unit",
	0x1100: "read error", 0x1a00: "wrong length of a parameter list", 0x1d00: "the bytes are others than those compared with",
	0x2000: "the unit does not know the command", 0x2100: "block address beyond the end", 0x2101: "invalid element address",
	0x2300: "invalid token operation", 0x2304: "the token is unknown", 0x2307: "the token is not valid any more", 0x2400: "invalid field in the command",
	0x2500: "there is no such LUN", 0x2600: "invalid field in a parameter list", 0x2602: "parameter value not valid",
	0x2604: "release of a reservation that is not held", 0x2608: "too many segment descriptors", 0x2700: "the medium is write protected",
	0x2707: "no space is left for the store", 0x2800: "the medium may have changed", 0x2900: "power on or reset", 0x2901: "power on",
	0x2902: "bus reset", 0x2903: "the unit was reset", 0x2904: "internal reset", 0x2907: "I_T nexus loss",
	0x2a01: "mode parameters have changed", 0x2a03: "reservations were preempted", 0x2a04: "reservations were released",
	0x2a05: "registrations were preempted", 0x2a06: "the access state has changed", 0x2a07: "the change of the access state has failed",
	0x2a09: "the capacity has changed", 0x2c00: "commands out of sequence", 0x2f00: "another initiator has cleared the commands",
	0x3100: "the medium is damaged", 0x3103: "sanitizing has failed", 0x3900: "parameters cannot be saved", 0x3a00: "there is no medium",
	0x3f00: "the target has changed", 0x3f03: "INQUIRY data has changed", 0x3f0e: "the list of LUNs has changed",
	0x4400: "the target has failed internally", 0x4705: "wrong checksum", 0x4900: "invalid message", 0x4b00: "data was lost on the way",
	0x5300: "the medium cannot be loaded or ejected", 0x5302: "the medium may not be removed", 0x5500: "too little of a resource", 0x5503: "too little of a resource",
	0x5504: "too many registrations", 0x5505: "access denied", 0x5d00: "failure is predicted",
}

func senseName(asc, ascq byte) string {
	if s := senseNames[uint16(asc)<<8|uint16(ascq)]; s != "" {
		return s
	}
	return senseNames[uint16(asc)<<8] // which is at least the family's; or ""
}
