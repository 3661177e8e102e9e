package config

import (
	"fmt"
	"testing"

	"oneshot/nvme/auth"
)

// TestSubsystemOptions: what the text says of a subsystem, its namespaces and its hosts is what the configuration has; what it does not
// say has the default.
func TestSubsystemOptions(t *testing.T) {
	const own, common, controller = "DHHC-1:00:AQIDBAUGBwgJCgsMDQ4PEBESExQVFhcYGRobHB0eHyAl7OaH:", "DHHC-1:01:PzfkoanINrAhrdmD2w8017ocgDjIM3mYnMSVsfozJr8hBCGo:",
		"DHHC-1:00:AQIDBAUGBwgJCgsMDQ4PEBESExQVFhcYGRobHB0eHyAhIiMkJSYnKCkqKywtLi8wyg3Bcw==:"
	const one, another = "nqn.2026-11.example:one", "nqn.2026-11.example:another"
	c, err := Parse("x.yaml", fmt.Appendf(nil, `
stores: {a: {type: memory, size: 1MiB}, b: {type: memory, size: 1MiB}, r: {type: null, size: 1MiB}, f: {type: file, path: f, size: 1MiB, readonly: true}}
subsystems:
  - nqn: nqn.2026-11.example:full
    serial: S1
    cntlids: 7-9
    namespaces: {1: a, 5: {store: b, block_size: 4096, readonly: true, uuid: 3d0f9cf1-6a56-4c5e-8f0e-0f4f5f7c9a10}, 6: f}
    hosts: [{nqn: %q, auth: {dhchap_secret: %q}}, "nqn.2026-11.example:*"]
    auth: {dhchap_secret: %q, dhchap_ctrl_secret: %q, dhchap_hashes: [sha512], dhchap_groups: [ffdhe8192, ffdhe3072]}
  - {nqn: nqn.2026-11.example:plain, namespaces: {1: r}}
portals: [{transport: nvme-tcp, listen: 127.0.0.1, group: 3, advertise: 192.0.2.1}]
`, one, own, common, controller))
	if err != nil {
		t.Fatal(err)
	}
	full, plain := &c.Subsystems[0], &c.Subsystems[1]
	if full.Serial != "S1" || full.CNTLIDs != [2]uint16{7, 9} || plain.Serial != "" || plain.CNTLIDs != [2]uint16{} {
		t.Errorf("serial numbers %q, %q; controllers %v, %v", full.Serial, plain.Serial, full.CNTLIDs, plain.CNTLIDs)
	}
	for i, n := range full.Namespaces {
		n.Pos = Position{}
		want := []Namespace{
			{NSID: 1, Store: "a", BlockSize: 512},
			{NSID: 5, Store: "b", BlockSize: 4096, ReadOnly: true, UUID: [16]byte{0x3d, 0x0f, 0x9c, 0xf1, 0x6a, 0x56, 0x4c, 0x5e, 0x8f, 0x0e, 0x0f, 0x4f, 0x5f, 0x7c, 0x9a, 0x10}},
			{NSID: 6, Store: "f", BlockSize: 512, ReadOnly: true},
		}[i]
		if n != want {
			t.Errorf("%+v, want %+v", n, want)
		}
	}
	for name, admitted := range map[string]bool{one: true, another: true, "nqn.2026-11.other:x": false} {
		if full.Admits(name) != admitted || !plain.Admits(name) {
			t.Errorf("%s is admitted: %v, %v", name, full.Admits(name), plain.Admits(name))
		}
	}
	if plain.AuthOf(one) != nil {
		t.Error("a subsystem without auth asks for something")
	}
	for name, want := range map[string]struct {
		host, controller string
		rules            string
	}{
		one:     {own, "", "[] []"},
		another: {common, controller, fmt.Sprint([]auth.Hash{auth.SHA512}, []auth.Group{auth.FFDHE8192, auth.FFDHE3072})},
	} {
		a := full.AuthOf(name)
		if a == nil {
			t.Fatalf("%s has to prove nothing", name)
		}
		r, err := a.Rules()
		if err != nil {
			t.Fatal(err)
		}
		if got := fmt.Sprint(r.Hashes, r.Groups); got != want.rules || a.Host.text != want.host {
			t.Errorf("%s: %s, want %s", name, got, want.rules)
		}
		if (r.Controller == nil) != (want.controller == "") || r.Controller != nil && a.Controller.text != want.controller {
			t.Errorf("%s: the controller proves %v", name, r.Controller)
		}
	}
	if p := c.Portals[0]; p.Listen.Port() != 4420 || p.Group != 3 || p.Advertise != "192.0.2.1:4420" || p.Serve != ServeNamespaces {
		t.Errorf("%+v", p)
	}
}
