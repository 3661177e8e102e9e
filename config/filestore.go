package config

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

var fileStore = storeType{
	name: StoreFile, read: (*decoder).fileStore,
	place: func(s *Store) string { return s.File.Path }, noun: "file",
	unsized:  func(*Store) string { return "size of the file" },
	details:  func(s *Store) []string { return s.File.details() },
	obstacle: func(s *Store) string { return s.File.obstacle(s.Size) },
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
	return append(words, f.IO.details()...)
}

// obstacle says why serve could not open the file here, where it would have size bytes (0: as many as it has).
func (f *FileStore) obstacle(size int64) string {
	info, err := os.Stat(f.Path)
	switch {
	case f.missing() && !f.Create:
		return "missing"
	case f.missing():
		if dir := filepath.Dir(f.Path); !exists(dir) {
			return "cannot be created: there is no directory " + dir
		}
		if size == 0 {
			return "cannot be created without a size"
		}
	case err == nil && info.IsDir():
		return "is a directory"
	case err == nil && !info.Mode().IsRegular():
		return "not a regular file"
	case err == nil && size > 0 && size < info.Size():
		return fmt.Sprintf("longer than its size: it has %d bytes", info.Size())
	}
	return ""
}

// missing says that there is no such file.
func (f *FileStore) missing() bool { return !exists(f.Path) }

// exists says whether there is something at path; it is true if nobody can tell.
func exists(path string) bool {
	_, err := os.Stat(path)
	return !errors.Is(err, fs.ErrNotExist)
}
