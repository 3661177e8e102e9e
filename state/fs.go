package state

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"oneshot/internal/mounted"
)

// fileSystem is what a Dir needs of the operating system. Tests put one in between that fails or
// loses power.
type fileSystem interface {
	// Mounted returns why something else than is there now may belong at path.
	Mounted(path string) error
	// MkdirAll makes the directory, durably, for this user only.
	MkdirAll(path string) error
	// Lock keeps others out until Close.
	Lock(path string) (closer, error)
	List(dir string) ([]string, error)
	ReadFile(path string) ([]byte, error)
	// WriteFile makes or overwrites a file, and returns when its bytes are durable.
	WriteFile(path string, data []byte) error
	// Rename and Remove are atomic. They are durable after SyncDir.
	Rename(from, to string) error
	Remove(path string) error
	SyncDir(dir string) error
}

type osFS struct{}

func (osFS) Mounted(path string) error { return mounted.Check(path) }

func (osFS) MkdirAll(path string) error {
	if err := os.MkdirAll(path, 0o700); err != nil {
		return err
	}
	return osFS{}.SyncDir(filepath.Dir(path))
}

func (osFS) Lock(path string) (closer, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("%w; let this user write to it, or choose another path", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		if errors.Is(err, unix.EWOULDBLOCK) {
			err = errors.New("another process has it; end the target that uses it, or give this one another")
		}
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

func (osFS) List(dir string) (names []string, err error) {
	entries, err := os.ReadDir(dir)
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names, err
}

func (osFS) ReadFile(path string) ([]byte, error) { return os.ReadFile(path) }

func (osFS) WriteFile(path string, data []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	if _, err = f.Write(data); err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

func (osFS) Rename(from, to string) error { return os.Rename(from, to) }
func (osFS) Remove(path string) error     { return os.Remove(path) }

func (osFS) SyncDir(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}
