package mirror

import "oneshot/ha/replica"

// A mirror grows in three steps. All copies get room, which reads as zeroes: their owners' doing, who tell by Room. When all have,
// they tell by Grow. Then the primary writes a record that makes the copies larger in their order, and when all copies in sync
// have done that hosts see the new size. Whoever is primary does the last step, until it is done.
//
// A copy has grown only when its node was told by Grow, too: then the owner has noted the size, and the next life begins with it. Else a node
// that begins anew just then, and serves, would show hosts the former size.

// Room says that the copy of this node has room for size bytes, durably, and that what is new reads as zeroes. The mirror stays
// as large as it is.
func (m *Mirror) Room(size int64) {
	done := make(chan struct{})
	if m.push(item{call: func() { m.makeRoom(size); close(done) }}) {
		<-done
	}
}

func (m *Mirror) makeRoom(size int64) {
	if size <= m.limit.Load() {
		return
	}
	regions := (size + m.cfg.Region - 1) / m.cfg.Region
	m.wrote = append(m.wrote, make([]int64, regions-int64(len(m.wrote)))...)
	m.limit.Store(size)
}

// Grow lets the mirror become size bytes large, for which the copies of all nodes have room.
func (m *Mirror) Grow(size int64) {
	m.push(item{call: func() {
		m.makeRoom(size)
		m.wanted = max(m.wanted, size)
		m.enlargeOn()
		m.growOn()
	}})
}

// earlyGrowth is a work of the core that waits for Grow.
type earlyGrowth struct {
	id  uint64
	end int64
}

// enlarge has the copy end somewhere: it has been made ready before.
func (m *Mirror) enlarge(id uint64, end int64) {
	if end > m.wanted {
		m.early = append(m.early, earlyGrowth{id, end})
		return
	}
	m.reached = max(m.reached, end)
	m.later(replica.Done{ID: id})
}

// enlargeOn does what has waited for Grow.
func (m *Mirror) enlargeOn() {
	early := m.early
	m.early = nil
	for _, e := range early {
		m.enlarge(e.id, e.end)
	}
}

// growOn orders what is left to do.
func (m *Mirror) growOn() {
	if m.growing != 0 || m.size.Load() >= m.wanted || m.core == nil || m.closing || m.core.State().Role != replica.Primary {
		return
	}
	m.growing = m.orderID()
	m.step(replica.Grow{ID: m.growing, Size: m.wanted})
}

// show lets hosts see a size.
func (m *Mirror) show(size int64) {
	if size <= m.size.Load() {
		return
	}
	m.size.Store(size)
	m.opts.Log.Info("a mirror has grown", "bytes", size)
	if m.opts.Resized != nil && !m.closing {
		m.wg.Go(m.opts.Resized)
	}
}
