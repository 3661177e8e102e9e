package machine

// ticks is the processor's time stamp counter.
func ticks() uint64
