package server

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"oneshot/ha/front"
)

// A primary whose interface for the addresses that go with its mirror has no link is reached by no host there. If no address goes with the mirror, that is so of one
// without a link at any of the addresses of its portals. It hands over to a node that has one, if there
// is such a node: whom it cannot ask counts as none. Losses behind the link nobody notices here.

const (
	// carrierLook is the time between two looks at the link of a primary, and carrierFor is how long that is missing before the node hands over.
	carrierLook = 250 * time.Millisecond
	carrierFor  = 500 * time.Millisecond
	// carrierRest is the time between two attempts. When the link has been missing for that long a node will do that shows hosts something else: here they see nothing.
	// Before that it may come back at once, and hosts would see the other thing for good.
	carrierRest = 5 * time.Second
)

// unlinked lists interfaces without a link by which hosts would reach the mirror here. Empty: they may reach it.
func (m *moving) unlinked() (names []string) {
	list := m.addresses()
	if len(list) == 0 {
		return m.s.member.unlinked()
	}
	seen := map[string]bool{}
	for _, a := range list {
		if seen[a.Interface] {
			continue
		}
		seen[a.Interface] = true
		if has, err := a.HasCarrier(); !has || err != nil {
			names = append(names, a.Interface)
		}
	}
	return names
}

// unlinked lists the interfaces at which this node listens for hosts, if none of them has a link. By which one hosts reach a portal that listens at all addresses, or
// at one that no interface has, is not known.
func (m *member) unlinked() (names []string) {
	for _, p := range *m.own.Load() {
		name, err := front.Unlinked(p.Listen.Addr())
		if name == "" || err != nil {
			return nil
		}
		if !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names
}

// watchCarrier hands over when this node serves, and has no link, until the mirror's ctx ends.
func (m *moving) watchCarrier() {
	look := time.NewTicker(carrierLook)
	defer look.Stop()
	since, next := time.Duration(-1), time.Duration(0) // that there is none; less than 0: there is one
	for {
		select {
		case <-m.s.ctx.Done():
			return
		case <-look.C:
		}
		now := front.Now()
		if m.s.Term() == 0 {
			since = -1
			continue
		}
		names := m.unlinked()
		switch {
		case len(names) == 0:
			since = -1
		case since < 0:
			since = now
		case now-since >= carrierFor && now >= next:
			next = now + carrierRest
			if !m.leaveUnlinked(names, false) && now-since >= carrierRest {
				m.leaveUnlinked(names, true)
			}
		}
	}
}

// leaveUnlinked hands over to a node that has a link, and reports whether it has. anyway is that of switchTo.
func (m *moving) leaveUnlinked(names []string, anyway bool) bool {
	st, ok := m.s.Status()
	if !ok {
		return false
	}
	log := m.s.log.With("mirror", m.s.name, "interfaces", strings.Join(names, ", "))
	var why []error
	for id := range m.s.ready(&st, m.s.member).All() {
		to := m.s.nodeName(id)
		err := m.leaveTo(to, anyway)
		if err == nil {
			log.Warn("the interface by which hosts reach a mirror has no link, so another node serves it", "node", to)
			return true
		}
		why = append(why, err)
	}
	if len(why) == 0 {
		why = append(why, errors.New("no other copy is in sync, and its node fit to serve"))
	}
	if _, ok := m.cut.Pass(time.Minute); ok {
		log.Error("the interface by which hosts reach a mirror has no link, and no other node can serve it now", "reason", errors.Join(why...))
	}
	return false
}

// leaveTo hands over to a node, if that has a link.
func (m *moving) leaveTo(node string, anyway bool) error {
	ctx, cancel := context.WithTimeout(m.s.ctx, consensusTime)
	defer cancel()
	c := m.s.member.peer(node)
	defer c.Close()
	if err := c.HasCarrier(ctx, m.s.name); err != nil {
		return err
	}
	_, err := m.s.switchTo(m.s.ctx, node, m.s.member, anyway)
	return err
}

// HasCarrier implements mgmt.Peer.
func (h here) HasCarrier(name string) error {
	m := h.local(name)
	if m == nil {
		return fmt.Errorf("node %s has no copy of %s open", h.member.name, name)
	}
	if names := m.front.unlinked(); len(names) > 0 {
		return fmt.Errorf("%s of node %s has no link", strings.Join(names, ", "), h.member.name)
	}
	return nil
}
