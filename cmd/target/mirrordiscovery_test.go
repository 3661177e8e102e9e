//go:build !race

package main

import (
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"oneshot/initiator"
	nvmehost "oneshot/initiator/host"
	"oneshot/nvme"
)

// TestMirrorDiscovery: one discovery, at any node, finds the paths through all of them, with the portal groups that REPORT TARGET PORT
// GROUPS tells of. A node that listens at all addresses is told of by the address that it advertises, or not at all.
func TestMirrorDiscovery(t *testing.T) {
	s := newSiteOf(t, strings.NewReplacer(
		"stores:\n", "stores:\n  own: {node: a, type: memory, size: 1MiB}\n",
		"targets:\n", "targets:\n  - {node: a, iqn: \"iqn.2026-11.example.oneshot:own\", luns: {0: own}}\n",
	).Replace(mirrorText))
	s.startAll()
	s.level("a")
	s.level("b")
	path := func(i, group int) string { return fmt.Sprintf("%s,%d", s.at[i], group) }
	finds := func(i int, want ...string) {
		t.Helper()
		u, err := initiator.ParseURL("iscsi://" + s.at[i])
		if err != nil {
			t.Fatal(err)
		}
		targets, err := initiator.Discover(t.Context(), u, initiator.Options{})
		if err != nil {
			t.Fatal(err)
		}
		got := map[string][]string{}
		for _, found := range targets {
			for _, p := range found.Portals {
				got[found.Name] = append(got[found.Name], p.Address+","+p.TPGT)
			}
		}
		all := map[string][]string{"iqn.2026-11.example.oneshot:lab": want}
		if i == 3 { // a target of node a alone is not reached through the others
			all["iqn.2026-11.example.oneshot:own"] = []string{path(3, 1)}
		}
		if diff := cmp.Diff(all, got); diff != "" {
			t.Errorf("at node %s: %s", s.at[i], diff)
		}
	}
	finds(3, path(3, 1), path(4, 2))
	finds(4, path(4, 2), path(3, 1))

	u, err := initiator.ParseURL("iscsi://" + s.at[4] + "/iqn.2026-11.example.oneshot:lab/0")
	if err != nil {
		t.Fatal(err)
	}
	session, err := initiator.Dial(t.Context(), u, initiator.Options{})
	if err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 255)
	c := &initiator.Command{CDB: []byte{0xa3, 0x0a, 9: 255, 11: 0}, In: b, Attentions: 8}
	if err := session.Do(t.Context(), c); err != nil || c.Status != initiator.StatusGood {
		t.Fatalf("REPORT TARGET PORT GROUPS: %v, status %#x", err, c.Status)
	}
	groups := []uint16{}
	for at, end := 4, 4+int(binary.BigEndian.Uint32(b)); at < end; at += 8 + 4*int(b[at+7]) {
		groups = append(groups, binary.BigEndian.Uint16(b[at+2:]))
	}
	if !slices.Equal(groups, []uint16{1, 2}) {
		t.Errorf("groups %v", groups)
	}
	if err := session.Close(); err != nil {
		t.Error(err)
	}

	// What a reload changes of another node's portals.
	b2 := fmt.Sprintf("{node: b, listen: %q, group: 2}", s.at[4])
	everywhere := ":" + s.at[4][strings.LastIndex(s.at[4], ":")+1:]
	for _, x := range []struct {
		portal string
		want   []string
	}{
		{fmt.Sprintf("{node: b, listen: %q, group: 2}", everywhere), []string{path(3, 1)}},
		{fmt.Sprintf("{node: b, listen: %q, group: 2, advertise: \"b.example.com:3260\"}", everywhere), []string{path(3, 1), "b.example.com:3260,2"}},
	} {
		if !strings.Contains(s.text, b2) {
			t.Fatal("the text has another portal")
		}
		s.write("a", strings.Replace(s.text, b2, x.portal, 1))
		s.must(s.asked("a", "reload")...)
		finds(3, x.want...)
	}
}

// TestMirrorDiscoveryOfHosts is TestMirrorDiscovery for hosts of NVMe: the log of each node has the portals of both, and only those
// where a subsystem is reached that admits the host.
func TestMirrorDiscoveryOfHosts(t *testing.T) {
	const hidden = "nqn.2026-11.example.oneshot:hidden"
	s := newSiteOf(t, strings.NewReplacer(
		"stores:\n", "stores:\n  own: {node: a, type: memory, size: 1MiB}\n",
		"subsystems:\n", "subsystems:\n  - {node: a, nqn: \"nqn.2026-11.example.oneshot:own\", namespaces: {1: own}}\n"+
			"  - {nqn: \""+hidden+"\", namespaces: {1: disk}, hosts: [\"nqn.2026-11.example:other\"]}\n",
	).Replace(mirrorNVMeText))
	s.startAll()
	s.level("a")
	finds := func(i int, host string, want ...string) {
		t.Helper()
		list, err := nvmehost.Discover(t.Context(), nvmehost.URL{Address: s.at[i]}, nvmehost.Options{HostNQN: host})
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, e := range list {
			if e.Transport != nvme.TransportTCP {
				t.Errorf("transport %d", e.Transport)
			}
			got = append(got, fmt.Sprintf("%d %s:%s %s", e.Type, e.Address, e.Service, e.SubNQN[strings.LastIndex(e.SubNQN, ":")+1:]))
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("at %s: %s", s.at[i], diff)
		}
	}
	const host = "nqn.2026-11.example:host"
	current := func(i int) string { return "3 " + s.at[i] + " " + nvme.DiscoveryNQN }
	a, b := "2 "+s.at[3]+" lab", "2 "+s.at[4]+" lab"
	finds(3, host, current(3), "2 "+s.at[3]+" own", a, b)
	finds(4, host, current(4), b, a)
	finds(4, "nqn.2026-11.example:other", current(4), "2 "+s.at[4]+" hidden", b, "2 "+s.at[3]+" hidden", a)

	// What a reload changes of another node's portals.
	text := fmt.Sprintf("{node: b, transport: nvme-tcp, listen: %q}", s.at[4])
	if !strings.Contains(s.text, text) {
		t.Fatal("the text has another portal")
	}
	everywhere := s.at[4][strings.LastIndex(s.at[4], ":"):]
	for portal, want := range map[string][]string{
		fmt.Sprintf("{node: b, transport: nvme-tcp, listen: %q}", everywhere):                                {current(3), "2 " + s.at[3] + " own", a},
		fmt.Sprintf("{node: b, transport: nvme-tcp, listen: %q, advertise: \"192.0.2.2:4421\"}", everywhere): {current(3), "2 " + s.at[3] + " own", a, "2 192.0.2.2:4421 lab"},
	} {
		s.write("a", strings.Replace(s.text, text, portal, 1))
		s.must(s.asked("a", "reload")...)
		finds(3, host, want...)
	}
	s.stopAll()
}
