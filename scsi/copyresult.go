package scsi

import (
	"encoding/binary"
	"slices"
	"sync"
	"sync/atomic"
)

// What became of copies, for RECEIVE COPY RESULTS and RECEIVE ROD TOKEN INFORMATION. The results
// of a nexus go with it.

// listID identifies a copy of a nexus.
type listID struct {
	long bool // four bytes, not one
	id   uint32
}

// copyResult is how a copy goes, or went.
type copyResult struct {
	listID
	action   byte // service action of the command
	segments atomic.Uint32
	shift    uint // block size of the logical unit, as a power of two
	bytes    atomic.Int64

	mu    sync.Mutex
	over  bool  // guarded by mu
	sense Sense // guarded by mu; valid when over
	token []byte
}

// end notes the end; only the first one counts.
func (r *copyResult) end(s Sense) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.over {
		r.over, r.sense = true, s
	}
}

func (r *copyResult) state() (over bool, s Sense) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.over, r.sense
}

// copyResults are the results of a nexus, the oldest first.
type copyResults struct {
	mu   sync.Mutex
	list []*copyResult // guarded by mu
}

const maxCopyResults = 64

var senseInProgress = Sense{Key: keyIllegalRequest, Code: 0x0016} // OPERATION IN PROGRESS

// begin makes room for the result of a copy, in place of that of the last one with the same list
// identifier, or of the oldest one that is complete. The one returned is not complete yet.
func (rs *copyResults) begin(id listID, action byte, shift uint) (*copyResult, Sense) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	if r := rs.find(id); r != nil {
		if over, _ := r.state(); !over {
			return nil, senseInProgress
		}
		rs.list = slices.DeleteFunc(rs.list, func(x *copyResult) bool { return x == r })
	}
	if len(rs.list) == maxCopyResults {
		oldest := max(0, slices.IndexFunc(rs.list, func(r *copyResult) bool { over, _ := r.state(); return over }))
		rs.list = slices.Delete(rs.list, oldest, oldest+1)
	}
	r := &copyResult{listID: id, action: action, shift: shift}
	rs.list = append(rs.list, r)
	return r, Sense{}
}

// find returns the result, or nil. mu is held.
func (rs *copyResults) find(id listID) *copyResult {
	for _, r := range rs.list {
		if r.listID == id {
			return r
		}
	}
	return nil
}

func (rs *copyResults) get(id listID) *copyResult {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	return rs.find(id)
}

// ---- RECEIVE COPY RESULTS ----

func (t *Task) copyAlloc() int { return int(min(binary.BigEndian.Uint32(t.CDB[10:]), 1<<16)) }

// receiveCopyStatus is RECEIVE COPY STATUS(LID1), SPC-4 §6.21.
func (t *Task) receiveCopyStatus() Next {
	r := t.Nexus.copies.get(listID{id: uint32(t.CDB[2])})
	if r == nil {
		return t.check(invalidField(2))
	}
	const inProgress, ended, failed = 0, 1, 2
	data := make([]byte, 12)
	data[3] = 8
	switch over, s := r.state(); {
	case !over:
		data[4] = inProgress
	case s == (Sense{}):
		data[4] = ended
	default:
		data[4] = failed
	}
	binary.BigEndian.PutUint16(data[5:], uint16(r.segments.Load()))
	bytes := r.bytes.Load()
	if bytes>>32 != 0 {
		data[7], bytes = 1, bytes>>10 // units of 1 KiB
	}
	binary.BigEndian.PutUint32(data[8:], uint32(bytes))
	return t.reply(data, t.copyAlloc())
}

// receiveCopyParameters is RECEIVE COPY OPERATING PARAMETERS, SPC-4 §6.20.
func (t *Task) receiveCopyParameters() Next {
	codes := copyDescriptors
	data := make([]byte, 44, 44+len(codes))
	data[4] = 0x01 // SNLID: LIST IDENTIFIER USAGE 11b
	binary.BigEndian.PutUint16(data[8:], maxCopyTargets)
	binary.BigEndian.PutUint16(data[10:], maxCopySegments)
	binary.BigEndian.PutUint32(data[12:], maxCopyList)
	binary.BigEndian.PutUint32(data[16:], maxSegmentBytes)
	binary.BigEndian.PutUint16(data[34:], maxCopies)
	data[36] = maxCopyResults
	data[37] = 9 // data segment granularity: 512 bytes
	data[43] = byte(len(codes))
	data = append(data, codes...)
	binary.BigEndian.PutUint32(data, uint32(len(data)-4))
	return t.reply(data, t.copyAlloc())
}

// Values of COPY OPERATION STATUS (SPC-4 table 265).
const (
	copyEnded      = 0x01
	copyWithErrors = 0x02
	copyForeground = 0x11
	copyTerminated = 0x60
)

// receiveCopyStatus4 is RECEIVE COPY STATUS(LID4), SPC-4 §6.24.
func (t *Task) receiveCopyStatus4() Next { return t.receiveResult(false) }

// receiveRODTokenInformation is SPC-4 §6.26.
func (t *Task) receiveRODTokenInformation() Next { return t.receiveResult(true) }

func (t *Task) receiveResult(withToken bool) Next {
	r := t.Nexus.copies.get(listID{long: true, id: binary.BigEndian.Uint32(t.CDB[2:])})
	if r == nil {
		return t.check(invalidField(2))
	}
	return t.reply(r.report(withToken), t.copyAlloc())
}

// report is the parameter data of both.
func (r *copyResult) report(withToken bool) []byte {
	const inBlocks = 0xf1
	over, s := r.state()
	data := make([]byte, 32, 32+maxSense+4+2+rodTokenLen)
	data[4] = r.action
	switch {
	case !over:
		data[5] = copyForeground
		binary.BigEndian.PutUint32(data[8:], 100) // ms until it is worth asking again
	case s == (Sense{}):
		data[5] = copyEnded
	case s.Key == keyAbortedCommand:
		data[5] = copyTerminated
	default:
		data[5] = copyWithErrors
		data = s.AppendTo(data, false)
		data[13], data[14] = byte(len(data)-32), byte(len(data)-32)
	}
	data[15] = inBlocks
	binary.BigEndian.PutUint64(data[16:], uint64(r.bytes.Load()>>r.shift))
	binary.BigEndian.PutUint16(data[24:], uint16(r.segments.Load()))
	if withToken {
		if over && r.token != nil {
			data = binary.BigEndian.AppendUint32(data, uint32(2+len(r.token)))
			data = append(append(data, 0, 0), r.token...)
		} else {
			data = append(data, 0, 0, 0, 0)
		}
	}
	binary.BigEndian.PutUint32(data, uint32(len(data)-4))
	return data
}
