package wire

import (
	"fmt"
	"testing"
)

// numbers follows the sequence numbers that a target sends on one connection,
// RFC 7143 §4.2.2.
type numbers struct {
	begun    bool
	statSN   uint32 // expected next
	expCmdSN uint32
	maxCmdSN uint32
	dataSN   map[uint64]uint64 // by initiator task tag: expected next
	r2tSN    map[uint64]uint64
}

// next takes the next PDU and says what is wrong with its numbers.
func (n *numbers) next(u pdu) []string {
	var bad []string
	complain := func(format string, args ...any) { bad = append(bad, fmt.Sprintf(format, args...)) }

	statSN, hasStatSN := u.number("iscsi.statsn")
	status := carriesStatus(u)
	if hasStatSN && (u.opcode != opDIn || status) {
		if n.begun && uint32(statSN) != n.statSN {
			complain("StatSN %#x, want %#x", statSN, n.statSN)
		}
		n.statSN = uint32(statSN)
		if status {
			n.statSN++
		}
	}
	if exp, ok := u.number("iscsi.expcmdsn"); ok {
		if n.begun && int32(uint32(exp)-n.expCmdSN) < 0 {
			complain("ExpCmdSN went back from %#x to %#x", n.expCmdSN, exp)
		}
		n.expCmdSN = uint32(exp)
	}
	if maxSN, ok := u.number("iscsi.maxcmdsn"); ok {
		if n.begun && int32(uint32(maxSN)-n.maxCmdSN) < 0 {
			complain("MaxCmdSN went back from %#x to %#x", n.maxCmdSN, maxSN)
		}
		if int32(uint32(maxSN)-n.expCmdSN) < -1 {
			complain("MaxCmdSN %#x is behind ExpCmdSN %#x - 1", maxSN, n.expCmdSN)
		}
		n.maxCmdSN = uint32(maxSN)
	}
	n.begun = true

	itt, _ := u.number("iscsi.initiatortasktag")
	switch u.opcode {
	case opDIn:
		bad = append(bad, count(n.dataSN, itt, u, "iscsi.datasn")...)
	case opR2T:
		bad = append(bad, count(n.r2tSN, itt, u, "iscsi.r2tsn")...)
	}
	if status { // the task tag is free for another command
		delete(n.dataSN, itt)
		delete(n.r2tSN, itt)
	}
	return bad
}

// carriesStatus: such a PDU takes a StatSN for itself, §4.2.2.2.
func carriesStatus(u pdu) bool {
	switch u.opcode {
	case opR2T:
		return false
	case opDIn:
		s, _ := u.number("iscsi.scsidata.S")
		return s != 0
	case opNOPIn:
		itt, _ := u.number("iscsi.initiatortasktag")
		return itt != noTag
	}
	return true
}

// count: the numbers of one task's PDUs begin at 0 and have no hole, §4.2.2.3.
func count(next map[uint64]uint64, itt uint64, u pdu, field string) []string {
	sn, ok := u.number(field)
	want := next[itt]
	next[itt] = sn + 1
	if !ok || sn != want {
		return []string{fmt.Sprintf("%s %d of task %#x, want %d", field, sn, itt, want)}
	}
	return nil
}

// checkNumbers follows the numbers of each connection, and returns how many there are.
func checkNumbers(t *testing.T, all []pdu) (streams int) {
	t.Helper()
	follow := map[string]*numbers{}
	for _, u := range all {
		if !u.fromTarget {
			continue
		}
		n := follow[u.stream]
		if n == nil {
			n = &numbers{dataSN: map[uint64]uint64{}, r2tSN: map[uint64]uint64{}}
			follow[u.stream] = n
		}
		for _, complaint := range n.next(u) {
			t.Errorf("frame %s, stream %s, opcode %#02x: %s", u.frame, u.stream, u.opcode, complaint)
		}
	}
	return len(follow)
}
