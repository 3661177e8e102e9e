package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"oneshot/bench/harness"
)

// points lists the points of the project's goals.
var points = []harness.Point{
	{Order: harness.Random, Size: 4 << 10, Depth: 1},
	{Order: harness.Random, Write: true, Size: 4 << 10, Depth: 1},
	{Order: harness.Random, Size: 4 << 10, Depth: 32},
	{Order: harness.Random, Write: true, Size: 4 << 10, Depth: 32},
	{Order: harness.Sequential, Size: 256 << 10, Depth: 8},
	{Order: harness.Sequential, Write: true, Size: 256 << 10, Depth: 8},
}

// args returns the arguments of fio.
func args(p harness.Point) []string {
	rw := "read"
	if p.Write {
		rw = "write"
	}
	if p.Order == harness.Random {
		rw = "rand" + rw
	}
	a := []string{"--rw=" + rw, fmt.Sprintf("--bs=%d", p.Size), fmt.Sprintf("--iodepth=%d", p.Depth)}
	if p.FUA {
		a = append(a, "--fsync=1")
	}
	return a
}

// A sample is the result of one run of fio.
type sample struct {
	IOPS     float64
	P50, P99 float64            // µs
	CPU      map[string]float64 // µs per I/O of the guest's two processors, by the names in shares
	Host     float64            // µs of the host's processors per I/O that the guest took
	Others   float64            // share of the host that neither the guest nor idling took
	Device   map[string]float64 // what crossed this target's RDMA device, per I/O, by the names in crossings
}

// A row is a contender at a point: medians over the rounds, the extremes, and the largest share that
// others took.
type row struct {
	contender
	sample
	low, high float64
}

// result is a point with its rows, in the order of the contenders.
type result struct {
	point harness.Point
	rows  []row
}

// row returns the row of a target over a transport, or nil.
func (r result) row(target, transport string) *row {
	for i := range r.rows {
		if r.rows[i].target == target && r.rows[i].transport == transport {
			return &r.rows[i]
		}
	}
	return nil
}

func (b *bench) measureAll(ctx context.Context) ([]result, error) {
	if err := b.measureStart(); err != nil {
		return nil, err
	}
	all := points
	if b.mirror {
		all = mirrorPoints
	}
	return harness.Each(&b.Options, all, func(p harness.Point) (result, error) { return b.measure(ctx, p) })
}

// measureStart measures the host's processor time for one fio that does almost no I/O.
func (b *bench) measureStart() error {
	if b.contenders[0].disk == "" { // the echo, which is the last, is alone
		return nil
	}
	var costs []time.Duration
	for range 3 {
		before, err := b.hostCPU()
		if err != nil {
			return err
		}
		if _, err := b.fio(b.contenders[0].disk, "--rw=read", "--bs=4k", "--number_ios=1"); err != nil {
			return err
		}
		after, err := b.hostCPU()
		if err != nil {
			return err
		}
		costs = append(costs, after.guest-before.guest)
	}
	slices.Sort(costs)
	b.starting = costs[1]
	return nil
}

// measure gives every contender its turn in every round.
func (b *bench) measure(ctx context.Context, p harness.Point) (result, error) {
	samples, err := harness.Rounds(ctx, &b.Options, b.contenders, func(c contender) (sample, error) {
		s, err := b.once(p, c)
		if err != nil {
			return s, fmt.Errorf("%s, %s: %w", c, p, err)
		}
		return s, nil
	})
	if err != nil {
		return result{}, err
	}
	r := result{point: p}
	for i, c := range b.contenders {
		w := summarize(c, samples[i])
		r.rows = append(r.rows, w)
		log.Printf("%-32s %-13s %7.0f IOPS %6.1f MB/s  p99 %7.0f µs  others %2.0f %%  µs per I/O: host %.0f; guest%s", p, c, w.IOPS,
			p.MBs(w.IOPS), w.P99, 100*w.Others, w.Host, spent(w.CPU))
		if len(w.Device) > 0 {
			log.Printf("%46s per I/O:%s", "", crossedText(w.Device))
		}
	}
	return r, nil
}

func spent(cpu map[string]float64) string {
	var s strings.Builder
	for _, name := range shares {
		fmt.Fprintf(&s, " %s %.0f", name, cpu[name])
	}
	return s.String()
}

// once measures one contender.
func (b *bench) once(p harness.Point, c contender) (s sample, err error) {
	crossed, err := b.crossed(c)
	if err != nil {
		return s, err
	}
	before, err := b.guestCPU()
	if err != nil {
		return s, err
	}
	hostBefore, err := b.hostCPU()
	if err != nil {
		return s, err
	}
	f, d, err := b.load(p, c)
	if err != nil {
		return s, err
	}
	hostAfter, err := b.hostCPU()
	if err != nil {
		return s, err
	}
	after, err := b.guestCPU()
	if err != nil {
		return s, err
	}
	device, err := b.crossed(c)
	if err != nil {
		return s, err
	}
	if d.TotalIOs == 0 {
		return s, errors.New("no I/O")
	}
	for kind := range device {
		device[kind] = (device[kind] - crossed[kind]) / d.TotalIOs
	}
	ns := d.Latency.Percentile
	return sample{
		IOPS: d.IOPS, P50: ns["50.000000"] / 1e3, P99: ns["99.000000"] / 1e3,
		CPU:    after.perIO(before, f, d),
		Host:   float64((hostAfter.guest - hostBefore.guest - b.starting).Microseconds()) / d.TotalIOs,
		Others: hostAfter.others(hostBefore),
		Device: device,
	}, nil
}

