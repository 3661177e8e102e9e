package main

import (
	"fmt"
	"runtime"
	"strings"

	"oneshot/bench/harness"
)

const reportName = "nvme"

// base is what a contender is compared with.
var base = map[string]string{iscsi: iscsi, nvme: iscsi, iscsiDigest: iscsiDigest, nvmeDigest: iscsiDigest}

func (r result) row(name string) *row {
	for i := range r.rows {
		if r.rows[i].contender == name {
			return &r.rows[i]
		}
	}
	return nil
}

func ratio(r result, w row) string {
	if b := r.row(base[w.contender]); b != nil {
		return harness.Ratio(w.IOPS, b.IOPS)
	}
	return harness.Ratio(w.IOPS, 0)
}

func table(o harness.Options, results []result) string {
	var s strings.Builder
	fmt.Fprintf(&s, `# NVMe/TCP beside iSCSI

Written by %s. One daemon, a memory disk of %s for each protocol, one client: this project's own over both, on the loopback
interface. *4 sessions* are four sessions of iSCSI, and four I/O queues of one controller: four connections either way. CPU is that
of the whole process, connecting included; so are the allocations of the daemon's heap. The last digits of small ones are noise.

Measured on %s: Linux %s, %s, %d cores kept from halting; target pinned to core %d, client to core %d; %d rounds
of %g s per contender and point, interleaved, medians.

![IOPS relative to iSCSI](%s)
`, "`make bench-nvme`", diskText, harness.Today(), harness.Kernel(), runtime.Version(), runtime.NumCPU(), harness.TargetCore, harness.ClientCore, o.Rounds, o.Seconds, reportName+".svg")
	for _, r := range results {
		fmt.Fprintf(&s, "\n## %s\n\n| protocol | IOPS | lowest – highest | MB/s | × iSCSI | p50 µs | p99 µs | CPU µs client | target | system calls of the client | allocations of the target |\n", r.point)
		s.WriteString("| --- |" + strings.Repeat(" ---: |", 10) + "\n")
		for _, w := range r.rows {
			fmt.Fprintf(&s, "| %s | %.0f | %.0f – %.0f | %.0f | %s | %.0f | %.0f | %.2f | %.2f | %.2f | %.3f |\n", w.contender, w.IOPS, w.low, w.high,
				r.point.MBs(w.IOPS), ratio(r, w), w.P50, w.P99, w.Initiator.CPU, w.targetCPU, w.Initiator.Crossings, w.allocs)
		}
	}
	return s.String()
}

var colours = []string{harness.Grey, harness.Blue, harness.Yellow, harness.Green}

// picture draws a group of bars for each point: IOPS relative to iSCSI.
func picture(results []result) string {
	c := harness.Chart{
		Title: "NVMe/TCP: IOPS relative to iSCSI", Width: 1000, Labels: 220, Bar: 12, Gap: 12, Scale: 325, Widest: 1.9, Ticks: harness.Percents(50, 150),
	}
	for i, k := range contenders {
		c.Legend = append(c.Legend, harness.Key{Name: k.name, Colour: colours[i]})
	}
	for _, r := range results {
		to := r.row(iscsi)
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
