package main

import (
	"fmt"
	"runtime"
	"strings"

	"oneshot/bench/harness"
)

const reportName = "rdma"

func writeReport(o harness.Options, results []result) error {
	return o.WriteReport(reportName, table(o, results), picture(results))
}

// source holds the crossings per command at the initiator, as the source of one-shot RDMA counts them
// (docs/protocols/one-shot.md §7).
var source = map[string]int{conventional: 10, registered: 6, oneShot: 2}

// sourceTarget returns the source's count at the target. The data of a read is posted together with the answer.
func sourceTarget(write bool) int {
	if write {
		return 4
	}
	return 2
}

func table(o harness.Options, results []result) string {
	var s strings.Builder
	fmt.Fprintf(&s, `# The flows of RDMA side by side

Written by %s. One daemon, one memory disk of %s, one client: this project's initiator, over its own
iWARP in user space, on the loopback interface. *Conventional* registers memory for each command, binds a
window, sends, unbinds and frees, each step after the one before; *registered* does so without a window;
*window, reused* leaves memory registered and binds a window in the crossing before the command, which the
target's answer invalidates; *registered once* leaves all memory reachable under one STag for as long as the
session lasts, so that the target can fetch the data of neighbouring commands with one RDMA Read; *one-shot*
advertises memory in the header of the command, and the answer closes it. None of these takes data along with a command; *one-shot, immediate* does for writes up to %d KiB, as the
initiator does by itself, and so does TCP. *Raw TCP* moves the same bytes with no protocol, CRC32C at both ends.

A crossing is a hand-over between program and RDMA device, whatever is in it: registering and freeing memory are
two each, command and answer; over TCP it is a system call. At depth 1 they are what one I/O takes, and in brackets stands
what the source counts: for a write 10 at the initiator and 4 at the target, 14 in all, in its FIG 3 (6, 4 and 10 without windows);
2, 4 and 6 in its FIG 4, which is one-shot, and in its FIG 2, an offload of iSCSI. A read saves 2 at the target. We
have more in two places: one in 16 Sends of the initiator is signalled, and so is the target's answer. At depth 32 many
I/Os share one. *CPU* is that of the whole process.

Measured on %s: Linux %s, %s, %d cores kept from halting; target pinned to core %d, initiator to core %d; %d rounds
of %g s per contender and point, interleaved, medians.

![IOPS relative to one-shot](%s)
`, "`make bench-rdma`", diskText, immediate>>10, harness.Today(), harness.Kernel(), runtime.Version(),
		runtime.NumCPU(), harness.TargetCore, harness.ClientCore, o.Rounds, o.Seconds, reportName+".svg")
	for _, r := range results {
		section(&s, r)
	}
	return s.String()
}

func section(s *strings.Builder, r result) {
	fmt.Fprintf(s, "\n## %s\n\n", r.point)
	s.WriteString("| flow | IOPS | lowest – highest | MB/s | × conventional | × TCP, data digest | p50 µs | p99 µs " +
		"| crossings initiator (source) | target (source) | in all (source) | wire messages | CPU µs initiator | target |\n")
	s.WriteString("| --- |" + strings.Repeat(" ---: |", 13) + "\n")
	for _, w := range r.rows {
		if w.contender == rawStream {
			fmt.Fprintf(s, "| %s | %.0f | %.0f – %.0f | %.0f | %s | %s | | | | | | | | |\n", w.contender, w.IOPS, w.low, w.high,
				r.point.MBs(w.IOPS), ratio(w, r.row(conventional)), ratio(w, r.row(overTCPDigest)))
			continue
		}
		ours, theirs, all := "", "", ""
		if n, ok := source[w.contender]; ok && r.point.Depth == 1 {
			target := sourceTarget(r.point.Write)
			ours, theirs, all = fmt.Sprintf(" (%d)", n), fmt.Sprintf(" (%d)", target), fmt.Sprintf(" (%d)", n+target)
		}
		fmt.Fprintf(s, "| %s | %.0f | %.0f – %.0f | %.0f | %s | %s | %.0f | %.0f | %.2f%s | %.2f%s | %.2f%s | %.2f | %.2f | %.2f |\n",
			w.contender, w.IOPS, w.low, w.high, r.point.MBs(w.IOPS), ratio(w, r.row(conventional)),
			ratio(w, r.row(overTCPDigest)), w.P50, w.P99, w.Initiator.Crossings, ours, w.Target.Crossings, theirs,
			w.Initiator.Crossings+w.Target.Crossings, all, w.messages(),
			w.Initiator.CPU, w.Target.CPU)
	}
}

func ratio(a row, b *row) string {
	if b == nil {
		return harness.Ratio(a.IOPS, 0)
	}
	return harness.Ratio(a.IOPS, b.IOPS)
}

var colours = []string{harness.Red, harness.Orange, harness.Yellow, harness.Black, harness.Blue, harness.Sky, harness.Grey, harness.Green, harness.Pink}

// picture draws a group of bars for each point: IOPS relative to one-shot.
func picture(results []result) string {
	c := harness.Chart{
		Title: "Flows of RDMA: IOPS relative to one-shot",
		Width: 1000, Labels: 170, Bar: 12, Gap: 12, Scale: 375, Widest: 1.9, Ticks: harness.Percents(50, 150),
	}
	for i, k := range contenders {
		c.Legend = append(c.Legend, harness.Key{Name: k.name, Colour: colours[i]})
	}
	for _, r := range results {
		base := r.row(oneShot)
		if base == nil {
			continue
		}
		g := harness.Group{Label: r.point.String()}
		for i, k := range contenders {
			if w := r.row(k.name); w != nil {
				g.Bars = append(g.Bars, harness.Bar{Value: w.IOPS / base.IOPS, Colour: colours[i], Text: ratio(*w, base)})
			}
		}
		c.Groups = append(c.Groups, g)
	}
	return c.SVG()
}
