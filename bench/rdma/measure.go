package main

import (
	"context"
	"fmt"
	"log"
	"slices"

	"oneshot/bench/harness"
)

// points returns all sizes in both directions, at both depths; offsets are random.
func points() (list []harness.Point) {
	for _, depth := range []int{1, 32} {
		for _, write := range []bool{false, true} {
			for _, size := range []int{512, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20} {
				list = append(list, harness.Point{Write: write, Size: size, Depth: depth})
			}
		}
	}
	return list
}

// A contender is a way to use the disk: a transport and a flow.
type contender struct {
	name string
	url  string
	args []string
	fits func(harness.Point) bool
}

func (c contender) String() string { return c.name }

const immediate = 8 << 10 // the most bytes of data that a command carries with it

const (
	conventional  = "conventional"
	registered    = "registered"
	windowed      = "window, reused"
	static        = "registered once"
	oneShot       = "one-shot"
	oneShotTaken  = "one-shot, immediate"
	overTCP       = "TCP"
	overTCPDigest = "TCP, data digest"
	rawStream     = "raw TCP, CRC32C"
)

func always(harness.Point) bool { return true }

var contenders = []contender{
	{conventional, "iser+iwarp://" + rdmaAt, []string{"--flow", "conventional", "--immediate", "-1"}, always},
	{registered, "iser+iwarp://" + rdmaAt, []string{"--flow", "register", "--immediate", "-1"}, always},
	{windowed, "iser+iwarp://" + rdmaAt, []string{"--flow", "window", "--immediate", "-1"}, always},
	{static, "iser+iwarp://" + rdmaAt, []string{"--flow", "static", "--immediate", "-1"}, always},
	{oneShot, "oneshot+iwarp://" + rdmaAt, []string{"--immediate", "-1"}, always},
	{oneShotTaken, "oneshot+iwarp://" + rdmaAt, nil, func(p harness.Point) bool { return p.Write && p.Size <= immediate }},
	{overTCP, "iscsi://" + tcpAt, nil, always},
	{overTCPDigest, "iscsi://" + tcpAt, nil, always},
	{rawStream, "", nil, func(p harness.Point) bool { return p.Size == 256<<10 }},
}

// end holds the costs of one end per I/O.
type end struct {
	CPU       float64            `json:"cpu_us"`
	Crossings float64            `json:"crossings"`
	Counts    map[string]float64 `json:"counts"`
}

// sample is the output of initiator bench --json.
type sample struct {
	IOPS      float64 `json:"iops"`
	P50       float64 `json:"latency_p50_us"`
	P99       float64 `json:"latency_p99_us"`
	Card      float64 `json:"card_cpu_us"`
	Initiator end     `json:"initiator"`
	Target    end     `json:"target"`
}

// messages returns the number of wire messages per I/O, in both directions together.
func (s *sample) messages() float64 {
	return s.Initiator.Counts["messages_out"] + s.Initiator.Counts["messages_in"]
}

// row is a contender at a point: the median sample by IOPS, and the extremes.
type row struct {
	contender string
	sample
	low, high float64
}

type result struct {
	point harness.Point
	rows  []row
}

func (r result) row(name string) *row {
	for i := range r.rows {
		if r.rows[i].contender == name {
			return &r.rows[i]
		}
	}
	return nil
}

// measure gives every contender its turn in every round.
func (b *bench) measure(ctx context.Context, p harness.Point, all []contender) (result, error) {
	r := result{point: p}
	fit := slices.DeleteFunc(slices.Clone(all), func(c contender) bool { return !c.fits(p) })
	err := harness.Compare(ctx, &b.Options, p, fit, func(c contender) (sample, error) { return b.once(ctx, p, c) },
		func(s sample) float64 { return s.IOPS },
		func(c contender, median sample, low, high float64) {
			w := row{c.name, median, low, high}
			r.rows = append(r.rows, w)
			log.Printf("%-24s %-20s %8.0f IOPS  p99 %6.0f µs  crossings %5.2f %5.2f  CPU %6.2f %6.2f µs",
				p, c.name, w.IOPS, w.P99, w.Initiator.Crossings, w.Target.Crossings, w.Initiator.CPU, w.Target.CPU)
		})
	return r, err
}

func (b *bench) once(ctx context.Context, p harness.Point, c contender) (s sample, err error) {
	if c.name == rawStream {
		return b.stream(p)
	}
	url := c.url + "/" + iqn + "/0"
	if c.name == overTCPDigest {
		url += "?data_digest=crc32c"
	}
	args := append([]string{
		"--random", "--duration", fmt.Sprintf("%gs", b.Seconds), "--warmup", "150ms", "--depth", fmt.Sprint(p.Depth), "--size", fmt.Sprint(p.Size),
	}, c.args...)
	if p.Write {
		args = append(args, "--write")
	}
	err = b.Load(ctx, &s, append(args, url)...)
	return s, err
}
