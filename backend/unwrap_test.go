package backend

import "testing"

type plainStore struct{ Store }

type resizerStore struct{ plainStore }

func (resizerStore) Resize(int64) error { return nil }

type wrapper struct{ Store }

func (w wrapper) Unwrap() Store { return w.Store }

func TestAs(t *testing.T) {
	inner := &resizerStore{}
	for _, s := range []Store{inner, wrapper{inner}, wrapper{wrapper{inner}}} {
		if r, ok := As[Resizer](s); !ok || r != inner {
			t.Errorf("%T: %v, %v", s, r, ok)
		}
		if l, ok := As[Lender](s); ok {
			t.Errorf("%T: %v is a lender", s, l)
		}
	}
	if r, ok := As[Resizer](plainStore{inner}); ok {
		t.Errorf("%T shows through a store that is no wrapper", r)
	}
}
