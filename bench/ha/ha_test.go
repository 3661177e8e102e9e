package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"oneshot/bench/harness"
)

// The report has a row for each store and point, compared with the one that is no mirror.
func TestReport(t *testing.T) {
	r := result{Point: harness.Point{Write: true, FUA: true, Size: 4096, Depth: 32}}
	for i, c := range contenders {
		w := row{Contender: c.name, Low: 900, High: 5000}
		w.Sample.IOPS, w.Sample.P50, w.Sample.P99, w.Sample.Initiator.CPU = float64(2000/(i+1)), 7, 9, 3
		w.Sample.nodes = [3]spent{{10, 0.25, 4}, {5, 0.5, -1}, {1, 0, 0}}
		r.Rows = append(r.Rows, w)
	}
	text := table(harness.Options{Rounds: 5, Seconds: 1}, []result{r}, usualSize, "tcp", 2)
	for _, want := range []string{
		"## 4 KiB write + flush, depth 32\n", "| file | 2000 | 900 – 5000 | 8 | 1.00 | 7 | 9 | 3.0 | 10.0 | 5.0 | 1.0 | 0.25 | 0.50 | 4.00 | – |",
		"| mirror of two files | 1000 | 900 – 5000 | 4 | 0.50 |", "In 2 turns the primary has changed",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is not in\n%s", want, text)
		}
	}
	if svg := picture([]result{r}); strings.Count(svg, "<rect") != 1+2*len(contenders) {
		t.Errorf("the picture: %s", svg)
	}
}

// Perf says how many system calls there were, or that it could not count them.
func TestParseCalls(t *testing.T) {
	n, err := parseCalls("# started on Mon\n\n1234,,raw_syscalls:sys_enter,5000,100.00,,\n")
	if err != nil || n != 1234 {
		t.Errorf("%v, %v", n, err)
	}
	for _, text := range []string{"", "<not counted>,,raw_syscalls:sys_enter,0,100.00,,\n"} {
		if _, err := parseCalls(text); err == nil {
			t.Errorf("%q is taken", text)
		}
	}
}

// Points of one run are told apart by what -points matches.
func TestPoints(t *testing.T) {
	names := map[string]bool{}
	for _, p := range points(false) {
		names[p.String()] = true
	}
	for _, want := range []string{"4 KiB write, depth 1", "4 KiB write, depth 32", "256 KiB write, depth 1", "4 KiB write + flush, depth 1", "4 KiB read, depth 1"} {
		if !names[want] {
			t.Errorf("there is no %s in %v", want, names)
		}
	}
}

// A turn in which the primary has changed does not count, whether it has failed or not; one that has failed under one primary ends
// the run, and so does the end of its time.
func TestSteady(t *testing.T) {
	no := errors.New("no")
	for name, test := range map[string]struct {
		terms  []uint64 // before and after each turn
		fails  []bool   // turns
		turns  int
		failed error // in the end
	}{
		"quiet":             {[]uint64{1, 1}, []bool{false}, 1, nil},
		"moved once":        {[]uint64{1, 3, 3, 3}, []bool{false, false}, 2, nil},
		"moved, and failed": {[]uint64{1, 3, 3, 3}, []bool{true, false}, 2, nil},
		"failed":            {[]uint64{1, 1}, []bool{true}, 1, no},
		"out of time":       {[]uint64{1, 2, 3, 0}, []bool{false, false}, 2, no},
	} {
		turns, repeats := 0, 0
		s, err := steady(
			func() (term uint64, err error) {
				if term, test.terms = test.terms[0], test.terms[1:]; term == 0 {
					err = no
				}
				return term, err
			},
			func() (s sample, err error) {
				s.IOPS = float64(turns + 1)
				if test.fails[turns] {
					err = no
				}
				turns++
				return s, err
			},
			func() { repeats++ })
		switch {
		case turns != test.turns || len(test.terms) != 0:
			t.Errorf("%s: %d turns, %d states not looked at", name, turns, len(test.terms))
		case (err != nil) != (test.failed != nil) || test.failed == no && err.Error() != "no":
			t.Errorf("%s: %v", name, err)
		case err == nil && (s.IOPS != float64(turns) || repeats != turns-1):
			t.Errorf("%s: sample %v after %d turns, %d of them repeated", name, s.IOPS, turns, repeats)
		}
	}
}

// All copies of all mirrors are in sync, or the bench waits; a mirror that another node serves is named.
func TestTerms(t *testing.T) {
	for text, want := range map[string]string{
		`{"mirrors": [{"name": "d", "role": "primary", "term": 3, "copies": [{"state": "in sync"}, {"state": "in sync"}]},
			{"name": "e", "role": "follower", "term": 4, "copies": [{"state": "in sync"}, {"state": "in sync"}]}]}`: "7 [e] true",
		`{"mirrors": [{"name": "d", "role": "primary", "term": 3, "copies": [{"state": "in sync"}, {"state": "resync"}]},
			{"name": "e", "role": "primary", "term": 4, "copies": [{"state": "in sync"}, {"state": "in sync"}]}]}`: "7 [] false",
		`{"mirrors": [{"name": "d", "role": "primary", "term": 3, "copies": [{"state": "in sync"}, {"state": "in sync"}]}]}`: "3 [] false",
	} {
		var s state
		if err := json.Unmarshal([]byte(text), &s); err != nil {
			t.Fatal(err)
		}
		terms, elsewhere, level := s.terms()
		if got := fmt.Sprint(terms, " ", elsewhere, " ", level); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}
