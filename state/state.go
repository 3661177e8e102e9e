// Package state keeps small states, one file each, in a directory, so that they outlive the
// process: what persistent reservations there are, above all. A file is replaced as a whole and
// durably: after a kill or a power cut at any moment it holds what was last saved, or
// what was about to be saved, and never a mixture. A file that was damaged otherwise is an error:
// to go on without it would admit initiators that a reservation keeps out.
//
//	oneshot state 1 312 9f3a77c1        ← version, bytes that follow this line, their CRC32C
//	{"Format":1, …}
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

// Dir is a directory of states. Its methods may be called from any goroutine.
type Dir struct {
	fs   fileSystem
	path string
	lock closer

	mu       sync.Mutex
	journals map[string]*Journal // guarded by mu

	// doubt: the directory could not be synced once, so a file that was removed may come back.
	doubt atomic.Bool
}

type closer interface{ Close() error }

// Open opens the directory at path, and makes it, for this user only, if it is not there. It makes none where a file system
// belongs that is not mounted, for what it has may have been kept there. One process at a time may have it open.
func Open(path string) (*Dir, error) { return open(osFS{}, path) }

func open(fsys fileSystem, path string) (*Dir, error) {
	d := &Dir{fs: fsys, path: path}
	if _, err := fsys.ReadFile(filepath.Join(path, lockName)); errors.Is(err, fs.ErrNotExist) { // nobody has used it
		if err := fsys.Mounted(path); err != nil {
			return nil, fmt.Errorf("the state directory %s has no states yet, and %w, or else all reservations are forgotten; or choose another path", path, err)
		}
	}
	if err := fsys.MkdirAll(path); err != nil {
		return nil, fmt.Errorf("the state directory cannot be made: %w; choose another path, or let this user make it", err)
	}
	lock, err := fsys.Lock(filepath.Join(path, lockName))
	if err != nil {
		return nil, fmt.Errorf("the state directory %s cannot be used: %w", path, err)
	}
	d.lock = lock
	if err := d.sweep(); err != nil {
		return nil, errors.Join(fmt.Errorf("the state directory cannot be used: %w", err), lock.Close())
	}
	return d, nil
}

// Names in the directory.
const (
	lockName   = "lock"
	fileSuffix = ".state"
	tempSuffix = ".new" // begun and not ended
)

// sweep removes the temporary files that a killed process has left.
func (d *Dir) sweep() error {
	names, err := d.fs.List(d.path)
	if err != nil {
		return err
	}
	for _, name := range names {
		if strings.HasSuffix(name, tempSuffix) {
			if err := d.fs.Remove(filepath.Join(d.path, name)); err != nil {
				return err
			}
		}
	}
	return nil
}

// Close lets another process have the directory. Files must not be used after it.
func (d *Dir) Close() error { return d.lock.Close() }

// Path returns where the directory is.
func (d *Dir) Path() string { return d.path }

// File returns the state of that name, 1 to 80 bytes of any kind. It need not exist. A name
// stands for the same file each time.
func (d *Dir) File(name string) *File {
	return &File{dir: d, path: filepath.Join(d.path, url.PathEscape(name)+fileSuffix)}
}

// Rename calls the state and the journal of one name by another, durably. What that name has already is newer, and stays. Nobody may use either
// meanwhile. After a crash or an error a part of it may be done, and it can be done again.
func (d *Dir) Rename(from, to string) error {
	from, to = filepath.Join(d.path, url.PathEscape(from)), filepath.Join(d.path, url.PathEscape(to))
	hasState, err := d.has(to + fileSuffix)
	hasJournal, journalErr := d.has(to + journalSuffix)
	err = errors.Join(err, journalErr)
	if err == nil {
		err = d.move(from+journalSuffix, to+journalSuffix, hasState || hasJournal)
	}
	if err == nil { // with it the journal would count as newer, so it comes last
		err = d.move(from+fileSuffix, to+fileSuffix, hasState)
	}
	if err != nil {
		return fmt.Errorf("the state file %s cannot be called %s: %w", from+fileSuffix, filepath.Base(to)+fileSuffix, err)
	}
	return nil
}

