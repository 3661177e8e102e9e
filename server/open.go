package server

import (
	"log/slog"
	"sync"
	"time"

	"oneshot/backend"
	"oneshot/backend/device"
	"oneshot/backend/fdio"
	"oneshot/backend/file"
	"oneshot/backend/gotgt"
	"oneshot/backend/memory"
	"oneshot/backend/null"
	"oneshot/config"
	"oneshot/scsi"
)

// watchInterval is how often the sizes of block devices are looked at.
const watchInterval = 2 * time.Second

// opener is open, in whose place tests put stores that misbehave.
var opener = open

// open opens the store that c describes. resized is called when its size has changed by
// itself, from any goroutine.
func open(c *config.Store, resized func(), log *slog.Logger) (backend.Store, error) {
	switch c.Type {
	case config.StoreFile:
		cache := file.Writeback
		if c.File.Cache == config.CacheWritethrough {
			cache = file.Writethrough
		}
		return opened(file.Open(file.Config{
			Path: c.File.Path, Size: c.Size, Sparse: c.File.Sparse, Direct: c.File.Direct, Cache: cache,
			Existing: !c.File.Create, ReadOnly: c.ReadOnly, IO: ioMode(c.File.IO), Log: log,
		}))
	case config.StoreDevice:
		return opened(device.Open(device.Config{
			Path: c.Device.Path, Size: c.Size, Through: c.Device.Cache == config.CacheWritethrough,
			Buffered: !c.Device.Direct, ReadOnly: c.ReadOnly, IO: ioMode(c.Device.IO),
			Watch: watchInterval, Resized: resized, Log: log,
		}))
	case config.StoreNull:
		return opened(null.New(c.Size))
	case config.StoreGOTGT:
		return opened(gotgt.Open(gotgt.Config{Plugin: c.GOTGT.Plugin, Path: c.GOTGT.Path, Size: c.Size, Log: log}))
	}
	return opened(memory.New(c.Size))
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

// showing is the logical units that show one store, which are told when its size changes. It
// has a lock of its own: stores call from goroutines that Close waits for.
type showing struct {
	mu  sync.Mutex // leaf but for locks of package scsi; not held over calls of stores that wait
	lus map[*scsi.LogicalUnit]struct{}
}

func (s *showing) add(lu *scsi.LogicalUnit) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.lus == nil {
		s.lus = make(map[*scsi.LogicalUnit]struct{})
	}
	s.lus[lu] = struct{}{}
}

func (s *showing) remove(lu *scsi.LogicalUnit) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.lus, lu)
}

// sizeChanged raises unit attentions (CAPACITY DATA HAS CHANGED).
func (s *showing) sizeChanged() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for lu := range s.lus {
		lu.SizeChanged()
	}
}
