package nvmf

import (
	"encoding/binary"
	"testing"

	"oneshot/nvme"
)

// logPage is a Get Log Page of n bytes from an offset on.
func logPage(l nvme.LID, nsid uint32, n int, off uint64) nvme.Command {
	return nvme.Command{Opcode: nvme.AdminGetLogPage, NSID: nsid, DWords: [6]uint32{uint32(l) | uint32(n/4-1)<<16, 0, uint32(off), uint32(off >> 32)}}
}

// An offset behind the end of a log is refused, and so is a namespace where the log is the controller's (Base 2.0 §5.16). What is asked for
// beyond the end reads as zeroes.
func TestLogsRefuse(t *testing.T) {
	x := newTarget(t, nil, false)
	admin, _ := x.admin(0)
	for l, size := range map[nvme.LID]uint64{
		nvme.LogSupported: 1024, nvme.LogError: errorEntries * nvme.ErrorEntryLen, nvme.LogSmart: nvme.SmartLen, nvme.LogFirmware: 512, nvme.LogChanged: 4096,
		nvme.LogEffects: nvme.EffectsLen, nvme.LogANA: 16 + 32 + 4, nvme.LogReservation: nvme.NoticeLen, nvme.LogSanitize: nvme.SanitizeLogLen,
	} {
		if a := admin.must(logPage(l, nvme.AllNamespaces, 8, size), 8, nil, false); binary.LittleEndian.Uint64(a.data) != 0 {
			t.Errorf("log %#x: % x at its end", uint8(l), a.data)
		}
		for _, off := range []uint64{size + 4, 1 << 40} {
			if a := admin.do(logPage(l, nvme.AllNamespaces, 8, off), 8, nil, false); a.Status != nvme.InvalidField|nvme.DNR {
				t.Errorf("log %#x: %v at %d, its length is %d", uint8(l), a.Status, off, size)
			}
		}
		want := nvme.InvalidField | nvme.DNR
		if l == nvme.LogSmart {
			want = nvme.Success
		}
		if a := admin.do(logPage(l, 1, 8, 0), 8, nil, false); a.Status != want {
			t.Errorf("log %#x of a namespace: %v, want %v", uint8(l), a.Status, want)
		}
	}
	if a := admin.do(logPage(nvme.LogSmart, 2, 8, 0), 8, nil, false); a.Status != nvme.InvalidNamespace|nvme.DNR {
		t.Errorf("SMART log of a namespace that is not there: %v", a.Status)
	}
	if a := admin.do(logPage(0xc0, 0, 8, 0), 8, nil, false); a.Status != nvme.InvalidLogPage|nvme.DNR {
		t.Errorf("a log that there is not: %v", a.Status)
	}
}

// Nobody counts which blocks have space of their own: so a namespace does not claim thin provisioning, which would promise that NUSE says it
// (NVM 1.0 §2.1.1). In the structure that does not depend on the command set these bits are reserved (Base 2.0 figure 280).
func TestNotThin(t *testing.T) {
	x := newTarget(t, nil, false)
	if !x.v.Thin() {
		t.Fatal("the store gives no space back")
	}
	admin, _ := x.admin(0)
	identify := func(cns nvme.CNS) []byte {
		return admin.must(nvme.Command{Opcode: nvme.AdminIdentify, NSID: 1, DWords: [6]uint32{uint32(cns)}}, nvme.IdentifyLen, nil, false).data
	}
	const offNCAP, offNUSE, offNSFEAT = 8, 16, 24
	b := identify(nvme.CNSNamespace)
	if le := binary.LittleEndian; b[offNSFEAT] != nvme.NSFEATAtomic|nvme.NSFEATOptimal || le.Uint64(b[offNUSE:]) != le.Uint64(b[offNCAP:]) {
		t.Errorf("NSFEAT %#x, NCAP % x, NUSE % x", b[offNSFEAT], b[offNCAP:offNUSE], b[offNUSE:offNSFEAT])
	}
	if b := identify(nvme.CNSIndependent); b[0] != 0 {
		t.Errorf("NSFEAT of the independent structure is %#x", b[0])
	}
}
