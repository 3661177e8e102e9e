package server

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"oneshot/config"
	"oneshot/mgmt"
	"oneshot/scsi"
	"oneshot/volume"
	"oneshot/volume/access"
)

// Access implements mgmt.Target.
func (s *Server) Access() (list []mgmt.Access) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range s.cfg.Targets {
		t := &s.cfg.Targets[i]
		for j := range t.LUNs {
			list = append(list, s.accessOfLUN(t, &t.LUNs[j])...)
		}
	}
	for i := range s.cfg.Subsystems {
		sub := &s.cfg.Subsystems[i]
		for j := range sub.Namespaces {
			list = append(list, s.accessOfSpace(sub, &sub.Namespaces[j])...)
		}
	}
	return list
}

// accessOfLUN lists the portal groups of a LUN with their access states. mu is held.
func (s *Server) accessOfLUN(t *config.Target, l *config.LUN) (list []mgmt.Access) {
	for _, tag := range portGroups(s.cfg.Portals, config.ServeLUNs, t.Groups) {
		g := s.unitOf(t, l).AccessState(tag)
		list = append(list, mgmt.Access{
			Target: t.Name, LUN: l.Number, Group: tag, Portals: s.portalsIn(tag, config.ServeLUNs),
			State: g.State.String(), Preferred: g.Preferred, ALUA: string(l.ALUA),
		})
	}
	return list
}

// accessOfSpace lists those of a namespace. mu is held.
func (s *Server) accessOfSpace(sub *config.Subsystem, n *config.Namespace) (list []mgmt.Access) {
	for _, tag := range portGroups(s.cfg.Portals, config.ServeNamespaces, nil) {
		g := s.units.stores[mediumOfSpace(s.cfg, n)].volume.Access().OwnGroup(tag)
		list = append(list, mgmt.Access{
			Target: sub.NQN, NSID: n.NSID, Group: tag, Portals: s.portalsIn(tag, config.ServeNamespaces),
			State: g.State.String(), Preferred: g.Preferred, ALUA: string(config.ALUAImplicit),
		})
	}
	return list
}

// unitOf returns the logical unit that a LUN of the current configuration shows. mu is held.
func (s *Server) unitOf(t *config.Target, l *config.LUN) *scsi.LogicalUnit {
	return s.units.made[keyOf(t, l, s.units.stores[mediumOf(s.cfg, l)])]
}

// portalsIn lists the portals of a group that serve something. mu is held.
func (s *Server) portalsIn(tag uint16, serve config.Served) []mgmt.Portal {
	list := []mgmt.Portal{}
	for _, p := range s.portals {
		if p.config.Group == tag && p.config.Serve == serve {
			list = append(list, mgmt.Portal{Transport: string(p.config.Transport), Address: p.Addr().String()})
		}
	}
	return list
}

// concern is what a change of access states is about: volumes, and what to answer when they have changed.
type concern struct {
	volumes []*volume.Volume
	answer  []func() []mgmt.Access // with Server.mu held
}

func (c *concern) add(s *openStore, answer func() []mgmt.Access) {
	if !slices.Contains(c.volumes, s.volume) {
		c.volumes = append(c.volumes, s.volume)
	}
	c.answer = append(c.answer, answer)
}