// move renames a file if it is there, or removes it if it is old.
func (d *Dir) move(from, to string, isOld bool) error {
	_, err := d.fs.ReadFile(from)
	switch {
	case err == nil && isOld:
		err = d.fs.Remove(from)
	case err == nil:
		err = d.fs.Rename(from, to)
	}
	if err == nil || errors.Is(err, fs.ErrNotExist) && d.doubt.Load() {
		err = d.sync()
	}
	return ignoreMissing(err)
}

// has reports whether there is a file.
func (d *Dir) has(path string) (bool, error) {
	_, err := d.fs.ReadFile(path)
	return err == nil, ignoreMissing(err)
}

// File is one state. Its methods may be called from any goroutine.
type File struct {
	dir  *Dir
	path string
	mu   sync.Mutex // held over the writing: one temporary file at a time
}

// Path returns where the file is, or would be.
func (f *File) Path() string { return f.path }

// DamagedError says that a file does not hold what was once saved.
type DamagedError struct {
	Path string
	What string
}

func (e *DamagedError) Error() string {
	return fmt.Sprintf("the state file %s is damaged: %s; restore it from a backup, or remove it if what it kept (persistent reservations) may be forgotten", e.Path, e.What)
}

// Load returns what was last saved; nil if nothing was. A file that is damaged is a *DamagedError.
func (f *File) Load() ([]byte, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	data, err := f.dir.fs.ReadFile(f.path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("the state file cannot be read: %w", err)
	}
	return f.decode(data)
}

// Save replaces the state, and returns when it is durable. An empty state removes the file. When it
// fails, what was saved before is still there; or state may be, if the error is a *KeptError.
func (f *File) Save(state []byte) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(state) == 0 {
		return f.remove()
	}
	if err := f.replace(encode(state)); err != nil {
		return fmt.Errorf("the state file %s cannot be written: %w", f.path, err)
	}
	return nil
}

func (f *File) remove() error {
	err := f.dir.fs.Remove(f.path)
	if err == nil || errors.Is(err, fs.ErrNotExist) && f.dir.doubt.Load() {
		err = f.dir.sync()
	}
	if err = ignoreMissing(err); err != nil {
		return fmt.Errorf("the state file %s cannot be removed: %w", f.path, err)
	}
	return nil
}

// sync makes durable which files there are. Its error is a *KeptError.
func (d *Dir) sync() error {
	if err := d.fs.SyncDir(d.path); err != nil {
		d.doubt.Store(true)
		return &KeptError{err}
	}
	return nil
}

// replace writes a new file beside the old one, and renames it when it is durable.
func (f *File) replace(data []byte) error {
	fsys, temp := f.dir.fs, f.path+tempSuffix
	if err := fsys.WriteFile(temp, data); err != nil {
		return errors.Join(err, ignoreMissing(fsys.Remove(temp))) // a full disk needs the room
	}
	if err := fsys.Rename(temp, f.path); err != nil {
		return errors.Join(err, ignoreMissing(fsys.Remove(temp)))
	}
	return f.dir.sync()
}

func ignoreMissing(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

const header = "oneshot state 1 %d %08x\n"

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func encode(state []byte) []byte {
	return append(fmt.Appendf(nil, header, len(state), crc32.Checksum(state, castagnoli)), state...)
}

func (f *File) decode(data []byte) ([]byte, error) {
	damaged := func(format string, args ...any) ([]byte, error) {
		return nil, &DamagedError{f.path, fmt.Sprintf(format, args...)}
	}
	line, state, found := strings.Cut(string(data), "\n")
	if !found {
		return damaged("its first line is not whole")
	}
	var n int
	var sum uint32
	if _, err := fmt.Sscanf(line+"\n", header, &n, &sum); err != nil || line+"\n" != fmt.Sprintf(header, n, sum) {
		return damaged("its first line is not one that this program writes")
	}
	switch {
	case len(state) < n:
		return damaged("it is cut short, %d of %d bytes are there", len(state), n)
	case len(state) > n:
		return damaged("it has %d bytes behind its end", len(state)-n)
	case crc32.Checksum([]byte(state), castagnoli) != sum:
		return damaged("its checksum does not fit")
	}
	return []byte(state), nil
}
