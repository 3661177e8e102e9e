// Package door says which connections may come and which have to go, so that whoever opens connections without end keeps
// nobody else out, and waits for those that are there when the daemon ends.
package door

import (
	"slices"
	"sync"
)

// Door bounds the connections of nodes that share it. Those that have proved nothing have a share of the places: when it is used
// up, or all places are, the oldest of them gives way, of whatever node it is. The others never do.
type Door struct {
	mu       sync.Mutex // a leaf
	most     int
	all      int // connections that were admitted
	unproven int // of these: those that have proved nothing, or are still coming
	leaving  int // of these: those that have been told to give way
	line     Line
}

// Line is connections that have proved nothing, oldest first, besides others that have. It is guarded by the door.
type Line []*Place

// Place is what a connection has of the door.
type Place struct {
	door *Door
	// giveWay has the connection end. It is called without locks of this package.
	giveWay           func()
	unproven, evicted bool // guarded by door.mu
}

// maxLeaving bounds the connections that are there beyond the limit, because others have been told to end and have not yet.
const maxLeaving = 32

// NewDoor returns a door that admits so many connections.
func NewDoor(most int) *Door { return &Door{most: most} }

// SetLimit changes how many connections there may be. Those beyond a lower limit are left alone.
func (d *Door) SetLimit(most int) {
	d.mu.Lock()
	d.most = most
	d.mu.Unlock()
}

// Limit is how many connections there may be.
func (d *Door) Limit() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.most
}

// unprovenShare is how many of the connections may have proved nothing.
func unprovenShare(connections int) int { return max(connections/2, min(connections, 16)) }

// admit reports whether one more connection may come, and counts it; and whether there was no room, so that either it may not, or
// old is to give way.
func (d *Door) admit() (admitted, full bool, old *Place) {
	d.mu.Lock()
	defer d.mu.Unlock()
	full = d.all-d.leaving >= d.most || d.unproven-d.leaving >= unprovenShare(d.most)
	if full && d.leaving < maxLeaving {
		old = d.evict(&d.line)
	}
	if admitted = !full || old != nil; admitted {
		d.all++
		d.unproven++
	}
	return admitted, full, old
}

// evict takes the oldest connection that has proved nothing out of the line, marks it, and returns it; nil: there is none. mu is
// held.
func (d *Door) evict(line *Line) *Place {
	for len(*line) > 0 {
		p := (*line)[0]
		(*line)[0] = nil
		*line = (*line)[1:]
		if p.unproven && !p.evicted {
			p.evicted = true
			d.leaving++
			return p
		}
	}
	return nil
}

// dismiss takes back what admit has counted, of a connection that came to nothing.
func (d *Door) dismiss() {
	d.mu.Lock()
	d.all--
	d.unproven--
	d.mu.Unlock()
}

// enter gives a connection that was admitted its place. giveWay has it end if it has still proved nothing.
func (d *Door) enter(p *Place, giveWay func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	p.door, p.giveWay, p.unproven = d, giveWay, true
	if len(d.line) > 2*d.unproven { // most have proved themselves
		d.line.clean()
	}
	d.line = append(d.line, p)
}

// leave takes the place of a connection back.
func (d *Door) leave() {
	d.mu.Lock()
	d.all--
	d.mu.Unlock()
}

// clean drops those that do not belong in the line.
func (l *Line) clean() {
	*l = slices.DeleteFunc(*l, func(p *Place) bool { return !p.unproven || p.evicted })
}

// Join puts the connection into a further line, of which so many may be there: the oldest gives way to it.
func (p *Place) Join(line *Line, most int) {
	d := p.door
	d.mu.Lock()
	line.clean()
	*line = append(*line, p)
	var old *Place
	if len(*line) > most {
		old = d.evict(line)
	}
	d.mu.Unlock()
	if old != nil {
		old.giveWay()
	}
}

// Evicted reports whether the connection has been told to give way, and has neither proved itself nor ended.
func (p *Place) Evicted() bool {
	p.door.mu.Lock()
	defer p.door.mu.Unlock()
	return p.evicted
}

// Prove says that the connection does not give way any more: it has proved itself, or is over.
func (p *Place) Prove() { p.prove(true) }

// TryProve is Prove, unless the connection has been told to give way. False: it has.
func (p *Place) TryProve() bool { return p.prove(false) }

func (p *Place) prove(always bool) bool {
	d := p.door
	d.mu.Lock()
	defer d.mu.Unlock()
	if p.evicted && !always {
		return false
	}
	if p.unproven {
		p.unproven = false
		d.unproven--
	}
	if p.evicted {
		p.evicted = false
		d.leaving--
	}
	return true
}
