package nvmf

import (
	"net/netip"
	"testing"
	"time"

	"oneshot/nvme"
)

// A host is told of a change of its discovery log, and of no other: not of one that other hosts see, nor of a reload that changes nothing, nor of
// what it has seen already. The generation tells the same.
func TestDiscoveryEvents(t *testing.T) {
	x := newTarget(t, nil, false)
	at := func(local netip.AddrPort) (netip.AddrPort, bool) { return local, true }
	portals := []Portal{{ID: 1, Transport: &transport, Reached: at}}
	x.SetPortals(portals)
	x.tell()
	h := x.dial()
	f := nvme.ConnectFields{HostID: [16]byte{9}, CNTLID: nvme.DynamicController, SubNQN: nvme.DiscoveryNQN, HostNQN: testHost}
	c, _ := h.connectCommand(testHost, 0, nvme.DynamicController, 0)
	b := f.AppendTo(nil)
	h.must(c, len(b), b, true)
	h.setCC(enabled)
	h.must(nvme.Command{Opcode: nvme.AdminSetFeatures, DWords: [6]uint32{uint32(nvme.FeatureAsyncEvents), nvme.OAESDiscovery}}, 0, nil, false)
	h.start(nvme.Command{Opcode: nvme.AdminAsyncEvent}, 0, nil, false)
	h.take()
	read := func(off uint32) []byte {
		t.Helper()
		return h.must(nvme.Command{Opcode: nvme.AdminGetLogPage, DWords: [6]uint32{uint32(nvme.LogDiscovery) | (1024/4-1)<<16, 0, off}}, 1024, nil, false).data
	}
	told := func(what string, want bool) {
		t.Helper()
		x.tell()
		got := h.take()
		if want != (len(got) == 1 && got[0].DW0 == nvme.EventDiscovery) || !want && len(got) != 0 {
			t.Errorf("%s: %v", what, got)
		}
		if want {
			h.start(nvme.Command{Opcode: nvme.AdminAsyncEvent}, 0, nil, false)
		}
	}
	generation, entries := nvme.ParseDiscoveryHeader(read(0))
	if entries != 2 || generation == 0 {
		t.Fatalf("%d entries of generation %d", entries, generation)
	}
	same := func(what string, want bool) {
		t.Helper()
		g, _ := nvme.ParseDiscoveryHeader(read(0))
		if (g == generation) != want || g < generation {
			t.Errorf("%s: generation %d, then %d", what, generation, g)
		}
		generation = g
	}
	x.SetPortals(portals)
	x.sub.SetAccess(func(host string) bool { return true }, nil)
	told("a reload that changes nothing", false)
	other := x.AddSubsystem(SubsystemConfig{NQN: testNQN + "2", Serial: "T", Admit: func(host string) bool { return host != testHost }})
	told("a subsystem for others", false)
	same("which the host does not see", true)
	other.SetAccess(nil, nil)
	told("a subsystem for all", true)
	x.RemoveSubsystem(other)
	told("it is gone before the host has looked", false)
	same("so nothing has changed", true)
	told("", false)

	x.SetReferrals([]Referral{{Transport: nvme.TransportTCP, Address: netip.MustParseAddrPort("192.0.2.9:8009")}})
	read(1024) // before it is told
	told("what it has seen", false)
	same("a log that has changed between two pieces", false)
	x.sub.SetAccess(func(host string) bool { return host == testHost }, nil)
	told("hosts that are admitted no more", false)
	x.SetReferrals(nil)
	told("a referral is gone", true)
	same("when it is gone", false)
}

// Controllers of discovery, which anybody may have, take no places from hosts.
func TestDiscoveryTakesNoPlace(t *testing.T) {
	x := newTarget(t, nil, false)
	x.SetLimits(Limits{Controllers: 1, ConnectTimeout: 15 * time.Second})
	discover := func() {
		t.Helper()
		h := x.dial()
		c, _ := h.connectCommand(testHost, 0, nvme.DynamicController, 0)
		f := nvme.ConnectFields{HostID: [16]byte{9}, CNTLID: nvme.DynamicController, SubNQN: nvme.DiscoveryNQN, HostNQN: testHost}
		b := f.AppendTo(nil)
		h.must(c, len(b), b, true)
	}
	discover()
	discover()
	admin, _ := x.admin(0)
	if a := x.dial().connect(testHost, 0, nvme.DynamicController, 0); a.Status.Code() != nvme.ConnectBusy {
		t.Errorf("one more than the limit: %v", a.Status)
	}
	discover()
	if n := x.ControllerCount(); n != 4 {
		t.Errorf("%d controllers are counted", n)
	}
	admin.lose()
	x.admin(0)
	if n := x.ControllerCount(); n != 4 {
		t.Errorf("%d controllers are counted after one has come for another", n)
	}
}

// A host that finds no room is not told to stay away for good (DNR).
func TestNoRoom(t *testing.T) {
	x := newTarget(t, nil, false)
	x.SetLimits(Limits{Controllers: 1, ConnectTimeout: 15 * time.Second})
	admin, _ := x.admin(0)
	if a := x.dial().connect(testHost, 0, nvme.DynamicController, 0); a.Status != nvme.ConnectBusy {
		t.Errorf("one more than the limit: %v", a.Status)
	}
	admin.lose()
	x.admin(0)
}
