package backend

// Meter is a store that knows how much space it takes.
type Meter interface {
	Store
	// Usage returns the space that the mapped bytes take, and how much more the medium below
	// has for this store and others; bytes. It may look at the medium, and may be called from
	// any goroutine.
	Usage() (used, available int64, err error)
}
