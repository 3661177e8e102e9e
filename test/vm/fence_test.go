package vm

import (
	"slices"
	"strings"
	"testing"
)

// TestFenceSCSI is what fence_scsi does on two nodes, which are two initiators here, each through a portal
// of its own: keys are registered, the disk is reserved for registrants (type 5), and the node that is to be
// fenced is preempted while it writes. Its writes fail then, over a kill of the daemon too (APTPL), until it
// has registered again.
func TestFenceSCSI(t *testing.T) {
	g := startTwoGroups(t, "state: $DIR/state\n")
	good, bad := g.initiator("good", 0), g.initiator("bad", 1)
	persist := func(disk string, args ...string) string {
		t.Helper()
		return guest.run(t, append([]string{"sg_persist", "-n", "-d", disk}, args...)...)
	}
	keys := func(want ...string) {
		t.Helper()
		_, list, _ := strings.Cut(persist(good, "-i", "-k"), "\n") // below the generation
		if got := strings.Fields(list); !slices.Equal(got, want) {
			t.Errorf("keys %q, want %q", got, want)
		}
	}
	write := func(disk string) []string { return []string{"@direct", disk, "65536", "16", "4"} }
	fenced := func(when string, argv ...string) {
		t.Helper()
		// A reservation conflict is EBADE in Linux.
		if out := guest.fails(t, argv...); !strings.Contains(out, "invalid exchange") {
			t.Errorf("%s: %s", when, out)
		}
	}

	persist(good, "-o", "-G", "-Z", "-S", "600d")
	persist(bad, "-o", "-G", "-Z", "-S", "bad")
	keys("0x600d", "0xbad")
	persist(good, "-o", "-R", "-T", "5", "-K", "600d")
	if out := persist(bad, "-i", "-r"); !strings.Contains(out, "Key=0x600d") || !strings.Contains(out, "Write Exclusive, registrants only") {
		t.Errorf("the reservation is\n%s", out)
	}
	load := guest.start(t, "@busy", bad, "65536", "16")
	if line := <-load.Lines; line != "busy" {
		t.Fatalf("the load says %q", line)
	}
	persist(good, "-o", "-A", "-T", "5", "-K", "600d", "-S", "bad")
	if out, exit := load.wait(t, guest); exit == 0 || !strings.Contains(out, "invalid exchange") {
		t.Errorf("the load of the node that was fenced ends with %d: %s", exit, out)
	}
	keys("0x600d")
	guest.run(t, write(good)...) // and reads it back: nothing of the other's comes in between
	fenced("a write after PREEMPT AND ABORT", write(bad)...)

	kill(g.tg)
	fenced("a write after the daemon was killed", write(bad)...)
	guest.run(t, write(good)...)
	keys("0x600d")

	persist(bad, "-o", "-G", "-S", "bad")
	keys("0x600d", "0xbad")
	guest.run(t, write(bad)...)
	persist(good, "-o", "-C", "-K", "600d")
	keys()
}

// initiator logs in through a portal with a name of its own, and returns the disk.
func (g *twoGroups) initiator(name string, portal int) string {
	t := g.t
	t.Helper()
	startInitiator.Do(t)
	guest.run(t, "iscsiadm", "-m", "iface", "-I", name, "-o", "new")
	t.Cleanup(func() { guest.run(t, "iscsiadm", "-m", "iface", "-I", name, "-o", "delete") })
	i := prepare(t, g.tg) // whose cleanup comes first
	i.portal, i.iface = guestAddr(t, g.tg.Portals[portal]), name
	i.adm("iface", "-I", name, "-o", "update", "-n", "iface.initiatorname", "-v", "iqn.2026-11.example.clients:"+name)
	i.record(nil)
	i.adm(i.node("--login")...)
	var disk string
	g.until("disks of the initiator "+name, func() bool {
		_, session, _ := strings.Cut(i.adm("session", "-P", "3"), "Iface Name: "+name+"\n")
		session, _, _ = strings.Cut(session, "Iface Name: ")
		m := diskLine.FindStringSubmatch(session)
		if m != nil {
			disk = "/dev/" + m[2]
		}
		return m != nil
	})
	return disk
}
