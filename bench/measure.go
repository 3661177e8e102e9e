package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"
)

// A point is one kind of load.
type point struct {
	write      bool
	sequential bool
	size       int
	depth      int // commands outstanding, per session
	sessions   int
}

// points are those of the project's goals.
var points = []point{
	{write: false, size: 4096, depth: 1, sessions: 1},
	{write: true, size: 4096, depth: 1, sessions: 1},
	{write: false, size: 4096, depth: 32, sessions: 1},
	{write: true, size: 4096, depth: 32, sessions: 1},
	{write: false, size: 4096, depth: 32, sessions: 4},
	{write: true, size: 4096, depth: 32, sessions: 4},
	{write: false, sequential: true, size: 256 << 10, depth: 8, sessions: 1},
	{write: true, sequential: true, size: 256 << 10, depth: 8, sessions: 1},
}

func (p point) mode() string {
	if p.write {
		return "write"
	}
	return "read"
}

func (p point) pattern() string {
	if p.sequential {
		return "sequential"
	}
	return "random"
}

func (p point) String() string {
	s := fmt.Sprintf("%d KiB %s %s, depth %d", p.size>>10, p.pattern(), p.mode(), p.depth)
	if p.sessions > 1 {
		s += fmt.Sprintf(", %d sessions", p.sessions)
	}
	return s
}

// A sample is what one run of the load generator gave.
type sample struct {
	IOPS      float64
	P50, P99  float64 // µs
	CPU       float64 // seconds of the server per million I/Os
	ClientCPU float64 // share of the client's core
	Others    float64 // share of the machine that processes of others, and the hypervisor, took
}

// A row is a contender at a point: medians over the rounds, and the extremes;
// of what others took, the most.
type row struct {
	contender string
	sample
	minIOPS, maxIOPS float64
}

// result is a point with its rows, in the order of the contenders.
type result struct {
	point point
	rows  []row
}

// row returns the row of a contender, or nil.
func (r result) row(name string) *row {
	for i := range r.rows {
		if r.rows[i].contender == name {
			return &r.rows[i]
		}
	}
	return nil
}

func (b *bench) measureAll(ctx context.Context) ([]result, error) {
	var results []result
	for _, p := range points {
		if !b.points.MatchString(p.String()) {
			continue
		}
		r, err := b.measure(ctx, p)
		if err != nil {
			return nil, err
		}
		results = append(results, r)
	}
	if len(results) == 0 {
		return nil, errors.New("no point matches")
	}
	return results, nil
}

// measure gives every contender its turn in every round.
func (b *bench) measure(ctx context.Context, p point) (result, error) {
	samples := make([][]sample, len(b.contenders))
	for round := range b.rounds {
		for turn := range b.contenders {
			i := (turn + round) % len(b.contenders)
			s, err := b.quietly(ctx, p, b.contenders[i])
			if err != nil {
				return result{}, fmt.Errorf("%s, %s: %w", b.contenders[i].name, p, err)
			}
			samples[i] = append(samples[i], s)
		}
	}
	r := result{point: p}
	for i, c := range b.contenders {
		r.rows = append(r.rows, summarize(c.name, samples[i]))
		log.Printf("%-36s %-14s %8.0f IOPS  p99 %6.0f µs  %6.2f CPU s/Mio  others %3.0f %%",
			p, c.name, r.rows[i].IOPS, r.rows[i].P99, r.rows[i].CPU, 100*r.rows[i].Others)
	}
	return r, nil
}

// What others may take of the machine while a sample is taken, and how often it
// is taken again when they take more. The last try counts whatever they do: the
// table says what they took.
const (
	othersAllowed = 0.08
	tries         = 8
	pause         = 2 * time.Second // before the next try
)

// quietly takes a sample when nobody disturbs.
func (b *bench) quietly(ctx context.Context, p point, c contender) (best sample, err error) {
	best.Others = 2
	for range tries {
		s, err := b.once(ctx, p, c)
		if err != nil {
			return s, err
		}
		if s.Others < best.Others {
			best = s
		}
		if best.Others <= othersAllowed {
			break
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return best, ctx.Err()
		}
	}
	return best, nil
}

