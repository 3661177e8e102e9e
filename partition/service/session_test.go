package service

import (
	"testing"

	"oneshot/partition/wire"
)

// A result counts until the client may come back to its tag, however few requests have changed something meanwhile; one that was asked for
// counts as long again.
func TestTagLife(t *testing.T) {
	r := wire.Request{Op: wire.Write, Tag: 7, Length: 512}
	var s results
	s.note(&r, wire.OK, 1, false)
	s.ended += tagLife - 2
	if s.find(&r) < 0 {
		t.Fatal("a result that may be asked for is forgotten")
	}
	s.note(&r, wire.OK, 1, true)
	s.ended += tagLife - 1
	if s.find(&r) < 0 {
		t.Error("a result that was asked for is forgotten")
	}
	s.note(&wire.Request{Op: wire.Read, Length: 512}, wire.OK, 0, false)
	if s.find(&r) >= 0 {
		t.Error("a new request may be taken for one that has ended")
	}
}
