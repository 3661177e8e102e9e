package server

import (
	"time"

	"oneshot/backend"
	"oneshot/backend/device"
	"oneshot/config"
)

var deviceStore = storeType{
	open:   openDevice,
	medium: func(c *config.Store, _ string) string { return "device " + c.Device.Path },
	modal:  true,
}

// watchInterval is the time between two looks at the size of a block device.
const watchInterval = 2 * time.Second

func openDevice(c *config.Store, o opening) (backend.Store, error) {
	return opened(device.Open(device.Config{
		Path: c.Device.Path, Size: c.Size, Through: c.Device.Cache == config.CacheWritethrough,
		Buffered: !c.Device.Direct, ReadOnly: c.ReadOnly, IO: ioMode(c.Device.IO),
		Watch: watchInterval, Resized: o.resized, Log: o.log,
	}))
}
