package config

import (
	"errors"
	"io/fs"
	"os"
)

var deviceStore = storeType{
	name: StoreDevice, read: (*decoder).deviceStore,
	place: func(s *Store) string { return s.Device.Path }, noun: "device",
	unsized:  func(*Store) string { return "size of the device" },
	details:  func(s *Store) []string { return s.Device.details() },
	obstacle: func(s *Store) string { return s.Device.obstacle() },
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
	cacheAndIO(o, s, &v.Cache, &v.IO)
}

func (v *DeviceStore) details() []string {
	words := []string{v.Path, string(v.Cache)}
	if v.Direct {
		words = append(words, "direct")
	}
	return append(words, v.IO.details()...)
}

// obstacle says why serve could not open the device here.
func (v *DeviceStore) obstacle() string {
	switch info, err := os.Stat(v.Path); {
	case errors.Is(err, fs.ErrNotExist):
		return "missing"
	case err == nil && (info.Mode()&fs.ModeDevice == 0 || info.Mode()&fs.ModeCharDevice != 0):
		return "not a block device"
	}
	return ""
}