// once runs the load generator against one contender.
func (b *bench) once(ctx context.Context, p point, c contender) (sample, error) {
	b.onlyRun(c.proc)
	load := strconv.FormatFloat(b.seconds, 'f', -1, 64)
	args := []string{"-c", strconv.Itoa(clientCore)}
	if c.name == echoName {
		args = append(args, b.tools.echo, "load", c.url, p.mode())
	} else {
		args = append(args, b.tools.load, c.url, p.mode(), p.pattern())
	}
	args = append(args, strconv.Itoa(p.size), strconv.Itoa(p.depth), strconv.Itoa(p.sessions), load)
	ctx, cancel := context.WithTimeout(ctx, time.Duration((b.seconds+60)*float64(time.Second)))
	defer cancel()
	before, err := b.usage(c.proc)
	if err != nil {
		return sample{}, err
	}
	begin := time.Now()
	cmd := exec.CommandContext(ctx, "taskset", args...)
	out, err := cmd.Output()
	if err != nil {
		if exit, ok := errors.AsType[*exec.ExitError](err); ok {
			err = fmt.Errorf("%w: %s", err, exit.Stderr)
		}
		return sample{}, fmt.Errorf("%s: %w\n%s", cmd, err, c.proc.lastWords())
	}
	after, err := b.usage(c.proc)
	if err != nil {
		return sample{}, err
	}
	client := cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
	ours := after.server - before.server + after.loops - before.loops + client
	others := (after.machine - before.machine - ours).Seconds() / time.Since(begin).Seconds() / float64(runtime.NumCPU())
	var figures struct {
		IOs       float64 `json:"ios"`
		Seconds   float64 `json:"seconds"`
		P50       float64 `json:"p50_us"`
		P99       float64 `json:"p99_us"`
		ClientCPU float64 `json:"client_cpu"`
	}
	if err := json.Unmarshal(out, &figures); err != nil {
		return sample{}, fmt.Errorf("%s: %w: %s", cmd, err, out)
	}
	if figures.IOs == 0 {
		return sample{}, fmt.Errorf("%s: no I/O in %s s", cmd, load)
	}
	return sample{
		IOPS: figures.IOs / figures.Seconds, P50: figures.P50, P99: figures.P99,
		CPU:       (after.server - before.server).Seconds() / figures.IOs * 1e6,
		ClientCPU: figures.ClientCPU / figures.Seconds,
		Others:    max(0, others),
	}, nil
}

// usage is CPU time spent so far.
type usage struct{ machine, server, loops time.Duration }

func (b *bench) usage(server *process) (u usage, err error) {
	if u.machine, err = machineCPU(); err != nil {
		return u, err
	}
	if u.server, err = server.cpu(); err != nil {
		return u, err
	}
	for _, l := range b.loops {
		t, err := l.cpu()
		if err != nil {
			return u, err
		}
		u.loops += t
	}
	return u, nil
}

// machineCPU is the time that all cores have not been idle, stolen time included.
func machineCPU() (time.Duration, error) {
	text, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, err
	}
	line, _, _ := strings.Cut(string(text), "\n")
	fields := strings.Fields(line) // cpu user nice system idle iowait irq softirq steal …
	if len(fields) < 9 {
		return 0, fmt.Errorf("/proc/stat: %q", line)
	}
	return ticks(slices.Concat(fields[1:4], fields[6:9]))
}

// clockTick is the unit of /proc/PID/stat: USER_HZ, which is 100 on every
// architecture that Linux offers to user space.
const clockTick = 10 * time.Millisecond

// cpu is the user and system time of the process so far.
func (p *process) cpu() (time.Duration, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.cmd.Process.Pid))
	if err != nil {
		return 0, fmt.Errorf("%s ended: %w\n%s", p.name, err, p.lastWords())
	}
	// The second field is the name, in parentheses, which may hold anything.
	fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
	return ticks(fields[11:13]) // utime, stime
}

// ticks is the sum of times as the kernel prints them.
func ticks(fields []string) (sum time.Duration, err error) {
	for _, f := range fields {
		n, err := strconv.ParseInt(f, 10, 64)
		if err != nil {
			return 0, fmt.Errorf("CPU time: %w", err)
		}
		sum += time.Duration(n) * clockTick
	}
	return sum, nil
}

func summarize(name string, samples []sample) row {
	pick := func(f func(sample) float64) []float64 {
		var v []float64
		for _, s := range samples {
			v = append(v, f(s))
		}
		slices.Sort(v)
		return v
	}
	iops := pick(func(s sample) float64 { return s.IOPS })
	return row{
		contender: name,
		sample: sample{
			IOPS:      median(iops),
			P50:       median(pick(func(s sample) float64 { return s.P50 })),
			P99:       median(pick(func(s sample) float64 { return s.P99 })),
			CPU:       median(pick(func(s sample) float64 { return s.CPU })),
			ClientCPU: median(pick(func(s sample) float64 { return s.ClientCPU })),
			Others:    slices.Max(pick(func(s sample) float64 { return s.Others })),
		},
		minIOPS: iops[0], maxIOPS: iops[len(iops)-1],
	}
}

// median of a sorted slice.
func median(v []float64) float64 {
	n := len(v)
	return (v[(n-1)/2] + v[n/2]) / 2
}
