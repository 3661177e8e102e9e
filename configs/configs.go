// Package configs holds the example configurations. Each is loaded by a test
// of package config, and the default is part of the daemon.
package configs

import _ "embed"

// Default is default.yaml: what `target serve` uses without --config.
//
//go:embed default.yaml
var Default []byte
