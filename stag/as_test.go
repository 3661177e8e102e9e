package stag

import (
	"errors"
	"testing"
)

// An owner chooses the STag of memory. It is for all streams of the domain and no other, and one at a time for each index; the
// table never gives such an index out itself.
func TestRegisterAs(t *testing.T) {
	const chosen = STag(0xfff1a3b7)
	table := NewTable(40)
	d, other := table.NewDomain(), table.NewDomain()
	st, second, stranger := table.NewStream(d, 1), table.NewStream(d, 1), table.NewStream(other, 1)
	const base = 0x5000_0000_0000
	r := Region{Segments: segs(3, 8), Base: base, Access: AccessRemoteRead}
	for _, bad := range []STag{0, 1 << keyBits, (MaxIndexes-Kept)<<keyBits - 1} {
		if err := table.RegisterAs(d, bad, r); !errors.Is(err, ErrState) {
			t.Errorf("RegisterAs(%08x): %v, want %v", bad, err, ErrState)
		}
	}
	if err := table.RegisterAs(d, chosen, Region{Segments: segs(3, 8), Base: 1<<64 - 4}); !errors.Is(err, ErrRegion) {
		t.Errorf("a region that wraps: %v", err)
	}
	for range 600 { // more than there are keys
		if err := table.RegisterAs(d, chosen, r); err != nil {
			t.Fatal(err)
		}
		for _, again := range []STag{chosen, chosen + 1, chosen - 1} {
			if err := table.RegisterAs(d, again, r); !errors.Is(err, ErrState) {
				t.Fatalf("RegisterAs(%08x) while the index is in use: %v", again, err)
			}
		}
		for _, s := range []*Stream{st, second} {
			ref := must(s.Acquire(RemoteRead, chosen, base, 8))
			if got := read(&ref, 0, 8); got[0] != 3 {
				t.Fatalf("% x", got)
			}
			ref.Release()
		}
		for _, x := range []struct {
			st   *Stream
			op   Op
			s    STag
			to   uint64
			want Fault
		}{
			{stranger, RemoteRead, chosen, base, WrongStream},
			{st, RemoteRead, chosen + 1, base, InvalidSTag},
			{st, RemoteRead, chosen + 1<<keyBits, base, InvalidSTag},
			{st, RemoteWrite, chosen, base, AccessRights},
			{st, RemoteRead, chosen, base + 1, Bounds},
			{st, RemoteRead, chosen, 0, Bounds},
			{st, RemoteRead, chosen, 1<<64 - 4, TOWrap},
		} {
			_, err := x.st.Acquire(x.op, x.s, x.to, 8)
			if e, ok := errors.AsType[*Error](err); !ok || e.Fault != x.want {
				t.Fatalf("%v of %08x at %#x: %v, want %v", x.op, x.s, x.to, err, x.want)
			}
		}
		if err := table.Deregister(chosen); err != nil {
			t.Fatal(err)
		}
		if _, err := st.Acquire(RemoteRead, chosen, base, 8); err == nil {
			t.Fatal("it is read after its end")
		}
	}
	// Another key of the same index.
	if err := table.RegisterAs(other, chosen+1, r); err != nil {
		t.Fatal(err)
	}
	if _, err := st.Acquire(RemoteRead, chosen, base, 8); err == nil {
		t.Fatal("the former key is good")
	}
	// The table gives other indexes out: as many as it has, and none of those that are kept.
	for {
		s, err := table.Register(d, nil, r)
		if errors.Is(err, ErrTableFull) {
			break
		}
		if s.index() >= MaxIndexes-Kept {
			t.Fatalf("the table gives %08x out", s)
		}
	}
	if full := NewTable(MaxIndexes); len(full.chunks)*chunkSlots != MaxIndexes-Kept {
		t.Errorf("the largest table has %d indexes", len(full.chunks)*chunkSlots)
	}
}
