package registry

import (
	"testing"

	"oneshot/backend"
	"oneshot/backend/memory"
	"oneshot/partition"
	"oneshot/volume"
)

// What counting costs: an operation of an endpoint beside one of a handle of the same volume.
func BenchmarkSubmit(b *testing.B) {
	whole, err := memory.New(16 * mib)
	if err != nil {
		b.Fatal(err)
	}
	set, err := partition.Init(whole, false)
	if err != nil {
		b.Fatal(err)
	}
	who, _ := partition.ParseWho("any")
	if _, err := set.Create(partition.Any, partition.New{Name: "a", Size: 4 * mib, Access: []partition.Access{{Who: who, Rights: partition.MayRead}}}); err != nil {
		b.Fatal(err)
	}
	r := New()
	s := r.New(Config{Name: "disk", Store: whole, Set: set, NewVolume: func(view backend.Store, _ *partition.Partition) (*volume.Volume, error) {
		return volume.New(volume.Config{Store: view})
	}})
	s.Publish("disk", false)
	e, err := r.Open(b.Context(), Request{Name: "disk/a", Gone: func(error) {}})
	if err != nil {
		b.Fatal(err)
	}
	buf := make([]byte, 4096)
	for name, submit := range map[string]func(*backend.Op) bool{"endpoint": e.Submit, "handle": e.Handle.Submit} {
		b.Run(name, func(b *testing.B) {
			op := backend.Op{Kind: backend.Read, Len: 4096, Segs: [][]byte{buf}}
			for b.Loop() {
				submit(&op)
			}
		})
	}
}
