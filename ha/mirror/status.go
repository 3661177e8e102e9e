package mirror

import (
	"time"

	"oneshot/ha/replica"
)

// Status is what is known of a mirror on one node.
type Status struct {
	replica.State
	Connected replica.Nodes     // with which this node has a connection
	Fed       replica.Nodes     // copies that this node, the primary, sends records to
	Lacks     [16]int64         // bytes that a copy outside S lacks, at most, as this node knows
	Suspect   int64             // bytes of this node's copy, outside S, that may differ by its own doing
	Pending   int               // operations of hosts that have not ended
	Heap      int64             // bytes of memory for data of records
	Lag       [16]time.Duration // of a primary: how long the oldest write waits that a member's disk does not have
	Copied    int64             // bytes that this node has sent to copies that are brought level, in this life
	Missing   int64             // bytes of this node's copy that no copy could read when it was brought level, and that were not written since
	Lost      int64             // bytes that copies go without for that reason, which this node has brought level in this life
	Pace      replica.Pace      // of copies that are brought level, and compared
	Yields    bool              // of a primary: it gives way to hosts now
	Doubt     *Doubt            // of the disk of this node's copy; nil: none
	Unsaved   error             // why the metadata of this node's copy cannot be saved; nil: they can, as far as is known
	Failed    error             // what the disk of this node's copy has last failed with when it was written to or synced; nil: it has done so since
	Takeovers uint64            // how often this node became the primary, in this life
	Takeover  Takeover          // the last one
}

// Status asks for it. ok is false when the mirror is closed.
func (m *Mirror) Status() (s Status, ok bool) {
	told := make(chan struct{})
	asked := m.push(item{call: func() {
		defer close(told)
		s.Heap, s.Pending = m.cfg.Heap, m.tasks.len()
		s.Copied, s.Lost, s.Takeovers, s.Takeover = m.copied, m.lost, m.office.takeovers, m.office.last
		for id, c := range m.conns {
			if c != nil {
				s.Connected = s.Connected.With(replica.ID(id))
			}
		}
		if m.core == nil || m.closing {
			s.View = m.viewed
			return
		}
		s.State = m.core.State()
		s.Missing = m.core.Missing()
		if m.doubt != nil {
			s.Doubt = new(*m.doubt)
		}
		s.Failed, s.Unsaved = m.failed, m.notSaved()
		s.Pace, s.Yields = m.core.Paced()
		suspects := m.core.Suspects()
		s.Suspect = int64(suspects.Len()) * m.cfg.Granule
		for id := range m.cfg.Copies.All() {
			s.Lag[id] = m.core.Lag(id)
			if m.core.Streams(id) {
				s.Fed = s.Fed.With(id)
			}
			if lacks := m.core.Bitmap(id); !s.View.InSync.Has(id) {
				s.Lacks[id] = int64(lacks.Len()) * m.cfg.Granule
			}
		}
	}})
	if !asked {
		return s, false
	}
	<-told
	return s, true
}
