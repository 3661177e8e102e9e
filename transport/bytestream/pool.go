package bytestream

// maxFree is how many commands an idle connection keeps for the next burst.
const maxFree = 64

// Pool is the commands of a connection that are not in use. The zero value has none.
type Pool[T any] struct{ free []*T }

// Get returns a command that was in use before, or nil.
func (p *Pool[T]) Get() *T {
	n := len(p.free)
	if n == 0 {
		return nil
	}
	t := p.free[n-1]
	p.free[n-1] = nil
	p.free = p.free[:n-1]
	return t
}

// Put keeps t for use again, unless there are enough.
func (p *Pool[T]) Put(t *T) {
	if len(p.free) < maxFree {
		p.free = append(p.free, t)
	}
}
