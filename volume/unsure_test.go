package volume

import (
	"bytes"
	"encoding/json"
	"errors"
	"log/slog"
	"testing"

	"oneshot/volume/access"
)

// TestSanitizeOfAnotherDisk: what is kept may have been ordered for another disk. Nothing is destroyed then, and hosts hear that it has failed.
func TestSanitizeOfAnotherDisk(t *testing.T) {
	d := document{Format: 2, Access: access.Nothing(), Sanitize: &Order{Action: Overwrite, Block: 512, Pattern: []byte{0xaa}, Count: 1}}
	state, err := json.Marshal(&d)
	if err != nil {
		t.Fatal(err)
	}
	for _, unsure := range []string{"", "file"} {
		store := newSliceStore(1 << 20)
		want := bytes.Repeat([]byte{0x55}, len(store.data))
		copy(store.data, want)
		v := open(t, Config{Store: store, Keeper: keeps(string(state)), Unsure: unsure})
		<-v.Sanitized()
		if is := bytes.Equal(store.data, want); is != (unsure != "") {
			t.Errorf("unsure %q: the bytes are as they were: %v", unsure, is)
		}
		if failed := denied(v) == access.SanitizeFailed; failed != (unsure != "") {
			t.Errorf("unsure %q: it has failed: %v", unsure, failed)
		}
		if err := v.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// TestInheritSanitize: a store that hosts believe to be erased, and that is not, becomes no copy.
func TestInheritSanitize(t *testing.T) {
	d := document{Format: 2, Access: access.Nothing(), Sanitize: &Order{Action: Overwrite, Block: 512, Pattern: []byte{0xaa}, Count: 1}}
	state, err := json.Marshal(&d)
	if err != nil {
		t.Fatal(err)
	}
	j := &pendingJournal{data: make([]byte, 512)}
	if _, _, err := Inherit(newSliceStore(1<<20), keeps(string(state)), j, slog.New(slog.DiscardHandler)); !errors.Is(err, ErrSanitize) || j.ended {
		t.Errorf("%v; the journal has forgotten what it has: %v", err, j.ended)
	}
}

// pendingJournal has one write that was begun.
type pendingJournal struct {
	off   int64
	data  []byte
	ended bool
}

func (j *pendingJournal) Begin(int64, []byte) error { panic("nobody writes") }
func (j *pendingJournal) Leave()                    {}

func (j *pendingJournal) End() error {
	j.ended = true
	return nil
}

func (j *pendingJournal) Pending() (int64, []byte, error) { return j.off, j.data, nil }

// TestAtomicWriteOfAnotherDisk: what the journal has may be of another disk. It is completed where a part of it is.
func TestAtomicWriteOfAnotherDisk(t *testing.T) {
	const off, n = 64 << 10, 16 << 10
	for _, c := range []struct {
		unsure    string
		has       int // bytes of it that are there
		off       int64
		completed bool
	}{
		{"", 0, off, true},
		{"file", 0, off, false},
		{"file", n / 2, off, true},
		{"file", 0, 1 << 20, false}, // of a larger disk
	} {
		store := newSliceStore(1 << 20)
		for i := range store.data {
			store.data[i] = 0x55
		}
		data := bytes.Repeat([]byte{0xaa}, n)
		copy(store.data[off:], data[:c.has])
		want := bytes.Clone(store.data)
		if c.completed {
			copy(want[off:], data)
		}
		j := &pendingJournal{off: c.off, data: data}
		v := open(t, Config{Store: store, Journal: j, Unsure: c.unsure})
		if !bytes.Equal(store.data, want) || !j.ended {
			t.Errorf("%+v: not so; the journal has forgotten it: %v", c, j.ended)
		}
		if err := v.Close(); err != nil {
			t.Fatal(err)
		}
	}
}
