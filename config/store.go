package config

import (
	"errors"
	"fmt"
)

// Store is one block store, which LUNs export.
type Store struct {
	Name string // unique, at most 64 characters
	Type StoreType
	Pos  Position // of the name

	// Size is in bytes. For a file store, 0 means the length that the file has.
	Size int64

	// ReadOnly stores are never written to; LUNs that export them are read-only.
	ReadOnly bool

	// File is set when, and only when, Type is StoreFile.
	File *FileStore
}

// FileStore is what a file store has besides a size.
type FileStore struct {
	// Path is where the file is: absolute, or relative to the working directory
	// (what is relative to the configuration file has been made so).
	Path string

	// Sparse says that blocks take space when they are written first, and give
	// it back when they are unmapped. Otherwise the whole size is allocated when
	// the store is opened, and kept.
	Sparse bool

	// Direct bypasses the page cache (O_DIRECT).
	Direct bool

	Cache CacheMode
}

// StoreType says where the blocks of a store live.
type StoreType string

// The store types.
const (
	StoreMemory StoreType = "memory" // gone when the daemon stops
	StoreFile   StoreType = "file"
)

// CacheMode says when a write is acknowledged.
type CacheMode string

const (
	// CacheWriteback acknowledges a write when it is in a volatile cache, and
	// tells the initiator so (WCE=1); its flushes make it durable. The default.
	CacheWriteback CacheMode = "writeback"

	// CacheWritethrough acknowledges a write when it is durable.
	CacheWritethrough CacheMode = "writethrough"
)

// storeTypes has one row for each type: its name and what reads its keys.
var storeTypes = []struct {
	name StoreType
	read func(d *decoder, o *object, s *Store)
}{
	{StoreMemory, (*decoder).memoryStore},
	{StoreFile, (*decoder).fileStore},
}

// StoreTypes returns the store types that a configuration can name.
func StoreTypes() []StoreType {
	types := make([]StoreType, len(storeTypes))
	for i, row := range storeTypes {
		types[i] = row.name
	}
	return types
}

func (d *decoder) stores(v value) []Store {
	if !v.given() {
		return nil
	}
	o := d.object(v.node, "stores")
	if o == nil {
		return nil
	}
	var stores []Store
	for _, f := range o.fields {
		stores = append(stores, d.store(o.take(f.key)))
	}
	return stores
}

// store returns the store even if something is wrong with it, so that LUNs that
// name it are not wrong as well.
func (d *decoder) store(v value) Store {
	s := Store{Name: v.key, Pos: v.at}
	if err := checkStoreName(v.key); err != nil {
		d.errorf(v.at, "%v", err)
	}
	if !v.given() {
		return s
	}
	o := d.object(v.node, "a store")
	if o == nil {
		return s
	}
	if !set(o.take("type"), &s.Type, "a store type", oneOf(StoreTypes()...)) {
		if !o.has("type") {
			d.errorf(v.at, "the store %q has no type: add one; %s", v.key, choices("", words(StoreTypes())))
		}
		return s
	}
	o.what = fmt.Sprintf("a %s store", s.Type)
	o.bool("readonly", &s.ReadOnly)
	for _, row := range storeTypes {
		if row.name == s.Type {
			row.read(d, o, &s)
		}
	}
	o.done()
	return s
}

func checkStoreName(name string) error {
	if name == "" || len(name) > 64 {
		return errors.New("the name of a store has 1 to 64 characters")
	}
	for _, r := range name {
		if notNameRune(r) && r != '_' && (r < 'A' || r > 'Z') {
			return fmt.Errorf("the store name %q holds %q: use letters, digits, dash, underscore, dot and colon", name, r)
		}
	}
	return nil
}

func (d *decoder) memoryStore(o *object, s *Store) {
	if !o.has("size") {
		d.errorf(s.Pos, "the memory store %q has no size: add one, such as size: 256MiB", s.Name)
	}
	d.storeSize(o, s)
}

func (d *decoder) fileStore(o *object, s *Store) {
	f := &FileStore{Sparse: true, Cache: CacheWriteback}
	s.File = f
	if set(o.take("path"), &f.Path, "the path of a file", parsePath) {
		f.Path = resolvePath(d.src.file, f.Path)
	} else if !o.has("path") {
		d.errorf(s.Pos, "the file store %q has no path: add one, such as path: %s.img", s.Name, s.Name)
	}
	d.storeSize(o, s)
	o.bool("sparse", &f.Sparse)
	o.bool("direct", &f.Direct)
	set(o.take("cache"), &f.Cache, "a cache mode", oneOf(CacheWriteback, CacheWritethrough))
}

func parsePath(text string) (string, error) {
	if text == "" {
		return "", errors.New("the path is empty: name a file")
	}
	return text, nil
}

// storeSize reads a size, which is at least one block.
func (d *decoder) storeSize(o *object, s *Store) {
	if o.size("size", &s.Size) && s.Size < minBlockBytes {
		o.take("size").errorf("the size is %d bytes: a store holds at least one block of %d", s.Size, minBlockBytes)
	}
}

func words[T ~string](names []T) []string {
	out := make([]string, len(names))
	for i, n := range names {
		out[i] = string(n)
	}
	return out
}
