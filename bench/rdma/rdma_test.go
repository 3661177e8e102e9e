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
	text := table(options{Options: harness.Options{Rounds: 3, Seconds: 1}}, []result{r})
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
