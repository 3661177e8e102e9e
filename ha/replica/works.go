package replica

import "time"

// works are the actions that will be Done. A place in the table is used again when its work has ended, so an ID has the
// place, and a number that is another one each time.
type works struct {
	places []place
	vacant []uint32
	count  uint64 // begins anew with each life: what a former life has begun is not taken for a work of this one
	oldest uint32 // of those that the disk has; 0: none. Places are counted from 1 here
	newest uint32
}

type place struct {
	id   uint64 // 0: vacant
	work work

	at           time.Duration // when the disk got it
	onDisk       bool
	older, newer uint32
}

const placeBits = 20

func (t *works) start(incarnation uint32) { t.count = uint64(incarnation) << 20 }

// add returns the ID of a work.
func (t *works) add(w work, onDisk bool, now time.Duration) uint64 {
	if len(t.vacant) == 0 {
		t.places = append(t.places, place{})
		t.vacant = append(t.vacant, uint32(len(t.places)))
		if len(t.places) >= 1<<placeBits {
			panic("replica: too many works")
		}
	}
	n := t.vacant[len(t.vacant)-1]
	t.vacant = t.vacant[:len(t.vacant)-1]
	t.count++
	p := &t.places[n-1]
	*p = place{id: t.count<<placeBits | uint64(n), work: w, at: now, onDisk: onDisk}
	if onDisk {
		p.older = t.newest
		if t.newest != 0 {
			t.places[t.newest-1].newer = n
		} else {
			t.oldest = n
		}
		t.newest = n
	}
	return p.id
}

// take removes a work that has ended. false: there is none, or nobody wants its end.
func (t *works) take(id uint64) (w work, ok bool) {
	n := uint32(id & (1<<placeBits - 1))
	if n == 0 || int(n) > len(t.places) || t.places[n-1].id != id {
		return w, false
	}
	p := &t.places[n-1]
	w, ok = p.work, p.work.kind != workForgotten
	t.unlink(p)
	*p = place{}
	t.vacant = append(t.vacant, n)
	return w, ok
}

func (t *works) unlink(p *place) {
	if !p.onDisk {
		return
	}
	if p.older != 0 {
		t.places[p.older-1].newer = p.newer
	} else {
		t.oldest = p.newer
	}
	if p.newer != 0 {
		t.places[p.newer-1].older = p.older
	} else {
		t.newest = p.older
	}
	p.onDisk = false
}

// forget: nobody wants the end of a work any more, or knows how long it takes. Its place stays until the end has come.
func (t *works) forget(p *place) {
	t.unlink(p)
	p.work = work{kind: workForgotten}
}

// longest is how long the disk has had the oldest of its works.
func (t *works) longest(now time.Duration) time.Duration {
	if t.oldest == 0 {
		return 0
	}
	return now - t.places[t.oldest-1].at
}
