package config

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
)

var fileStore = storeType{
	name: StoreFile, read: (*decoder).fileStore,
	place: func(s *Store) string { return s.File.Path }, noun: "file",
	unsized: func(*Store) string { return "size of the file" },
	details: func(s *Store) []string { return s.File.details() },
}

// FileStore holds the options of a file store, besides its size.
type FileStore struct {
	// Path is the path of the file: absolute, or relative to the working directory.
	// (Parse has converted it; in the file it is relative to the configuration file.)
	Path string

	// Sparse says that blocks take space when they are first written, and free it
	// when they are unmapped. Otherwise the whole size is allocated when the store
	// is opened, and kept.
	Sparse bool

	// Create makes the file if it does not exist. It is false for a store that is read-only.
	Create bool

	// Direct bypasses the page cache (O_DIRECT).
	Direct bool

	Cache CacheMode
	IO    IOMode
}

func (d *decoder) fileStore(o *object, s *Store) {
	f := &FileStore{Sparse: true, Create: !s.ReadOnly}
	s.File = f
	d.storePath(o, s, &f.Path, s.Name+".img")
	d.storeSize(o, s)
	o.bool("sparse", &f.Sparse)
	o.bool("create", &f.Create)
	if f.Create && s.ReadOnly {
		o.take("create").errorf("the store %q is read-only, so its file is not created: remove one of the two", s.Name)
	}
	o.bool("direct", &f.Direct)
	cacheAndIO(o, s, &f.Cache, &f.IO)
}

func (f *FileStore) details() []string {
	words := []string{f.Path, string(f.Cache)}
	if f.Sparse {
		words = append(words, "sparse")
	}
	if f.Direct {
		words = append(words, "direct")
	}
	return append(append(words, f.IO.details()...), f.state()...)
}

// state says what serve would find at the path of a file store: nothing, a directory, no regular file.
func (f *FileStore) state() []string {
	info, err := os.Stat(f.Path)
	switch {
	case errors.Is(err, fs.ErrNotExist) && !f.Create:
		return []string{"missing"}
	case errors.Is(err, fs.ErrNotExist):
		if _, err := os.Stat(filepath.Dir(f.Path)); errors.Is(err, fs.ErrNotExist) {
			return []string{"cannot be created: there is no directory " + filepath.Dir(f.Path)}
		}
		return []string{"to be created"}
	case err == nil && info.IsDir():
		return []string{"is a directory"}
	case err == nil && !info.Mode().IsRegular():
		return []string{"not a regular file"}
	}
	return nil
}
