package config

import (
	"strings"
	"testing"
)

// How reads of a mirror are proven is said once, for all nodes; without a word each node looks at its own machine.
func TestMirrorReads(t *testing.T) {
	const text = `cluster: {name: lab, state: /s, nodes: {a: {address: 10.1.0.1}, b: {address: 10.1.0.2}, w: {address: 10.1.0.3, witness: true}}}
stores: {d: {type: mirror, size: 1GiB, READScopies: {a: {type: file, path: /a.img}, b: {type: file, path: /a.img}}}}
targets: [{iqn: "iqn.2026-11.example.oneshot:lab", luns: {0: d}}]
portals: [{node: a, listen: "10.1.0.1:3260", group: 1}, {node: b, listen: "10.1.0.2:3260", group: 2}]

`
	for said, want := range map[string]Reads{"": ReadsAuto, "reads: leased, ": ReadsLeased, "reads: confirmed, ": ReadsConfirmed} {
		c, err := Parse("t.yaml", []byte(strings.Replace(text, "READS", said, 1)))
		if err != nil {
			t.Fatal(err)
		}
		if got := c.Stores[0].Mirror.Reads; got != want {
			t.Errorf("%q: %v, want %v", said, got, want)
		}
	}
	if _, err := Parse("t.yaml", []byte(strings.Replace(text, "READS", "reads: fast, ", 1))); err == nil {
		t.Error("reads: fast is taken")
	}
}
