package state

import (
	"bytes"
	"errors"
	"testing"

	"golang.org/x/sys/unix"
)

// After a crash at any step a write is pending as a whole or not at all: surely once Begin has
// returned, and surely not once End has.
func TestJournalCrash(t *testing.T) {
	old, next := bytes.Repeat([]byte("old"), 100), bytes.Repeat([]byte("new data"), 200)
	for _, torn := range []bool{false, true} {
		for _, powerCut := range []bool{false, true} {
			ended := false
			for steps := 0; !ended; steps++ {
				if steps > 40 {
					t.Fatal("it does not end")
				}
				fsys := newCrashFS()
				d, err := open(fsys, "dir")
				if err != nil {
					t.Fatal(err)
				}
				j := d.Journal("lu")
				if err := errors.Join(j.Begin(512, old), j.End()); err != nil {
					t.Fatal(err)
				}
				fsys.steps, fsys.torn = steps, torn
				begun := j.Begin(4096, next) == nil
				ended = begun && j.End() == nil
				d, err = open(fsys.after(powerCut), "dir")
				if err != nil {
					t.Fatal(err)
				}
				off, data, err := d.Journal("lu").Pending()
				whole := off == 4096 && bytes.Equal(data, next)
				switch {
				case err != nil, data != nil && !whole, ended && data != nil:
					t.Errorf("step %d, torn %v, power cut %v: %d bytes at %d, %v", steps, torn, powerCut, len(data), off, err)
				case begun && !ended && data == nil && fsys.now["dir/lu.journal"] != nil:
					t.Errorf("step %d, torn %v, power cut %v: what was begun is forgotten", steps, torn, powerCut)
				}
			}
		}
	}
}

func TestJournalFullDisk(t *testing.T) {
	fsys := newCrashFS()
	d, err := open(fsys, "dir")
	if err != nil {
		t.Fatal(err)
	}
	fsys.fail = unix.ENOSPC
	j := d.Journal("lu")
	if err := j.Begin(0, make([]byte, 4096)); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("Begin: %v", err)
	}
	if _, data, err := j.Pending(); data != nil || err != nil || len(fsys.now) != 0 {
		t.Errorf("%d bytes, %v, %d files", len(data), err, len(fsys.now))
	}
}

// FuzzJournal reads any file.
func FuzzJournal(f *testing.F) {
	f.Add([]byte("oneshot write 1 0 4 00000000\nabcd"))
	f.Add([]byte("oneshot write 1 -1 4 00000000\nabcd"))
	f.Add([]byte("oneshot write 1 512 0 00000000\n"))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, text []byte) {
		off, data := decodeJournal(text)
		if off < 0 || data == nil && off != 0 || data != nil && !bytes.HasSuffix(text, data) {
			t.Fatalf("%d, %q", off, data)
		}
	})
}
