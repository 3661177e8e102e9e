package main

import (
	"fmt"
	"runtime"
	"strings"

	"oneshot/bench/harness"
)

const reportName = "nvme"

// base is what a contender is compared with.
var base = map[string]string{harness.RawEcho: iscsi, iscsi: iscsi, nvme: iscsi, iscsiDigest: iscsiDigest, nvmeDigest: iscsiDigest}

func table(o harness.Options, results []result) string {
	var s strings.Builder
	fmt.Fprintf(&s, `# NVMe/TCP beside iSCSI and a raw echo

Written by %s. One daemon, a memory disk of %s for each protocol, one client: this project's own over both, on the loopback
interface. *4 sessions* are four sessions of iSCSI, and four I/O queues of one controller: four connections either way. CPU is that
of the whole process, connecting included; so are the allocations of the daemon's heap. The last digits of small ones are noise.
System calls are those that read and write, also those that find nothing.
The *raw echo* is `+"`bench/c/echo.c`"+`, whose two ends move the same bytes without a protocol, a disk or a scheduler: a write's data go
with its request.

Measured on %s: Linux %s, %s, %d cores kept from halting; target pinned to core %d, client to core %d; %d rounds
of %g s per contender and point, interleaved, medians.

![IOPS relative to iSCSI](%s)
`, "`make bench-nvme`", diskText, harness.Today(), harness.Kernel(), runtime.Version(), runtime.NumCPU(), harness.TargetCore, harness.ClientCore, o.Rounds, o.Seconds, reportName+".svg")
	for _, r := range results {
		fmt.Fprintf(&s, "\n## %s\n\n| protocol | IOPS | lowest – highest | MB/s | × iSCSI | × echo | p50 µs | p99 µs | CPU µs client | target | system calls of the client | allocations of the target |\n", r.Point)
		s.WriteString("| --- |" + strings.Repeat(" ---: |", 11) + "\n")
		for _, w := range r.Rows {
			x := w.Sample
			counts := fmt.Sprintf("%.2f | %.3f", x.Initiator.Crossings, x.allocs)
			if w.Contender == harness.RawEcho {
				counts = "– | –" // it counts nothing
			}
			fmt.Fprintf(&s, "| %s | %.0f | %.0f – %.0f | %.0f | %s | %s | %.0f | %.0f | %.2f | %.2f | %s |\n", w.Contender, x.IOPS, w.Low, w.High,
				r.Point.MBs(x.IOPS), r.Ratio(w, base[w.Contender]), r.Ratio(w, harness.RawEcho), x.P50, x.P99, x.Initiator.CPU, x.targetCPU, counts)
		}
	}
	return s.String()
}

var colours = []string{harness.Black, harness.Grey, harness.Blue, harness.Yellow, harness.Green}

// picture draws a group of bars for each point: IOPS relative to iSCSI.
func picture(results []result) string {
	return harness.Relative(harness.Chart{
		Title: "NVMe/TCP: IOPS relative to iSCSI", Width: 1000, Labels: 220, Bar: 12, Gap: 12, Scale: 325, Widest: 1.9, Ticks: harness.Percents(50, 150),
	}, results, iscsi, contenders, colours)
}
