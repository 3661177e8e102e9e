package config

import (
	"errors"
	"fmt"
	"time"
)

// Store is one block store, which LUNs export.
type Store struct {
	Name string // unique, at most 64 characters
	Type StoreType
	Pos  Position // of the name
	Node string   // of the cluster, that alone opens it; empty: each that needs it

	// Size is in bytes. 0 stands for the length of the file, the size of the device or, with
	// gotgt, the size that the plugin says.
	Size int64

	// ReadOnly stores are never written to; LUNs that export them are read-only.
	ReadOnly bool

	// Aging is how long a completed write may stay in a volatile cache; 0: until somebody flushes.
	Aging time.Duration

	// Partitioned stores are divided by the table at their start. LUNs show their partitions.
	Partitioned bool
	// Partitions are what the table of a memory store is made of at each start. That of any other store
	// is what the table says.
	Partitions []Partition

	// On is the store that this one stands on, of the same configuration; nil: it stands on none.
	On *Store

	// The one that belongs to Type is set; the others are nil.
	File     *FileStore
	Device   *DeviceStore
	GOTGT    *GOTGTStore
	Slice    *SliceStore
	Throttle *ThrottleStore
	Mirror   *MirrorStore
}

// IOMode says by which interface of the kernel a store reads and writes.
type IOMode string

// The values of IOMode.
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

	StoreMirror StoreType = "mirror" // a copy on each of several nodes
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

// storeType describes the configuration of a type of stores. Each type has a file of its own, with its keys.
type storeType struct {
	name StoreType
	read func(d *decoder, o *object, s *Store)
	// place, if set, returns the path of the file or device that keeps the bytes of s, or "" if there is
	// none. noun says whether it is a file or a device.
	place func(s *Store) string
	noun  string
	// unsized returns what people are told of the size of s if none is configured. It is nil if a size is
	// always configured, or if whole says that the store is as large as the one below.
	unsized func(s *Store) string
	whole   bool
	// details returns what is this type's own of Store.Details; nil: nothing.
	details func(s *Store) []string
	// obstacle returns what is this type's own of Store.Obstacle; nil: nothing.
	obstacle func(s *Store) string
}

var storeTypes = []storeType{memoryStore, fileStore, deviceStore, nullStore, gotgtStore, sliceStore, throttleStore, mirrorStore}

// storeTypeOf returns the row of a type. If there is no such type, the row is empty.
func storeTypeOf(name StoreType) *storeType {
	for i := range storeTypes {
		if storeTypes[i].name == name {
			return &storeTypes[i]
		}
	}
	return &storeType{}
}

// StoreTypes returns the store types that a configuration can name.
func StoreTypes() []StoreType {
	types := make([]StoreType, len(storeTypes))
	for i, row := range storeTypes {
		types[i] = row.name
	}
	return types
}

// SizeText returns the size of the store for people, such as "1GiB" or "size of the device".
func (s *Store) SizeText() string {
	row := storeTypeOf(s.Type)
	switch {
	case s.Size == 0 && row.whole:
		return s.On.SizeText()
	case s.Size == 0 && row.unsized != nil:
		return row.unsized(s)
	}
	return FormatSize(s.Size)
}

// Details returns what else people want to know of the store, each in a few words: its path and other values of the
// configuration, and what is wrong at the path. It looks at the file system, but opens nothing.
func (s *Store) Details() (words []string) {
	if s.Node != "" {
		words = append(words, "on node "+s.Node)
	}
	if s.On != nil {
		words = append(words, "on "+s.On.Name)
	}
	if row := storeTypeOf(s.Type); row.details != nil {
		words = append(words, row.details(s)...)
	}
	if o := s.Obstacle(); o != "" {
		words = append(words, o)
	} else if s.File != nil && s.File.missing() {
		words = append(words, "to be created")
	}
	if s.Aging > 0 {
		words = append(words, "aging "+s.Aging.String())
	}
	if s.ReadOnly {
		words = append(words, "read-only")
	}
	return append(words, s.divisionDetails()...)
}

// Obstacle says in a few words why serve could not open the store on this machine, or nothing if it sees no reason: what
// is at the path is missing, or of another kind. It looks at the file system, but opens nothing.
func (s *Store) Obstacle() string {
	if row := storeTypeOf(s.Type); row.obstacle != nil {
		return row.obstacle(s)
	}
	return ""
}

// details returns the way of I/O, if the configuration asks for one.
func (m IOMode) details() []string {
	if m == IOAuto {
		return nil
	}
	return []string{"io " + string(m)}
}

func (d *decoder) stores(v value) []Store {
	if !v.given() {
		return nil
	}
	o := d.object(v.node, "stores")
	if o == nil {
		return nil
	}
	stores := make([]Store, len(o.fields))
	d.storeAt, d.partitions = make(map[string]*Store), make(map[string]bool)
	for i, f := range o.fields {
		stores[i] = d.store(o.take(f.key))
		d.storeAt[f.key] = &stores[i]
		for _, p := range stores[i].Partitions {
			d.partitions[f.key+"/"+p.Name] = true
		}
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
	d.inNode(o, &s.Node)
	d.partitioned(o, &s)
	storeTypeOf(s.Type).read(d, o, &s)
	d.checkPartitions(o, &s)
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

// storePath reads the path of the file or device. example stands in the message if it is missing.
func (d *decoder) storePath(o *object, s *Store, path *string, example string) {
	if set(o.take("path"), path, "the path of a "+string(s.Type), parsePath) {
		*path = resolvePath(d.src.file, *path)
	} else if !o.has("path") {
		d.errorf(s.Pos, "the %s store %q has no path: add one, such as path: %s", s.Type, s.Name, example)
	}
}

func cacheAndIO(o *object, s *Store, cache *CacheMode, io *IOMode) {
	*cache, *io = CacheWriteback, IOAuto
	set(o.take("cache"), cache, "a cache mode", oneOf(CacheWriteback, CacheWritethrough))
	set(o.take("io"), io, "a way of I/O", oneOf(IOAuto, IOUring, IOThreads))
	aging := o.take("aging")
	if set(aging, &s.Aging, "a duration such as 200ms", parseAging) && s.Aging > 0 && *cache == CacheWritethrough {
		aging.errorf("the store %q has cache: writethrough, so every write is durable at once: remove one of the two", s.Name)
	}
}

// minAging bounds how often a store is flushed.
const minAging = 10 * time.Millisecond

func parseAging(text string) (time.Duration, error) {
	t, err := parseDuration(text)
	if err == nil && t > 0 && t < minAging {
		err = fmt.Errorf("%v is less than %v, the shortest window; with cache: writethrough every write is durable at once", t, minAging)
	}
	return t, err
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
