package server

import (
	"fmt"

	"oneshot/backend"
	"oneshot/backend/slice"
	"oneshot/config"
)

var sliceStore = storeType{
	open: func(c *config.Store, o opening) (backend.Store, error) {
		return slice.New(o.below, c.Slice.Offset, c.Size)
	},
	medium: func(c *config.Store, below string) string {
		return fmt.Sprintf("slice at %d of %s", c.Slice.Offset, below)
	},
	parts: true,
}
