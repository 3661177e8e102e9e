package main

import (
	"slices"
	"strings"
	"testing"

	"oneshot/initiator/load"
)

// Measured crossings stand beside those of the figures of the source: per end, each way, and in all.
func TestFiguresArePrinted(t *testing.T) {
	both := &load.Result{
		Initiator: load.End{Crossings: 2.06, CrossingsOut: 1, CrossingsIn: 1.06},
		Target:    &load.End{Crossings: 5, CrossingsOut: 2, CrossingsIn: 3},
	}
	alone := &load.Result{Initiator: both.Initiator}
	for _, c := range []struct {
		name        string
		r           *load.Result
		rdma, write bool
		want        []string // rows, in their order; nil: no table
	}{
		{"write", both, true, true, []string{
			"crossings per I/O | initiator out | in | both | target out | in | both | in all",
			"measured | 1.00 | 1.06 | 2.06 | 2.00 | 3.00 | 5.00 | 7.06",
			"FIG 2, iSCSI offload | 1 | 1 | 2 | 2 | 2 | 4 | 6",
			"FIG 3, RDMA | 5 | 5 | 10 | 2 | 2 | 4 | 14",
			"FIG 3, no windows | 3 | 3 | 6 | 2 | 2 | 4 | 10",
			"FIG 4, one-shot | 1 | 1 | 2 | 2 | 2 | 4 | 6",
		}},
		{"read", both, true, false, []string{
			"measured | 1.00 | 1.06 | 2.06 | 2.00 | 3.00 | 5.00 | 7.06",
			"FIG 3, RDMA | 5 | 5 | 10 | 1 | 1 | 2 | 12",
			"FIG 4, one-shot | 1 | 1 | 2 | 1 | 1 | 2 | 4",
		}},
		{"a target that does not tell", alone, true, true, []string{"measured | 1.00 | 1.06 | 2.06 | ? | ? | ? | ?", "FIG 4, one-shot | 1 | 1 | 2 | 2 | 2 | 4 | 6"}},
		{"TCP", both, false, true, nil},
	} {
		var out strings.Builder
		if err := show(&out, c.r, c.rdma, c.write); err != nil {
			t.Fatal(err)
		}
		var rows []string
		for line := range strings.Lines(out.String()) {
			var cells []string
			for cell := range strings.SplitSeq(line, "  ") { // columns are two blanks apart, or more
				if cell = strings.TrimSpace(cell); cell != "" {
					cells = append(cells, cell)
				}
			}
			rows = append(rows, strings.Join(cells, " | "))
		}
		at := 0
		for _, want := range c.want {
			i := slices.Index(rows[at:], want)
			if i < 0 {
				t.Fatalf("%s: no row %q behind the one before in\n%s", c.name, want, out.String())
			}
			at += i
		}
		if c.want == nil && strings.Contains(out.String(), "FIG") {
			t.Errorf("%s: figures of RDMA\n%s", c.name, out.String())
		}
	}
}
