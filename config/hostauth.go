package config

import (
	"fmt"
	"slices"

	"github.com/goccy/go-yaml/ast"

	"oneshot/nvme/auth"
)

// Host is a rule for the hosts that match its pattern.
type Host struct {
	NQN  HostPattern
	Pos  Position
	Auth *HostAuth // nil: that of the subsystem
}

// HostAuth says which side has to prove its identity by DH-HMAC-CHAP, and how.
type HostAuth struct {
	Host       Secret  // that the host proves to know, in the form of nvme-cli
	Controller *Secret // that the controller proves to know; nil: it cannot; differs from Host
	Hashes     []string
	Groups     []string
}

// Rules are what the host and the controller prove to each other. HostAuth is checked, so that there is no error but a mistake of the
// caller's.
func (a *HostAuth) Rules() (*auth.Rules, error) {
	host, err := auth.ParseSecret(a.Host.text)
	if err != nil {
		return nil, err
	}
	r := &auth.Rules{Host: &host}
	if a.Controller != nil {
		controller, err := auth.ParseSecret(a.Controller.text)
		if err != nil {
			return nil, err
		}
		r.Controller = &controller
	}
	// The best come first, in whatever order they are written.
	for _, h := range auth.Hashes {
		if slices.Contains(a.Hashes, h.String()) {
			r.Hashes = append(r.Hashes, h)
		}
	}
	for _, g := range auth.Groups {
		if slices.Contains(a.Groups, g.String()) {
			r.Groups = append(r.Groups, g)
		}
	}
	return r, nil
}

// Rule returns the first rule that matches the host of that NQN, or nil.
func (s *Subsystem) Rule(nqn string) *Host {
	i := slices.IndexFunc(s.Hosts, func(h Host) bool { return h.NQN.Match(nqn) })
	if i < 0 {
		return nil
	}
	return &s.Hosts[i]
}

// Admits reports whether the host of that NQN may connect.
func (s *Subsystem) Admits(nqn string) bool { return len(s.Hosts) == 0 || s.Rule(nqn) != nil }

// AuthOf says what the host of that NQN has to prove; nil: nothing.
func (s *Subsystem) AuthOf(nqn string) *HostAuth {
	if h := s.Rule(nqn); h != nil && h.Auth != nil {
		return h.Auth
	}
	return s.Auth
}

func (d *decoder) hosts(v value) []Host {
	if isEmptyList(v) {
		d.warnf(v.at, "an empty list of hosts lets every host in: name those you mean, or remove the key to say that you mean all")
	}
	var rules []Host
	c := covered{d: d}
	for _, item := range v.list("hosts") {
		if h, ok := d.host(item); ok {
			rules = append(rules, h)
			c.add(string(h.NQN), h.Pos)
		}
	}
	return rules
}

// host reads a pattern, or {nqn: PATTERN, auth: …}.
func (d *decoder) host(v value) (Host, bool) {
	h := Host{Pos: v.pos()}
	switch v.node.(type) {
	case *ast.MappingNode, *ast.MappingValueNode:
	default:
		return h, set(v, &h.NQN, "an NQN", parseHost)
	}
	o := d.object(v.node, "a host")
	if o == nil {
		return h, false
	}
	if !o.has("nqn") {
		d.errorf(o.pos, "the rule is for no host: add nqn: and an NQN in quotation marks, or a pattern with an asterisk")
	}
	ok := set(o.take("nqn"), &h.NQN, "an NQN", parseHost)
	h.Auth = d.hostAuth(o.take("auth"))
	o.done()
	return h, ok
}

// hostAuth returns nil if v is not given or wrong.
func (d *decoder) hostAuth(v value) *HostAuth {
	if !v.given() {
		return nil
	}
	o := d.object(v.node, "auth of hosts")
	if o == nil {
		return nil
	}
	var a HostAuth
	host, controller := o.take("dhchap_secret"), o.take("dhchap_ctrl_secret")
	secret, ok := d.dhchapSecret(host)
	a.Host = secret
	if c, given := d.dhchapSecret(controller); given {
		a.Controller = &c
	}
	a.Hashes = namesOf(o.take("dhchap_hashes"), "hash functions", auth.Hashes)
	a.Groups = namesOf(o.take("dhchap_groups"), "DH groups", auth.Groups)
	o.done()
	switch {
	case !o.has("dhchap_secret"):
		d.errorf(v.at, "auth has no dhchap_secret, which hosts prove to know: add one (nvme gen-dhchap-key prints one), or remove auth")
	case ok && a.Controller != nil && a.Host == *a.Controller:
		d.errorf(controller.at, "host and controller have the same secret: choose two, for with one each could pretend to be the other")
	case ok:
		return &a
	}
	return nil
}

func (d *decoder) dhchapSecret(v value) (Secret, bool) {
	text, ok := d.secretText(v)
	if !ok {
		return Secret{}, false
	}
	if _, err := auth.ParseSecret(text); err != nil {
		v.errorf("%v", err)
		return Secret{}, false
	}
	return Secret{text}, true
}

// namesOf reads a list of some of those that there are.
func namesOf[T fmt.Stringer](v value, what string, all []T) []string {
	if !v.given() {
		return nil
	}
	var names, known []string
	for _, x := range all {
		known = append(known, x.String())
	}
	for _, item := range v.list(what) {
		var name string
		switch {
		case !set(item, &name, "a word", oneOf(known...)):
		case slices.Contains(names, name):
			item.errorf("%s is there twice: remove one of the two", name)
		default:
			names = append(names, name)
		}
	}
	if isEmptyList(v) {
		v.errorf("an empty list allows none: name some, or remove the key")
	}
	return names
}
