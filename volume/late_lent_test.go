package volume

import (
	"bytes"
	"testing"

	"oneshot/mem"
	"oneshot/volume/access"
)

// A command has been under way for long, for its data are late, and its host may have given it up. What others have written since on a store that
// lends its memory is not changed by it, whether its data go straight there or come to memory of its own before.
func TestLateIsOvertakenWhereMemoryIsLent(t *testing.T) {
	const size = 8192
	fill := func(b byte) []byte { return bytes.Repeat([]byte{b}, size) }
	compare := append(fill(2)[:4096:4096], fill(1)[:4096]...) // the newer bytes would be found, and replaced
	for name, c := range map[string]struct {
		begin  func(r *Request, then Step) Next
		data   []byte
		noLend bool
	}{
		"Write":           {func(r *Request, then Step) Next { return r.Write(0, size, false, then) }, fill(1), false},
		"WriteAndVerify":  {func(r *Request, then Step) Next { return r.WriteAndVerify(0, size, true, then) }, fill(1), false},
		"Write, copied":   {func(r *Request, then Step) Next { return r.Write(0, size, false, then) }, fill(1), true},
		"WriteSame":       {func(r *Request, then Step) Next { return r.WriteSame(0, size, 512, false, then) }, fill(1)[:512], false},
		"WriteAtomic":     {func(r *Request, then Step) Next { return r.WriteAtomic(0, size, false, then) }, fill(1), false},
		"OrWrite":         {func(r *Request, then Step) Next { return r.OrWrite(0, size, false, then) }, fill(1), false},
		"CompareAndWrite": {func(r *Request, then Step) Next { return r.CompareAndWrite(0, 4096, false, "", then) }, compare, false},
	} {
		for _, came := range []int{0, 4096} { // bytes of the data that have come in time, where they go straight to their place
			for _, overtaken := range []bool{false, true} {
				store := lendingStore{newSliceStore(3 * size)}
				v := open(t, Config{Store: store})
				late, other := newShow(v, 512, access.Holder{}), newShow(v, 4096, access.Holder{})
				late.r, late.data = new(Request), c.data
				late.r.Begin(late, v, 512, mem.MaxLease, false, c.noLend)
				if next := c.begin(late.r, func(*Request) Next { return Done }); next != Pull {
					t.Fatal(next)
				}
				straight := late.r.PlaceUnit != 0
				if straight {
					late.r.Place(0, c.data[:came])
				}
				late.r.Overdue()
				late.r.Overdue()
				at := int64(size / 4096) // beside it
				if overtaken {
					at = 0
				}
				if err := other.write(t, at, 1, fill(2)[:4096]); err != nil {
					t.Fatal(err)
				}
				if _, _, err := other.end(t); err != nil {
					t.Fatal(err)
				}
				if straight {
					late.r.Place(came, c.data[came:])
					next, _ := late.r.Pulled()
					late.drive(next)
				} else {
					late.drive(Pull)
				}
				if _, _, err := late.end(t); overtaken != (err == ErrOvertaken) || !overtaken && err != nil {
					t.Errorf("%s, %d bytes in time, overtaken %v: %v", name, came, overtaken, err)
				}
				if got := store.data[at*4096:][:4096]; !bytes.Equal(got, fill(2)[:4096]) {
					t.Errorf("%s, %d bytes in time, overtaken %v: what others have written begins with % x", name, came, overtaken, got[:4])
				}
				if want := byte(1); !overtaken && name != "CompareAndWrite" && store.data[0] != want {
					t.Errorf("%s, %d bytes in time: what it was to write begins with % x", name, came, store.data[:4])
				}
				if err := v.Settled(); err != nil || v.tokens.count.Load() != 0 {
					t.Errorf("%s: %v, %d tokens", name, err, v.tokens.count.Load())
				}
			}
		}
	}
}

// It has its range for itself while it looks whether others have come, and changes it: nobody gets in between.
func TestLateDataKeepOthersOutWhereMemoryIsLent(t *testing.T) {
	store := lendingStore{newSliceStore(8192)}
	v := open(t, Config{Store: store})
	late := newShow(v, 512, access.Holder{})
	late.r = new(Request)
	late.r.Begin(late, v, 512, mem.MaxLease, false, false)
	late.r.Write(0, 4096, false, func(*Request) Next { return Done })
	late.r.Overdue()
	p := late.r.BeginPlace(0, 4096)
	if v.ranges.tryShared(0, 512) {
		t.Error("others share the range in which late data are placed")
	}
	p.End()
	next, _ := late.r.Pulled()
	late.drive(next)
	if _, _, err := late.end(t); err != nil {
		t.Error(err)
	}
	if err := v.Settled(); err != nil {
		t.Error(err)
	}
}
