package registry

import (
	"context"
	"errors"
	"testing"

	"oneshot/backend/memory"
	"oneshot/partition"
	"oneshot/transport/rdma"
)

// When a right is revoked, memory that is mapped is asked for. Until it is given back the partition stays: a change
// that takes the partition away waits, as it does for an operation in the store, and can give up.
func TestChangesOfWhatIsMapped(t *testing.T) {
	size := int64(mib)
	never, cancel := context.WithCancel(t.Context())
	cancel()
	for name, change := range map[string]func(context.Context, *Store) error{
		"delete": func(ctx context.Context, s *Store) error { return s.Delete(ctx, partition.Any, "a", false, true) },
		"shrink": func(ctx context.Context, s *Store) error {
			return s.Alter(ctx, partition.Any, "a", partition.Change{Size: &size}, true)
		},
		"revoke": nil,
	} {
		t.Run(name, func(t *testing.T) {
			whole, err := memory.New(16 * mib)
			if err != nil {
				t.Fatal(err)
			}
			f := newFixtureOn(t, whole, "any rw")
			d := f.device(partition.Identity{})
			u := f.use(d, "disk/a")
			m, err := u.qp.(rdma.Mapper).Map(u.qp.Endpoint().Base, 2*mib, true)
			if err != nil {
				t.Fatal(err)
			}
			m.Bytes[mib] = 9
			if i := f.Endpoints()[0]; i.Counts.InFlight != 1 {
				t.Errorf("%d operations under way, want the mapping", i.Counts.InFlight)
			}
			if change == nil {
				if err := f.alter("a", partition.Change{Revoke: []partition.Who{{}}}, false); err != nil {
					t.Fatal(err)
				}
				<-m.Recalled
				if len(f.Endpoints()) != 1 {
					t.Error("the endpoint is gone while it is mapped")
				}
				m.Unmap()
				if n := len(f.Endpoints()); n != 0 {
					t.Errorf("%d endpoints after the last mapping", n)
				}
				return
			}
			var use *UseError
			if err := f.s.Delete(t.Context(), partition.Any, "a", false, false); !errors.As(err, &use) {
				t.Errorf("what is mapped is deleted: %v", err)
			}
			if err := change(never, f.s); !errors.Is(err, ErrHangs) {
				t.Errorf("a change of what is mapped: %v", err)
			}
			<-m.Recalled
			m.Bytes[mib] = 10
			done := make(chan error)
			go func() { done <- change(t.Context(), f.s) }()
			m.Unmap()
			if err := <-done; err != nil {
				t.Error(err)
			}
			if p := f.s.Snapshot().Table.Find("a"); p != nil && p.Size != mib {
				t.Errorf("the partition has %d bytes", p.Size)
			}
		})
	}
}
