package main

import (
	"fmt"
	"strings"

	"oneshot/bench/harness"
)

const mirrorReportName = "mirror"

func writeMirrorReport(o options, kernel string, results []result) error {
	return o.WriteReport(mirrorReportName, mirrorTable(circumstances(o, kernel, results), results), mirrorPicture(results))
}

// mirrorGoal is the least multiple of DRBD's IOPS that a mirror is to have at a point; 0: there is none.
func mirrorGoal(p harness.Point) float64 {
	switch {
	case !p.Write:
		return 0
	case p.FUA:
		return 1
	case p.Depth == 1:
		return 1 / 1.5 // of the latency
	case p.Size > 4<<10:
		return 0.9
	}
	return 1
}

// mirrorTable returns the report as Markdown.
func mirrorTable(circumstances string, results []result) string {
	var s strings.Builder
	fmt.Fprintf(&s, `# A mirror beside DRBD

Written by %s. Two virtual machines under software emulation, a network between them (MTU 9000), and a RAM disk of %s in each for
each contender: a mirror of this target (transport iwarp, which does not encrypt, as DRBD does not), whose witness is on the second machine, and DRBD 8.4 with protocol C, shown by LIO (iblock). The
initiator, open-iscsi over TCP, and fio (io_uring, direct) are on the first machine, where the primaries are. Both sessions are open
from the beginning and have the same settings: %s. *write + flush* has a flush behind each write. This target
answers it when the write is durable on both nodes' disks. DRBD 8.4 answers it when its own disk has done the flush: the other node gets a
barrier, for whose answer a flush does not wait.

The *raw echo* is two programs, one on each machine, that move as many bytes over TCP, without a protocol, a disk and an initiator: a mirror outside the
kernel takes that, and on the first machine what a target takes.

Processor time is what limits, wherever it is spent, and the emulation's prices are not those of hardware: a wake-up or a copy is dear. Both
machines share the host's processors. Compare columns of one run.

%s

![IOPS relative to DRBD](%s)

IOPS (MB/s for 256 KiB), lowest – highest. *host* is the time that both machines take of the host's processors per I/O.

| point | %s | DRBD | × | raw echo | p50 µs %[6]s | DRBD | p99 µs %[6]s | DRBD | host µs %[6]s | DRBD |
| --- |%s
`, "`make bench-drbd`", mirrorText, queueText(), circumstances, mirrorReportName+".svg", ours, strings.Repeat(" ---: |", 10))
	for _, r := range results {
		w, beside := r.row(ours, overMirror), r.row(drbd, overMirror)
		if w == nil || beside == nil || beside.IOPS == 0 {
			continue
		}
		x := fmt.Sprintf("%.2f", w.IOPS/beside.IOPS)
		if goal := mirrorGoal(r.point); goal > 0 {
			x = fmt.Sprintf("%s of %.2g", verdict(w.IOPS/beside.IOPS, goal), goal)
		}
		var echo *row
		if r.point.Write {
			echo = r.row(harness.RawEcho, overNothing)
		}
		fmt.Fprintf(&s, "| %s | %s | %s | %s | %s | %.0f | %.0f | %.0f | %.0f | %.0f | %.0f |\n", r.point, r.speed(w), r.speed(beside), x, r.speed(echo),
			w.P50, beside.P50, w.P99, beside.P99, w.Host, beside.Host)
	}
	return s.String()
}

// mirrorPicture draws a group of bars for each point: IOPS relative to DRBD.
func mirrorPicture(results []result) string {
	c := harness.Chart{
		Title: "Mirrors in two guests: IOPS relative to DRBD with LIO",
		Width: 860, Labels: 290, Bar: 14, Gap: 14, Scale: 170, Widest: 3, Ticks: harness.Percents(50, 300),
		Legend: []harness.Key{{Name: ours, Colour: harness.Blue}, {Name: drbd, Colour: harness.Orange}},
	}
	for _, r := range results {
		w, beside := r.row(ours, overMirror), r.row(drbd, overMirror)
		if w == nil || beside == nil || beside.IOPS == 0 {
			continue
		}
		c.Groups = append(c.Groups, harness.Group{Label: r.point.String(), Bars: []harness.Bar{
			{Value: w.IOPS / beside.IOPS, Colour: harness.Blue, Text: harness.Ratio(w.IOPS, beside.IOPS)},
			{Value: 1, Colour: harness.Orange, Text: harness.Ratio(beside.IOPS, beside.IOPS)},
		}})
	}
	return c.SVG()
}
