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
		if tags := portGroups(s.cfg.Portals, config.ServeLUNs, t.Groups); len(tags) > 0 {
			s.targets[t.Name].SetPorts(tags)
		}
	}
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
