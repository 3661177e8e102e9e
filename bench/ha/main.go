// Command ha measures a mirror beside a store that is none: three daemons on the loopback interface (two copies and a witness, as
// in configs/mirror.yaml), one client, which is this project's own, and the same loads. It writes a Markdown table and a picture.
//
//	make bench-ha                   or: go run ./bench/ha [flags], as -quick
//
// The primary is pinned to one core; the other copy, the witness and the client to another. All stores are files of the same
// directory, served by the primary. In each round every contender has its turn, in an order that rotates; the figures are medians
// of the rounds. Compare the rows of one run. A turn in which the mirror's primary has changed is repeated, for a machine with other
// work does not always let a node beat in time; the report says how often.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log"
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
	quick := flag.Bool("quick", false, "two short rounds of the loads that the goals are about: under two minutes")
	flag.StringVar(&b.transport, "transport", "tcp", "what takes the data of mirrors from node to node, as in cluster.transport: tcp or iwarp")
	limit := flag.Duration("limit", 15*time.Minute, "report what has been measured after this `time`")
	harness.Main(&b.Options, func(ctx context.Context) error {
		if *quick {
			b.Rounds, b.Seconds, b.quick, *limit = min(b.Rounds, 2), min(b.Seconds, 0.5), true, min(*limit, 110*time.Second)
		}
		ctx, cancel := context.WithTimeout(ctx, *limit)
		defer cancel()
		return b.Run(func(dir string) error { return b.run(ctx, dir) })
	})
}

const (
	iqn     = "iqn.2026-11.example.oneshot:bench"
	portalA = "127.0.0.1:24021"
	portalB = "127.0.0.1:24022"

	usualSize = "256MiB"
	quickSize = "64MiB" // the other copy gets all of it first
)

// points are the loads; offsets are random. The quick ones are those that goals are about.
func points(quick bool) []harness.Point {
	all := []harness.Point{
		{Write: true, Size: 4 << 10, Depth: 1},
		{Write: true, Size: 4 << 10, Depth: 32},
		{Write: true, Size: 256 << 10, Depth: 8},
		{Write: true, FUA: true, Size: 4 << 10, Depth: 1},
		{Size: 4 << 10, Depth: 1},
		{Size: 4 << 10, Depth: 32},
		{Write: true, Size: 256 << 10, Depth: 1},
		{Write: true, FUA: true, Size: 4 << 10, Depth: 32},
	}
	if quick {
		return all[:6]
	}
	return all
}

// contender is a store.
type contender struct{ name, url string }

func (c contender) String() string { return c.name }

const (
	plain     = "file"
	leased    = "mirror of two files"
	confirmed = "mirror, reads confirmed"
)

var contenders = []contender{
	{plain, "iscsi://" + portalA + "/" + iqn + "-a/0"},
	{leased, "iscsi://" + portalA + "/" + iqn + "/0"},
	{confirmed, "iscsi://" + portalA + "/" + iqn + "/1"},
}

// those returns the contenders of a point: writes are the same, however reads are proven.
func those(p harness.Point) []contender {
	if p.Write {
		return contenders[:2]
	}
	return contenders
}

// spent is what a node has spent, per I/O.
type spent struct {
	cpu    float64 // µs
	allocs float64
	calls  float64 // system calls; negative: nobody could count them
}

// sample is what the client says, and what the nodes have spent meanwhile.
type sample struct {
	harness.Load

	nodes [3]spent // in the order of names
}

type (
	row    = harness.Row[sample]
	result = harness.Result[sample]
)

// names are those of the nodes.
var names = [3]string{"a", "b", "w"}

// bench is a run.
type bench struct {
	harness.Pair
	dir   string
	pids  [3]int
	perf  bool // counts system calls
	quick bool
	// transport is the cluster's.
	transport string
	again     int // turns that were repeated
}

func (b *bench) run(ctx context.Context, dir string) error {
	b.dir = dir
	if err := b.start(ctx); err != nil {
		return err
	}
	b.perf = exec.CommandContext(ctx, "perf", "stat", "-e", callsEvent, "true").Run() == nil
	// The first write of a block allocates it, which must not be measured.
	fill := harness.Point{Write: true, Size: 1 << 20, Depth: 4}
	for _, c := range contenders {
		_, err := b.steady(ctx, fill, c, func() (sample, error) { return b.client(ctx, fill, c, nil, "3s", false) })
		if err != nil {
			return err
		}
	}
	files, err := filepath.Glob(filepath.Join(dir, "*", "*.img"))
	if err != nil {
		return err
	}
	if err := harness.CacheAlike(files...); err != nil {
		return err
	}
	results, err := harness.Each(&b.Options, points(b.quick), func(p harness.Point) (result, error) { return b.measure(ctx, p) })
	if errors.Is(ctx.Err(), context.DeadlineExceeded) && len(results) > 0 {
		log.Printf("the time is over (-limit); the report has the loads that were measured. The last one: %v", err)
	} else if err != nil {
		return err
	}
	return b.WriteReport(reportOf(b.transport), table(b.Options, results, b.size(), b.transport, b.again), picture(results))
}

func (b *bench) size() string {
	if b.quick {
		return quickSize
	}
	return usualSize
}

func metricsOf(node int) string { return fmt.Sprint("127.0.0.1:", 24023+node) }

