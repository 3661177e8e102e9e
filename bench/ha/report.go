package main

import (
	"fmt"
	"runtime"
	"strings"

	"oneshot/bench/harness"
)

const reportName = "ha"

func (r result) row(name string) *row {
	for i := range r.rows {
		if r.rows[i].contender == name {
			return &r.rows[i]
		}
	}
	return nil
}

// ratio is the row's IOPS in units of those of the store that is no mirror.
func ratio(r result, w row) string {
	if b := r.row(plain); b != nil {
		return harness.Ratio(w.IOPS, b.IOPS)
	}
	return harness.Ratio(w.IOPS, 0)
}

func calls(s spent) string {
	if s.calls < 0 {
		return "–"
	}
	return fmt.Sprintf("%.2f", s.calls)
}

func table(o harness.Options, results []result) string {
	var s strings.Builder
	fmt.Fprintf(&s, `# A mirror beside a file

Written by %s. Three daemons on the loopback interface: two with copies, and a witness, with TLS between them; one client, this
project's own, over iSCSI. Both stores are files of %s, of one directory, which the primary serves. *Write + flush* is WRITE with
FUA: on the disks of both nodes before the answer. Processor time, allocations of the heap and system calls are those of whole
processes, per I/O: of the primary, and of the other copy. What they do anyway, and connecting, are in them.

Measured on %s: Linux %s, %s, %d cores kept from halting; the primary pinned to core %d; the other copy, the witness and
the client to core %d; %d rounds of %g s per contender and point, interleaved, medians. Two machines would have more processors.

![IOPS relative to a file](%s)
`, "`make bench-ha`", diskText, harness.Today(), harness.Kernel(), runtime.Version(), runtime.NumCPU(), harness.TargetCore, harness.ClientCore, o.Rounds, o.Seconds, reportName+".svg")
	for _, r := range results {
		fmt.Fprintf(&s, "\n## %s\n\n| store | IOPS | lowest – highest | MB/s | × file | p50 µs | p99 µs | CPU µs client | primary | other copy | witness | allocations primary | other copy | system calls primary | other copy |\n", r.point)
		s.WriteString("| --- |" + strings.Repeat(" ---: |", 14) + "\n")
		for _, w := range r.rows {
			n := w.nodes
			fmt.Fprintf(&s, "| %s | %.0f | %.0f – %.0f | %.0f | %s | %.0f | %.0f | %.1f | %.1f | %.1f | %.1f | %.2f | %.2f | %s | %s |\n", w.contender, w.IOPS, w.low, w.high,
				r.point.MBs(w.IOPS), ratio(r, w), w.P50, w.P99, w.Initiator.CPU, n[0].cpu, n[1].cpu, n[2].cpu, n[0].allocs, n[1].allocs, calls(n[0]), calls(n[1]))
		}
	}
	return s.String()
}

var colours = []string{harness.Grey, harness.Blue}

// picture draws a group of bars for each point: IOPS relative to the store that is no mirror.
func picture(results []result) string {
	c := harness.Chart{
		Title: "Mirror: IOPS relative to a file", Width: 1000, Labels: 220, Bar: 14, Gap: 12, Scale: 500, Widest: 1.3, Ticks: harness.Percents(50, 100),
	}
	for i, k := range contenders {
		c.Legend = append(c.Legend, harness.Key{Name: k.name, Colour: colours[i]})
	}
	for _, r := range results {
		to := r.row(plain)
		if to == nil {
			continue
		}
		g := harness.Group{Label: r.point.String()}
		for i, k := range contenders {
			if w := r.row(k.name); w != nil {
				g.Bars = append(g.Bars, harness.Bar{Value: w.IOPS / to.IOPS, Colour: colours[i], Text: harness.Ratio(w.IOPS, to.IOPS)})
			}
		}
		c.Groups = append(c.Groups, g)
	}
	return c.SVG()
}
