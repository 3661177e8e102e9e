// Command ha measures a mirror beside a store that is none: three daemons on the loopback interface (two copies and a witness, as
// in configs/mirror.yaml), one client, which is this project's own, and the same loads. It writes a Markdown table and a picture.
//
//	make bench-ha                   or: go run ./bench/ha [flags]
//
// The primary is pinned to one core; the other copy, the witness and the client to another. Both stores are files of the same
// directory, served by the primary. In each round every contender has its turn, in an order that rotates; the figures are medians
// of the rounds. Compare the rows of one run.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"oneshot/bench/harness"
)

func main() {
	b := &bench{Pair: harness.Pair{Options: harness.Options{Rounds: 5, Seconds: 1}}}
	b.Flags()
	harness.Main(&b.Options, func(ctx context.Context) error {
		return b.Run(func(dir string) error { return b.run(ctx, dir) })
	})
}

const (
	iqn      = "iqn.2026-11.example.oneshot:bench"
	portalA  = "127.0.0.1:24021"
	portalB  = "127.0.0.1:24022"
	diskText = "256MiB"
)

// points are the loads; offsets are random.
func points() []harness.Point {
	return []harness.Point{
		{Write: true, Size: 4 << 10, Depth: 1},
		{Write: true, Size: 4 << 10, Depth: 32},
		{Write: true, Size: 256 << 10, Depth: 1},
		{Write: true, Size: 256 << 10, Depth: 8},
		{Write: true, FUA: true, Size: 4 << 10, Depth: 1},
		{Write: true, FUA: true, Size: 4 << 10, Depth: 32},
		{Size: 4 << 10, Depth: 1},
		{Size: 4 << 10, Depth: 32},
	}
}

// contender is a store.
type contender struct{ name, url string }

func (c contender) String() string { return c.name }

const (
	plain    = "file"
	mirrored = "mirror of two files"
)

var contenders = []contender{
	{plain, "iscsi://" + portalA + "/" + iqn + "-a/0"},
	{mirrored, "iscsi://" + portalA + "/" + iqn + "/0"},
}

// spent is what a node has spent, per I/O.
type spent struct {
	cpu    float64 // µs
	allocs float64
	calls  float64 // system calls; negative: nobody could count them
}

