package config

var deviceStore = storeType{
	name: StoreDevice, read: (*decoder).deviceStore,
	place: func(s *Store) string { return s.Device.Path }, noun: "device",
}

// DeviceStore holds the options of a store on a block device, besides its size.
type DeviceStore struct {
	Path   string // as FileStore.Path
	Direct bool   // bypasses the page cache (O_DIRECT); the default
	Cache  CacheMode
	IO     IOMode
}

func (d *decoder) deviceStore(o *object, s *Store) {
	v := &DeviceStore{Direct: true}
	s.Device = v
	d.storePath(o, s, &v.Path, "/dev/disk/by-id/NAME")
	d.storeSize(o, s)
	o.bool("direct", &v.Direct)
	cacheAndIO(o, &v.Cache, &v.IO)
}
