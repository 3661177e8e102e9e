package iscsi

import (
	"strconv"

	"oneshot/iscsi/login"
	"oneshot/iscsi/pdu"
	"oneshot/iscsi/text"
)

// directory shows the node's targets to one login.
type directory Node

var _ login.Directory = (*directory)(nil)

// Find implements login.Directory.
func (d *directory) Find(name, initiator string) (*login.Target, pdu.LoginStatus) {
	t := (*Node)(d).target(name)
	switch {
	case t == nil:
		return nil, pdu.LoginNotFound
	case !t.admits(initiator):
		return nil, pdu.LoginAuthorizationFailure
	}
	return &login.Target{Name: t.Name, Alias: t.Alias, TPGT: t.TPGT, CHAP: t.Auth.CHAP, Mutual: t.Auth.Mutual}, pdu.LoginSuccess
}

// Discovery implements login.Directory.
func (d *directory) Discovery() *login.Target {
	auth := d.limits.Load().Discovery
	return &login.Target{CHAP: auth.CHAP, Mutual: auth.Mutual}
}

// sendTargets returns the records for SendTargets (RFC 7143 appendix C): all targets that
// the initiator may use, or the one of that name, or, in a normal session, the session's.
// Each is reached at the address at which the initiator reached this connection.
func (c *Conn) sendTargets(name string, all bool) []text.Pair {
	var records []text.Pair
	c.node.mu.Lock()
	defer c.node.mu.Unlock()
	for _, t := range c.node.targets {
		switch {
		case !t.admits(c.sess.Initiator):
		case all, c.sess.Discovery && t.Name == name, t.same(c.sess.Target) && (name == "" || t.Name == name):
			records = append(records,
				text.Pair{Key: "TargetName", Value: t.Name},
				text.Pair{Key: "TargetAddress", Value: c.mover.Local() + "," + strconv.Itoa(int(t.TPGT))})
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
	c.mover.Enable(c.sess.Params) // MaxRecvDataSegmentLength may have changed
}
