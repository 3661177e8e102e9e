package iscsi

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"oneshot/internal/iostat"
	"oneshot/iscsi/pdu"
)

// SessionInfo is a session as an administrator sees it.
type SessionInfo struct {
	TSIH        uint16 // names the session while it lives
	Initiator   string
	ISID        pdu.ISID
	Target      string    // empty: a discovery session
	Since       time.Time // of the login
	Buffers     int       // bytes of I/O memory that its commands hold
	Connections []ConnInfo
	iostat.Stats
}

// ConnInfo is a connection of a session.
type ConnInfo struct {
	CID          uint16
	Peer, Local  string // addresses
	Transport    string // Datamover.Transport
	HeaderDigest bool
	DataDigest   bool
}

// Sessions lists the sessions there are, by TSIH, and their connections in the order in which
// they came.
func (n *Node) Sessions() []SessionInfo {
	n.mu.Lock()
	sessions := slices.Collect(maps.Values(n.sessions))
	n.mu.Unlock()
	var list []SessionInfo
	for _, s := range sessions {
		s.circle.Lock()
		info := s.info()
		s.circle.Unlock()
		if len(info.Connections) == 0 {
			continue
		}
		if s.nexus != nil {
			info.Stats = s.nexus.Stats()
		}
		list = append(list, info)
	}
	slices.SortFunc(list, func(a, b SessionInfo) int { return cmp.Compare(a.TSIH, b.TSIH) })
	return list
}

// info describes the session and those of its connections that are logged in.
func (s *Session) info() SessionInfo {
	info := SessionInfo{TSIH: s.TSIH, Initiator: s.Initiator, ISID: s.ISID, Since: s.Since}
	if s.Target != nil {
		info.Target = s.Target.Name
	}
	for _, c := range s.circle.conns {
		info.Buffers += c.leased
		if c.state != stateFullFeature {
			continue
		}
		info.Connections = append(info.Connections, ConnInfo{
			CID: c.CID, Peer: c.mover.Peer(), Local: c.mover.Local(), Transport: c.mover.Transport(),
			HeaderDigest: c.Params.HeaderDigest, DataDigest: c.Params.DataDigest,
		})
	}
	return info
}

// Connections is how many connections there are, logged in or not.
func (n *Node) Connections() int { return n.guests.Count() }

// Targets lists the targets in the order in which they were added.
func (n *Node) Targets() []*Target {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.targets)
}

// DropSession ends the session with this TSIH, after telling its initiator, and reports
// whether there is one. Most initiators log in again.
func (n *Node) DropSession(tsih uint16, why string) bool {
	if n.session(tsih) == nil {
		return false
	}
	n.drop(why, func(s *Session) bool { return s.TSIH == tsih })
	return true
}

// ReplaceTarget puts t in the place of the target of its name, with another alias or other
// rules of access. Sessions go on with what they have agreed to, except those of initiators
// that t does not admit, or to which it shows other LUNs: these end, and the latter come back.
// It reports whether there was such a target.
func (n *Node) ReplaceTarget(t *Target) bool {
	n.mu.Lock()
	i := slices.IndexFunc(n.targets, func(o *Target) bool { return o.Name == t.Name })
	if i >= 0 {
		n.targets = slices.Clone(n.targets)
		n.targets[i] = t
	}
	n.mu.Unlock()
	if i < 0 {
		return false
	}
	n.drop("the initiator may not use the target any more", func(s *Session) bool {
		return s.Target.same(t) && !t.admits(s.Initiator)
	})
	n.drop("its initiator sees other LUNs from now on", func(s *Session) bool {
		return s.Target.same(t) && !s.Target.showsAlike(t, s.Initiator)
	})
	return true
}

// showsAlike reports whether an initiator sees the same LUNs of t and o.
func (t *Target) showsAlike(o *Target, initiator string) bool {
	var was, now Rule
	if r := t.rule(initiator); r != nil {
		was = *r
	}
	if r := o.rule(initiator); r != nil {
		now = *r
	}
	return (was.LUNs == nil) == (now.LUNs == nil) && maps.Equal(was.LUNs, now.LUNs)
}

// RemoveTarget makes a target unknown, and ends its sessions. Their commands may still be in
// stores when it returns; scsi.LogicalUnit.Idle reports whether they are.
func (n *Node) RemoveTarget(name string) {
	n.mu.Lock()
	n.targets = slices.DeleteFunc(slices.Clone(n.targets), func(t *Target) bool { return t.Name == name })
	n.mu.Unlock()
	n.drop("the target was removed", func(s *Session) bool { return s.Target != nil && s.Target.Name == name })
}

// drop ends the sessions that match.
func (n *Node) drop(why string, match func(*Session) bool) {
	for _, c := range n.guests.List() {
		c.post(func() {
			if c.sess == nil || c.state > stateFullFeature || !match(c.sess) {
				return
			}
			if c.state != stateFullFeature { // it waits for another connection to be gone
				c.terminate(AtOnce)
				return
			}
			c.log.Info("session ends", "reason", why)
			// RFC 7143 §11.9.1, event 3: nothing of the session is kept, and there is no reason
			// to wait before the next login.
			c.send(&pdu.AsyncFields{Event: pdu.AsyncAllConnectionsDrop, Sequence: c.Status()}, nil)
			c.enter(eventLeaves)
			c.terminate(WhenSent)
		})
	}
}

// LeaveAddress ends the connections that have come to a local address, host:port, which this machine does not have any more, or
// will not soon. The initiators learn that they need not wait before they log in again.
func (n *Node) LeaveAddress(local string) {
	for _, c := range n.guests.List() {
		c.post(func() {
			switch {
			case c.mover.Local() != local || c.state > stateFullFeature:
			case c.state != stateFullFeature:
				c.terminate(AtOnce)
			default:
				c.log.Info("connection ends: its address has gone to another node")
				// RFC 7143 §11.9.1, event 3, with Time2Wait 0.
				c.send(&pdu.AsyncFields{Event: pdu.AsyncAllConnectionsDrop, Sequence: c.Status()}, nil)
				c.enter(eventLeaves)
				c.terminate(WhenSent)
			}
		})
	}
}

// same reports whether t and o are the same target, perhaps with other rules of access.
func (t *Target) same(o *Target) bool { return t == o || t != nil && o != nil && t.Name == o.Name }

// Quiesce returns when every connection there is has been in nobody's hands for a moment. A
// command that was looked up in a target's LUNs before the call has been counted in its
// logical unit by then.
func (n *Node) Quiesce() {
	for _, c := range n.guests.List() {
		c.Lock()
		c.Unlock() //nolint:staticcheck // the lock itself is what is waited for
	}
}

// Limits are the parts of Config that may change while the node works.
type Limits struct {
	Discovery    Auth
	Connections  int
	Sessions     int
	LoginTimeout uint32 // seconds, as are the others
	NOPInterval  uint32
	NOPTimeout   uint32
	ReadTimeout  uint32
}

// SetLimits changes the limits. What goes beyond a lower limit already is left alone.
func (n *Node) SetLimits(l Limits) {
	n.limits.Store(&l)
	n.Door().SetLimit(l.Connections)
}

// SessionCounts is the number of sessions of each target, those of discovery under "".
func (n *Node) SessionCounts() map[string]int {
	n.mu.Lock()
	defer n.mu.Unlock()
	counts := make(map[string]int)
	for _, s := range n.sessions {
		if s.Target == nil {
			counts[""]++
			continue
		}
		counts[s.Target.Name]++
	}
	return counts
}
