package backend

import "testing"

type plainStore struct{ Store }

type resizerStore struct{ plainStore }

func (resizerStore) Resize(int64) error { return nil }

func (resizerStore) Lend(segs [][]byte, _, _ int64, _ bool) [][]byte { return segs }
func (resizerStore) Commit(int64, int64)                             {}
func (resizerStore) Map(int64, int64)                                {}
func (resizerStore) Unmap(int64, int64)                              {}

// wrapper passes on some abilities.
type wrapper struct {
	Store
	passes []Ability
}

func (w wrapper) Pass(a Ability) Store {
	for _, p := range w.passes {
		if p == a {
			return w.Store
		}
	}
	return nil
}

// A store is used past a wrapper only for what the wrapper says.
func TestAs(t *testing.T) {
	inner := &resizerStore{}
	resizing := []Ability{Resizing, Batching}
	for _, s := range []Store{inner, wrapper{inner, resizing}, wrapper{wrapper{inner, resizing}, resizing}} {
		if r, ok := As[Resizer](s); !ok || r != inner {
			t.Errorf("%T: %v, %v", s, r, ok)
		}
		if b, ok := As[Batcher](s); ok {
			t.Errorf("%T: %v starts batches", s, b)
		}
	}
	for name, s := range map[string]Store{
		"a store that is no wrapper":       plainStore{inner},
		"a wrapper that has to see it":     wrapper{inner, []Ability{Resizing}},
		"a wrapper before such a wrapper":  wrapper{wrapper{inner, nil}, []Ability{Lending}},
		"a wrapper that passes on to none": wrapper{plainStore{}, []Ability{Lending}},
	} {
		if l, ok := As[Lender](s); ok {
			t.Errorf("%v shows through %s", l, name)
		}
	}
	if l, ok := As[Lender](wrapper{inner, []Ability{Lending}}); !ok || l != inner {
		t.Errorf("lending is passed on, and not to be had: %v", l)
	}
	if _, ok := As[interface {
		Store
		Unknown()
	}](wrapper{inner, resizing}); ok {
		t.Error("what nobody has declared is passed on")
	}
}
