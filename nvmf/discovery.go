package nvmf

import (
	"hash/maphash"
	"net/netip"
	"slices"

	"oneshot/nvme"
)

// discoveryLog writes the part of the discovery log from off on: the discovery service itself, and each subsystem that admits the
// host, at each portal that is reached where the host has come to; subsystems at portals of other nodes; and the discovery services
// elsewhere (Base 2.0 §5.16.1.23).
func (c *Controller) discoveryLog(b []byte, off uint64) {
	entries := c.discovered()
	c.show(entries)
	// Only the entries that are asked for are written: hosts read a long log in pieces.
	page := make([]byte, 0, nvme.DiscoveryEntryLen)
	for len(b) > 0 {
		i := off / nvme.DiscoveryEntryLen
		switch {
		case i == 0:
			page = nvme.AppendDiscoveryHeader(page[:0], c.generation, len(entries))
		case i <= uint64(len(entries)):
			page = entries[i-1].AppendTo(page[:0])
		default:
			clear(b)
			return
		}
		k := copy(b, page[off%nvme.DiscoveryEntryLen:])
		b, off = b[k:], off+uint64(k)
	}
}

// rediscovered tells the host that its discovery log is another one than it has seen, if it is. The lock of the admin queue is held.
func (c *Controller) rediscovered() {
	if sumOf(c.discovered()) != c.shown {
		c.raise(eventDiscovery)
	}
}

// show notes what the host sees. Its generation is another one if it is not what the host has seen before: nothing else tells a host that the
// log has changed between two pieces of it.
func (c *Controller) show(entries []nvme.DiscoveryEntry) {
	if sum := sumOf(entries); sum != c.shown || c.generation == 0 {
		c.shown, c.generation = sum, max(c.generation+1, c.node.discoveryGeneration())
	}
}

// sumOf names a list of entries: no two that differ have one.
func sumOf(entries []nvme.DiscoveryEntry) uint64 {
	var h maphash.Hash
	h.SetSeed(sumSeed)
	for i := range entries {
		maphash.WriteComparable(&h, entries[i])
	}
	return h.Sum64()
}

var sumSeed = maphash.MakeSeed()

// discovered are the entries of the log.
func (c *Controller) discovered() (entries []nvme.DiscoveryEntry) {
	n := c.node
	n.mu.Lock()
	portals, subsystems, referrals := n.portals, slices.Clone(n.subsystems), n.referrals
	n.mu.Unlock()
	local, err := netip.ParseAddrPort(c.admin.mover.Local())
	for _, p := range portals {
		at, ok := p.Reached(local)
		if !ok || err != nil {
			continue
		}
		e := nvme.DiscoveryEntry{Transport: p.Transport.Type, Type: nvme.EntryCurrent, Port: p.ID, ASQSize: adminDepth, Address: at, SubNQN: nvme.DiscoveryNQN}
		if !p.Elsewhere {
			entries = append(entries, e)
		}
		for _, s := range subsystems {
			if (!p.Elsewhere || slices.Contains(p.Subsystems, s.nqn)) && s.admits(c.hostNQN) {
				e.Type, e.SubNQN = nvme.EntryNVM, s.nqn
				entries = append(entries, e)
			}
		}
	}
	for _, r := range referrals {
		entries = append(entries, nvme.DiscoveryEntry{Transport: r.Transport, Type: nvme.EntryReferral, ASQSize: adminDepth, Address: r.Address, SubNQN: nvme.DiscoveryNQN})
	}
	return entries
}
