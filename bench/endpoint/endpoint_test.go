package main

import (
	"regexp"
	"strings"
	"testing"

	"oneshot/bench/harness"
	"oneshot/bench/harness/harnesstest"
)

// Every load but fio's does something, and counts what it says.
func TestLoads(t *testing.T) {
	dir := t.TempDir()
	defer func(n int64) { fileSize = n }(fileSize)
	fileSize = 8 << 20
	for _, p := range points {
		for _, c := range p.contenders {
			if strings.HasPrefix(c.name, "fio") {
				continue
			}
			var s sample
			var err error
			for seconds := 0.001; s.rate <= 0 && err == nil; seconds *= 2 { // on a busy machine nothing may be done in a short time
				s, err = c.run(t.Context(), dir, seconds)
			}
			far := strings.HasPrefix(p.name, "remote") && c.name != "pwrite and fdatasync in one process" // nothing is counted
			copies, syncs := !far && !strings.HasPrefix(p.name, "file"), !far && strings.Contains(p.name, "log")
			if err != nil || s.cpu < 0 || copies != (s.copies > 0) || syncs != (s.syncs*appenders >= 1 && s.syncs <= 2) {
				t.Errorf("%s, %s: %+v, %v", p.name, c.name, s, err)
			}
		}
	}
}

func TestParseFIO(t *testing.T) {
	s, err := parseFIO([]byte(`{"jobs":[{"usr_cpu":10,"sys_cpu":30,"read":{"iops":0},"write":{"iops":200000}}]}`))
	if err != nil || s.rate != 200000 || s.cpu != 2 {
		t.Errorf("%+v, %v", s, err)
	}
	for _, bad := range []string{"", "{}", `{"jobs":[{},{}]}`} {
		if _, err := parseFIO([]byte(bad)); err == nil {
			t.Errorf("%q is a report", bad)
		}
	}
}

func TestReport(t *testing.T) {
	var results []result
	for _, p := range points {
		results = append(results, result{p, [][]sample{{{1000, 2, 1, 0.5}, {3000, 4, 1, 0.5}}, {{4000, 1, 0, 1}}, {{5000, 1, 0, 1}}}[:len(p.contenders)]})
	}
	results[0].point.goal = 0.5
	text := table(options{Options: harness.Options{Rounds: 2, Seconds: 1}}, results)
	for _, want := range []string{
		"## log, 16 appenders, 512 B\n\nGoal: a ratio of 0.95, missed.\n", "batch 32\n\nGoal: a ratio of 0.50, met.\n", "depth 1\n\n| |", "| endpoint/wal | 2000 | 1000 – 3000 | 0.50 | 500000 | 3.00 | 1.00 | 0.500 |", "| fio, io_uring | 4000 | 4000 – 4000 | 1.00 |",
		"| bare exchange of as many bytes | 5000 | 5000 – 5000 | 1.25 |",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is not in\n%s", want, text)
		}
	}
	o := options{Options: harness.Options{Only: regexp.MustCompile("^endpoint/"), Points: regexp.MustCompile("^log")}}
	alone := o.selected()
	if len(alone) != 1 || len(alone[0].contenders) != 1 {
		t.Fatalf("the flags select %v", alone)
	}
	if text := table(o, []result{{alone[0], [][]sample{{{1000, 2, 1, 0.5}}}}}); strings.Contains(text, "Goal") || !strings.Contains(text, "| endpoint/wal | 1000 | 1000 – 1000 | 1.00 |") {
		t.Error(text)
	}
	if n := harnesstest.Rects(t, picture(results)); n < len(points) {
		t.Errorf("%d rectangles", n)
	}
}
