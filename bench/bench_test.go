package main

import (
	"strings"
	"testing"

	"oneshot/bench/harness/harnesstest"
)

func TestSummarize(t *testing.T) {
	r := summarize("x", []sample{{IOPS: 30, P99: 1}, {IOPS: 10, P99: 3}, {IOPS: 20, P99: 2}, {IOPS: 40, P99: 8}})
	if r.IOPS != 25 || r.minIOPS != 10 || r.maxIOPS != 40 || r.P99 != 2.5 {
		t.Errorf("%+v", r)
	}
	if r := summarize("x", []sample{{IOPS: 30}, {IOPS: 10}, {IOPS: 20}}); r.IOPS != 20 {
		t.Errorf("median of three is %v", r.IOPS)
	}
}

func someResults() []result {
	var all []result
	for _, p := range points {
		all = append(all, result{point: p, rows: []row{
			{contender: echoName, sample: sample{IOPS: 1000, P50: 10, P99: 20, CPU: 1.5}, minIOPS: 900, maxIOPS: 1100},
			{contender: "oneshot", sample: sample{IOPS: 800}},
			{contender: "tgt", sample: sample{IOPS: 100}},
		}})
	}
	return all
}

func TestTable(t *testing.T) {
	got := table("On a Tuesday.", someResults())
	for _, want := range []string{
		"On a Tuesday.",
		"## 4 KiB random write, depth 32, 4 sessions",
		"## 256 KiB sequential read, depth 8\n",
		"| raw echo | 1000 | 900 – 1100 | 262 | 1.00 | 10.00 | 10 | 20 | 1.50 | 0 % | 0 % |",
		"| 0.80 | 8.00 |",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("the table lacks %q:\n%s", want, got)
		}
	}
}

func TestPictureIsXML(t *testing.T) {
	bars := harnesstest.Rects(t, picture(someResults()))
	// The background, the legend, and a bar for each contender at each point.
	if want := 1 + 2 + 2*len(points); bars != want {
		t.Errorf("%d rectangles, want %d", bars, want)
	}
}
