package server

import (
	"log/slog"
	"time"

	"oneshot/backend"
	"oneshot/backend/device"
	"oneshot/backend/fdio"
	"oneshot/backend/file"
	"oneshot/backend/gotgt"
	"oneshot/backend/memory"
	"oneshot/backend/null"
	"oneshot/config"
)

// watchInterval is how often the sizes of block devices are looked at.
const watchInterval = 2 * time.Second

// opener is open; tests replace it to get stores that misbehave.
var opener = open

// open opens the store that c describes, which stands on no other. resized is called when its size has
// changed by itself, from any goroutine.
func open(c *config.Store, resized func(), log *slog.Logger) (backend.Store, error) {
	return media[c.Type](c, resized, log)
}

// media has what opens the stores that stand on no other.
var media = map[config.StoreType]func(*config.Store, func(), *slog.Logger) (backend.Store, error){
	config.StoreMemory: func(c *config.Store, _ func(), _ *slog.Logger) (backend.Store, error) {
		return opened(memory.New(c.Size))
	},
	config.StoreNull: func(c *config.Store, _ func(), _ *slog.Logger) (backend.Store, error) {
		return opened(null.New(c.Size))
	},
	config.StoreFile:   openFile,
	config.StoreDevice: openDevice,
	config.StoreGOTGT: func(c *config.Store, _ func(), log *slog.Logger) (backend.Store, error) {
		return opened(gotgt.Open(gotgt.Config{Plugin: c.GOTGT.Plugin, Path: c.GOTGT.Path, Size: c.Size, Log: log}))
	},
}

func openFile(c *config.Store, _ func(), log *slog.Logger) (backend.Store, error) {
	cache := file.Writeback
	if c.File.Cache == config.CacheWritethrough {
		cache = file.Writethrough
	}
	return opened(file.Open(file.Config{
		Path: c.File.Path, Size: c.Size, Sparse: c.File.Sparse, Direct: c.File.Direct, Cache: cache,
		Existing: !c.File.Create, ReadOnly: c.ReadOnly, IO: ioMode(c.File.IO), Log: log,
	}))
}

func openDevice(c *config.Store, resized func(), log *slog.Logger) (backend.Store, error) {
	return opened(device.Open(device.Config{
		Path: c.Device.Path, Size: c.Size, Through: c.Device.Cache == config.CacheWritethrough,
		Buffered: !c.Device.Direct, ReadOnly: c.ReadOnly, IO: ioMode(c.Device.IO),
		Watch: watchInterval, Resized: resized, Log: log,
	}))
}

// opened makes an interface of s, which is nil only if it is.
func opened[S backend.Store](s S, err error) (backend.Store, error) {
	if err != nil {
		return nil, err
	}
	return s, nil
}

func ioMode(m config.IOMode) fdio.IO {
	switch m {
	case config.IOUring:
		return fdio.Uring
	case config.IOThreads:
		return fdio.Threads
	}
	return fdio.Auto
}
