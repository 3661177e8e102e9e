package server

import (
	"oneshot/backend"
	"oneshot/backend/throttle"
	"oneshot/config"
)

var throttleStore = storeType{
	open: func(c *config.Store, o opening) (backend.Store, error) {
		return opened(throttle.New(o.below, throttle.Limits{Operations: c.Throttle.Operations, Bytes: c.Throttle.Bandwidth}))
	},
	medium: func(_ *config.Store, below string) string { return "throttle of " + below },
}
