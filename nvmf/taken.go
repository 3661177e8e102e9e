package nvmf

import (
	"maps"
	"slices"

	"oneshot/volume/access"
)

// NVMe has no unit attention: what a host writes until it has heard of a reload, or never, would reach another disk that has come to a number
// meanwhile. So a host takes each number for the disk that it has found there, and another one is not there for its I/O until it has asked what it is.

// disk is what a host has to know of a namespace, or its commands would reach other bytes than it means.
type disk struct {
	uuid       [16]byte
	blockShift uint
}

func (n *Namespace) disk() disk { return disk{n.uuid, n.blockShift} }

// unknown denies all I/O: the host takes the namespace for another disk, which had the number before, until it has asked what it is.
const unknown = access.Free

// knows notes what the host takes the namespace for. Subsystem.mu is held.
func (a *attached) knows(d disk) {
	a.known = d
	if d == a.ns.disk() {
		a.Deny(unknown, 0)
	} else {
		a.Deny(unknown, unknown)
	}
}

// identified notes that the host is told what the namespace is.
func (a *attached) identified() {
	if access.Denial(a.denied.Load())&unknown != 0 {
		s := a.ctrl.sub
		s.mu.Lock()
		defer s.mu.Unlock()
		a.knows(a.ns.disk())
	}
}

// taken is what a host took numbers for whose controller has ended: when it comes again it goes on with its commands before it asks.
type taken struct {
	hostNQN string
	hostID  [16]byte
	disks   map[uint32]disk
}

// maxTaken bounds the hosts that are remembered.
const maxTaken = 256

// takenBy is what the host of c, which has just connected, takes numbers for, as far as that is known. mu is held.
func (s *Subsystem) takenBy(c *Controller) map[uint32]disk {
	all := make(map[uint32]disk)
	for i := range s.taken {
		if s.taken[i].hostNQN == c.hostNQN && s.taken[i].hostID == c.hostID {
			maps.Copy(all, s.taken[i].disks)
		}
	}
	for _, o := range s.controllers { // one of them may have lost its host, and not know that yet
		if o == c || o.hostNQN != c.hostNQN || o.hostID != c.hostID {
			continue
		}
		for _, a := range *o.attached.Load() {
			if _, has := all[a.nsid]; !has || a.known != a.ns.disk() {
				all[a.nsid] = a.known
			}
		}
	}
	return all
}

// keepTaken remembers what the host of a controller that ends takes numbers for. mu is held.
func (s *Subsystem) keepTaken(c *Controller) {
	t := taken{c.hostNQN, c.hostID, make(map[uint32]disk)}
	for _, a := range *c.attached.Load() {
		t.disks[a.nsid] = a.known
	}
	if len(t.disks) == 0 {
		return
	}
	s.taken = slices.DeleteFunc(s.taken, func(o taken) bool { return o.hostNQN == c.hostNQN && o.hostID == c.hostID })
	if len(s.taken) == maxTaken {
		s.taken = slices.Delete(s.taken, 0, 1)
	}
	s.taken = append(s.taken, t)
}
