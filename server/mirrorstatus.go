package server

import (
	"cmp"
	"fmt"
	"slices"

	"oneshot/ha/mirror"
	"oneshot/ha/quorum"
	"oneshot/ha/replica"
	"oneshot/mgmt"
)

// mirrors returns the open mirrors, by name.
func (s *Server) mirrors() (list []*mirrored) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.units.mirrors()
}

func (u *units) mirrors() (list []*mirrored) {
	for _, o := range u.stores {
		if o.mirror != nil {
			list = append(list, o.mirror)
		}
	}
	slices.SortFunc(list, func(a, b *mirrored) int { return cmp.Compare(a.name, b.name) })
	return list
}

// clusterStatus returns what this node knows of its cluster; nil: there is none.
func (s *Server) clusterStatus() *mgmt.Cluster {
	c := s.member.status()
	if c == nil {
		return nil
	}
	for _, m := range s.mirrors() {
		if st, ok := m.Status(); ok {
			c.Mirrors = append(c.Mirrors, m.describe(&st))
		}
	}
	for _, k := range s.member.knownMirrors() {
		if slices.ContainsFunc(c.Mirrors, func(m mgmt.Mirror) bool { return m.Name == k.name }) {
			continue
		}
		m := k.describe()
		if s.member.isGivenUp(&k) {
			m.Role, m.Primary = mgmt.RoleGivenUp, ""
		}
		c.Mirrors = append(c.Mirrors, m)
	}
	for i := range c.Mirrors {
		s.member.trouble.addTo(&c.Mirrors[i])
	}
	slices.SortFunc(c.Mirrors, func(a, b mgmt.Mirror) int { return cmp.Compare(a.Name, b.Name) })
	return c
}

// isGivenUp says that the mirror is not in this node's configuration, nor in that of any member with a copy.
func (m *member) isGivenUp(k *known) bool {
	if hasStore(m.info.Load(), k.name) {
		return false
	}
	st := m.node.Status()
	return !slices.ContainsFunc(st.Members, func(n quorum.Member) bool {
		return n.Name != m.name && slices.Contains(k.Copies, n.Name) && hasStore(st.Infos[n.Name], k.name)
	})
}

// describe says what a node knows of a mirror of which it has no copy.
func (k *known) describe() mgmt.Mirror {
	m := mgmt.Mirror{Name: k.name, Size: k.Size, Role: mgmt.RoleNoCopy, Term: k.view.Term, Primary: k.primary()}
	for i, name := range k.Copies {
		c := mgmt.Copy{Node: name, State: mgmt.CopyUnknown}
		switch {
		case k.view.InSync.Has(replica.ID(i + 1)):
			c.State = mgmt.CopyInSync
		case k.view.Version > 0:
			c.State = mgmt.CopyStale
		}
		m.Copies = append(m.Copies, c)
	}
	return m
}

var roleNames = map[replica.Role]string{
	replica.Waiting: "waiting", replica.Follower: "follower", replica.Candidate: "taking over", replica.Primary: mgmt.RolePrimary,
}

// describe says it in the administrator's terms.
func (s *mirrored) describe(st *mirror.Status) mgmt.Mirror {
	m := mgmt.Mirror{
		Name: s.name, Size: s.Info().Size, Role: roleNames[st.Role], Term: st.View.Term, LogBytes: st.HeapUsed, LogSize: st.Heap, Records: st.Retained,
		Waiting: st.Pending, MinCopies: s.least,
	}
	if st.View.Version > 0 {
		m.Primary = s.nodeName(st.View.Primary)
	}
	if st.Role == replica.Primary && s.Leads() == 0 {
		m.Role, m.Primary, m.Until = mgmt.RoleCutOff, "", s.LedUntil()
	}
	m.Addresses, m.Guests = s.front.words(), s.member.books.of(s.name).count(st.Role == replica.Primary)
	if text := cmp.Or(s.trouble.Load(), s.unread.Load()); text != nil {
		m.Trouble = *text
	}
	if st.Role == replica.Primary {
		m.Unapplied, m.Unflushed = st.Last-st.Applied, st.Last-st.Durable
		m.Resync = &mgmt.Resync{Rate: st.Pace.Rate, Min: st.Pace.Min, Yields: st.Yields}
	}
	for i, name := range s.record.Copies {
		id := replica.ID(i + 1)
		m.Copies = append(m.Copies, s.copyStatus(st, id, name))
	}
	m.Copied, m.Lost, m.Takeovers = st.Copied, st.Lost, st.Takeovers
	if t := &st.Takeover; st.Takeovers > 0 {
		m.Takeover = &mgmt.Takeover{
			At: t.At, Term: t.Term, Planned: t.Planned,
			Silence: int64(t.Silence), Promises: int64(t.Promises), Agreed: int64(t.Agreed), Took: int64(t.Took()),
		}
	}
	if v := s.Verification(); v != nil && st.Role == replica.Primary {
		m.Verify = s.verification(v)
		m.Verify.Differences = nil
	}
	return m
}

// copyStatus says how a copy is. Only the primary knows how far one is that is brought level, and who is away.
func (s *mirrored) copyStatus(st *mirror.Status, id replica.ID, name string) mgmt.Copy {
	c := mgmt.Copy{Node: name, State: mgmt.CopyUnknown, Lacks: st.Lacks[id], Lag: int64(st.Lag[id]), Connected: id == s.self || st.Connected.Has(id)}
	if id == s.self {
		c.Missing, c.Reason = st.Missing, s.doubtText(st.Doubt)
	}
	switch {
	case st.View.Version == 0:
	case c.Reason != "" && !st.Doubt.Taken: // in sync by the view, perhaps, and no source all the same
		c.State = mgmt.CopyDoubted
	case st.View.InSync.Has(id):
		c.State = mgmt.CopyInSync
	case st.Role == replica.Primary && st.Fed.Has(id):
		c.State = mgmt.CopyResync
	case st.Role == replica.Primary && !c.Connected:
		c.State = mgmt.CopyAway
	default:
		c.State = mgmt.CopyStale
	}
	switch {
	case id != s.self || c.Reason != "":
	case st.Unsaved != nil:
		c.Reason = fmt.Sprintf("its metadata cannot be saved (%v), which is tried again and again, and what is written may wait for that: make room in cluster.state, or mend its disk", st.Unsaved)
	case st.Failed != nil:
		c.Reason = fmt.Sprintf("its disk does not take what is written (%v), which is tried again and again: make room, or mend the disk", st.Failed)
	}
	return c
}

// doubtText says why the disk of this node's copy is not known, and what to do.
func (s *mirrored) doubtText(d *mirror.Doubt) string {
	switch {
	case d == nil:
		return ""
	case d.Was == d.Found:
		return fmt.Sprintf("the disk has lost what it had durable, as one that was set back to a snapshot, so other nodes bring all of it level, and until then it is no source. If none of their copies is in sync bring one back that is; if all are lost, target ha force %s on its node goes on with what is there", s.name)
	}
	return fmt.Sprintf("the disk is %s, and was %s, so other nodes bring all of it level, and until then it is no source. If none of their copies is in sync end its node, and start it with the disk that it had; if that is lost, target ha force %s on its node goes on with what is there", d.Found, d.Was, s.name)
}
