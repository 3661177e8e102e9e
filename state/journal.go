package state

import (
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"net/url"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
)

// Journal keeps one write that is under way, with its bytes, so that it can be done again when
// the process or the machine has stopped in the middle of it. Its file is one line and the bytes:
//
//	oneshot write 1 4096 512 9f3a77c1   ← version, offset, length, CRC32C
//
// and empty when nothing is under way. Its methods may be called from any goroutine; from Begin to
// End others wait in Begin.
type Journal struct {
	dir  *Dir
	path string

	mu     sync.Mutex  // held from Begin to End
	begun  atomic.Bool // and it is
	synced bool        // the file is in its directory for good; guarded by mu
	used   atomic.Bool // by this process, so that nothing is pending any more, unless it was left
}

const (
	journalSuffix = ".journal"
	journalHeader = "oneshot write 1 %d %d %08x\n"
)

// Journal returns the journal of that name; see File for names. Calls with one name return the same
// journal: during a reload the former and the new logical unit of a disk share it.
func (d *Dir) Journal(name string) *Journal {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.journals == nil {
		d.journals = make(map[string]*Journal)
	}
	j := d.journals[name]
	if j == nil {
		j = &Journal{dir: d, path: filepath.Join(d.path, url.PathEscape(name)+journalSuffix)}
		d.journals[name] = j
	}
	return j
}

// KeptError is the error of a Begin, or a Save, that may have left what it could not make durable. Until End, or another Save, has succeeded a
// restart may find it.
type KeptError struct{ error }

// MayBeKept tells it from other errors.
func (e *KeptError) MayBeKept() {}

func (e *KeptError) Unwrap() error { return e.error }

// isWhole reports whether a restart would find a write in a journal.
func isWhole(text []byte) bool {
	_, data := decodeJournal(text)
	return data != nil
}

// Begin records, durably, that data is about to be written at off. If it fails nothing is recorded, unless the error is a *KeptError.
func (j *Journal) Begin(off int64, data []byte) error {
	j.mu.Lock()
	j.used.Store(true) // before others find the file: what is in it is no matter for a replay
	line := fmt.Appendf(nil, journalHeader, off, len(data), crc32.Checksum(data, castagnoli))
	if err := j.write(append(line, data...)); err != nil {
		defer j.mu.Unlock()
		err = fmt.Errorf("the journal %s cannot be written: %w", j.path, err)
		// The bytes may have got there nevertheless.
		if stays := j.takeAway(); stays != nil {
			err = errors.Join(err, stays)
			if text, unread := j.dir.fs.ReadFile(j.path); unread != nil || isWhole(text) {
				return &KeptError{err}
			}
		}
		return err
	}
	j.begun.Store(true)
	return nil
}

// End forgets the write, durably. It follows a Begin that has not failed, or Pending.
func (j *Journal) End() error {
	if !j.begun.CompareAndSwap(true, false) {
		j.mu.Lock()
	}
	defer j.mu.Unlock()
	if why := j.write(nil); why != nil {
		if err := j.takeAway(); err != nil {
			return errors.Join(fmt.Errorf("the journal %s cannot be emptied: %w", j.path, why), err)
		}
	}
	return nil
}

// write replaces what is in the file, durably. Of a file that is new it makes that, too, durable: one that was removed before, which may not
// have been, would come back. mu is held.
func (j *Journal) write(data []byte) error {
	err := j.dir.fs.WriteFile(j.path, data)
	if err == nil && !j.synced {
		err = j.dir.fs.SyncDir(j.dir.path)
	}
	j.synced = err == nil
	return err
}

// Leave says that a write was begun, or could not be forgotten, and that nobody does so any more: it is pending again.
func (j *Journal) Leave() {
	if !j.begun.CompareAndSwap(true, false) {
		j.mu.Lock()
	}
	j.used.Store(false)
	j.mu.Unlock()
}

// takeAway removes the file for good: a restart must not overwrite with it what is written from now
// on. mu is held.
func (j *Journal) takeAway() error {
	j.synced = false
	if err := ignoreMissing(j.dir.fs.Remove(j.path)); err != nil {
		return err
	}
	return j.dir.fs.SyncDir(j.dir.path)
}

// Pending returns the write that an earlier process has begun and not ended; nil if there is none.
// The caller repeats the write and then calls End. An incomplete journal counts as none: a write
// starts only after Begin has returned.
func (j *Journal) Pending() (off int64, data []byte, err error) {
	if j.used.Load() {
		return 0, nil, nil
	}
	text, err := j.dir.fs.ReadFile(j.path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return 0, nil, fmt.Errorf("the journal cannot be read: %w", err)
	}
	if j.used.Load() { // in the meantime: that was not for us
		return 0, nil, nil
	}
	off, data = decodeJournal(text)
	return off, data, nil
}

func decodeJournal(text []byte) (off int64, data []byte) {
	line, rest, _ := strings.Cut(string(text), "\n")
	var n int
	var sum uint32
	_, err := fmt.Sscanf(line+"\n", journalHeader, &off, &n, &sum)
	switch {
	case err != nil, n == 0, off < 0, line+"\n" != fmt.Sprintf(journalHeader, off, n, sum),
		len(rest) != n, crc32.Checksum([]byte(rest), castagnoli) != sum:
		return 0, nil
	}
	return off, []byte(rest)
}
