package main

import (
	"fmt"
	"runtime"
	"strings"

	"oneshot/bench/harness"
)

// Goals: at most these parts of what DRBD takes.
const (
	pauseGoal  = 0.5
	copiedGoal = 0.05
)

// failoverTable returns the report as Markdown. The samples are those of the systems, in their order.
func failoverTable(o options, kernel string, samples [][]failover) string {
	var s strings.Builder
	fmt.Fprintf(&s, `# Mirrors that lose their primary

Written by %s. Three virtual machines under software emulation: two with a copy of a disk of %s each, on disks that stay, and a third one that is the host,
with open-iscsi over TCP and fio (io_uring, direct, random writes of 4 KiB). A mirror of this target (transport iwarp; its witness is on the third machine) has an
address that moves, and beats as it does by default. DRBD 8.4 (protocol C, ping-int 1) is shown by LIO; keepalived (advert_int 1) makes
the other node the primary by a script, which moves the address when the disk is there. Both have DefaultTime2Wait 0. But for
ping-int, whose default is 10 s, nothing is set so that a loss is noticed sooner.

* *Pause*: the machine of the primary is turned off while the host writes one block at a time. It is the longest time that a write took.
* *Copied*: when that machine is back, and its copy is level, the other one is turned off, while the host writes 32 at a time, and the load is killed. It is what that machine gets from the
  network, all protocols together, from when it is turned on until its copy is level.

Measured on %s: Linux %s in the guests, %s, %d cores of the host for 6 virtual ones, %d rounds, each on machines that boot for it; medians, lowest – highest; the host's load
average is %s.

| | %s | DRBD, keepalived | × |
| --- | ---: | ---: | ---: |
`, "`make bench-failover`", failoverText, harness.Today(), kernel, runtime.Version(), runtime.NumCPU(), o.Rounds, load(), ours)
	row := func(name string, goal float64, figure func(failover) float64) {
		m := [2]float64{harness.Median(samples[0], figure), harness.Median(samples[1], figure)}
		word := "met"
		if m[0] > goal*m[1] {
			word = "missed"
		}
		fmt.Fprintf(&s, "| %s |", name)
		for i, x := range samples {
			all := harness.Sorted(x, figure)
			fmt.Fprintf(&s, " **%.2f** %.2f – %.2f |", m[i], all[0], all[len(all)-1])
		}
		fmt.Fprintf(&s, " %.3f %s of %g |\n", m[0]/m[1], word, goal)
	}
	row("pause, s", pauseGoal, func(f failover) float64 { return f.pause })
	row("copied, MiB", copiedGoal, func(f failover) float64 { return f.copied })
	return s.String()
}

// failoverPicture has a bar for each figure: ours as a part of DRBD's.
func failoverPicture(samples [][]failover) string {
	c := harness.Chart{
		Title: "Mirrors that lose their primary: parts of what DRBD with keepalived takes",
		Width: 860, Labels: 290, Bar: 14, Gap: 14, Scale: 340, Widest: 1.5, Ticks: harness.Percents(25, 150),
	}
	for _, x := range []struct {
		name   string
		figure func(failover) float64
	}{{"pause", func(f failover) float64 { return f.pause }}, {"bytes copied", func(f failover) float64 { return f.copied }}} {
		v := harness.Median(samples[0], x.figure) / harness.Median(samples[1], x.figure)
		c.Groups = append(c.Groups, harness.Group{Label: x.name, Bars: []harness.Bar{{Value: v, Colour: harness.Blue, Text: fmt.Sprintf("%.3f", v)}}})
	}
	return c.SVG()
}

func writeFailoverReport(o options, kernel string, samples [][]failover) error {
	return o.WriteReport("failover", failoverTable(o, kernel, samples), failoverPicture(samples))
}
