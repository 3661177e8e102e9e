package main

import (
	"fmt"
	"runtime"
	"strings"

	"oneshot/bench/harness"
)

const reportName = "iscsi-tcp"

func writeReport(o options, results []result) error {
	return o.WriteReport(reportName, table(circumstances(o), results), picture(results))
}

// circumstances describes the run for the reader of the report.
func circumstances(o options) string {
	awake := "kept from halting"
	if !o.awake {
		awake = "which may halt"
	}
	return fmt.Sprintf("Measured on %s: Linux %s, %s, %d cores, %s; targets pinned to core %d, client to core %d; "+
		"%d rounds of %g s per contender and point, interleaved, medians.",
		harness.Today(), harness.Kernel(), runtime.Version(), runtime.NumCPU(), awake,
		targetCore, clientCore, o.Rounds, o.Seconds)
}

// table returns the report as Markdown.
func table(circumstances string, results []result) string {
	var s strings.Builder
	s.WriteString(`# iSCSI over TCP beside its peers

Written by ` + "`make bench`" + `. RAM-backed disks of ` + lunText + ` on the loopback interface; the client is libiscsi
(` + "`bench/c/load.c`" + `) for all targets. *Share* is IOPS as a share of the raw echo: a C program that answers
the same bytes on one TCP connection per session, without iSCSI and SCSI, driven by a client without libiscsi.
CPU is that of the target's process per million I/Os. A *client core* near 100 % is the limit then, not the
target: libiscsi spends about 9 µs on a command, the echo's client a fraction of that. *Others* is the most that
foreign processes and the hypervisor took of the machine in any of the rounds; where it is more than a few per
cent, the row says little. Compare rows of one point, not of different runs.

` + circumstances + "\n\n![Share of the raw echo](" + reportName + ".svg" + ")\n")
	for _, r := range results {
		fmt.Fprintf(&s, "\n## %s\n\n", r.point)
		s.WriteString("| target | IOPS | lowest – highest | MB/s | share | × tgt | p50 µs | p99 µs | CPU s / million | client core | others |\n")
		s.WriteString("| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |\n")
		for _, row := range r.rows {
			fmt.Fprintf(&s, "| %s | %.0f | %.0f – %.0f | %.0f | %s | %s | %.0f | %.0f | %.2f | %.0f %% | %.0f %% |\n",
				row.contender, row.IOPS, row.minIOPS, row.maxIOPS, r.point.MBs(row.IOPS),
				ratio(row, r.row(echoName)), ratio(row, r.row("tgt")), row.P50, row.P99, row.CPU, 100*row.ClientCPU, 100*row.Others)
		}
	}
	return s.String()
}

func ratio(a row, b *row) string {
	if b == nil {
		return harness.Ratio(a.IOPS, 0)
	}
	return harness.Ratio(a.IOPS, b.IOPS)
}

var colours = []string{harness.Blue, harness.Sky, harness.Orange, harness.Green, harness.Pink, harness.Red}

// picture draws a group of bars for each point: the share of the echo that each contender reaches.
func picture(results []result) string {
	c := harness.Chart{
		Title: "iSCSI over TCP: share of a raw TCP echo of the same bytes",
		Width: 860, Labels: 270, Bar: 14, Gap: 16, Scale: 530, Widest: 1.05, Ticks: harness.Percents(20, 100),
	}
	for i, row := range results[0].rows[1:] {
		c.Legend = append(c.Legend, harness.Key{Name: row.contender, Colour: colours[i%len(colours)]})
	}
	for _, r := range results {
		g := harness.Group{Label: r.point.String()}
		echo := r.row(echoName)
		for i, row := range r.rows[1:] {
			g.Bars = append(g.Bars, harness.Bar{Value: row.IOPS / echo.IOPS, Colour: colours[i%len(colours)], Text: ratio(row, echo)})
		}
		c.Groups = append(c.Groups, g)
	}
	return c.SVG()
}
