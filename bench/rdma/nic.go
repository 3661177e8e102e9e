package main

import (
	"fmt"
	"path/filepath"
	"runtime"
	"strings"

	"oneshot/bench/harness"
)

// With the RDMA device in the client's process a hand-over is a call of a function. So the flows are measured with the device
// in another process, too, as the driver of a real card has it: a card (target nic) on the client's core, and one on the
// target's.

// placement is where the queue pairs run.
type placement struct {
	name string
	core int // of the card; inProgram: there is none
	args []string
}

const inProgram = -1

func placements(dir string) []placement {
	at := func(core int, more ...string) []string {
		return append([]string{"--nic", cardSocket(dir, core)}, more...)
	}
	return []placement{
		{"in the program", inProgram, nil},
		{"card on the client's core", harness.ClientCore, at(harness.ClientCore)},
		{"card on the target's core", harness.TargetCore, at(harness.TargetCore)},
		{"card on the target's core, client polls", harness.TargetCore, at(harness.TargetCore, "--nic-poll", "50us")},
	}
}

func cardSocket(dir string, core int) string {
	return filepath.Join(dir, fmt.Sprintf("nic%d.sock", core))
}

// nicFlows are the flows that are measured in each placement.
var nicFlows = []string{conventional, windowed, oneShot}

func nicName(flow string, p placement) string { return flow + ", " + p.name }

// nicContenders are all flows in all placements.
func nicContenders(dir string) (list []contender) {
	for _, p := range placements(dir) {
		for _, flow := range nicFlows {
			for _, c := range contenders {
				if c.name == flow {
					c.name = nicName(flow, p)
					c.args = append(append([]string(nil), c.args...), p.args...)
					list = append(list, c)
				}
			}
		}
	}
	return list
}

func nicPoints() (list []harness.Point) {
	for _, depth := range []int{1, 8, 32, 128} {
		list = append(list,
			harness.Point{Size: 512, Depth: depth}, harness.Point{Size: 4 << 10, Depth: depth}, harness.Point{Size: 64 << 10, Depth: depth},
			harness.Point{Write: true, Size: 4 << 10, Depth: depth})
	}
	return list
}

// cards starts a card on each of the cores.
func (b *bench) cards(dir string) error {
	for _, core := range []int{harness.ClientCore, harness.TargetCore} {
		socket := cardSocket(dir, core)
		if _, err := b.Start(core, b.Target, "nic", "--socket", socket); err != nil {
			return err
		}
		if err := harness.Await("unixpacket", socket); err != nil {
			return err
		}
	}
	return nil
}

const nicReportName = "nic"

func writeNICReport(o harness.Options, results []result) error {
	return o.WriteReport(nicReportName, nicTable(o, results), nicPicture(results))
}

func nicTable(o harness.Options, results []result) string {
	var s strings.Builder
	fmt.Fprintf(&s, `# What a hand-over to the RDMA device costs

Written by %s. One daemon, one memory disk of %s, one client: this project's initiator, over iWARP in user space, on
the loopback interface. The queue pairs of the client run in the program itself, where a hand-over is a call of a function, or in
a process of their own, a *card* (%s), where it is a descriptor in shared memory, and a wake-up if the other side
sleeps. *Conventional* registers memory for each command, binds a window, sends, unbinds and frees, each step after the one before;
*window, reused* leaves memory registered; *one-shot* advertises memory in the header of the command, and the answer closes it.
No command takes data along.

There are two cores and three processes. So the card shares a core: with the client, where every hand-over is a switch between
processes; or with the target, where its work competes with the target's. Where the client *polls*, it looks for 50 µs for what the card
answers before it sleeps; the card never does. *CPU* is the processor time of a process per I/O.

Measured on %s: Linux %s, %s, %d cores kept from halting; target pinned to core %d, initiator to core %d; %d rounds
of %g s per contender and point, interleaved, medians.

![one-shot relative to conventional](%s)
`, "`make bench-nic`", diskText, "`target nic`", harness.Today(), harness.Kernel(), runtime.Version(),
		runtime.NumCPU(), harness.TargetCore, harness.ClientCore, o.Rounds, o.Seconds, nicReportName+".svg")
	for _, base := range []string{conventional, windowed} {
		nicRatios(&s, results, base)
	}
	for _, r := range results {
		nicSection(&s, r)
	}
	return s.String()
}

// nicRatios compares one-shot with another flow at every point and in every placement.
func nicRatios(s *strings.Builder, results []result, base string) {
	fmt.Fprintf(s, `
## One-shot relative to %[1]s

The IOPS of one-shot over those of %[1]s, and in brackets the processor time of %[1]s over that of one-shot: of all processes, and
of the client alone.

`, base)
	s.WriteString("| point |")
	for _, p := range placements("") {
		fmt.Fprintf(s, " %s |", p.name)
	}
	s.WriteString("\n| --- |" + strings.Repeat(" ---: |", len(placements(""))) + "\n")
	for _, r := range results {
		fmt.Fprintf(s, "| %s |", r.point)
		for _, p := range placements("") {
			a, b := r.row(nicName(oneShot, p)), r.row(nicName(base, p))
			if a == nil || b == nil {
				s.WriteString(" |")
				continue
			}
			fmt.Fprintf(s, " %.2f (%.2f, %.2f) |", a.IOPS/b.IOPS, b.processor()/a.processor(), b.Initiator.CPU/a.Initiator.CPU)
		}
		s.WriteString("\n")
	}
}

// processor returns the processor time of all processes per I/O, in microseconds.
func (s *sample) processor() float64 { return s.Initiator.CPU + s.Card + s.Target.CPU }

func nicSection(s *strings.Builder, r result) {
	fmt.Fprintf(s, "\n## %s\n\n", r.point)
	s.WriteString("| flow | queue pairs | IOPS | lowest – highest | × conventional | p50 µs | p99 µs | crossings initiator | target " +
		"| CPU µs initiator | card | target |\n")
	s.WriteString("| --- | --- |" + strings.Repeat(" ---: |", 10) + "\n")
	for _, p := range placements("") {
		for _, flow := range nicFlows {
			w := r.row(nicName(flow, p))
			if w == nil {
				continue
			}
			fmt.Fprintf(s, "| %s | %s | %.0f | %.0f – %.0f | %s | %.0f | %.0f | %.2f | %.2f | %.2f | %.2f | %.2f |\n", flow, p.name, w.IOPS, w.low, w.high,
				ratio(*w, r.row(nicName(conventional, p))), w.P50, w.P99, w.Initiator.Crossings, w.Target.Crossings, w.Initiator.CPU, w.Card, w.Target.CPU)
		}
	}
}

// nicPicture draws a group of bars for each point: IOPS of one-shot relative to conventional, for each placement.
func nicPicture(results []result) string {
	c := harness.Chart{
		Title: "One-shot relative to conventional, by where the queue pairs run",
		Width: 1000, Labels: 170, Bar: 12, Gap: 12, Scale: 200, Widest: 3.5, Ticks: harness.Percents(100, 300),
	}
	for i, p := range placements("") {
		c.Legend = append(c.Legend, harness.Key{Name: p.name, Colour: colours[i]})
	}
	for _, r := range results {
		g := harness.Group{Label: r.point.String()}
		for i, p := range placements("") {
			if a, b := r.row(nicName(oneShot, p)), r.row(nicName(conventional, p)); a != nil && b != nil {
				g.Bars = append(g.Bars, harness.Bar{Value: a.IOPS / b.IOPS, Colour: colours[i], Text: ratio(*a, b)})
			}
		}
		c.Groups = append(c.Groups, g)
	}
	return c.SVG()
}
