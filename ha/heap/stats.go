package heap

import "oneshot/ha/heap/wire"

// Stats is what a heap holds. Numbers of bytes are those of its memory.
type Stats struct {
	Objects int
	Bytes   int64 // of the objects themselves, without headers, and without what is left of their places
	Memory  int64 // that places can have
	Free    int64 // of Memory: in free places, or in none yet
}

// Stats returns what the heap holds now. It does not wait for the store.
func (h *Heap) Stats() Stats {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.core.stats()
}

func (c *Core) stats() Stats {
	s := Stats{Objects: c.objects, Bytes: c.octets, Memory: int64(len(c.memory)), Free: int64(len(c.memory)) - c.carved}
	for class := range c.free {
		s.Free += int64(len(c.free[class])) * int64(wire.PlaceLen(class))
	}
	return s
}
