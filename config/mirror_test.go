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

// How many copies a write takes is 1 unless more are asked for, and at most as many as there are.
func TestMirrorMinCopies(t *testing.T) {
	const text = `cluster: {name: lab, state: /s, nodes: {a: {address: 10.1.0.1}, b: {address: 10.1.0.2}, w: {address: 10.1.0.3, witness: true}}}
stores: {d: {type: mirror, size: 1GiB, LEASTcopies: {a: {type: file, path: /a.img}, b: {type: file, path: /a.img}}}}
targets: [{iqn: "iqn.2026-11.example.oneshot:lab", luns: {0: d}}]
portals: [{node: a, listen: "10.1.0.1:3260", group: 1}, {node: b, listen: "10.1.0.2:3260", group: 2}]
`
	for said, want := range map[string]int{"": 1, "min_copies: 1, ": 1, "min_copies: 2, ": 2, "min_copies: 0, ": 0, "min_copies: 3, ": 0, "min_copies: -1, ": 0} {
		c, err := Parse("t.yaml", []byte(strings.Replace(text, "LEAST", said, 1)))
		switch {
		case want == 0 && (err == nil || !strings.Contains(err.Error(), "t.yaml:2:") || !strings.Contains(err.Error(), "from 1 to 2")):
			t.Errorf("%q: %v", said, err)
		case want != 0 && (err != nil || c.Stores[0].Mirror.MinCopies != want):
			t.Errorf("%q: %v", said, err)
		}
	}
}

// Copies are brought level as fast as can be, or at a rate, and no slower than at another one.
func TestMirrorResync(t *testing.T) {
	const text = `cluster: {name: lab, state: /s, nodes: {a: {address: 10.1.0.1}, b: {address: 10.1.0.2}, w: {address: 10.1.0.3, witness: true}}}
stores: {d: {type: mirror, size: 1GiB, PACEcopies: {a: {type: file, path: /a.img}, b: {type: file, path: /a.img}}}}
targets: [{iqn: "iqn.2026-11.example.oneshot:lab", luns: {0: d}}]
portals: [{node: a, listen: "10.1.0.1:3260", group: 1}, {node: b, listen: "10.1.0.2:3260", group: 2}]
`
	for said, want := range map[string]Resync{
		"":                                      {0, 20 << 20},
		"resync: {}, ":                          {0, 20 << 20},
		"resync: {min: 1MiB/s}, ":               {0, 1 << 20},
		"resync: {rate: auto}, ":                {0, 20 << 20},
		"resync: {rate: 100MiB/s}, ":            {100 << 20, 20 << 20},
		"resync: {rate: 10MiB}, ":               {10 << 20, 10 << 20},
		"resync: {rate: 2, min: 3}, ":           {},
		"resync: {min: 0}, ":                    {},
		"resync: {min: fast}, ":                 {},
		"resync: {speed: 20MiB/s}, ":            {},
		"resync: 20MiB/s, ":                     {},
		"resync: {rate: 20MiB/min}, ":           {},
		"resync: {rate: 1MiB/s, min: 2MiB/s}, ": {},
		"resync: {min: 2MiB/s, rate: 2MiB/s}, ": {2 << 20, 2 << 20},
	} {
		c, err := Parse("t.yaml", []byte(strings.Replace(text, "PACE", said, 1)))
		switch {
		case want == Resync{}:
			if err == nil || !strings.Contains(err.Error(), "t.yaml:2:") {
				t.Errorf("%q: %v", said, err)
			}
		case err != nil || c.Stores[0].Mirror.Resync != want:
			t.Errorf("%q: %v", said, err)
		}
	}
}
