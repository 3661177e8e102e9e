package sim

import (
	"slices"
	"strings"
	"time"

	"oneshot/ha/replica"
)

// faults are those that a run may have, and how often.
type faults struct {
	kinds []int
	every time.Duration
	drawn int // so many have happened, or were left out
}

const (
	faultKill = iota
	faultPower
	faultPowerAll
	faultPause
	faultCut
	faultOneWay
	faultIsolate
	faultWitness
	faultSlow
	faultRefuse
	faultHang
	faultBeats
	faultConsensus
	faultBad
	faultVerify
	faultSwitch
	faultBack
	faultDrain
	faultZombie
	faultKinds
	faultForce // these are only in themes: worlds without them are as they were
	faultStuck
)

var faultNames = [...]string{"kill", "power", "power of all", "pause", "cut", "one way", "isolate", "witness", "slow disk", "bad disk", "hung disk", "lost beats", "slow consensus", "bad blocks", "verify", "switch", "disk set back", "drain", "zombie", faultForce: "force", faultStuck: "blocks bad for good"}

func (f *faults) String() string {
	var s []string
	for _, k := range f.kinds {
		s = append(s, faultNames[k])
	}
	return strings.Join(s, ", ") + " every " + f.every.String()
}

// theme is a set of faults that have to come together.
type theme struct {
	name  string
	kinds []int // some more than once
	every time.Duration
	three bool // copies
}

var themes = []theme{
	{"deaf", []int{faultBeats, faultBeats, faultSlow, faultConsensus, faultKill}, time.Second, true},
	{"zombie", []int{faultIsolate, faultPause, faultPause, faultPower, faultConsensus, faultHang}, 2 * time.Second, true},
	{"worn", []int{faultBad, faultBad, faultVerify, faultVerify, faultKill, faultSwitch, faultCut}, time.Second, false},
	{"latent", []int{faultBad, faultBad, faultPower, faultPower, faultKill, faultSwitch, faultCut}, time.Second, false},
	{"disks", []int{faultHang, faultSlow, faultCut, faultKill, faultPower}, time.Second, true},
	{"lease", []int{faultZombie, faultZombie, faultIsolate, faultPause}, time.Second, false},
	{"forced", []int{faultForce, faultKill, faultPower, faultPower, faultCut, faultIsolate, faultSwitch}, time.Second, false},
	{"stuck", []int{faultStuck, faultStuck, faultBad, faultPower, faultSwitch, faultCut, faultVerify}, time.Second, false},
	{"snapshots", []int{faultBack, faultBack, faultPower, faultKill, faultIsolate, faultSwitch}, 3 * time.Second, false},
}

// drawTheme returns nil in most worlds.
func (r *run) drawTheme() *theme {
	if r.Theme == "" && !r.oneIn(4) {
		return nil
	}
	t := &themes[r.r.IntN(len(themes))]
	for i := range themes {
		if themes[i].name == r.Theme {
			t = &themes[i]
		}
	}
	return t
}

// drawFaults switches a part of the faults on.
func (r *run) drawFaults(t *theme) *faults {
	if t != nil {
		return &faults{kinds: t.kinds, every: r.between(300*time.Millisecond, t.every)}
	}
	f := &faults{every: r.between(500*time.Millisecond, 6*time.Second)}
	for k := range faultKinds {
		if r.oneIn(2) {
			f.kinds = append(f.kinds, k)
		}
	}
	if len(f.kinds) == 0 {
		f.kinds = []int{faultKill}
	}
	return f
}

// next lets something fail after a while.
func (f *faults) next(r *run) {
	f.drawn++
	no := f.drawn
	r.after(r.until(no, r.between(0, 2*f.every)), func() {
		if r.now >= r.Length || r.stopped || r.plan != nil && no > len(r.plan) {
			return
		}
		r.fault(no, f.kinds[r.r.IntN(len(f.kinds))])
		f.next(r)
	})
}

// moment may kill a node, or cut its power, right after it has done something of weight.
func (r *run) moment(n *node, odds int) {
	if r.stopped || r.now >= r.Length || !r.oneIn(odds) {
		return
	}
	kind := faultKill + r.r.IntN(2)
	if !slices.Contains(r.faults.kinds, kind) {
		return
	}
	end, life := n.kill, n.lives
	if kind == faultPower {
		end = n.powerCut
	}
	soon, back := r.between(0, 2*time.Millisecond), 3*time.Second
	if r.oneIn(2) {
		back = 60 * time.Millisecond // somebody starts it again at once
	}
	back = r.between(5*time.Millisecond, back)
	if r.isLeftOut(Moments) {
		return
	}
	r.after(soon, func() {
		if n.lives == life {
			end()
		}
	})
	r.after(back, n.start)
}

