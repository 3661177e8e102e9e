package server

import (
	"oneshot/backend"
	"oneshot/backend/file"
	"oneshot/config"
)

var fileStore = storeType{
	open:   openFile,
	medium: func(c *config.Store, _ string) string { return "file " + c.File.Path },
	modal:  true,
}

func openFile(c *config.Store, o opening) (backend.Store, error) {
	cache := file.Writeback
	if c.File.Cache == config.CacheWritethrough {
		cache = file.Writethrough
	}
	return opened(file.Open(file.Config{
		Path: c.File.Path, Size: c.Size, Sparse: c.File.Sparse, Direct: c.File.Direct, Cache: cache,
		Existing: !c.File.Create, ReadOnly: c.ReadOnly, IO: ioMode(c.File.IO), Log: o.log,
	}))
}
