package backend

import "time"

// Ager is a store that makes writes durable by itself, some time after they have completed.
type Ager interface {
	Store
	// Window is how long after its completion a write is durable, as long as flushes take less than half of it.
	Window() time.Duration
	// AgeStats tells how that goes.
	AgeStats() AgeStats
	// Observe tells observers that o makes, one for each store that flushes by itself, of its flushes, until stop is
	// called. Stop returns when they are not called any more.
	Observe(o func() FlushObserver) (stop func())
}

// AgeStats tell how a store ages.
type AgeStats struct {
	Flushes uint64        // that the store has made by itself
	Longest time.Duration // that a flush has taken, whosever it was
	Lost    bool          // a flush has failed: nothing is promised any more
}

// FlushObserver is told of flushes: in one goroutine, one after the other. It does not block.
type FlushObserver interface {
	// FlushBegins is called before a flush is submitted.
	FlushBegins()
	// FlushEnded is called when that flush has ended: with nil, what had completed at FlushBegins is durable.
	FlushEnded(err error)
}
