package main

import (
	"net"
	"strings"
	"testing"
	"time"

	"oneshot/bench/harness"
)

// The raw stream moves as many bytes as it reports, and checks their CRCs.
func TestStream(t *testing.T) {
	for _, p := range []harness.Point{{Size: 64 << 10, Depth: 1}, {Write: true, Size: 64 << 10, Depth: 32}} {
		here, there := net.Pipe()
		done := make(chan error, 1)
		go func() { done <- answer(there) }()
		p.Depth = 1 // a pipe holds nothing
		n, _, err := exchange(here, p, 20*time.Millisecond)
		if err != nil || n == 0 {
			t.Errorf("%v: %d exchanges, %v", p, n, err)
		}
		_ = here.Close()
		if err := <-done; err == nil {
			t.Errorf("%v: the server ends without a reason", p)
		}
	}
}

// The report has a row for each flow and point, with the source's count beside the measured one.
func TestReport(t *testing.T) {
	r := result{point: harness.Point{Write: true, Size: 4096, Depth: 1}}
	for i, c := range contenders {
		r.rows = append(r.rows, row{contender: c.name, sample: sample{IOPS: float64(1000 * (i + 1)), Initiator: end{Crossings: 10}}})
	}
	text := table(harness.Options{Rounds: 3, Seconds: 1}, []result{r})
	for _, want := range []string{
		"## 4 KiB write, depth 1", "| conventional | 1000 |", "| 10.00 (10) |", "| one-shot | 5000 | 0 – 0 | 20 | 5.00 | 0.62 |", "| raw TCP, CRC32C | 9000 |",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is not in\n%s", want, text)
		}
	}
	if svg := picture([]result{r}); strings.Count(svg, "<rect") != 1+2*len(contenders) {
		t.Errorf("the picture: %s", svg)
	}
}

// The report of the card has a row for each flow and placement, and the ratios of each point.
func TestNICReport(t *testing.T) {
	r := result{point: harness.Point{Size: 4096, Depth: 32}}
	for i, c := range nicContenders("/d") {
		x := sample{IOPS: float64(1000 * (i + 1)), Card: 2, Initiator: end{CPU: 4, Crossings: 10}, Target: end{CPU: 2}}
		if strings.HasPrefix(c.name, oneShot) {
			x.Initiator.CPU = 1
		}
		r.rows = append(r.rows, row{contender: c.name, sample: x})
	}
	text := nicTable(harness.Options{Rounds: 3, Seconds: 1}, []result{r})
	for _, want := range []string{
		"| 4 KiB read, depth 32 | 3.00 (1.60, 4.00) | 1.50 (1.60, 4.00) |",
		"## One-shot relative to window, reused\n", "| 4 KiB read, depth 32 | 1.50 (1.60, 4.00) | 1.20 (1.60, 4.00) |",
		"| one-shot | card on the client's core | 6000 | 0 – 0 | 1.50 | 0 | 0 | 10.00 | 0.00 | 1.00 | 2.00 | 2.00 |",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is not in\n%s", want, text)
		}
	}
	if svg := nicPicture([]result{r}); strings.Count(svg, "<rect") != 1+2*len(placements("")) {
		t.Errorf("the picture: %s", svg)
	}
}

// Each contender of a card says which, and all others nothing.
func TestNICContenders(t *testing.T) {
	for _, c := range nicContenders("/d") {
		if with, args := strings.Contains(c.name, ", card"), strings.Join(c.args, " "); with != strings.Contains(args, "--nic /d/nic") {
			t.Errorf("%s: %s", c.name, args)
		}
	}
}
