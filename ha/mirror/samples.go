package mirror

import (
	"oneshot/backend"
	"oneshot/ha/replica"
)

// The metadata remember what some granules of the copy hold, so that a disk that was set back to a snapshot is noticed
// when the next life begins:
//
//	region set ──► written ──► all durable ──► region cleared, and its granule that was written last is a sample
//	region set again: the sample is dropped in the same record, before anything is written
//
// So a sample that the disk does not have means that the disk has lost what was durable. The newest samples are kept,
// for they are what an older snapshot lacks.
const maxSamples = 64

// sample is a granule as the disk has it while its region is not set.
type sample struct {
	region int
	off, n int64 // bytes
	sum    uint32
}

// saving is a change of the metadata, with samples of the regions that it clears.
type saving struct {
	replica.Save
	samples []sample
}

func codeSamples(c *coder, v *[]sample) {
	many(c, v, func(s *sample) {
		region := uint64(s.region)
		num(c, &region, 8)
		s.region = int(region)
		num(c, &s.off, 8)
		num(c, &s.n, 8)
		num(c, &s.sum, 4)
	})
}

// wrotePlace notes where the copy is written to.
func (m *Mirror) wrotePlace(off, n int64) {
	for i := off / m.cfg.Region; i*m.cfg.Region < off+n; i++ {
		m.wrote[i] = 1 + max(off-off%m.cfg.Granule, i*m.cfg.Region)
	}
}

// sampled adds to a save the places of its samples. Nothing writes there before the save has ended: the core sets a
// region by another one first.
func (m *Mirror) sampled(s replica.Save) *saving {
	v := &saving{Save: s}
	for _, i := range s.Clear {
		if at := m.wrote[i] - 1; at >= 0 && len(v.samples) < maxSamples {
			v.samples = append(v.samples, sample{region: i, off: at, n: min(m.cfg.Granule, int64(i+1)*m.cfg.Region-at, m.limit.Load()-at)})
		}
		m.wrote[i] = 0
	}
	return v
}

// fillSamples reads them. What cannot be read is no sample.
func (m *Mirror) fillSamples(s *saving) {
	read := s.samples[:0]
	for _, x := range s.samples {
		sum, err := m.sumAt(x)
		if err == nil {
			x.sum = sum
			read = append(read, x)
		}
	}
	s.samples = read
}

// sumAt reads a sample's place, and waits for that.
func (m *Mirror) sumAt(x sample) (uint32, error) {
	w := make(waiter, 1)
	b := make([]byte, x.n)
	op := &backend.Op{Kind: backend.Read, Off: x.off, Len: x.n, Segs: [][]byte{b}, Done: w}
	if !m.opts.Copy.Submit(op) {
		<-w
	}
	return sumOf(b), op.Err
}

// Doubt is why the disk of a copy was not taken for what the metadata tell of when the node's life began: nothing on it counts before other nodes have
// brought all of it level. It ends when the copy is in sync, or the life does.
type Doubt struct {
	Was, Found string // identities of the disk that the metadata tell of, and of the one in its place; equal: the disk was set back
	Taken      bool   // a primary has begun to bring it level
}

// recognize finds out whether the disk is the one that the metadata tell of. An error says that what was found out
// could not be made durable.
func (m *Mirror) recognize(meta *metadata) error {
	meta.found = string(backend.IdentityOf(m.opts.Copy))
	renamed := meta.isOther() && backend.Is(m.opts.Copy, backend.Identity(meta.disk))
	if renamed {
		m.opts.Log.Info("the disk of this node's copy has another name with this kernel", "disk", meta.found, "before", meta.disk)
		meta.disk = meta.found
	}
	if meta.isOther() {
		m.doubt = &Doubt{Was: meta.disk, Found: meta.found}
		m.opts.Log.Error("the disk of this node's copy is not the one of its metadata: other nodes have to bring all of it level; if this is the only copy in sync, start with the right disk",
			"disk", meta.found, "metadata of", meta.disk)
		return nil
	}
	lost := m.opts.Short
	if lost {
		m.opts.Log.Error("the disk of this node's copy was shorter than it had been, and has lost its end: other nodes have to bring all of it level")
	}
	for _, x := range meta.samples {
		if lost {
			break
		}
		if x.off < 0 || x.n <= 0 || x.off > m.limit.Load()-x.n {
			continue // of a mirror that was larger
		}
		sum, err := m.sumAt(x)
		if err != nil {
			m.opts.Log.Warn("the copy of a mirror has failed", "operation", backend.Read, "reason", err)
			continue
		}
		if sum != x.sum {
			m.opts.Log.Error("the disk of this node's copy has lost what it had durable, as one that was set back to a snapshot: other nodes have to bring all of it level",
				"bytes", x.n, "at", x.off)
			lost = true
		}
	}
	meta.saved.Unknown = meta.saved.Unknown || lost
	if lost || renamed {
		if err := meta.renew(); err != nil {
			return err
		}
	}
	if meta.saved.Unknown { // since a former life, perhaps
		m.doubt = &Doubt{Was: meta.disk, Found: meta.found}
	}
	return nil
}
