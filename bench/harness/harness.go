// Package harness holds what the benchmarks share: flags, points of load, rounds in which contenders take
// turns, medians, processor time, and the picture.
package harness

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"
)

// Options holds the values of the flags that all benchmarks have.
type Options struct {
	Rounds       int
	Seconds      float64 // per round and contender
	Only, Points *regexp.Regexp
	Out          string // directory of the report
}

// Main reads the flags, also those that the caller has added, and runs the benchmark. o has the defaults.
// If run fails, Main ends the process.
func Main(o *Options, run func(context.Context) error) {
	log.SetFlags(0)
	flag.IntVar(&o.Rounds, "rounds", o.Rounds, "rounds per point")
	flag.Float64Var(&o.Seconds, "seconds", o.Seconds, "seconds per round and contender")
	only := flag.String("only", "", "measure only contenders whose name matches this `regexp`")
	points := flag.String("points", "", "measure only points whose name matches this `regexp`, as \"read, depth 1\"")
	flag.StringVar(&o.Out, "out", "bench/results", "`directory` of the table and the picture")
	flag.Parse()
	o.Only, o.Points = regexp.MustCompile(*only), regexp.MustCompile(*points)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx); err != nil {
		stop()
		log.Fatal("bench: ", err)
	}
}

// A Point is one kind of load.
type Point struct {
	Write    bool
	FUA      bool   // each write is durable when it ends
	Order    string // Random or Sequential; empty: the report does not say
	Size     int    // bytes of a command
	Depth    int    // commands outstanding, per session
	Sessions int    // 0: one
}

// Values of Point.Order.
const (
	Random     = "random"
	Sequential = "sequential"
)

// Mode is "read", "write" or "write + flush".
func (p Point) Mode() string {
	switch {
	case p.FUA:
		return "write + flush"
	case p.Write:
		return "write"
	}
	return "read"
}

func (p Point) String() string {
	size := fmt.Sprintf("%d B", p.Size)
	if p.Size >= 1<<10 {
		size = fmt.Sprintf("%d KiB", p.Size>>10)
	}
	words := []string{size, p.Mode()}
	if p.Order != "" {
		words = []string{size, p.Order, p.Mode()}
	}
	s := strings.Join(words, " ") + fmt.Sprintf(", depth %d", p.Depth)
	if p.Sessions > 1 {
		s += fmt.Sprintf(", %d sessions", p.Sessions)
	}
	return s
}

// MBs returns the rate, in MB/s, of iops commands per second.
func (p Point) MBs(iops float64) float64 { return iops * float64(p.Size) / 1e6 }

// Each calls measure for each of the points that o selects. With an error it returns the results before it.
func Each[R any](o *Options, points []Point, measure func(Point) (R, error)) (results []R, err error) {
	for _, p := range points {
		if !o.Points.MatchString(p.String()) {
			continue
		}
		r, err := measure(p)
		if err != nil {
			return results, err
		}
		results = append(results, r)
	}
	if len(results) == 0 {
		return nil, errors.New("no point matches")
	}
	return results, nil
}

// Rounds gives every contender its turn in every round, in an order that rotates, and returns the
// samples of each.
func Rounds[C, S any](ctx context.Context, o *Options, contenders []C, once func(C) (S, error)) ([][]S, error) {
	samples := make([][]S, len(contenders))
	for round := range o.Rounds {
		for turn := range contenders {
			if err := ctx.Err(); err != nil {
				return nil, err
			}
			i := (turn + round) % len(contenders)
			s, err := once(contenders[i])
			if err != nil {
				return nil, err
			}
			samples[i] = append(samples[i], s)
		}
	}
	return samples, nil
}

// Sorted returns one figure of all samples, from the lowest to the highest.
func Sorted[S any](samples []S, figure func(S) float64) []float64 {
	v := make([]float64, 0, len(samples))
	for _, s := range samples {
		v = append(v, figure(s))
	}
	slices.Sort(v)
	return v
}

// Median returns the median of one figure of all samples.
func Median[S any](samples []S, figure func(S) float64) float64 {
	v := Sorted(samples, figure)
	return (v[(len(v)-1)/2] + v[len(v)/2]) / 2
}

// WriteReport writes a table and its picture.
func (o *Options) WriteReport(name, table, picture string) error {
	if err := os.MkdirAll(o.Out, 0o755); err != nil {
		return err
	}
	return errors.Join(
		os.WriteFile(filepath.Join(o.Out, name+".md"), []byte(table), 0o644),
		os.WriteFile(filepath.Join(o.Out, name+".svg"), []byte(picture), 0o644),
	)
}

// Today returns the date in the format of the reports.
func Today() string { return time.Now().UTC().Format(time.DateOnly) }

// Kernel returns the release of this machine's kernel.
func Kernel() string {
	text, err := os.ReadFile("/proc/sys/kernel/osrelease")
	if err != nil {
		return "(an unknown release)"
	}
	return strings.TrimSpace(string(text))
}

// Ratio formats a/b for the reports, or returns a dash if there is nothing to compare with.
func Ratio(a, b float64) string {
	if b == 0 {
		return "–"
	}
	return fmt.Sprintf("%.2f", a/b)
}
