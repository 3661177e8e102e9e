package volume

import "oneshot/backend"

// ageing tells the sequence of flushes that the store makes by itself, so that the watermark goes on without
// anybody who asks.
type ageing struct {
	sequence *backend.Sequence
	upTo     uint64
}

// FlushBegins implements backend.FlushObserver.
func (a *ageing) FlushBegins() { a.upTo = a.sequence.Count() }

// FlushEnded implements backend.FlushObserver.
func (a *ageing) FlushEnded(err error) {
	if err != nil {
		a.sequence.Lose()
	} else {
		a.sequence.Flushed(a.upTo)
	}
}
