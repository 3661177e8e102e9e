package main

import (
	"fmt"
	"runtime"
	"strings"

	"oneshot/bench/harness"
)

const reportName = "ha"

// repeated says how often the primary has changed.
func repeated(turns int) string {
	if turns == 0 {
		return "The primary has never changed."
	}
	return fmt.Sprintf("In %d turns the primary has changed; they were repeated.", turns)
}

func calls(s spent) string {
	if s.calls < 0 {
		return "–"
	}
	return fmt.Sprintf("%.2f", s.calls)
}

// reportOf is the name of the report of a transport.
func reportOf(transport string) string {
	if transport == "tcp" {
		return reportName
	}
	return reportName + "-" + transport
}

// between says what nodes have between them.
func between(transport string) string {
	if transport == "tcp" {
		return "TLS"
	}
	return "TLS and, for the data of mirrors, " + transport
}

func table(o harness.Options, results []result, size, transport string, again int) string {
	var s strings.Builder
	fmt.Fprintf(&s, `# A mirror beside a file

Written by %s. Three daemons on the loopback interface: two with copies, and a witness, with %s between them; one client, this
project's own, over iSCSI. All stores are files of %s, of one directory, which the primary serves. The mirror's reads are leased
(reads: leased), or the primary asks the other copy before it answers. *Write + flush* is WRITE with
FUA: on the disks of both nodes before the answer. Processor time, allocations of the heap and system calls are those of whole
processes, per I/O: of the primary, and of the other copy. What they do anyway, and connecting, are in them.

Measured on %s: Linux %s, %s, %d cores kept from halting; the primary pinned to core %d; the other copy, the witness and
the client to core %d; %d rounds of %g s per contender and point, interleaved, medians. %s
Two machines would have more processors.

![IOPS relative to a file](%s)
`, "`make bench-ha`", between(transport), size, harness.Today(), harness.Kernel(), runtime.Version(), runtime.NumCPU(), harness.TargetCore, harness.ClientCore, o.Rounds, o.Seconds, repeated(again), reportOf(transport)+".svg")
	for _, r := range results {
		fmt.Fprintf(&s, "\n## %s\n\n| store | IOPS | lowest – highest | MB/s | × file | p50 µs | p99 µs | CPU µs client | primary | other copy | witness | allocations primary | other copy | system calls primary | other copy |\n", r.Point)
		s.WriteString("| --- |" + strings.Repeat(" ---: |", 14) + "\n")
		for _, w := range r.Rows {
			x, n := w.Sample, w.Sample.nodes
			fmt.Fprintf(&s, "| %s | %.0f | %.0f – %.0f | %.0f | %s | %.0f | %.0f | %.1f | %.1f | %.1f | %.1f | %.2f | %.2f | %s | %s |\n", w.Contender, x.IOPS, w.Low, w.High,
				r.Point.MBs(x.IOPS), r.Ratio(w, plain), x.P50, x.P99, x.Initiator.CPU, n[0].cpu, n[1].cpu, n[2].cpu, n[0].allocs, n[1].allocs, calls(n[0]), calls(n[1]))
		}
	}
	return s.String()
}

var colours = []string{harness.Grey, harness.Blue, harness.Sky}

// picture draws a group of bars for each point: IOPS relative to the store that is no mirror.
func picture(results []result) string {
	return harness.Relative(harness.Chart{
		Title: "Mirror: IOPS relative to a file", Width: 1000, Labels: 220, Bar: 14, Gap: 12, Scale: 500, Widest: 1.3, Ticks: harness.Percents(50, 100),
	}, results, plain, contenders, colours)
}
