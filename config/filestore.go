package config

var fileStore = storeType{
	name: StoreFile, read: (*decoder).fileStore,
	place: func(s *Store) string { return s.File.Path }, noun: "file",
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
	cacheAndIO(o, &f.Cache, &f.IO)
}