const configText = `log: {level: warn}
limits: {memory_per_connection: 128MiB}
cluster:
  name: bench
  state: consensus
  transport: TRANSPORT
  nodes:
    a: {address: "127.0.0.1:24031"DATA-A}
    b: {address: "127.0.0.1:24032"DATA-B}
    w: {address: "127.0.0.1:24033", witness: true}
stores:
  disk: {type: mirror, reads: leased, size: SIZE, copies: {a: {type: file, path: mirror.img}, b: {type: file, path: mirror.img}}}
  asks: {type: mirror, reads: confirmed, size: SIZE, copies: {a: {type: file, path: asks.img}, b: {type: file, path: asks.img}}}
  plain: {node: a, type: file, path: plain.img, size: SIZE}
targets:
  - {iqn: "IQN", luns: {0: disk, 1: asks}}
  - {node: a, iqn: "IQN-a", luns: {0: plain}}
portals:
  - {node: a, listen: "A", group: 1}
  - {node: b, listen: "B", group: 2}
metrics: {listen: "METRICS", pprof: true}
management: {socket: s.sock}
`

// data is what a node has besides for its port for data, if the transport has any.
func (b *bench) data(port int) string {
	if b.transport == "tcp" {
		return ""
	}
	return fmt.Sprintf(", data: \"127.0.0.1:%d\"", port)
}

// start makes the cluster and starts its nodes. It returns when both copies are in sync.
func (b *bench) start(ctx context.Context) error {
	for i, name := range names {
		text := strings.NewReplacer("SIZE", b.size(), "TRANSPORT", b.transport, "DATA-A", b.data(24034), "DATA-B", b.data(24035), "IQN", iqn, "METRICS", metricsOf(i), "\"A\"", strconv.Quote(portalA), "\"B\"", strconv.Quote(portalB)).Replace(configText)
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
	_, err = b.level(ctx)
	return err
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

// state is what a says of the cluster.
type state struct {
	Mirrors []mirrorState `json:"mirrors"`
}

type mirrorState struct {
	Name   string `json:"name"`
	Role   string `json:"role"`
	Term   uint64 `json:"term"`
	Copies []struct {
		State string `json:"state"`
	} `json:"copies"`
}

// terms returns the sum of the mirrors' terms, whether all copies are in sync, and the mirrors of which a is not the primary.
func (s *state) terms() (terms uint64, elsewhere []string, level bool) {
	level = len(s.Mirrors) == 2
	for _, m := range s.Mirrors {
		terms += m.Term
		if m.Role != "primary" {
			elsewhere = append(elsewhere, m.Name)
		}
		level = level && len(m.Copies) == 2 && m.Copies[0].State == "in sync" && m.Copies[1].State == "in sync"
	}
	return terms, elsewhere, level
}

func (b *bench) ask(ctx context.Context, args ...string) *exec.Cmd {
	args = append([]string{"ha"}, args...)
	return exec.CommandContext(ctx, b.Target, append(args, "--socket", filepath.Join(b.dir, "a", "s.sock"))...)
}

// level waits until all copies are in sync, with a as the primary, and returns the sum of the terms. If another node is a primary
// it has that one hand over.
func (b *bench) level(ctx context.Context) (uint64, error) {
	watch := b.ask(ctx, "status", "--watch", "--interval", "100ms", "-o", "json")
	out, err := watch.StdoutPipe()
	if err != nil {
		return 0, err
	}
	watch.Stderr = os.Stderr
	if err := watch.Start(); err != nil {
		return 0, err
	}
	defer func() { _ = watch.Process.Kill(); _ = watch.Wait() }()
	var s state
	for in := json.NewDecoder(out); ; {
		var latest state
		if err := in.Decode(&latest); err != nil {
			return 0, fmt.Errorf("a is not the primary with both copies in sync, but %+v: %w", s, err)
		}
		s = latest
		terms, elsewhere, level := s.terms()
		if !level {
			continue
		}
		if len(elsewhere) == 0 {
			return terms, nil
		}
		for _, name := range elsewhere {
			_ = b.ask(ctx, "switch", name, "a").Run() // what becomes of it is seen
		}
	}
}

// measure gives every contender its turn in every round.
func (b *bench) measure(ctx context.Context, p harness.Point) (result, error) {
	once := func(c contender) (sample, error) {
		return b.steady(ctx, p, c, func() (sample, error) { return b.once(ctx, p, c) })
	}
	return harness.CompareAll(ctx, &b.Options, p, those(p), once, func(r row) {
		w, n := r.Sample, r.Sample.nodes
		log.Printf("%-32s %-20s %8.0f IOPS  p50 %6.0f µs  p99 %6.0f µs  CPU %6.2f + %6.2f + %6.2f µs  allocations %6.2f + %6.2f  system calls %6.2f + %6.2f",
			p, r.Contender, w.IOPS, w.P50, w.P99, n[0].cpu, n[1].cpu, n[2].cpu, n[0].allocs, n[1].allocs, n[0].calls, n[1].calls)
	})
}

// steady repeats a turn until the mirror has had one primary for all of it.
func (b *bench) steady(ctx context.Context, p harness.Point, c contender, turn func() (sample, error)) (sample, error) {
	return steady(func() (uint64, error) { return b.level(ctx) }, turn, func() {
		b.again++
		log.Printf("%s, %s: the primary has changed; once more", p, c)
	})
}

// steady repeats a turn until the term, as level tells it, is the same before and after it. A turn that has failed is repeated, too,
// if the term has changed: the client has lost its way. level fails when the run's time is over.
func steady(level func() (uint64, error), turn func() (sample, error), again func()) (sample, error) {
	for {
		before, err := level()
		if err != nil {
			return sample{}, err
		}
		s, failed := turn()
		if after, err := level(); err != nil || after == before {
			return s, errors.Join(failed, err)
		}
		again()
	}
}

// meter is what a node has spent so far.
type meter struct {
	cpu    time.Duration
	allocs float64
}

func (b *bench) look(node int) (m meter, err error) {
	if m.allocs, err = harness.Allocations(metricsOf(node)); err == nil {
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
