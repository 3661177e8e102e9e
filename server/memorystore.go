package server

import (
	"oneshot/backend"
	"oneshot/backend/memory"
	"oneshot/config"
)

var memoryStore = storeType{
	open: func(c *config.Store, _ opening) (backend.Store, error) { return opened(memory.New(c.Size)) },
}