// load has fio, or the echo, do one turn. The job is fio's.
func (b *bench) load(p harness.Point, c contender) (f job, d side, err error) {
	if c.disk == "" {
		d, err = b.echo(p)
		return f, d, err
	}
	f, err = b.fio(c.disk, append(args(p), "--time_based", fmt.Sprintf("--runtime=%gs", b.Seconds))...)
	if p.Write {
		return f, f.Write, err
	}
	return f, f.Read, err
}

// crossings are the counts of a device that the tables show.
var crossings = []string{"doorbells", "works", "receive_posts", "polls", "completions", "read_requests", "events", "polling_found", "polling_in_vain", "sleeps"}

func crossedText(counts map[string]float64) string {
	var s strings.Builder
	for _, kind := range crossings {
		fmt.Fprintf(&s, " %s %.2f", kind, counts[kind])
	}
	return s.String()
}

var deviceLine = regexp.MustCompile(`(?m)^oneshot_rdma_total\{.*kind="(\w+)".*\} (\S+)$`)

// crossed is what has crossed this target's RDMA device so far, by kind; nil for others, and over TCP.
func (b *bench) crossed(c contender) (map[string]float64, error) {
	if c.target != ours || c.transport != overRXE && c.transport != overNVMeRXE {
		return nil, nil
	}
	if err := b.runAll("@fetch http://" + metricsAt + "/metrics /tmp/metrics"); err != nil {
		return nil, err
	}
	out, err := b.run("@cat", "/tmp/metrics")
	if err != nil {
		return nil, err
	}
	return parseCrossed(out)
}

// parseCrossed reads the daemon's metrics.
func parseCrossed(text string) (map[string]float64, error) {
	counts := make(map[string]float64)
	for _, m := range deviceLine.FindAllStringSubmatch(text, -1) {
		n, err := strconv.ParseFloat(m[2], 64)
		if err != nil {
			return nil, err
		}
		counts[m[1]] += n
	}
	if len(counts) == 0 {
		return nil, errors.New("the metrics of the daemon do not have oneshot_rdma_total")
	}
	return counts, nil
}

// side is one direction, reads or writes, of fio's JSON.
type side struct {
	IOPS     float64 `json:"iops"`
	TotalIOs float64 `json:"total_ios"`
	Latency  struct {
		Max        float64            `json:"max"`
		Percentile map[string]float64 `json:"percentile"`
	} `json:"clat_ns"`
}

type job struct {
	Read   side    `json:"read"`
	Write  side    `json:"write"`
	User   float64 `json:"usr_cpu"` // per cent of one processor
	System float64 `json:"sys_cpu"`
	Error  int     `json:"error"`
}

// fio runs one job on a disk.
func (b *bench) fio(disk string, args ...string) (job, error) {
	args = append([]string{
		"fio", "--name=bench", "--filename=/dev/" + disk, "--direct=1", "--ioengine=io_uring", "--thread", "--norandommap",
		"--output-format=json", "--output=/tmp/fio.json",
	}, args...)
	if _, err := b.run(args...); err != nil {
		return job{}, err
	}
	out, err := b.run("@cat", "/tmp/fio.json")
	if err != nil {
		return job{}, err
	}
	var f struct{ Jobs []job }
	if err := json.Unmarshal([]byte(out), &f); err != nil || len(f.Jobs) != 1 {
		return job{}, fmt.Errorf("fio says %q: %w", out, err)
	}
	if f.Jobs[0].Error != 0 {
		return job{}, fmt.Errorf("fio fails: %s", out)
	}
	return f.Jobs[0], nil
}

func summarize(c contender, samples []sample) row {
	median := func(figure func(sample) float64) float64 { return harness.Median(samples, figure) }
	iops := harness.Sorted(samples, func(s sample) float64 { return s.IOPS })
	w := row{contender: c, low: iops[0], high: iops[len(iops)-1]}
	w.IOPS = median(func(s sample) float64 { return s.IOPS })
	w.P50 = median(func(s sample) float64 { return s.P50 })
	w.P99 = median(func(s sample) float64 { return s.P99 })
	w.Host = median(func(s sample) float64 { return s.Host })
	w.Others = slices.Max(harness.Sorted(samples, func(s sample) float64 { return s.Others }))
	w.CPU = make(map[string]float64)
	for _, name := range shares {
		w.CPU[name] = median(func(s sample) float64 { return s.CPU[name] })
	}
	w.Device = make(map[string]float64)
	for kind := range samples[0].Device {
		w.Device[kind] = median(func(s sample) float64 { return s.Device[kind] })
	}
	return w
}
