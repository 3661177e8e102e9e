package backend

import "fmt"

// Termed is a store whose bytes several processes show, of which one at a time serves them: a mirror, say. What a
// process keeps about the bytes besides is worth nothing when another one has served them in between.
type Termed interface {
	Store
	// Term numbers the time in which this process serves the bytes, and nobody else; 0: it does not serve them now.
	// Later times have greater numbers.
	Term() uint64
}

// MovedError says that this process does not serve the store's bytes: another one does, or none, or it did in
// between. What the operation was to write may have been written, or not.
type MovedError struct {
	Name string // of the store
}

func (e *MovedError) Error() string {
	return fmt.Sprintf("this node does not serve %s: use the path to the one that does", e.Name)
}
