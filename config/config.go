// Package config reads the YAML configuration of the target and turns it into
// checked, typed values: nothing of YAML leaves this package, and nothing that
// it returns needs to be checked again.
//
// Reading is strict. An unknown or duplicate key, a second document, a value
// that makes no sense alone or beside the others: each is a [Problem] with file,
// line, column, the offending excerpt and a sentence that says what to change.
// All of them are reported at once, in an [Error]; only a syntax error stands
// alone, for what follows it cannot be trusted.
//
// The files under configs/ show every key with its meaning.
package config

import (
	"fmt"
	"io"
	"os"
	"path/filepath"

	"oneshot/configs"
)

// maxFileBytes is the largest file that Load reads: a larger one is probably not a configuration.
const maxFileBytes = 1 << 20

// Config is a whole, valid configuration. Slices keep the order of the file,
// except for the logical units of a target, which are sorted by number.
//
// A Config is plain data: nobody changes it after Parse, so it may be read from
// several goroutines.
type Config struct {
	File       string // as given to Load or Parse
	Log        Log
	Stores     []Store
	Targets    []Target // at least one, or a subsystem
	Subsystems []Subsystem
	Portals    []Portal // at least one
	Discovery  Discovery
	Limits     Limits
	State      State
	ISNS       ISNS
	Cluster    Cluster

	Metrics    Metrics
	Management Management

	// Warnings are sentences about things that work but are probably mistakes. They
	// are for the log; nothing needs to act upon them.
	Warnings []Problem
}

// Store returns the store of that name, or nil. Every LUN of a valid Config
// names a store that exists.
func (c *Config) Store(name string) *Store {
	for i := range c.Stores {
		if c.Stores[i].Name == name {
			return &c.Stores[i]
		}
	}
	return nil
}

// Load reads the file at path. Relative paths in it are relative to its own
// directory. The error is an [*Error] when the content is to blame, and the
// operating system's error when the file cannot be read.
func Load(path string) (*Config, error) {
	data, mode, err := readRegular(path, maxFileBytes)
	if err != nil {
		return nil, fmt.Errorf("cannot read the configuration: %w", err)
	}
	d := newDecoder(path, data, osSecrets{})
	d.othersMayRead = mode.Perm()&0o004 != 0
	return d.decode()
}

// LoadMoving reads of a configuration the cluster, and the portals whose addresses move. Nothing else of it is looked at, so that a process which
// holds these addresses reads no secrets, and runs whatever becomes of the rest.
func LoadMoving(path string) (*Cluster, error) {
	data, _, err := readRegular(path, maxFileBytes)
	if err != nil {
		return nil, fmt.Errorf("cannot read the configuration: %w", err)
	}
	return newDecoder(path, data, nil).decodeMoving()
}

// Parse reads a configuration from data. name stands for the file in messages,
// and its directory is what relative paths are relative to. Secrets that are
// named by file or environment variable are read.
func Parse(name string, data []byte) (*Config, error) {
	return newDecoder(name, data, osSecrets{}).decode()
}

// Default returns the configuration that `target serve` uses when it is given
// none: one memory LUN on the loopback interface. It is configs/default.yaml.
func Default() *Config {
	c, err := Parse("configs/default.yaml", configs.Default)
	if err != nil {
		panic(fmt.Sprintf("config: the embedded default is invalid: %v", err))
	}
	return c
}

// readRegular returns the content and mode of a regular file of at most limit
// bytes. Anything else could block for ever or never end.
func readRegular(path string, limit int64) ([]byte, os.FileMode, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, 0, err
	}
	if !info.Mode().IsRegular() {
		return nil, 0, fmt.Errorf("%s is not a regular file", path)
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, 0, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err != nil {
		return nil, 0, err
	}
	if int64(len(data)) > limit {
		return nil, 0, fmt.Errorf("%s is larger than %d bytes: this is probably not the file that you meant", path, limit)
	}
	return data, info.Mode(), nil
}

// resolvePath makes a path from the file relative to the file's own directory.
func resolvePath(file, path string) string {
	if filepath.IsAbs(path) {
		return filepath.Clean(path)
	}
	return filepath.Join(filepath.Dir(file), path)
}