// sample is the output of initiator bench --json, and what the nodes have spent meanwhile.
type sample struct {
	IOPS      float64 `json:"iops"`
	IOs       float64 `json:"ios"`
	P50       float64 `json:"latency_p50_us"`
	P99       float64 `json:"latency_p99_us"`
	Initiator struct {
		CPU float64 `json:"cpu_us"`
	} `json:"initiator"`

	nodes [3]spent // in the order of names
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

// names are those of the nodes.
var names = [3]string{"a", "b", "w"}

// bench is a run.
type bench struct {
	harness.Pair
	dir  string
	pids [3]int
	perf bool // counts system calls
}

func (b *bench) run(ctx context.Context, dir string) error {
	b.dir = dir
	if err := b.start(ctx); err != nil {
		return err
	}
	b.perf = exec.CommandContext(ctx, "perf", "stat", "-e", callsEvent, "true").Run() == nil
	// The first write of a block allocates it, which must not be measured.
	for _, c := range contenders {
		if _, err := b.client(ctx, harness.Point{Write: true, Size: 1 << 20, Depth: 4}, c, nil, "3s", false); err != nil {
			return err
		}
	}
	results, err := harness.Each(&b.Options, points(), func(p harness.Point) (result, error) { return b.measure(ctx, p) })
	if err != nil {
		return err
	}
	return b.WriteReport(reportName, table(b.Options, results), picture(results))
}

func metricsOf(node int) string { return fmt.Sprint("127.0.0.1:", 24023+node) }

const configText = `log: {level: warn}
limits: {memory_per_connection: 128MiB}
cluster:
  name: bench
  state: consensus
  nodes:
    a: {address: "127.0.0.1:24031"}
    b: {address: "127.0.0.1:24032"}
    w: {address: "127.0.0.1:24033", witness: true}
stores:
  disk: {type: mirror, size: SIZE, copies: {a: {type: file, path: mirror.img}, b: {type: file, path: mirror.img}}}
  plain: {node: a, type: file, path: plain.img, size: SIZE}
targets:
  - {iqn: "IQN", luns: {0: disk}}
  - {node: a, iqn: "IQN-a", luns: {0: plain}}
portals:
  - {node: a, listen: "A", group: 1}
  - {node: b, listen: "B", group: 2}
metrics: {listen: "METRICS", pprof: true}
management: {socket: s.sock}
`

// start makes the cluster and starts its nodes. It returns when both copies are in sync.
func (b *bench) start(ctx context.Context) error {
	for i, name := range names {
		text := strings.NewReplacer("SIZE", diskText, "IQN", iqn, "METRICS", metricsOf(i), "\"A\"", strconv.Quote(portalA), "\"B\"", strconv.Quote(portalB)).Replace(configText)
		if err := os.MkdirAll(filepath.Join(b.dir, name), 0o700); err != nil {
			return err
		}
		if err := os.WriteFile(b.config(name), []byte(text), 0o600); err != nil {
			return err
		}
	}
	said, err := exec.CommandContext(ctx, b.Target, "ha", "init", "--config", b.config("a"), "--node", "a").CombinedOutput()
	if err != nil {
		return fmt.Errorf("ha init: %w: %s", err, said)
	}
	if err := b.serve(0); err != nil {
		return err
	}
	for _, m := range regexp.MustCompile(`--node (\w) --token (\w+)\n`).FindAllStringSubmatch(string(said), -1) {
		name, token := m[1], m[2]
		if out, err := exec.CommandContext(ctx, b.Target, "ha", "join", "--config", b.config(name), "--node", name, "--token", token).CombinedOutput(); err != nil {
			return fmt.Errorf("ha join: %w: %s", err, out)
		}
		if err := b.serve(map[string]int{"b": 1, "w": 2}[name]); err != nil {
			return err
		}
	}
	return b.level(ctx)
}

func (b *bench) config(name string) string { return filepath.Join(b.dir, name, "t.yaml") }

// serve starts a node: the primary on a core of its own.
func (b *bench) serve(node int) (err error) {
	core, verb := harness.ClientCore, "serve"
	switch names[node] {
	case "a":
		core = harness.TargetCore
	case "w":
		verb = "witness"
	}
	if b.pids[node], err = b.Start(core, b.Target, verb, "--config", b.config(names[node]), "--node", names[node]); err != nil {
		return err
	}
	return harness.Await("tcp", metricsOf(node))
}

// level waits until both copies are in sync, with a as the primary.
func (b *bench) level(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	watch := exec.CommandContext(ctx, b.Target, "ha", "status", "--socket", filepath.Join(b.dir, "a", "s.sock"), "--watch", "--interval", "100ms", "-o", "json")
	out, err := watch.StdoutPipe()
	if err != nil {
		return err
	}
	watch.Stderr = os.Stderr
	if err := watch.Start(); err != nil {
		return err
	}
	defer func() { _ = watch.Process.Kill(); _ = watch.Wait() }()
	for in := json.NewDecoder(out); ; {
		var s struct {
			Mirrors []struct {
				Role   string `json:"role"`
				Copies []struct {
					State string `json:"state"`
				} `json:"copies"`
			} `json:"mirrors"`
		}
		if err := in.Decode(&s); err != nil {
			return errors.Join(errors.New("the copies of the mirror are not in sync after a minute"), err)
		}
		if len(s.Mirrors) != 1 || s.Mirrors[0].Role != "primary" || len(s.Mirrors[0].Copies) != 2 {
			continue
		}
		if c := s.Mirrors[0].Copies; c[0].State == "in sync" && c[1].State == "in sync" {
			return nil
		}
	}
}

// measure gives every contender its turn in every round.
func (b *bench) measure(ctx context.Context, p harness.Point) (result, error) {
	r := result{point: p}
	err := harness.Compare(ctx, &b.Options, p, contenders, func(c contender) (sample, error) { return b.once(ctx, p, c) },
		func(s sample) float64 { return s.IOPS },
		func(c contender, median sample, low, high float64) {
			w := row{c.name, median, low, high}
			r.rows = append(r.rows, w)
			log.Printf("%-32s %-20s %8.0f IOPS  p50 %6.0f µs  p99 %6.0f µs  CPU %6.2f + %6.2f + %6.2f µs  allocations %6.2f + %6.2f  system calls %6.2f + %6.2f",
				p, c.name, w.IOPS, w.P50, w.P99, w.nodes[0].cpu, w.nodes[1].cpu, w.nodes[2].cpu, w.nodes[0].allocs, w.nodes[1].allocs, w.nodes[0].calls, w.nodes[1].calls)
		})
	return r, err
}

// meter is what a node has spent so far.
type meter struct {
	cpu    time.Duration
	allocs float64
}

func (b *bench) look(node int) (m meter, err error) {
	if m.allocs, err = allocations(node); err == nil {
		m.cpu, err = harness.ProcessCPU(b.pids[node])
	}
	return m, err
}

// once runs the client, and looks at the nodes before and after: connecting is in their figures, and what they do anyway.
func (b *bench) once(ctx context.Context, p harness.Point, c contender) (s sample, err error) {
	var before, idle, after [3]meter
	for _, to := range []*[3]meter{&idle, &before} { // what asking costs
		for i := range names {
			if to[i], err = b.look(i); err != nil {
				return s, err
			}
		}
	}
	var command []string
	if b.perf {
		for i, name := range names {
			command = append(command, "perf", "stat", "-x", ",", "-o", filepath.Join(b.dir, "calls-"+name), "-e", callsEvent, "-p", fmt.Sprint(b.pids[i]), "--")
		}
	}
	if s, err = b.client(ctx, p, c, command, fmt.Sprintf("%gs", b.Seconds), true); err != nil {
		return s, err
	}
	ios := max(s.IOs, 1)
	for i, name := range names {
		if after[i], err = b.look(i); err != nil {
			return s, err
		}
		s.nodes[i] = spent{
			cpu:    float64(after[i].cpu-before[i].cpu) / float64(time.Microsecond) / ios,
			allocs: max(0, after[i].allocs-before[i].allocs-(before[i].allocs-idle[i].allocs)) / ios,
			calls:  -1,
		}
		if b.perf {
			text, err := os.ReadFile(filepath.Join(b.dir, "calls-"+name))
			if err != nil {
				return s, err
			}
			n, err := parseCalls(string(text))
			if err != nil {
				return s, err
			}
			s.nodes[i].calls = n / ios
		}
	}
	return s, nil
}

const callsEvent = "raw_syscalls:sys_enter"

// parseCalls reads the output of perf stat -x ,.
func parseCalls(text string) (float64, error) {
	for line := range strings.Lines(text) {
		if f := strings.Split(line, ","); len(f) > 2 && f[2] == callsEvent {
			return strconv.ParseFloat(f[0], 64)
		}
	}
	return 0, fmt.Errorf("perf stat has not counted system calls: %q", text)
}

func (b *bench) client(ctx context.Context, p harness.Point, c contender, command []string, duration string, random bool) (s sample, err error) {
	err = b.LoadUnder(ctx, command, &s, "--duration", duration, "--warmup", "0s", fmt.Sprintf("--random=%t", random), fmt.Sprintf("--write=%t", p.Write),
		fmt.Sprintf("--fua=%t", p.FUA), "--depth", fmt.Sprint(p.Depth), "--size", fmt.Sprint(p.Size), c.url)
	return s, err
}

// allocations asks a node how often it has allocated memory of its heap.
func allocations(node int) (float64, error) {
	resp, err := http.Get("http://" + metricsOf(node) + "/metrics")
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	for lines := bufio.NewScanner(resp.Body); lines.Scan(); {
		if text, ok := strings.CutPrefix(lines.Text(), "go_memstats_mallocs_total "); ok {
			return strconv.ParseFloat(text, 64)
		}
	}
	return 0, errors.New("the metrics of the daemon do not have go_memstats_mallocs_total")
}
