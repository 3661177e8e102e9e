package stag

import (
	"errors"
	"testing"
)

// The owner of a stream names the uses of what was set aside: each use has the next key, no other STag is taken, and the
// end of the stream gives the indexes back.
func TestSetAside(t *testing.T) {
	table := NewTable(chunkSlots - 1)
	d := table.NewDomain()
	st, other := table.NewStream(d, 2), table.NewStream(d, 2)
	tags := must(st.SetAside(2))
	r := Region{Segments: segs(0, 8), Access: AccessRemoteRead}
	next := func(s STag) STag { return s&^0xff | STag(uint8(s)+1) }

	s := tags[0]
	for range 600 { // more than there are keys
		for _, bad := range []STag{0, next(s), s - 1<<keyBits<<4, s ^ 0xffffff00} {
			if err := st.GrantAs(bad, r); !errors.Is(err, ErrState) {
				t.Fatalf("GrantAs(%08x): %v, want %v", bad, err, ErrState)
			}
		}
		if err := other.GrantAs(s, r); !errors.Is(err, ErrState) {
			t.Fatalf("another stream takes it: %v", err)
		}
		if err := st.GrantAs(s, r); err != nil {
			t.Fatal(err)
		}
		if err := st.GrantAs(s, r); !errors.Is(err, ErrState) {
			t.Fatalf("granted twice: %v", err)
		}
		ref := must(st.Acquire(RemoteRead, s, 0, 8))
		if got := read(&ref, 0, 8); got[7] != 7 {
			t.Fatalf("% x", got)
		}
		ref.Release()
		must(st.Revoke(s))
		if err := st.Consume(s); err != nil {
			t.Fatal(err)
		}
		s = next(s)
	}
	if err := st.RegisterAs(tags[1], r); err != nil {
		t.Fatal(err)
	}
	if err := st.RegisterAs(tags[1], r); !errors.Is(err, ErrState) {
		t.Fatalf("registered twice: %v", err)
	}
	if err := table.Deregister(tags[1]); err != nil {
		t.Fatal(err)
	}
	if err := st.RegisterAs(next(tags[1]), r); err != nil {
		t.Fatal(err)
	}

	// The window holds for chosen STags, too.
	more := must(st.SetAside(2))
	if err := errors.Join(st.GrantAs(s, r), st.GrantAs(more[0], r)); err != nil {
		t.Fatal(err)
	}
	if err := st.GrantAs(more[1], r); !errors.Is(err, ErrWindow) {
		t.Fatalf("beyond the window: %v", err)
	}

	st.End()
	if err := st.GrantAs(more[1], r); !errors.Is(err, ErrEnded) {
		t.Fatalf("after the end: %v", err)
	}
	if err := st.Free(); err != nil {
		t.Fatal(err)
	}
	// Nothing is lost: the other stream can have all there are, and not one more.
	if _, err := other.SetAside(chunkSlots); !errors.Is(err, ErrTableFull) {
		t.Fatalf("more than there are: %v", err)
	}
	if got := must(other.SetAside(chunkSlots - 1)); len(got) != chunkSlots-1 {
		t.Fatalf("%d STags", len(got))
	}
}
