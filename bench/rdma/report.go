package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"
)

const (
	tableName   = "rdma.md"
	pictureName = "rdma.svg"
)

func writeReport(o options, results []result) error {
	if err := os.MkdirAll(o.out, 0o755); err != nil {
		return err
	}
	return errors.Join(
		os.WriteFile(filepath.Join(o.out, tableName), []byte(table(o, results)), 0o644),
		os.WriteFile(filepath.Join(o.out, pictureName), []byte(picture(results)), 0o644),
	)
}

// source has the crossings per storage write that the text which one-shot RDMA is from counts,
// at the initiator.
var source = map[string]string{conventional: "10", registered: "6", oneShot: "2"}

func table(o options, results []result) string {
	kernel, err := os.ReadFile("/proc/sys/kernel/osrelease")
	if err != nil {
		kernel = []byte("an unknown kernel")
	}
	var s strings.Builder
	fmt.Fprintf(&s, `# The flows of RDMA side by side

Written by %s. One daemon, one memory disk of %s, one client: this project's initiator, over its own
iWARP in user space, on the loopback interface. *Conventional* registers memory for each command, binds a
window, sends, unbinds and frees, each step after the one before; *registered* does so without a window;
*window, reused* leaves memory registered and binds a window in the crossing before the command, which the
target's answer invalidates; *one-shot* advertises memory in the header of the command, and the answer closes
it. None of these takes data along with a command; *one-shot, immediate* does for writes up to %d KiB, as the
initiator does by itself, and so does TCP. *Raw TCP* moves the same bytes with no protocol, CRC32C at both ends.

A crossing is a hand-over between program and RDMA device, whatever is in it: registering and freeing memory are
two each, command and answer; over TCP it is a system call. At depth 1 they are what one I/O takes: the source
counts 10, 6 (without a window) and 2 at the initiator, and one in 16 Sends is signalled besides; at the target it counts 4 for a write and
2 for a read, and we one more, as the answer is signalled there. At depth 32 many I/Os share one. *CPU* is that of the whole process.

Measured on %s: Linux %s, %s, %d cores kept from halting; target pinned to core %d, initiator to core %d; %d rounds
of %g s per contender and point, interleaved, medians.

![IOPS relative to one-shot](%s)
`, "`make bench-rdma`", diskText, immediate>>10, time.Now().UTC().Format(time.DateOnly), strings.TrimSpace(string(kernel)), runtime.Version(),
		runtime.NumCPU(), targetCore, clientCore, o.rounds, o.seconds, pictureName)
	for _, r := range results {
		section(&s, r)
	}
	return s.String()
}

func section(s *strings.Builder, r result) {
	fmt.Fprintf(s, "\n## %s\n\n", r.point)
	s.WriteString("| flow | IOPS | lowest – highest | MB/s | × conventional | × TCP, data digest | p50 µs | p99 µs " +
		"| crossings initiator (source) | target | wire messages | CPU µs initiator | target |\n")
	s.WriteString("| --- |" + strings.Repeat(" ---: |", 12) + "\n")
	for _, w := range r.rows {
		if w.contender == rawStream {
			fmt.Fprintf(s, "| %s | %.0f | %.0f – %.0f | %.0f | %s | %s | | | | | | | |\n", w.contender, w.IOPS, w.low, w.high,
				w.IOPS*float64(r.point.size)/1e6, ratio(w, r.row(conventional)), ratio(w, r.row(overTCPDigest)))
			continue
		}
		count := ""
		if n := source[w.contender]; n != "" && r.point.depth == 1 {
			count = " (" + n + ")"
		}
		fmt.Fprintf(s, "| %s | %.0f | %.0f – %.0f | %.0f | %s | %s | %.0f | %.0f | %.2f%s | %.2f | %.2f | %.2f | %.2f |\n",
			w.contender, w.IOPS, w.low, w.high, w.IOPS*float64(r.point.size)/1e6, ratio(w, r.row(conventional)),
			ratio(w, r.row(overTCPDigest)), w.P50, w.P99, w.Initiator.Crossings, count, w.Target.Crossings, w.messages(),
			w.Initiator.CPU, w.Target.CPU)
	}
}

func ratio(a row, b *row) string {
	if b == nil {
		return "–"
	}
	return fmt.Sprintf("%.2f", a.IOPS/b.IOPS)
}

// The picture is a group of bars for each point: IOPS as a share of one-shot's. Colours are told
// apart by colour-blind eyes, too (Okabe and Ito).
var colours = []string{"#d55e00", "#e69f00", "#f0e442", "#0072b2", "#56b4e9", "#999999", "#009e73", "#cc79a7"}

const (
	pictureWidth = 980
	labelWidth   = 170
	barHeight    = 11
	groupGap     = 12
	topMargin    = 74
	axisWidth    = (pictureWidth - labelWidth - 60) / 2 // of 100 %
	widest       = 1.9
)

func picture(results []result) string {
	var body strings.Builder
	y := topMargin
	for _, r := range results {
		y = group(&body, r, y)
	}
	var s strings.Builder
	fmt.Fprintf(&s, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" font-family="sans-serif" font-size="11">`+"\n",
		pictureWidth, y+30)
	s.WriteString(`<rect width="100%" height="100%" fill="white"/>` + "\n")
	s.WriteString(`<text x="16" y="24" font-size="16" font-weight="bold">Flows of RDMA: IOPS relative to one-shot</text>` + "\n")
	x := 16
	for i, c := range contenders {
		fmt.Fprintf(&s, `<rect x="%d" y="38" width="12" height="12" fill="%s"/><text x="%d" y="48">%s</text>`+"\n", x, colours[i], x+16, c.name)
		x += 36 + 6*len(c.name)
	}
	for percent := 0; percent <= 150; percent += 50 {
		x := labelWidth + percent*axisWidth/100
		fmt.Fprintf(&s, `<line x1="%d" y1="%d" x2="%d" y2="%d" stroke="#ddd"/><text x="%d" y="%d" text-anchor="middle">%d %%</text>`+"\n",
			x, topMargin-6, x, y-8, x, y+10, percent)
	}
	s.WriteString(body.String())
	s.WriteString("</svg>\n")
	return s.String()
}

// group draws the bars of one point from y on and says where it ends.
func group(s *strings.Builder, r result, y int) int {
	base := r.row(oneShot)
	if base == nil {
		return y
	}
	fmt.Fprintf(s, `<text x="%d" y="%d" text-anchor="end">%s</text>`+"\n", labelWidth-10, y+len(r.rows)*barHeight/2+4, r.point)
	for i, c := range contenders {
		w := r.row(c.name)
		if w == nil {
			continue
		}
		share := w.IOPS / base.IOPS
		width := min(share, widest) * axisWidth
		fmt.Fprintf(s, `<rect x="%d" y="%d" width="%.1f" height="%d" fill="%s"/>`, labelWidth, y, width, barHeight-1, colours[i])
		fmt.Fprintf(s, `<text x="%.1f" y="%d" font-size="9">%.2f</text>`+"\n", labelWidth+width+4, y+barHeight-2, share)
		y += barHeight
	}
	return y + groupGap
}
