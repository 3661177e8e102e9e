package nvmf

import (
	"testing"
	"time"

	"oneshot/nvme"
)

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