// SetAccess implements mgmt.Target. Configurations are not applied meanwhile.
func (s *Server) SetAccess(ctx context.Context, c mgmt.AccessChange) (list []mgmt.Access, err error) {
	done, err := s.turn(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	s.mu.Lock()
	concerned, err := s.concerned(&c)
	s.mu.Unlock() // writing the state to disk may take long
	if err != nil {
		return nil, err
	}
	for _, v := range concerned.volumes { // all of them: what cannot be kept holds
		err = cmp.Or(err, changeAccess(v, &c))
	}
	if err != nil {
		s.log.Error("the administrator has set access states, and they are not kept over a restart", "target", c.Target, "group", c.Group, "state", c.State, "reason", err)
		return nil, err
	}
	s.log.Info("the administrator has set access states", "target", c.Target, "group", c.Group, "state", c.State, "luns", len(concerned.answer))
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, answer := range concerned.answer {
		list = append(list, answer()...)
	}
	return list, nil
}

// concerned finds what a change is about, or says why there is nothing. mu is held.
func (s *Server) concerned(c *mgmt.AccessChange) (*concern, error) {
	t, sub := findTarget(s.cfg, c.Target), findSubsystem(s.cfg, c.Target)
	var groups []uint16
	switch {
	case t != nil && len(c.NSIDs) > 0:
		return nil, &mgmt.NotFoundError{What: fmt.Sprintf("%s is a target of iSCSI, and has no namespaces: name LUNs", t.Name)}
	case t != nil:
		groups = portGroups(s.cfg.Portals, config.ServeLUNs, t.Groups)
	case sub != nil && len(c.LUNs) > 0:
		return nil, &mgmt.NotFoundError{What: fmt.Sprintf("%s is a subsystem of NVMe, and has no LUNs: name namespaces", sub.NQN)}
	case sub != nil:
		groups = portGroups(s.cfg.Portals, config.ServeNamespaces, nil)
	default:
		return nil, &mgmt.NotFoundError{What: fmt.Sprintf("there is no target or subsystem %s: target access lists them", c.Target)}
	}
	if !slices.Contains(groups, c.Group) {
		return nil, &mgmt.NotFoundError{What: fmt.Sprintf("the target %s is not reached through the group %d: its groups are %s", c.Target, c.Group, words(groups))}
	}
	if _, ok := access.ParseGroupState(c.State); !ok && c.State != "" {
		return nil, &mgmt.RequestError{Why: fmt.Sprintf("there is no access state %q", c.State)}
	}
	if t != nil {
		return s.concernedLUNs(t, c.LUNs)
	}
	return s.concernedSpaces(sub, c.NSIDs)
}

// concernedLUNs is concerned for LUNs of a target: these, or all.
func (s *Server) concernedLUNs(t *config.Target, only []uint16) (*concern, error) {
	found := new(concern)
	for i := range t.LUNs {
		l := &t.LUNs[i]
		if len(only) > 0 && !slices.Contains(only, l.Number) {
			continue
		}
		if tpgs[l.ALUA]&scsi.ALUAImplicit == 0 {
			return nil, fmt.Errorf("LUN %d of %s has alua: %s, so the administrator cannot set its access states: write alua: implicit or both at the LUN, and reload", l.Number, t.Name, l.ALUA)
		}
		found.add(s.units.stores[mediumOf(s.cfg, l)], func() []mgmt.Access { return s.accessOfLUN(t, l) })
	}
	for _, n := range only {
		if !slices.ContainsFunc(t.LUNs, func(l config.LUN) bool { return l.Number == n }) {
			return nil, &mgmt.NotFoundError{What: fmt.Sprintf("the target %s has no LUN %d: target access lists those that it has", t.Name, n)}
		}
	}
	return found, nil
}

// concernedSpaces is concerned for namespaces of a subsystem: these, or all.
func (s *Server) concernedSpaces(sub *config.Subsystem, only []uint32) (*concern, error) {
	found := new(concern)
	for i := range sub.Namespaces {
		n := &sub.Namespaces[i]
		if len(only) == 0 || slices.Contains(only, n.NSID) {
			found.add(s.units.stores[mediumOfSpace(s.cfg, n)], func() []mgmt.Access { return s.accessOfSpace(sub, n) })
		}
	}
	for _, id := range only {
		if !slices.ContainsFunc(sub.Namespaces, func(n config.Namespace) bool { return n.NSID == id }) {
			return nil, &mgmt.NotFoundError{What: fmt.Sprintf("the subsystem %s has no namespace %d: target access lists those that it has", sub.NQN, id)}
		}
	}
	return found, nil
}

// words returns numbers as text, with blanks between them.
func words(numbers []uint16) string { return strings.Trim(fmt.Sprint(numbers), "[]") }

// changeAccess applies a change, which concerned has checked, to a volume.
func changeAccess(v *volume.Volume, c *mgmt.AccessChange) error {
	g := v.Access().Chosen(c.Group) // not that of a node which does not serve a mirror: it will not be so when the node does
	if c.Preferred != nil {
		g.Preferred = *c.Preferred
	}
	if state, ok := access.ParseGroupState(c.State); ok {
		g.State = state
	}
	return v.Access().SetGroup(g)
}
