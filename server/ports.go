package server

import (
	"slices"

	"oneshot/config"
)

// setPorts tells the targets through which portal groups initiators reach them. Each group is a SCSI
// target port. mu is held.
func (s *Server) setPorts() {
	for i := range s.cfg.Targets {
		t := &s.cfg.Targets[i]
		tags := portGroups(s.cfg.Portals, config.ServeLUNs, t.Groups)
		if len(tags) == 0 {
			continue
		}
		for _, p := range s.cfg.Cluster.Others { // the first is one of this node
			if s.isReachedAt(t, &p) && !slices.Contains(tags, p.Group) {
				tags = append(tags, p.Group)
			}
		}
		s.targets[t.Name].SetPorts(tags)
	}
}

// isReachedAt reports whether a target of this node is reached through a portal of another one: whether it shows a mirror that
// has a copy there.
func (s *Server) isReachedAt(t *config.Target, p *config.Portal) bool {
	return (t.Groups == nil || slices.Contains(t.Groups, p.Group)) && slices.ContainsFunc(t.LUNs, func(l config.LUN) bool {
		m := s.cfg.Store(l.Store).Mirror
		return m != nil && m.Copy(p.Node) != nil
	})
}

// portGroups lists the groups of the portals that serve something: all of them, or those that are in only.
func portGroups(portals []config.Portal, serve config.Served, only []uint16) (tags []uint16) {
	for _, p := range portals {
		if p.Serve == serve && (only == nil || slices.Contains(only, p.Group)) && !slices.Contains(tags, p.Group) {
			tags = append(tags, p.Group)
		}
	}
	slices.Sort(tags)
	return tags
}
