package server

import (
	"log/slog"

	"oneshot/backend"
	"oneshot/backend/fdio"
	"oneshot/config"
	"oneshot/state"
)

// storeType is what the server knows of a type of stores. Each type has a file of its own.
type storeType struct {
	// open opens the store that c describes.
	open func(c *config.Store, o opening) (backend.Store, error)
	// medium names what keeps the bytes of the store, given the name of that of the store below. nil:
	// the type and the name of the store.
	medium func(c *config.Store, below string) string
	// parts says that stores of this type are parts of the store below, which they share. Stores that are
	// configured without a size grow with it.
	parts bool
	// modal says that a store of this type is opened either for reading only or for writing, too, and that
	// this cannot change while it is open.
	modal bool
}

// opening is what a store is opened with besides its configuration.
type opening struct {
	below   backend.Store // the store below, which the new store owns once it is open; nil: it stands on no other
	resized func()        // called when the size of the store has changed by itself, from any goroutine
	log     *slog.Logger
	member  *member    // of the cluster; nil: there is none
	state   *state.Dir // nil: nothing is kept over restarts
}

var storeTypes = map[config.StoreType]storeType{
	config.StoreMemory:   memoryStore,
	config.StoreNull:     nullStore,
	config.StoreFile:     fileStore,
	config.StoreDevice:   deviceStore,
	config.StoreGOTGT:    gotgtStore,
	config.StoreSlice:    sliceStore,
	config.StoreThrottle: throttleStore,
	config.StoreMirror:   mirrorStore,
}

// opener is open, unless a test replaces it to get stores that misbehave.
var opener = open

// open opens the store that c describes.
func open(c *config.Store, o opening) (backend.Store, error) { return storeTypes[c.Type].open(c, o) }

// medium returns a name of what keeps the bytes of a store. Stores of two configurations are the same
// store if these names are equal.
func medium(c *config.Store) string {
	below := ""
	if c.On != nil {
		below = medium(c.On)
	}
	if f := storeTypes[c.Type].medium; f != nil {
		return f(c, below)
	}
	return string(c.Type) + " " + c.Name
}

// opened returns s as an interface that is nil if s is nil.
func opened[S backend.Store](s S, err error) (backend.Store, error) {
	if err != nil {
		return nil, err
	}
	return s, nil
}

func ioMode(m config.IOMode) fdio.IO {
	switch m {
	case config.IOUring:
		return fdio.Uring
	case config.IOThreads:
		return fdio.Threads
	}
	return fdio.Auto
}
