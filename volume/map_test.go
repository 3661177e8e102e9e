package volume

import (
	"bytes"
	"errors"
	"testing"

	"oneshot/backend"
	"oneshot/backend/memory"
	"oneshot/volume/access"
)

// A mapping shows what others write, and is an operation under way: whoever denies it asks for it, and waits.
func TestMap(t *testing.T) {
	s, err := memory.New(1 << 20)
	if err != nil {
		t.Fatal(err)
	}
	v := open(t, Config{Store: s})
	h := v.Open(nil)
	recalled := map[string]int{}
	maps := func(what string, off, n int64, write bool) ([]byte, func()) {
		t.Helper()
		b, unmap, err := h.Map(off, n, write, func() { recalled[what]++ })
		if err != nil || int64(len(b)) != n || int64(cap(b)) != n {
			t.Fatalf("%d bytes, %v", len(b), err)
		}
		return b, unmap
	}
	reading, unmapReading := maps("reading", 4096, 8192, false)
	writing, unmapWriting := maps("writing", 8192, 8192, true)
	done := make(opDone, 1)
	data := bytes.Repeat([]byte{7}, 4096)
	if err := done.wait(&backend.Op{Kind: backend.Write, Off: 8192, Len: 4096, Segs: [][]byte{data}}, h.Submit); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(reading[4096:], data) || !bytes.Equal(writing[:4096], data) {
		t.Error("what is written is not in the mapping")
	}
	writing[4096] = 8
	got := make([]byte, 512)
	if err := done.wait(&backend.Op{Kind: backend.Read, Off: 12288, Len: 512, Segs: [][]byte{got}}, h.Submit); err != nil || got[0] != 8 {
		t.Errorf("what is written to the mapping is not in the store: %v", err)
	}

	for _, c := range []struct{ off, n int64 }{{-512, 512}, {1<<20 - 512, 1024}, {1 << 20, 512}} {
		var outside *backend.RangeError
		if _, _, err := h.Map(c.off, c.n, true, nil); !errors.As(err, &outside) {
			t.Errorf("%d bytes at %d: %v", c.n, c.off, err)
		}
	}

	v.Access().SetCondition(access.Writes, access.Writes)
	if recalled["writing"] == 0 || recalled["reading"] != 0 {
		t.Errorf("after writes were denied these are asked for: %v", recalled)
	}
	var denied *backend.DeniedError
	if _, _, err := h.Map(0, 512, true, nil); !errors.As(err, &denied) {
		t.Errorf("a mapping that is denied: %v", err)
	}
	drained := v.drained()
	unmapWriting()
	unmapWriting() // nothing
	select {
	case <-drained:
		t.Error("drained while something is mapped")
	default:
	}
	v.Access().SetCondition(access.Sanitizing, access.Sanitizing)
	if recalled["reading"] == 0 {
		t.Error("SANITIZE does not ask for what is mapped")
	}
	unmapReading()
	<-drained
	if n := recalled["writing"]; n != 1 {
		t.Errorf("asked %d times for what was given back after the first", n)
	}
	h.Close()
	if err := v.Close(); err != nil {
		t.Error(err)
	}
}

// No token stands for bytes that somebody may change without a word.
func TestMapEndsTokens(t *testing.T) {
	s, err := memory.New(1 << 20)
	if err != nil {
		t.Fatal(err)
	}
	v := open(t, Config{Store: s})
	h := v.Open(nil)
	before, beside := v.NewToken(0, []Range{{0, 8192}}), v.NewToken(0, []Range{{0, 4096}})
	_, unmap, err := h.Map(4096, 4096, true, func() {})
	if err != nil {
		t.Fatal(err)
	}
	if _, unmap, err := h.Map(0, 8192, false, func() {}); err != nil || !beside.Valid() {
		t.Errorf("a mapping to read ends a token, or fails: %v", err)
	} else {
		unmap()
	}
	during := v.NewToken(0, []Range{{0, 512}, {8191, 1}, {4096, 1}})
	if before.Valid() || during.Valid() || !beside.Valid() || !v.NewToken(0, []Range{{8192, 512}}).Valid() {
		t.Error("tokens for what is mapped are valid, or others are not")
	}
	unmap()
	if !v.NewToken(0, []Range{{0, 8192}}).Valid() {
		t.Error("a token for what was mapped once is not valid")
	}
	h.Close()
	if err := v.Close(); err != nil {
		t.Error(err)
	}
}

// A store that does not lend its bytes cannot be mapped.
func TestMapNotLent(t *testing.T) {
	v := open(t, Config{Store: newSliceStore(1 << 20)})
	h := v.Open(nil)
	if _, _, err := h.Map(0, 512, false, nil); !errors.Is(err, ErrNotLent) {
		t.Error(err)
	}
	h.Close()
	if err := v.Close(); err != nil {
		t.Error(err)
	}
}
