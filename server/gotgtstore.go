package server

import (
	"oneshot/backend"
	"oneshot/backend/gotgt"
	"oneshot/config"
)

var gotgtStore = storeType{
	open: func(c *config.Store, o opening) (backend.Store, error) {
		return opened(gotgt.Open(gotgt.Config{Plugin: c.GOTGT.Plugin, Path: c.GOTGT.Path, Size: c.Size, Log: o.log}))
	},
	medium: func(c *config.Store, _ string) string {
		what := c.GOTGT.Path
		if what == "" { // the plugin needs no path, so each store has bytes of its own
			return "gotgt " + c.Name
		}
		return "gotgt " + c.GOTGT.Plugin + " " + what
	},
}
