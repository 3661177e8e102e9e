package server

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
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

// A change of access states, of partitions or of the configuration that was given up while another change was under way is not made afterwards.
func TestChangeIsGivenUp(t *testing.T) {
	r := serve(t, `
stores: {m: {type: memory, size: 16MiB}, d: {type: memory, size: 16MiB, partitioned: true}}
targets: [{iqn: "iqn.2026-11.example.oneshot:a", luns: {0: m}}]
portals: [{listen: "127.0.0.1:0"}]
`)
	next := r.parse(`
stores: {d: {type: memory, size: 16MiB, partitioned: true}}
targets: [{iqn: "iqn.2026-11.example.oneshot:a"}]
portals: [{listen: "127.0.0.1:0"}]
`)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for _, isBusy := range []bool{true, false} {
		if isBusy {
			r.applying <- struct{}{}
		}
		for range 20 { // what is ready first is left to chance
			if _, err := r.SetAccess(ctx, mgmt.AccessChange{Target: iqn + "a", Group: 1, State: "standby"}); !errors.Is(err, context.Canceled) {
				t.Errorf("access: %v", err)
			}
			if _, err := r.CreatePartitions(ctx, "d", "*", []mgmt.NewPartition{{Name: "p", Size: 1 << 20}}); !errors.Is(err, context.Canceled) {
				t.Errorf("partitions: %v", err)
			}
			if _, err := r.ApplyFor(ctx, next); !errors.Is(err, context.Canceled) {
				t.Errorf("configuration: %v", err)
			}
		}
		if isBusy {
			<-r.applying
		}
	}
	if s := r.Access()[0].State; s != "active/optimized" {
		t.Errorf("the state is %s", s)
	}
	if p, err := r.Partitions("d"); err != nil || len(p.Partitions) != 0 {
		t.Errorf("%+v %v", p, err)
	}
}

// A change of access states that cannot be kept holds all the same, and of all LUNs that it is about.
func TestAccessThatIsNotKept(t *testing.T) {
	r := serve(t, `
state: state
stores: {m: {type: memory, size: 1MiB}, n: {type: memory, size: 1MiB}, o: {type: memory, size: 1MiB}}
targets: [{iqn: "iqn.2026-11.example.oneshot:a", luns: {0: m, 1: n, 2: o}}]
portals: [{listen: "127.0.0.1:0"}]
`)
	if err := os.RemoveAll(filepath.Join(r.dir, "state")); err != nil {
		t.Fatal(err)
	}
	_, err := r.SetAccess(t.Context(), mgmt.AccessChange{Target: iqn + "a", Group: 1, State: "standby"})
	if err == nil || !strings.Contains(err.Error(), "holds until the target stops") || strings.Contains(err.Error(), "\n") {
		t.Errorf("%v", err)
	}
	for _, a := range r.Access() {
		if a.State != "standby" {
			t.Errorf("LUN %d is %s", a.LUN, a.State)
		}
	}
}
