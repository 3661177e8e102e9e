package ddp

import (
	"errors"
	"testing"
)

// TestNoAllocations: functions that run once per message or FPDU, or that hostile bytes can reach, allocate nothing.
func TestNoAllocations(t *testing.T) {
	advertise := unhex(t, vectors[11].hex)
	read := unhex(t, vectors[4].hex)
	terminate := unhex(t, vectors[8].hex)
	bad := unhex(t, "00 1e c2 40 1a 2b 3c 01 00 00 7f 00 00 00 10 00")
	startup := unhex(t, startVectors[3].hex)
	out := make([]byte, 0, 256)
	term := vectors[8].term
	var sink int
	if n := testing.AllocsPerRun(100, func() {
		fpdu, _, _ := SplitFPDU(advertise, true)
		p, _ := flagsHost2.Prefix(fpdu)
		s, _ := flagsHost2.Parse(fpdu[:p])
		sink += int(s.Header.MSN()) + s.PayloadLen()

		s, _ = standard.Parse(read)
		r := ParseReadRequest(read[s.PayloadOffset():])
		_, err := standard.Parse(bad)
		answer := TerminateFor(cause(err), s, &r)
		out = AppendTerminate(out[:0], &answer)

		s, _ = standard.Parse(terminate)
		got, _ := standard.ParseTerminate(terminate[s.PayloadOffset() : s.PayloadOffset()+s.PayloadLen()])
		sink += int(got.Cause)

		out = flagsHost1.AppendUntagged(out[:0], Untagged{Control: flagsHost1.Control(SendAdvertise, true), STag: 1, MSN: 1})
		out = AppendTrailer(out, len(out)-LengthLen, CRC(0, out))
		out = AppendTagged(out[:0], Tagged{Control: standard.Control(Write, true), STag: 1})
		out = AppendTrailerNoCRC(out, len(out)-LengthLen)
		out = AppendReadRequest(out[:0], 1, r)
		out = AppendTerminate(out[:0], &term)

		frame, _ := ParseStartFrame(startup, false)
		out = frame.AppendTo(out[:0])
		o, _ := FindOneShot(frame.PrivateData)
		out = o.AppendTo(out[:0])
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
	_ = sink
}

func cause(err error) Cause {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Cause
	}
	panic(err)
}
