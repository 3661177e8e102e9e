package server

import (
	"log/slog"
	"testing"

	"oneshot/backend/memory"
	"oneshot/mgmt"
	"oneshot/volume"
	"oneshot/volume/access"
)

// Which group is preferred can be said while another node serves a mirror. The state in which the group is meanwhile is not chosen by that: when
// this node serves, hosts may use it.
func TestPreferredWhileStandby(t *testing.T) {
	store, err := memory.New(1 << 20)
	if err != nil {
		t.Fatal(err)
	}
	v, err := volume.New(volume.Config{Store: store, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer v.Close()
	const group = 2
	v.Access().Serve(access.Standby, nil)
	preferred := true
	if err := changeAccess(v, &mgmt.AccessChange{Group: group, Preferred: &preferred}); err != nil {
		t.Fatal(err)
	}
	if g := v.Access().Group(group); g.State != access.Standby || !g.Preferred {
		t.Errorf("before this node serves: %+v", g)
	}
	v.Access().Serve(access.ActiveOptimized, nil)
	if g := v.Access().Group(group); g.State != access.ActiveOptimized || !g.Preferred {
		t.Errorf("when this node serves: %+v", g)
	}
}
