package main

import (
	"errors"
	"log/slog"

	"oneshot/config"
)

// openServer builds the server from a configuration.
var openServer opener = func(*config.Config, *slog.Logger) (daemon, error) {
	return nil, errors.New("this build serves nothing: it was made without package server")
}
