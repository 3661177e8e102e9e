package server

import (
	"fmt"
	"slices"
	"strings"

	"oneshot/config"
	"oneshot/mgmt"
	"oneshot/scsi"
)

// Access implements mgmt.Target.
func (s *Server) Access() (list []mgmt.Access) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range s.cfg.Targets {
		t := &s.cfg.Targets[i]
		for j := range t.LUNs {
			list = append(list, s.accessOf(t, &t.LUNs[j])...)
		}
	}
	return list
}

// accessOf lists the portal groups of a LUN with their access states. mu is held.
func (s *Server) accessOf(t *config.Target, l *config.LUN) (list []mgmt.Access) {
	for _, tag := range portGroups(s.cfg.Portals, t.Groups) {
		g := s.unitOf(t, l).AccessState(tag)
		list = append(list, mgmt.Access{
			Target: t.Name, LUN: l.Number, Group: tag, Portals: s.portalsIn(tag),
			State: g.State.String(), Preferred: g.Preferred, ALUA: string(l.ALUA),
		})
	}
	return list
}

// unitOf returns the logical unit that a LUN of the current configuration shows. mu is held.
func (s *Server) unitOf(t *config.Target, l *config.LUN) *scsi.LogicalUnit {
	return s.units.made[keyOf(t, l, s.units.stores[mediumOf(s.cfg, l)])]
}

// portalsIn lists the portals of a group. mu is held.
func (s *Server) portalsIn(tag uint16) []mgmt.Portal {
	list := []mgmt.Portal{}
	for _, p := range s.portals {
		if p.config.Group == tag {
			list = append(list, mgmt.Portal{Transport: string(p.config.Transport), Address: p.Addr().String()})
		}
	}
	return list
}

// SetAccess implements mgmt.Target. Configurations are not applied meanwhile.
func (s *Server) SetAccess(c mgmt.AccessChange) ([]mgmt.Access, error) {
	select {
	case s.applying <- struct{}{}:
		defer func() { <-s.applying }()
	case <-s.ended:
		return nil, errClosing
	}
	s.mu.Lock()
	t, luns, err := s.concerned(&c)
	var units []*scsi.LogicalUnit
	for _, l := range luns {
		if lu := s.unitOf(t, l); !slices.Contains(units, lu) {
			units = append(units, lu)
		}
	}
	s.mu.Unlock() // writing the state to disk may take long
	if err != nil {
		return nil, err
	}
	for _, lu := range units {
		if err := changeAccess(lu, &c); err != nil {
			return nil, err
		}
	}
	s.log.Info("the administrator has set access states", "target", t.Name, "group", c.Group, "state", c.State, "luns", len(luns))
	s.mu.Lock()
	defer s.mu.Unlock()
	var list []mgmt.Access
	for _, l := range luns {
		list = append(list, s.accessOf(t, l)...)
	}
	return list, nil
}

// concerned returns the target and the LUNs that a change is about, or says why there are none. mu is held.
func (s *Server) concerned(c *mgmt.AccessChange) (*config.Target, []*config.LUN, error) {
	t := findTarget(s.cfg, c.Target)
	if t == nil {
		return nil, nil, &mgmt.NotFoundError{What: fmt.Sprintf("there is no target %s", c.Target)}
	}
	if groups := portGroups(s.cfg.Portals, t.Groups); !slices.Contains(groups, c.Group) {
		return nil, nil, &mgmt.NotFoundError{What: fmt.Sprintf("the target %s is not reached through the group %d: its groups are %s", t.Name, c.Group, words(groups))}
	}
	if _, ok := scsi.ParseAccessState(c.State); !ok && c.State != "" {
		return nil, nil, &mgmt.NotFoundError{What: fmt.Sprintf("there is no access state %q", c.State)}
	}
	var luns []*config.LUN
	for i := range t.LUNs {
		l := &t.LUNs[i]
		if len(c.LUNs) > 0 && !slices.Contains(c.LUNs, l.Number) {
			continue
		}
		if tpgs[l.ALUA]&scsi.ALUAImplicit == 0 {
			return nil, nil, fmt.Errorf("LUN %d of %s has alua: %s, so the administrator cannot set its access states: write alua: implicit or both at the LUN, and reload", l.Number, t.Name, l.ALUA)
		}
		luns = append(luns, l)
	}
	for _, n := range c.LUNs {
		if !slices.ContainsFunc(luns, func(l *config.LUN) bool { return l.Number == n }) {
			return nil, nil, &mgmt.NotFoundError{What: fmt.Sprintf("the target %s has no LUN %d", t.Name, n)}
		}
	}
	return t, luns, nil
}

// words returns numbers as text, with blanks between them.
func words(numbers []uint16) string { return strings.Trim(fmt.Sprint(numbers), "[]") }

// changeAccess applies a change, which concerned has checked, to a logical unit.
func changeAccess(lu *scsi.LogicalUnit, c *mgmt.AccessChange) error {
	now := lu.AccessState(c.Group)
	if c.Preferred != nil {
		now.Preferred = *c.Preferred
	}
	if s, ok := scsi.ParseAccessState(c.State); ok {
		now.State = s
	}
	return lu.SetAccessState(c.Group, now.State, now.Preferred)
}
