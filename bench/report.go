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
	tableName   = "iscsi-tcp.md"
	pictureName = "iscsi-tcp.svg"
)

func writeReport(o options, results []result) error {
	if err := os.MkdirAll(o.out, 0o755); err != nil {
		return err
	}
	return errors.Join(
		os.WriteFile(filepath.Join(o.out, tableName), []byte(table(circumstances(o), results)), 0o644),
		os.WriteFile(filepath.Join(o.out, pictureName), []byte(picture(results)), 0o644),
	)
}

// circumstances is what a reader has to know of the run.
func circumstances(o options) string {
	kernel, err := os.ReadFile("/proc/sys/kernel/osrelease")
	if err != nil {
		kernel = []byte("an unknown kernel")
	}
	awake := "kept from halting"
	if !o.awake {
		awake = "which may halt"
	}
	return fmt.Sprintf("Measured on %s: Linux %s, %s, %d cores, %s; targets pinned to core %d, client to core %d; "+
		"%d rounds of %g s per contender and point, interleaved, medians.",
		time.Now().UTC().Format(time.DateOnly), strings.TrimSpace(string(kernel)), runtime.Version(), runtime.NumCPU(), awake,
		targetCore, clientCore, o.rounds, o.seconds)
}

// table is the report as Markdown.
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

` + circumstances + "\n\n![Share of the raw echo](" + pictureName + ")\n")
	for _, r := range results {
		fmt.Fprintf(&s, "\n## %s\n\n", r.point)
		s.WriteString("| target | IOPS | lowest – highest | MB/s | share | × tgt | p50 µs | p99 µs | CPU s / million | client core | others |\n")
		s.WriteString("| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |\n")
		for _, row := range r.rows {
			fmt.Fprintf(&s, "| %s | %.0f | %.0f – %.0f | %.0f | %s | %s | %.0f | %.0f | %.2f | %.0f %% | %.0f %% |\n",
				row.contender, row.IOPS, row.minIOPS, row.maxIOPS, row.IOPS*float64(r.point.size)/1e6,
				ratio(row, r.row(echoName)), ratio(row, r.row("tgt")), row.P50, row.P99, row.CPU, 100*row.ClientCPU, 100*row.Others)
		}
	}
	return s.String()
}

func ratio(a row, b *row) string {
	if b == nil {
		return "–"
	}
	return fmt.Sprintf("%.2f", a.IOPS/b.IOPS)
}

// The picture is a group of bars for each point: who reaches which share of the
// echo. Colours are told apart by colour-blind eyes too (Okabe and Ito).
var colours = []string{"#0072b2", "#56b4e9", "#e69f00", "#009e73", "#cc79a7", "#d55e00"}

const (
	pictureWidth = 860
	labelWidth   = 270
	barHeight    = 14
	groupGap     = 16
	topMargin    = 70
	axisWidth    = pictureWidth - labelWidth - 60 // of 100 %
)

func picture(results []result) string {
	var body strings.Builder
	y := topMargin
	for _, r := range results {
		y = group(&body, r, y)
	}
	var s strings.Builder
	fmt.Fprintf(&s, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" font-family="sans-serif" font-size="12">`+"\n",
		pictureWidth, y+30)
	s.WriteString(`<rect width="100%" height="100%" fill="white"/>` + "\n")
	s.WriteString(`<text x="16" y="24" font-size="16" font-weight="bold">iSCSI over TCP: share of a raw TCP echo of the same bytes</text>` + "\n")
	legend(&s, results)
	axis(&s, y)
	s.WriteString(body.String())
	s.WriteString("</svg>\n")
	return s.String()
}

// group draws the bars of one point from y on and says where it ends.
func group(s *strings.Builder, r result, y int) int {
	echo := r.row(echoName)
	bars := len(r.rows) - 1
	fmt.Fprintf(s, `<text x="%d" y="%d" text-anchor="end">%s</text>`+"\n", labelWidth-10, y+bars*barHeight/2+4, r.point)
	for i, row := range r.rows[1:] {
		share := row.IOPS / echo.IOPS
		width := min(share, 1.05) * axisWidth
		fmt.Fprintf(s, `<rect x="%d" y="%d" width="%.1f" height="%d" fill="%s"/>`, labelWidth, y, width, barHeight-2, colours[i%len(colours)])
		fmt.Fprintf(s, `<text x="%.1f" y="%d" font-size="10">%.2f</text>`+"\n", labelWidth+width+4, y+barHeight-4, share)
		y += barHeight
	}
	return y + groupGap
}

func legend(s *strings.Builder, results []result) {
	x := labelWidth
	for i, row := range results[0].rows[1:] {
		fmt.Fprintf(s, `<rect x="%d" y="38" width="12" height="12" fill="%s"/><text x="%d" y="48">%s</text>`+"\n",
			x, colours[i%len(colours)], x+16, row.contender)
		x += 40 + 7*len(row.contender)
	}
}

func axis(s *strings.Builder, bottom int) {
	for percent := 0; percent <= 100; percent += 20 {
		x := labelWidth + percent*axisWidth/100
		fmt.Fprintf(s, `<line x1="%d" y1="%d" x2="%d" y2="%d" stroke="#ddd"/><text x="%d" y="%d" text-anchor="middle">%d %%</text>`+"\n",
			x, topMargin-6, x, bottom-8, x, bottom+10, percent)
	}
}
