package main

import (
	"fmt"
	"runtime"
	"strings"

	"oneshot/bench/harness"
)

const reportName = "vm"

func writeReport(o options, kernel string, results []result) error {
	return o.WriteReport(reportName, table(circumstances(o, kernel, results), results), picture(results))
}

// circumstances describes the run for the reader of the report.
func circumstances(o options, kernel string, results []result) string {
	var most float64
	for _, r := range results {
		for _, w := range r.rows {
			most = max(most, w.Others)
		}
	}
	return fmt.Sprintf("Measured on %s: Linux %s in the guest, %s, %d cores of the host for 2 virtual ones, %d rounds of %g s per contender "+
		"and point, interleaved, medians. Others than the guest took up to %.0f %% of the host while a sample was taken; its load average is %s.",
		harness.Today(), kernel, runtime.Version(), runtime.NumCPU(), o.Rounds, o.Seconds, 100*most, load())
}

var peers = []string{"LIO", "tgt"}

// Goals: at every point at least better × the faster of the peers, and worse × the slower.
const (
	betterGoal = 1.0
	worseGoal  = 1.5
)

// standing compares the target with its peers at a point.
type standing struct {
	better, worse float64 // IOPS as multiples of the faster peer's, and of the slower one's
}

// standing returns false if one of the three was not measured.
func (r result) standing(transport string) (s standing, ok bool) {
	us := r.row(ours, transport)
	if us == nil {
		return s, false
	}
	var fast, slow float64
	for i, p := range peers {
		w := r.row(p, transport)
		if w == nil {
			return s, false
		}
		if fast = max(fast, w.IOPS); i == 0 || w.IOPS < slow {
			slow = w.IOPS
		}
	}
	return standing{us.IOPS / fast, us.IOPS / slow}, true
}

func (s standing) goals() string {
	return verdict(s.better, betterGoal) + " | " + verdict(s.worse, worseGoal)
}

func verdict(is, goal float64) string {
	if is < goal {
		return fmt.Sprintf("%.2f missed", is)
	}
	return fmt.Sprintf("%.2f met", is)
}

// table returns the report as Markdown.
func table(circumstances string, results []result) string {
	var s strings.Builder
	fmt.Fprintf(&s, `# Linux's initiator over soft-RoCE and TCP, beside LIO and tgt

Written by %s. One virtual machine under software emulation, in which everything runs: open-iscsi, fio
(io_uring, direct), and three targets, each with a disk of %s in RAM: this one (memory store), LIO (rd_mcp), tgt (a file on
tmpfs). *rxe* is iSER over one soft-RoCE device with MTU 9000 on an interface that leads nowhere; TCP goes to the same address. All
sessions are open from the beginning and have the same settings: open-iscsi's defaults (cmds_max 128, queue_depth 32), no pings;
%s for every disk. tgt's pool of RDMA buffers is 128 MiB instead of 1 GiB, as the guest is small.

Two virtual processors do it all, initiator and device included: processor time is what limits, wherever it is spent, and the
emulation's prices are not those of hardware (an interrupt, a wake-up or a copy is dear). Compare columns of one run.

%s

![IOPS relative to the better peer](%s)
`, "`make bench-vm`", diskText, queueText(), circumstances, reportName+".svg")
	for _, transport := range transports {
		throughput(&s, transport, results)
	}
	for _, transport := range transports {
		processors(&s, transport, results)
	}
	attached(&s, results)
	hosts(&s, results)
	crossed(&s, results)
	return s.String()
}

// hostGoal is by how much of the IOPS of Linux's own target for NVMe this one is to reach at a point; 0: nothing is said.
func hostGoal(p harness.Point, transport string) float64 {
	switch {
	case transport == overNVMeRXE && p.Depth == 32:
		return 0.9
	case transport == overNVMeRXE:
		return 0
	case p.Depth == 1:
		return 0.85
	}
	return 1
}

// hosts is the table of Linux's host of NVMe, of this target beside nvmet.
func hosts(s *strings.Builder, results []result) {
	s.WriteString("\n## NVMe\n\nLinux's host, with its defaults and two queues, beside nvmet on a RAM disk (brd): IOPS (MB/s for 256 KiB), lowest – highest.\n" +
		"The *raw echo* is two programs that move as many bytes over TCP, without a protocol and without a disk: what a target outside the kernel takes at least.\n\n")
	fmt.Fprintf(s, "| point | over | %s | nvmet | × | raw echo | p99 µs %[1]s | nvmet | µs of the host per I/O %[1]s | nvmet |\n| --- | --- |%s\n", ours, strings.Repeat(" ---: |", 8))
	for _, transport := range []string{overNVMeRXE, overNVMeTCP} {
		for _, r := range results {
			w, beside := r.row(ours, transport), r.row(nvmet, transport)
			if w == nil || beside == nil || beside.IOPS == 0 {
				continue
			}
			x := fmt.Sprintf("%.2f", w.IOPS/beside.IOPS)
			if goal := hostGoal(r.point, transport); goal > 0 {
				x = fmt.Sprintf("%s of %g", verdict(w.IOPS/beside.IOPS, goal), goal)
			}
			var echo *row
			if transport == overNVMeTCP {
				echo = r.row(harness.RawEcho, overNothing)
			}
			fmt.Fprintf(s, "| %s | %s | %s | %s | %s | %s | %.0f | %.0f | %.0f | %.0f |\n", r.point, transport, r.speed(w), r.speed(beside), x, r.speed(echo), w.P99, beside.P99, w.Host, beside.Host)
		}
	}
}

