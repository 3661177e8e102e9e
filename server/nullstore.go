package server

import (
	"oneshot/backend"
	"oneshot/backend/null"
	"oneshot/config"
)

var nullStore = storeType{
	open: func(c *config.Store, _ opening) (backend.Store, error) { return opened(null.New(c.Size)) },
}
