package iscsi

import (
	"testing"

	"oneshot/backend"
	"oneshot/backend/faulty"
	"oneshot/backend/memory"
	"oneshot/scsi"
)

// A session is lost while the store writes for it, and its initiator writes to the same blocks through another session: that is answered when the
// former write is over, which would otherwise come on top of it. So it is if the initiator has given up a session that is alive here, because the
// store takes long.
func TestLostWriteComesFirst(t *testing.T) {
	for name, slow := range map[string]bool{"lost": false, "slow": true} {
		t.Run(name, func(t *testing.T) { testFormerWrite(t, slow) })
	}
}

func testFormerWrite(t *testing.T, slow bool) {
	inner, err := memory.New(1 << 20)
	if err != nil {
		t.Fatal(err)
	}
	store := faulty.New(inner, 1)
	n, a, ra := sessionOn(t, store)
	f, text := request(0, 0, "ImmediateData=No")
	f.ISID[5] = 7
	b, rb := begin(t, n, f, text)
	command(a, 9, first, false, testUnitReady, 0)
	command(b, 9, f.CmdSN, false, testUnitReady, 0)
	gate := store.Hold(faulty.Match{Kinds: []backend.Kind{backend.Write}, Times: 1})
	command(a, 10, first+1, false, write1(), 512)
	drive(a, func() { a.GotData(a.Find(10)) })
	gate.Await(1)
	if slow {
		for range scsi.OverdueTicks + 1 {
			n.Tick()
		}
	} else {
		drive(a, func() { a.Lost(nil) })
	}
	ra.take()
	rb.take()
	command(b, 10, f.CmdSN+1, false, write1(), 512)
	drive(b, func() { b.GotData(b.Find(10)) })
	if got := rb.take(); got != "fetch 10" {
		t.Errorf("while the store has the write of the lost session: %q", got)
	}
	gate.Release()
	want := "forget 10"
	if slow {
		want = "answer 10"
	}
	if x, y := ra.take(), rb.take(); x != want || y != "answer 10" {
		t.Errorf("afterwards: %q, %q", x, y)
	}
}
