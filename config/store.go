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

	// Size is in bytes. 0 means the length of the file or the size of the device, or what
	// the plugin says.
	Size int64

	// ReadOnly stores are never written to; LUNs that export them are read-only.
	ReadOnly bool

	// On is the store below, of the same configuration, of a store that stands on another one.
	On *Store

	// One of these is set when, and only when, Type says so.
	File     *FileStore
	Device   *DeviceStore
	GOTGT    *GOTGTStore
	Slice    *SliceStore
	Throttle *ThrottleStore
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

	// Create makes the file if it does not exist. It is false for a store that is read-only.
	Create bool

	// Direct bypasses the page cache (O_DIRECT).
	Direct bool

	Cache CacheMode
	IO    IOMode
}

// DeviceStore is what a store on a block device has besides a size.
type DeviceStore struct {
	Path   string // as FileStore.Path
	Direct bool   // bypasses the page cache (O_DIRECT); the default
	Cache  CacheMode
	IO     IOMode
}

// GOTGTStore is what a store on a plugin of gotgt has besides a size.
type GOTGTStore struct {
	// Plugin is the name under which the plugin is registered.
	Plugin string

	// Path is what the plugin is told to open, as it stands in the configuration unless the
	// plugin is the one for files.
	Path string
}

// IOMode says by which means reads and writes reach the kernel.
type IOMode string

// The means.
const (
	IOAuto    IOMode = "auto"    // io_uring with O_DIRECT where the kernel has it, else threads; the default
	IOUring   IOMode = "uring"   // io_uring, or the store does not open
	IOThreads IOMode = "threads" // a pool of threads
)

// StoreType says where the blocks of a store live.
type StoreType string

// The store types.
const (
	StoreMemory StoreType = "memory" // gone when the daemon stops
	StoreFile   StoreType = "file"
	StoreDevice StoreType = "device" // a block device
	StoreNull   StoreType = "null"   // reads zeroes, drops writes
	StoreGOTGT  StoreType = "gotgt"  // a plugin of github.com/gostor/gotgt

	// These stand on another store.
	StoreSlice    StoreType = "slice"    // a part of it
	StoreThrottle StoreType = "throttle" // all of it, with limits
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
	{StoreDevice, (*decoder).deviceStore},
	{StoreNull, (*decoder).memoryStore},
	{StoreGOTGT, (*decoder).gotgtStore},
	{StoreSlice, (*decoder).sliceStore},
	{StoreThrottle, (*decoder).throttleStore},
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
	d.stack(stores)
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
	if !set(o.takeWord("type"), &s.Type, "a store type", oneOf(StoreTypes()...)) {
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

// memoryStore is a store that is nowhere but here.
func (d *decoder) memoryStore(o *object, s *Store) {
	if !o.has("size") {
		d.errorf(s.Pos, "the %s store %q has no size: add one, such as size: 256MiB", s.Type, s.Name)
	}
	d.storeSize(o, s)
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
	cacheAndIO(o, &f.Cache, &f.IO)
}

func (d *decoder) deviceStore(o *object, s *Store) {
	v := &DeviceStore{Direct: true}
	s.Device = v
	d.storePath(o, s, &v.Path, "/dev/disk/by-id/NAME")
	d.storeSize(o, s)
	o.bool("direct", &v.Direct)
	cacheAndIO(o, &v.Cache, &v.IO)
}

func (d *decoder) gotgtStore(o *object, s *Store) {
	g := &GOTGTStore{}
	s.GOTGT = g
	if !o.text("plugin", &g.Plugin) && !o.has("plugin") {
		d.errorf(s.Pos, "the gotgt store %q has no plugin: add one, such as plugin: file", s.Name)
	}
	if o.text("path", &g.Path) && g.Plugin == "file" {
		g.Path = resolvePath(d.src.file, g.Path)
	}
	d.storeSize(o, s)
}

// storePath reads where the bytes are; example is for who has left it out.
func (d *decoder) storePath(o *object, s *Store, path *string, example string) {
	if set(o.take("path"), path, "the path of a "+string(s.Type), parsePath) {
		*path = resolvePath(d.src.file, *path)
	} else if !o.has("path") {
		d.errorf(s.Pos, "the %s store %q has no path: add one, such as path: %s", s.Type, s.Name, example)
	}
}

func cacheAndIO(o *object, cache *CacheMode, io *IOMode) {
	*cache, *io = CacheWriteback, IOAuto
	set(o.take("cache"), cache, "a cache mode", oneOf(CacheWriteback, CacheWritethrough))
	set(o.take("io"), io, "a way of I/O", oneOf(IOAuto, IOUring, IOThreads))
}

// place is the file or device that keeps the bytes of s, or empty: there is none, or nobody
// knows but a plugin.
func (s *Store) place() string {
	switch {
	case s.File != nil:
		return s.File.Path
	case s.Device != nil:
		return s.Device.Path
	case s.GOTGT != nil && s.GOTGT.Plugin == "file":
		return s.GOTGT.Path
	}
	return ""
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

// pathNoun is what place is the path of.
func (s *Store) pathNoun() string {
	if s.Device != nil {
		return "device"
	}
	return "file"
}
