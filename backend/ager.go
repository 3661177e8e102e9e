package backend

import "time"

// Ager is a store that makes writes durable by itself, some time after they have completed.
type Ager interface {
	Store
	// Window is how long after its completion a write is durable, as long as flushes take less than half of it.
	Window() time.Duration
	// AgeStats tells how that goes.
	AgeStats() AgeStats
	// Observe has o told of each flush that the store makes by itself, until stop is called; then it returns
	// when o is not called any more.
	Observe(o FlushObserver) (stop func())
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
