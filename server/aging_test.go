package server

import (
	"testing"
	"time"

	"oneshot/mgmt"
)

// A store with a window flushes by itself, whatever stands on it, and says so; one without does not.
func TestAging(t *testing.T) {
	r := serve(t, `
stores:
  old: {type: file, path: old.img, size: 16MiB, aging: 10ms}
  part: {type: slice, on: old, offset: 8MiB}
  other: {type: file, path: other.img, size: 8MiB}
  ram: {type: memory, size: 8MiB}
targets: [{iqn: "iqn.2026-11.example.oneshot:a", luns: {0: part, 1: other, 2: ram}}]
portals: [{listen: "127.0.0.1:0"}]
`)
	aging := func(name string) *mgmt.Aging {
		for _, s := range r.Stores() {
			if s.Name == name {
				return s.Aging
			}
		}
		t.Fatalf("there is no store %q", name)
		return nil
	}
	if a := aging("part"); a == nil || a.WindowNS != int64(10*time.Millisecond) || a.Flushes != 0 || a.Lost {
		t.Fatalf("%+v", a)
	}
	s := r.login("a")
	for lun := range 2 {
		if _, err := unit(t, s, lun).WriteAt(make([]byte, 4096), 0); err != nil {
			t.Fatal(err)
		}
	}
	for deadline := time.Now().Add(time.Minute); aging("part").Flushes == 0; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the store is never flushed")
		}
	}
	if aging("other") != nil || aging("ram") != nil {
		t.Error("stores age that should not")
	}
}
