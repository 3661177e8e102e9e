package quorum

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// FS is the directory in which a node keeps its log, for itself alone. Names have no directory in them.
type FS interface {
	// ReadFile returns what processes see; an error that is fs.ErrNotExist if there is no such file.
	ReadFile(name string) ([]byte, error)
	// Create makes an empty file, or empties one.
	Create(name string) (File, error)
	// Rename and Remove are atomic, and durable after SyncDir.
	Rename(from, to string) error
	Remove(name string) error
	SyncDir() error
}

// File is open for writing.
type File interface {
	// WriteAt is durable after Sync. Before that a power cut may leave any sectors of it. b is the caller's again
	// when it returns.
	WriteAt(b []byte, off int64) (int, error)
	Sync() error
	Close() error
}

// Dir is an FS in a directory of the operating system.
type Dir struct {
	path string
	lock *os.File
}

var _ FS = (*Dir)(nil)

// OpenDir opens the directory, and makes it for this user only if it is not there. One process at a time may have
// it.
func OpenDir(path string) (*Dir, error) {
	if err := os.MkdirAll(path, 0o700); err != nil {
		return nil, fmt.Errorf("the directory of the cluster's state cannot be made: %w", err)
	}
	lock, err := os.OpenFile(filepath.Join(path, "lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("the directory of the cluster's state cannot be used: %w", err)
	}
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		if errors.Is(err, unix.EWOULDBLOCK) {
			err = errors.New("another process uses it: end that one first")
		}
		return nil, errors.Join(fmt.Errorf("the directory of the cluster's state, %s, cannot be locked: %w", path, err), lock.Close())
	}
	return &Dir{path: path, lock: lock}, nil
}

// LookInto is a directory for reading only, which somebody may have open: files may change. It is not closed.
func LookInto(path string) *Dir { return &Dir{path: path} }

// Close lets another process have the directory.
func (d *Dir) Close() error { return d.lock.Close() }

func (d *Dir) ReadFile(name string) ([]byte, error) { return os.ReadFile(filepath.Join(d.path, name)) }

func (d *Dir) Create(name string) (File, error) {
	f, err := os.OpenFile(filepath.Join(d.path, name), os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return nil, err // not a File that holds nil
	}
	return f, nil
}

func (d *Dir) Rename(from, to string) error {
	return os.Rename(filepath.Join(d.path, from), filepath.Join(d.path, to))
}

func (d *Dir) Remove(name string) error { return os.Remove(filepath.Join(d.path, name)) }

func (d *Dir) SyncDir() error {
	f, err := os.Open(d.path)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}
