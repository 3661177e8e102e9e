package harness

import (
	"context"
	"errors"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"oneshot/bench/harness/harnesstest"
)

func TestPoint(t *testing.T) {
	for want, p := range map[string]Point{
		"512 B read, depth 1":                          {Size: 512, Depth: 1},
		"4 KiB random write, depth 32":                 {Write: true, Order: Random, Size: 4096, Depth: 32, Sessions: 1},
		"256 KiB sequential read, depth 8, 4 sessions": {Order: Sequential, Size: 256 << 10, Depth: 8, Sessions: 4},
	} {
		if got := p.String(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

func TestEach(t *testing.T) {
	o := &Options{Points: regexp.MustCompile("read")}
	points := []Point{{Size: 512, Depth: 1}, {Write: true, Size: 512, Depth: 1}, {Size: 4096, Depth: 2}}
	got, err := Each(o, points, func(p Point) (int, error) { return p.Size, nil })
	if err != nil || !slices.Equal(got, []int{512, 4096}) {
		t.Errorf("%v, %v", got, err)
	}
	o.Points = regexp.MustCompile("none")
	if _, err := Each(o, points, func(Point) (int, error) { return 0, nil }); err == nil {
		t.Error("nothing matches, and nobody says so")
	}
}

// Each round begins with another contender.
func TestRounds(t *testing.T) {
	var order []string
	samples, err := Rounds(t.Context(), &Options{Rounds: 2}, []string{"a", "b", "c"}, func(c string) (int, error) {
		order = append(order, c)
		return len(order), nil
	})
	if err != nil || strings.Join(order, "") != "abcbca" || !slices.Equal(samples[0], []int{1, 6}) || !slices.Equal(samples[2], []int{3, 5}) {
		t.Errorf("%v %v, %v", order, samples, err)
	}
	failed := errors.New("no")
	if _, err := Rounds(t.Context(), &Options{Rounds: 1}, []int{1}, func(int) (int, error) { return 0, failed }); err != failed {
		t.Error(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Rounds(ctx, &Options{Rounds: 1}, []int{1}, func(int) (int, error) { return 0, nil }); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

func TestMedian(t *testing.T) {
	self := func(v float64) float64 { return v }
	for want, v := range map[float64][]float64{20: {30, 10, 20}, 25: {30, 10, 20, 40}, 7: {7}} {
		if got := Median(v, self); got != want {
			t.Errorf("median of %v is %v", v, got)
		}
	}
}

// The processor time of this process is positive and does not shrink, nor does the machine's.
func TestCPU(t *testing.T) {
	_, busy, err := MachineCPU()
	if err != nil {
		t.Fatal(err)
	}
	before, err := ProcessCPU(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	for after := before; after <= before; { // until the clock ticks
		if after, err = ProcessCPU(os.Getpid()); err != nil {
			t.Fatal(err)
		}
	}
	if all, later, err := MachineCPU(); err != nil || later < busy || all < later {
		t.Errorf("the machine: %v of %v, %v before; %v", later, all, busy, err)
	}
}

func TestParseStat(t *testing.T) {
	name, user, system, err := ParseStat("11 (kworker/0:1H-ib) x) S 1 1 1 0 -1 0 0 0 0 0 10 25 0 0 20 0\n")
	if err != nil || name != "kworker/0:1H-ib) x" || user != 100*time.Millisecond || system != 250*time.Millisecond {
		t.Errorf("%q %v %v, %v", name, user, system, err)
	}
	for _, bad := range []string{"", "nothing\n", "1 (x) S 1\n", ")("} {
		if _, _, _, err := ParseStat(bad); err == nil {
			t.Errorf("%q is a line", bad)
		}
	}
}

func TestChart(t *testing.T) {
	c := Chart{
		Title: "T", Width: 600, Labels: 100, Bar: 13, Gap: 10, Scale: 100, Widest: 2, Ticks: Percents(50, 100),
		Legend: []Key{{"a", Blue}, {"b", Red}},
		Groups: []Group{{"first", []Bar{{1, Blue, "1.00"}, {7, Red, "7.00"}}}, {"second", []Bar{{0.5, Blue, "0.50"}}}},
	}
	svg := c.SVG()
	rects := harnesstest.Rects(t, svg)
	if rects != 1+2+3 {
		t.Errorf("%d rectangles", rects)
	}
	for _, want := range []string{`width="200.0"`, `width="50.0"`, ">100 %<", ">second<"} {
		if !strings.Contains(svg, want) {
			t.Errorf("%s is not in\n%s", want, svg)
		}
	}
}

// The figures of the generators in C are read, and a line of others, or about no I/O, is an error.
func TestParseFigures(t *testing.T) {
	f, err := ParseFigures([]byte(`{"ios":4000,"seconds":0.500000,"p50_us":15.0,"p99_us":24.5,"client_cpu":0.250}` + "\n"))
	if err != nil || f != (Figures{4000, 0.5, 15, 24.5, 0.25}) {
		t.Errorf("%+v, %v", f, err)
	}
	for _, bad := range []string{"", "connect: refused", `{"ios":0,"seconds":1}`} {
		if _, err := ParseFigures([]byte(bad)); err == nil {
			t.Errorf("%q is figures", bad)
		}
	}
}

// The client of the echo is told the load as its usage says.
func TestEchoLoad(t *testing.T) {
	got := strings.Join(EchoLoad("bin/echo", "24014", Point{Write: true, Size: 4096, Depth: 32}, 0.7), " ")
	if want := "bin/echo load 24014 write 4096 32 1 0.7"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}
