package partition

import (
	"errors"
	"fmt"

	"oneshot/backend"
)

// View is a partition as a store: a slice of the divided store, whose bounds are those of the table.
// Set.View returns it behind its interface, for it lends memory only if the store below does.
type View struct {
	set  *Set
	part backend.Store // the slice; never closed, for the store below is the set's
	grow backend.Resizer
	uuid UUID
}

var (
	_ backend.Wrapper    = (*View)(nil)
	_ backend.Resizer    = (*View)(nil)
	_ backend.Identifier = (*View)(nil)
	_ backend.Lender     = (*lendingView)(nil)
)

// Info describes the partition.
func (v *View) Info() backend.Info { return v.part.Info() }

// Submit does op within the partition.
func (v *View) Submit(op *backend.Op) bool { return v.part.Submit(op) }

// Pass lets Batching and Aging through: the store below starts batches, and flushes by itself if it ages. Metering is
// not passed, because the space that the whole store takes says nothing of a part.
func (v *View) Pass(a backend.Ability) backend.Store {
	if a == backend.Batching || a == backend.Aging {
		return v.part
	}
	return nil
}

// Identities is made of the partition's UUID. It lasts if the bytes of the store below do.
func (v *View) Identities() []backend.Identity {
	id := IdentityOf(v.uuid)
	if !backend.IdentityOf(v.set.store).Lasts() {
		id = backend.Passing(string(id))
	}
	return []backend.Identity{id}
}

// IdentityOf returns the identity of a partition, if its bytes last.
func IdentityOf(u UUID) backend.Identity { return backend.Identity("partition-" + u.String()) }

// Resize makes the partition larger, by a change of the table; see backend.Resizer. A size of 0 asks to follow the
// store below, and does nothing: the size is always that of the table.
func (v *View) Resize(size int64) error {
	if size == 0 || size == v.Info().Size {
		return nil
	}
	if size < v.Info().Size {
		return fmt.Errorf("the partition has %d bytes and is in use: it cannot be made smaller", v.Info().Size)
	}
	p := v.set.Table().FindUUID(v.uuid)
	if p == nil {
		panic("partition: a partition was deleted while in use")
	}
	return v.set.Alter(Any, p.Name, Change{Size: &size})
}

// follow takes the size of p, its entry of the table. If the store has become too small for that since the change was checked, the view
// keeps the size that it has. The set's mu is held.
func (v *View) follow(p *Partition) error {
	if v == reserved || p.Size == v.part.Info().Size {
		return nil
	}
	if v.grow.Resize(p.Size) == nil {
		return nil
	}
	i := v.set.store.Info()
	return fmt.Errorf("the partition table is changed, and the partition in use keeps its size: %w", &FitError{p.Name, p.end(), i.Size, i.BlockSize})
}

// Close makes durable what has been written, and ends the use of the partition. The store below stays
// open.
func (v *View) Close() error {
	err := do(v.set.store, backend.Op{Kind: backend.Flush})
	v.set.mu.Lock()
	defer v.set.mu.Unlock()
	if v.set.views[v.uuid] != v {
		return errors.Join(err, errors.New("partition: the view was closed before"))
	}
	delete(v.set.views, v.uuid)
	return err
}

// lendingView is a view of a store that lends its memory.
type lendingView struct {
	*View
	lender backend.Lender
}

func (v *lendingView) Lend(segs [][]byte, off, n int64, write bool) [][]byte {
	return v.lender.Lend(segs, off, n, write)
}

func (v *lendingView) Commit(off, n int64) { v.lender.Commit(off, n) }
func (v *lendingView) Map(off, n int64)    { v.lender.Map(off, n) }
func (v *lendingView) Unmap(off, n int64)  { v.lender.Unmap(off, n) }