// fault makes something fail, and mends it later.
func (r *run) fault(no, kind int) {
	n := r.nodes[r.r.IntN(len(r.nodes))]
	if r.oneIn(2) {
		n = r.nodes[r.view.Primary] // where it matters most
	}
	o := r.nodes[(int(n.id)+1+r.r.IntN(len(r.nodes)-1))%len(r.nodes)]
	length := r.between(20*time.Millisecond, 3*time.Second)
	f := r.planned(Fault{no, r.now, kind, n.id, o.id, length})
	if r.isLeftOut(no) {
		return
	}
	kind, n, o, length = f.kind, r.nodes[f.node], r.nodes[f.other], f.length
	switch kind {
	case faultKill:
		n.kill()
		r.after(length, n.start)
	case faultPower:
		n.powerCut()
		r.after(length, n.start)
	case faultPowerAll:
		for _, n := range r.nodes {
			r.after(r.between(0, 10*time.Millisecond), n.powerCut)
			r.after(r.between(50*time.Millisecond, 3*time.Second), n.start)
		}
	case faultPause:
		if r.oneIn(8) {
			length = 30 * time.Second
		}
		r.pauseFor(n, length)
	case faultCut:
		r.cutFor(n.id, o.id, length)
		r.cutFor(o.id, n.id, length)
	case faultOneWay:
		r.cutFor(n.id, o.id, length)
	case faultIsolate:
		r.isolate(n, length)
	case faultZombie: // it goes on, and learns nothing, but hosts reach it
		if n.core == nil || n.paused {
			return
		}
		r.pauseFor(n, length)
		life := n.lives
		r.after(r.between(0, 100*time.Millisecond), func() {
			if n.lives == life && n.paused {
				r.isolate(n, length+r.between(0, time.Second))
			}
		})
	case faultWitness:
		r.witnessUp = false
		r.after(length, func() { r.witnessUp = true })
	case faultSlow:
		n.disk.slow = r.between(5*time.Millisecond, 100*time.Millisecond)
		r.after(length, func() { n.disk.slow = 0 })
	case faultRefuse:
		n.disk.refuses = true
		r.after(length, func() { n.disk.refuses = false })
	case faultHang:
		n.disk.hang()
		r.after(length, func() { n.disk.goOn(r.now) })
	case faultBeats:
		r.mute[n.id] = true
		r.after(length, func() { r.mute[n.id] = false })
	case faultConsensus:
		r.slow = true
		r.after(length, func() { r.slow = false })
	case faultBad:
		x := r.nodes[r.worn]
		for range 1 + r.r.IntN(4) {
			x.disk.bad[r.r.IntN(blocks)] = true
		}
	case faultStuck:
		x, b := r.nodes[r.worn], r.r.IntN(hot)
		x.disk.bad[b], x.disk.stuck[b] = true, true
		x.disk.solid[b] = r.oneIn(8)
	case faultVerify:
		r.verify(0)
		if r.oneIn(4) {
			r.after(r.between(0, 100*time.Millisecond), r.stopVerify)
		}
	case faultBack:
		n.takeSnapshot()
		r.after(r.between(0, 5*time.Second), func() {
			if r.now >= r.Length {
				return
			}
			n.kill()
			life := n.lives
			r.after(time.Second+length, func() {
				if n.lives == life && n.core == nil {
					n.setBack()
				}
				n.start()
			})
		})
	case faultSwitch:
		if p := r.nodes[r.view.Primary]; p.core != nil {
			r.switchTo(p, o.id)
		}
	case faultForce:
		if x := r.nodes[r.r.IntN(len(r.nodes))]; r.group == nil { // the log of ha/quorum would have to be forced, too
			r.force(x)
		}
	case faultDrain:
		r.drained ^= replica.NodesOf(n.id)
	}
	r.logf("FAULT %s at node %d for %v", faultNames[kind], n.id, length)
}

// pauseFor stops a node. Only confirmed reads bear clocks that stop with it.
func (r *run) pauseFor(n *node, d time.Duration) {
	n.pause(r.cfg.Confirm && r.oneIn(2))
	life := n.lives
	r.after(d, func() {
		if n.lives == life {
			n.resume()
		}
	})
}

func (r *run) isolate(n *node, d time.Duration) {
	for _, o := range r.nodes {
		if o != n {
			r.cutFor(n.id, o.id, d)
			r.cutFor(o.id, n.id, d)
		}
	}
	r.cutFor(n.id, witness, d)
}

func (r *run) cutFor(a, b replica.ID, d time.Duration) {
	r.setCut(a, b, true)
	r.after(d, func() { r.setCut(a, b, false) })
}

// mend makes everything work.
func (r *run) mend() {
	r.cut = [16][16]bool{}
	r.witnessUp, r.slow, r.mute = true, false, [16]bool{}
	r.drained = 0
	for _, n := range r.nodes {
		n.disk.slow, n.disk.refuses = 0, false
		copy(n.disk.wasBad, n.disk.bad)
		clear(n.disk.bad)
		clear(n.disk.stuck)
		clear(n.disk.solid)
		n.disk.goOn(r.now)
		n.resume()
		n.start()
	}
}