// crossed is the table of what this target and its RDMA device have handed to each other.
func crossed(s *strings.Builder, results []result) {
	s.WriteString("\n## What crosses the device\n\nCounts of this target per I/O.\n\n")
	fmt.Fprintf(s, "| point | over | %s |\n| --- | --- |%s\n", strings.ReplaceAll(strings.Join(crossings, " | "), "_", " "), strings.Repeat(" ---: |", len(crossings)))
	for _, transport := range []string{overRXE, overNVMeRXE} {
		for _, r := range results {
			w := r.row(ours, transport)
			if w == nil {
				continue
			}
			fmt.Fprintf(s, "| %s | %s |", r.point, transport)
			for _, kind := range crossings {
				fmt.Fprintf(s, " %.2f |", w.Device[kind])
			}
			s.WriteString("\n")
		}
	}
}

// attached is the table of the block device that initiator attach makes, beside Linux's own way to the same disk.
func attached(s *strings.Builder, results []result) {
	s.WriteString("\n## initiator attach\n\nThe same disk over TCP, by the kernel's nbd and this project's initiator, beside iscsi_tcp: IOPS (MB/s for 256 KiB).\n" +
		"What a miss is made of stands in [the initiator](../../docs/architecture/client.md#block-devices-choices).\n\n")
	s.WriteString("| point | attached | iscsi_tcp | × | goal |\n| --- | ---: | ---: | ---: | ---: |\n")
	for _, r := range results {
		w, beside := r.row(ours, overAttached), r.row(ours, overTCP)
		if w == nil || beside == nil || beside.IOPS == 0 {
			continue
		}
		x, goal := w.IOPS/beside.IOPS, attachedGoal(r.point)
		if goal == 0 {
			fmt.Fprintf(s, "| %s | %s | %s | %.2f | |\n", r.point, r.speed(w), r.speed(beside), x)
			continue
		}
		fmt.Fprintf(s, "| %s | %s | %s | %s | %.1f |\n", r.point, r.speed(w), r.speed(beside), verdict(x, goal), goal)
	}
}

// attachedGoal is the least multiple of iscsi_tcp's IOPS that an attached disk is to have; 0: there is no goal.
func attachedGoal(p harness.Point) float64 {
	switch {
	case p.Size > 4<<10:
		return 0.8
	case p.Depth == 32:
		return 0.7
	}
	return 0
}

var transports = []string{overRXE, overTCP}

func queueText() string {
	var words []string
	for _, q := range queue {
		words = append(words, q[0]+" "+q[1])
	}
	return strings.Join(words, ", ")
}

// throughput writes the table of a transport: IOPS, and whether the goals are met.
func throughput(s *strings.Builder, transport string, results []result) {
	fmt.Fprintf(s, "\n## Over %s\n\nIOPS (MB/s for 256 KiB), lowest – highest; goals: %g × the better peer and %g × the worse.\n\n", transport, betterGoal, worseGoal)
	fmt.Fprintf(s, "| point | %s | LIO | tgt | × better | × worse | p99 µs %[1]s | LIO | tgt |\n| --- |%s\n", ours, strings.Repeat(" ---: |", 8))
	for _, r := range results {
		fmt.Fprintf(s, "| %s |", r.point)
		for _, target := range targets {
			fmt.Fprintf(s, " %s |", r.speed(r.row(target, transport)))
		}
		if st, ok := r.standing(transport); ok {
			fmt.Fprintf(s, " %s |", st.goals())
		} else {
			s.WriteString(" – | – |")
		}
		for _, target := range targets {
			if w := r.row(target, transport); w != nil {
				fmt.Fprintf(s, " %.0f |", w.P99)
			} else {
				s.WriteString(" – |")
			}
		}
		s.WriteString("\n")
	}
}

// thrift returns the host's processor time per I/O of the more economical peer over the same transport, as a multiple of
// that of w.
func (r result) thrift(w *row) string {
	var least float64
	for _, p := range peers {
		if peer := r.row(p, w.transport); peer != nil && (least == 0 || peer.Host < least) {
			least = peer.Host
		}
	}
	if w.target != ours || least == 0 || w.Host == 0 {
		return ""
	}
	return fmt.Sprintf("%.2f", least/w.Host)
}

var targets = []string{ours, "LIO", "tgt"}

func (r result) speed(w *row) string {
	if w == nil {
		return "–"
	}
	unit := 1.0
	if r.point.Order == harness.Sequential {
		unit = r.point.MBs(1)
	}
	return fmt.Sprintf("**%.0f** %.0f – %.0f", w.IOPS*unit, w.low*unit, w.high*unit)
}

// processors writes the table of a transport that says who used the guest's processors.
func processors(s *strings.Builder, transport string, results []result) {
	fmt.Fprintf(s, `
## Processor time over %s

µs per I/O. *Host* is what the whole guest takes of the host's processors, the start of fio apart: of the figures here the
one that others on the host disturb least; *× better* compares it with the thriftier peer's (above 1: we take less). The rest are
shares of the guest's two processors. LIO's side of the target is its iscsi_ threads; it works in kworkers too, as the initiator
does. What the soft-RoCE device and the network do in softirqs counts for whom they interrupt, be it *fio* or *idle*.

`, transport)
	fmt.Fprintf(s, "| point | target | host | × better | %s |\n| --- | --- |%s\n", strings.Join(shares, " | "), strings.Repeat(" ---: |", 2+len(shares)))
	for _, r := range results {
		for _, target := range targets {
			w := r.row(target, transport)
			if w == nil {
				continue
			}
			fmt.Fprintf(s, "| %s | %s | %.0f | %s |", r.point, target, w.Host, r.thrift(w))
			for _, name := range shares {
				fmt.Fprintf(s, " %.0f |", w.CPU[name])
			}
			s.WriteString("\n")
		}
	}
}
