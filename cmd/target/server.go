package main

import (
	"log/slog"

	"oneshot/config"
	"oneshot/server"
)

// openServer builds the server from a configuration.
func openServer(c *config.Config, log *slog.Logger) (daemon, error) {
	s, err := server.New(c, log)
	if err != nil {
		return nil, err // nil, and not a daemon that holds a nil *Server
	}
	return s, nil
}
