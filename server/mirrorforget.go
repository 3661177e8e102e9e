package server

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"oneshot/ha/quorum"
)

// A mirror is forgotten when consensus deletes the record of its store: nobody finds its views and reservations any more, because their names have its
// UUID. They are deleted afterwards, as nothing but their space is in it. A record that was deleted keeps its version, so what a node proposes that has
// not heard of it is refused. Nodes of former versions know records that were deleted, from target ha force.

// hasStore reports whether a node's configuration has a store of that name; what is not known may.
func hasStore(info *quorum.NodeInfo, name string) bool {
	return info == nil || slices.ContainsFunc(info.Parts, func(p quorum.Part) bool { return p.Name == "stores."+name })
}

// ForgetMirror implements mgmt.Clusterer.
func (s *Server) ForgetMirror(ctx context.Context, name string) error {
	n, err := s.memberNode()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, consensusTime)
	defer cancel()
	key := quorum.Key{Kind: quorum.KindStore, Name: name}
	r, err := n.Get(ctx, key) // what was agreed on before is known here then
	if err != nil {
		return noMajority(quorum.ErrUnknown)
	}
	k, err := s.member.knownMirror(name)
	if err != nil {
		return err
	}
	if r == nil {
		r = new(quorum.Record) // it was made just now, and that is a conflict
	}
	if err := s.member.isForsaken(ctx, k, s.local(name) != nil); err != nil {
		return err
	}
	switch err := n.Delete(ctx, key, r.Version); {
	case errors.Is(err, quorum.ErrConflict):
		return fmt.Errorf("nothing was changed: the mirror %s has changed meanwhile; look at target ha status, and try again", name)
	case err != nil:
		return noMajority(err)
	}
	s.member.log.Info("the cluster has forgotten a mirror", "mirror", name)
	set := k.SetName(name)
	for _, r := range slices.Concat(n.Records(quorum.KindSet), n.Records(quorum.KindUnit)) {
		if r.Name != set && !strings.HasPrefix(r.Name, set+" ") {
			continue
		}
		if err := n.Delete(ctx, r.Key, r.Version); err != nil {
			s.member.log.Warn("consensus keeps a record for which nobody will ask", "record", r.Name, "reason", err)
		}
	}
	return nil
}

// isForsaken refuses to forget a mirror that a node may serve: one whose configuration has it, as that node has said last. Of nodes that are away only
// those with a copy count. isOpen says that this node has a copy open. What a node has just said may not be known yet.
func (m *member) isForsaken(ctx context.Context, k *known, isOpen bool) error {
	var up, down []string
	look := func(s *quorum.Status) bool {
		up, down = nil, nil
		for _, o := range s.Members {
			info, isHeard, hasCopy := s.Infos[o.Name], slices.Contains(s.Heard, o.Number), slices.Contains(k.Copies, o.Name)
			if o.Name == m.name {
				info = m.info.Load()
			}
			switch {
			case o.Name == m.name && isOpen:
				up = append(up, o.Name)
			case !hasStore(info, k.name), info == nil && !hasCopy:
			case isHeard:
				up = append(up, o.Name)
			case hasCopy:
				down = append(down, o.Name)
			}
		}
		return len(up)+len(down) == 0
	}
	ctx, cancel := context.WithTimeout(ctx, goneTime)
	defer cancel()
	s, err := m.node.Await(ctx, look)
	if err == nil || look(&s) {
		return nil // or the node here ends, and finds that out by itself
	}
	var why []string
	if len(up) > 0 {
		why = append(why, fmt.Sprintf("the configuration of %s has it, as far as is known: take it out there, and reload", strings.Join(up, ", ")))
	}
	if len(down) > 0 {
		why = append(why, fmt.Sprintf("the configuration of %s had it when it was last heard: start such a node without it or, if it is lost for good, send it away first (target ha remove)", strings.Join(down, ", ")))
	}
	return fmt.Errorf("nothing was changed: a node may serve the mirror %s; %s", k.name, strings.Join(why, "; "))
}
