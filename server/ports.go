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
		for _, g := range s.cfg.Cluster.Groups { // the first is one of this node
			if s.showsMirror(t) && (t.Groups == nil || slices.Contains(t.Groups, g.Group)) && !slices.Contains(tags, g.Group) {
				tags = append(tags, g.Group)
			}
		}
		s.targets[t.Name].SetPorts(tags)
	}
}

// showsMirror reports whether other nodes serve the target as well.
func (s *Server) showsMirror(t *config.Target) bool {
	return slices.ContainsFunc(t.LUNs, func(l config.LUN) bool { return s.cfg.Store(l.Store).Mirror != nil })
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
