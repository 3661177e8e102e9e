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

// A journal that cannot be emptied is removed: a restart would write once more what is there, over
// what has been written since.
func TestJournalCannotBeEmptied(t *testing.T) {
	fsys := newCrashFS()
	d, err := open(fsys, "dir")
	if err != nil {
		t.Fatal(err)
	}
	j := d.Journal("lu")
	if err := j.Begin(0, make([]byte, 4096)); err != nil {
		t.Fatal(err)
	}
	fsys.refuse = unix.EMFILE
	if err := j.End(); err != nil {
		t.Errorf("End: %v", err)
	}
	for _, powerCut := range []bool{false, true} {
		d, err := open(fsys.after(powerCut), "dir")
		if err != nil {
			t.Fatal(err)
		}
		if _, data, err := d.Journal("lu").Pending(); data != nil || err != nil {
			t.Errorf("power cut %v: %d bytes are pending, %v", powerCut, len(data), err)
		}
	}
	fsys.refuse = nil
	if err := j.Begin(512, make([]byte, 512)); err != nil {
		t.Fatal(err)
	}
	d, err = open(fsys.after(true), "dir")
	if err != nil {
		t.Fatal(err)
	}
	if off, data, _ := d.Journal("lu").Pending(); off != 512 || len(data) != 512 {
		t.Errorf("the next one is forgotten: %d bytes at %d", len(data), off)
	}
}

// A write whose journal could not be made durable, they say, is not done, and neither is it done by a
// restart after a power cut: over what has been written since.
func TestJournalOfDoubt(t *testing.T) {
	fsys := newCrashFS()
	d, err := open(fsys, "dir")
	if err != nil {
		t.Fatal(err)
	}
	j := d.Journal("lu")
	if err := errors.Join(j.Begin(0, make([]byte, 512)), j.End()); err != nil { // its name is there for good
		t.Fatal(err)
	}
	fsys.doubt = unix.EIO
	if err := j.Begin(0, make([]byte, 4096)); !errors.Is(err, unix.EIO) {
		t.Errorf("Begin: %v", err)
	}
	for _, powerCut := range []bool{false, true} {
		d, err := open(fsys.after(powerCut), "dir")
		if err != nil {
			t.Fatal(err)
		}
		if _, data, err := d.Journal("lu").Pending(); data != nil || err != nil {
			t.Errorf("power cut %v: %d bytes are pending, %v", powerCut, len(data), err)
		}
	}
}

// A unit that takes the place of another asks what is pending while that one is in its first
// write: nothing that is for others.
func TestJournalPendingMeetsBegin(t *testing.T) {
	fsys := newCrashFS()
	d, err := open(fsys, "dir")
	if err != nil {
		t.Fatal(err)
	}
	j := d.Journal("lu")
	d.fs = meddlingFS{fsys, func(read func()) {
		if err := j.Begin(0, make([]byte, 512)); err != nil {
			t.Error(err)
		}
		read()
	}}
	if _, data, err := j.Pending(); data != nil || err != nil {
		t.Errorf("%d bytes are pending, %v", len(data), err)
	}
	if err := j.End(); err != nil {
		t.Error(err)
	}
}

// meddlingFS has something happen around each reading of a file.
type meddlingFS struct {
	*crashFS
	around func(read func())
}

func (m meddlingFS) ReadFile(path string) (data []byte, err error) {
	m.around(func() { data, err = m.crashFS.ReadFile(path) })
	return data, err
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

// What a store that is closed leaves in its journal is for who opens it next, in the same process, too; and nobody waits for its end.
func TestJournalLeft(t *testing.T) {
	fsys := newCrashFS()
	d, err := open(fsys, "dir")
	if err != nil {
		t.Fatal(err)
	}
	j := d.Journal("lu")
	for name, begin := range map[string]func() error{
		"begun":         func() error { return j.Begin(512, []byte("data")) },
		"not forgotten": func() error { return errors.Join(j.Begin(512, []byte("data")), failing(fsys, j.End)) },
	} {
		if err := begin(); err != nil {
			t.Fatal(err)
		}
		j.Leave()
		if off, data, err := d.Journal("lu").Pending(); off != 512 || string(data) != "data" || err != nil {
			t.Errorf("%s: %q at %d is pending, %v", name, data, off, err)
		}
		if err := errors.Join(j.End(), j.Begin(0, []byte("x")), j.End()); err != nil {
			t.Error(err)
		}
	}
}

// failing does something while the file system takes nothing, and wants it to fail.
func failing(fsys *crashFS, do func() error) error {
	fsys.refuse, fsys.stays = unix.EROFS, unix.EROFS
	defer func() { fsys.refuse, fsys.stays = nil, nil }()
	if do() == nil {
		return errors.New("it succeeds")
	}
	return nil
}

// A journal that could not be made durable, and cannot be taken away, may come back after a restart: who has begun it is told.
func TestJournalMayBeKept(t *testing.T) {
	for name, c := range map[string]struct {
		doubt, refuse error
		want          bool
	}{
		"its bytes are there": {doubt: unix.EIO, want: true},
		"nothing was written": {refuse: unix.EROFS},
	} {
		fsys := newCrashFS()
		d, err := open(fsys, "dir")
		if err != nil {
			t.Fatal(err)
		}
		j := d.Journal("lu")
		if err := errors.Join(j.Begin(0, []byte("old")), j.End()); err != nil {
			t.Fatal(err)
		}
		fsys.doubt, fsys.refuse, fsys.stays = c.doubt, c.refuse, unix.EIO
		err = j.Begin(512, []byte("data"))
		if kept := new(KeptError); err == nil || errors.As(err, &kept) != c.want {
			t.Errorf("%s: %v", name, err)
		}
		fsys.doubt, fsys.refuse, fsys.stays = nil, nil, nil
		d, err = open(fsys.after(false), "dir")
		if err != nil {
			t.Fatal(err)
		}
		if _, data, _ := d.Journal("lu").Pending(); (data != nil) != c.want {
			t.Errorf("%s: a restart finds %q", name, data)
		}
	}
}

// A journal that was taken away, but not for good, does not come back when it has been ended: what is written then would be overwritten with it.
func TestJournalTakenAwayInDoubt(t *testing.T) {
	fsys := newCrashFS()
	d, err := open(fsys, "dir")
	if err != nil {
		t.Fatal(err)
	}
	j := d.Journal("lu")
	if err := j.Begin(4096, []byte("new bytes")); err != nil {
		t.Fatal(err)
	}
	fsys.refuse, fsys.steps = unix.EIO, 1 // the file is removed, and the directory not synced
	if err := j.End(); err == nil {
		t.Fatal("what may come back counts as ended")
	}
	fsys.refuse, fsys.steps = nil, -1
	if err := j.End(); err != nil {
		t.Fatal(err)
	}
	again, err := open(fsys.after(true), "dir")
	if err != nil {
		t.Fatal(err)
	}
	if off, data, err := again.Journal("lu").Pending(); data != nil || err != nil {
		t.Errorf("after a power cut %q at %d is pending: %v", data, off, err)
	}
}
