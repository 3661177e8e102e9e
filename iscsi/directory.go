package iscsi

import (
	"slices"
	"strconv"

	"oneshot/iscsi/login"
	"oneshot/iscsi/pdu"
	"oneshot/iscsi/text"
)

// directory shows the node's targets to the login of one connection.
type directory struct {
	node  *Node
	group uint16 // of the portal that the connection came through
}

var _ login.Directory = directory{}

// Find implements login.Directory.
func (d directory) Find(name, initiator string) (*login.Target, pdu.LoginStatus) {
	t := d.node.target(name)
	switch {
	case t == nil || !t.in(d.group):
		return nil, pdu.LoginNotFound
	case t.Changing:
		return nil, pdu.LoginServiceUnavailable
	case !t.admits(initiator):
		return nil, pdu.LoginAuthorizationFailure
	case t.Moved != "" && t.Permanently:
		return &login.Target{Moved: t.Moved}, pdu.LoginTargetMovedPermanently
	case t.Moved != "":
		return &login.Target{Moved: t.Moved}, pdu.LoginTargetMovedTemporarily
	}
	auth := t.Auth
	if r := t.rule(initiator); r != nil && r.Auth != nil {
		auth = *r.Auth
	}
	return &login.Target{Name: t.Name, Alias: t.Alias, TPGT: d.group, CHAP: auth.CHAP, Mutual: auth.Mutual}, pdu.LoginSuccess
}

// Discovery implements login.Directory.
func (d directory) Discovery() *login.Target {
	auth := d.node.limits.Load().Discovery
	return &login.Target{CHAP: auth.CHAP, Mutual: auth.Mutual}
}

// groupOf returns the tag of the portal that a connection came through, by its local address, and the portal if it moves.
func (n *Node) groupOf(local, transport string) (group uint16, moves *Portal) {
	n.mu.Lock()
	defer n.mu.Unlock()
	group = defaultGroup
	for i := range n.portals {
		p := &n.portals[i]
		if p.Transport != transport || p.Elsewhere != "" {
			continue
		}
		if at, exact := p.Reached(local); exact && at == local {
			if p.Moves {
				moves = p
			}
			return p.Group, moves
		} else if at == local {
			group = p.Group
		}
	}
	return group, nil
}

// sendTargets returns the records for SendTargets (RFC 7143 appendix C): all targets that
// the initiator may use, or the one of that name, or, in a normal session, the session's.
func (c *Conn) sendTargets(name string, all bool) login.Records {
	n := c.node
	n.mu.Lock()
	targets, portals := n.targets, n.portals // their elements never change
	n.mu.Unlock()
	return func(b []byte) ([]byte, bool) {
		for len(targets) > 0 {
			t := targets[0]
			targets = targets[1:]
			switch {
			case !t.admits(c.sess.Initiator):
			case all, c.sess.Discovery && t.Name == name, t.same(c.sess.Target) && (name == "" || t.Name == name):
				addresses := c.addresses(t, portals)
				if len(addresses) == 0 {
					continue // it is reached over another kind of transport
				}
				b = text.Append(b, "TargetName", t.Name)
				for _, a := range addresses {
					b = text.Append(b, a.Key, a.Value)
				}
				return b, true
			}
		}
		return b, false
	}
}

// addresses lists where t is reached, over transports like this connection's: first where
// this connection came in, if t is reached there.
func (c *Conn) addresses(t *Target, portals []Portal) (records []text.Pair) {
	local := c.mover.Local()
	add := func(address string, group uint16) {
		records = append(records, text.Pair{Key: "TargetAddress", Value: address + "," + strconv.Itoa(int(group))})
	}
	own := local // of the portal that the connection came through
	for _, p := range portals {
		if p.Elsewhere != "" {
			continue
		}
		if at, _ := p.Reached(local); at == local && p.RDMA == c.rdma && p.Group == c.group {
			own = p.told(local)
			break
		}
	}
	if t.in(c.group) {
		add(own, c.group)
	}
	for _, p := range portals {
		if p.Elsewhere != "" && !slices.Contains(p.Targets, t.Name) {
			continue
		}
		if at := p.told(local); p.RDMA == c.rdma && t.in(p.Group) && at != "" && at != own {
			add(at, p.Group)
		}
	}
	return records
}

// textRequest answers a Text Request (RFC 7143 §11.10).
func (c *Conn) textRequest(h pdu.TextRequest, data []byte) {
	r, answer, reject := c.text.Step(h, data)
	if reject != 0 {
		c.reject(h.Header, reject)
		return
	}
	r.Sequence = c.Status()
	c.send(&r, answer)
	c.mover.Enable(&c.Params, c.MaxIn) // MaxRecvDataSegmentLength may have changed
}
