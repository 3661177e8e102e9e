// Command nvme measures NVMe over TCP beside iSCSI: one daemon, one client, which is this project's own over both, and the same loads
// on the loopback interface; and beside a raw TCP echo of the same bytes. It writes a Markdown table and a picture.
//
//	make bench-nvme                 or: go run ./bench/nvme [flags]
//
// It ends within four minutes, and with other flags in proportion: what was measured by then is in the report.
//
// The daemon and the server of the echo are pinned to one core and the clients to another. In each round every contender has its turn, in an order that
// rotates; the figures are medians of the rounds. Compare the rows of one run.
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"time"

	"oneshot/bench/harness"
)

func main() {
	b := &bench{Pair: harness.Pair{Options: harness.Options{Rounds: 3, Seconds: 0.7}}}
	b.Flags()
	harness.Main(&b.Options, func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, b.most())
		defer cancel()
		return b.Run(func(dir string) error { return b.run(ctx, dir) })
	})
}

// most is how long a run may take: a client that is started and connects needs some tenths of a second besides the load.
func (b *bench) most() time.Duration {
	runs := len(points()) * len(contenders) * b.Rounds
	return time.Minute + time.Duration(runs)*(time.Duration(b.Seconds*float64(time.Second))+time.Second/2)
}

const (
	iqn       = "iqn.2026-11.example.oneshot:bench"
	nqn       = "nqn.2026-11.example.oneshot:bench"
	iscsiAt   = "127.0.0.1:24011"
	nvmeAt    = "127.0.0.1:24012"
	metricsAt = "127.0.0.1:24013"
	echoPort  = "24014"
	diskText  = "256MiB"
)

// points are the loads; offsets are random.
func points() (list []harness.Point) {
	for _, write := range []bool{false, true} {
		for _, p := range []harness.Point{{Size: 4 << 10, Depth: 1}, {Size: 4 << 10, Depth: 32}, {Size: 4 << 10, Depth: 32, Sessions: 4}, {Size: 256 << 10, Depth: 1}, {Size: 256 << 10, Depth: 32}} {
			p.Write = write
			list = append(list, p)
		}
	}
	return list
}

// contender is a protocol, or the echo, which has no URL.
type contender struct{ name, url string }

func (c contender) String() string { return c.name }

const (
	iscsi       = "iSCSI"
	nvme        = "NVMe/TCP"
	iscsiDigest = "iSCSI, data digest"
	nvmeDigest  = "NVMe/TCP, data digest"
)

var contenders = []contender{
	{name: harness.RawEcho},
	{iscsi, "iscsi://" + iscsiAt + "/" + iqn + "/0"},
	{nvme, "nvme+tcp://" + nvmeAt + "/" + nqn + "/1"},
	{iscsiDigest, "iscsi://" + iscsiAt + "/" + iqn + "/0?data_digest=crc32c"},
	{nvmeDigest, "nvme+tcp://" + nvmeAt + "/" + nqn + "/1?data_digest=crc32c"},
}

// sample is what the client says, and what the daemon has spent meanwhile.
type sample struct {
	harness.Load

	targetCPU float64 // µs per I/O
	allocs    float64 // of the daemon, per I/O; of the echo nobody asks
}

type (
	row    = harness.Row[sample]
	result = harness.Result[sample]
)

// bench is a run.
type bench struct {
	harness.Pair
	daemon, echo int    // PIDs
	echoPath     string // of the program
}

func (b *bench) run(ctx context.Context, dir string) error {
	if err := b.start(dir); err != nil {
		return err
	}
	if err := b.startEcho(ctx, dir); err != nil {
		return err
	}
	// The first write of a page of a memory store allocates it, which must not be measured.
	for _, c := range contenders[1:3] {
		if _, err := b.client(ctx, harness.Point{Write: true, Size: 1 << 20, Depth: 4}, c, "2s", false); err != nil {
			return err
		}
	}
	results, err := harness.Each(&b.Options, points(), func(p harness.Point) (result, error) { return b.measure(ctx, p) })
	if len(results) == 0 {
		return err
	}
	if err != nil {
		err = fmt.Errorf("the report has %d of %d points: %w", len(results), len(points()), errors.Join(ctx.Err(), err))
	}
	return errors.Join(err, b.WriteReport(reportName, table(b.Options, results), picture(results)))
}

// start starts the daemon.
func (b *bench) start(dir string) (err error) {
	config := filepath.Join(dir, "bench.yaml")
	text := fmt.Sprintf(`log: {level: warn}
limits: {memory_per_connection: 128MiB}
stores: {disk: {type: memory, size: %s}, flash: {type: memory, size: %s}}
targets: [{iqn: "%s", luns: {0: disk}}]
subsystems: [{nqn: "%s", namespaces: {1: flash}}]
portals:
  - {transport: tcp, listen: "%s"}
  - {transport: nvme-tcp, listen: "%s"}
metrics: {listen: "%s"}
`, diskText, diskText, iqn, nqn, iscsiAt, nvmeAt, metricsAt)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		return err
	}
	if b.daemon, err = b.Start(harness.TargetCore, b.Target, "serve", "--config", config); err != nil {
		return err
	}
	return harness.Await("tcp", metricsAt, nvmeAt, iscsiAt)
}

// startEcho starts the server of the echo.
func (b *bench) startEcho(ctx context.Context, dir string) (err error) {
	b.echoPath = filepath.Join(dir, "echo")
	if err := harness.Compile(ctx, b.echoPath, "bench/c/echo.c"); err != nil {
		return err
	}
	if b.echo, err = b.Start(harness.TargetCore, b.echoPath, "serve", echoPort); err != nil {
		return err
	}
	return harness.Await("tcp", "127.0.0.1:"+echoPort)
}

// measure gives every contender its turn in every round.
func (b *bench) measure(ctx context.Context, p harness.Point) (result, error) {
	return harness.CompareAll(ctx, &b.Options, p, contenders, func(c contender) (sample, error) {
		if c.name == harness.RawEcho {
			return b.echoOnce(ctx, p)
		}
		return b.once(ctx, p, c)
	}, func(r row) {
		w := r.Sample
		log.Printf("%-34s %-22s %8.0f IOPS  p99 %6.0f µs  CPU %6.2f %6.2f µs  %.3f allocations", p, r.Contender, w.IOPS, w.P99, w.Initiator.CPU, w.targetCPU, w.allocs)
	})
}

// once runs the client, and looks at the daemon before and after: connecting is in its figures, too.
func (b *bench) once(ctx context.Context, p harness.Point, c contender) (s sample, err error) {
	idle, err := harness.Allocations(metricsAt) // what asking costs
	if err != nil {
		return s, err
	}
	before, err := harness.Allocations(metricsAt)
	if err != nil {
		return s, err
	}
	if err := b.charge(&s, b.daemon, func() (harness.Load, error) {
		return b.client(ctx, p, c, fmt.Sprintf("%gs", b.Seconds), true)
	}); err != nil {
		return s, err
	}
	after, err := harness.Allocations(metricsAt)
	if err != nil {
		return s, err
	}
	s.allocs = max(0, after-before-(before-idle)) / max(s.IOs, 1)
	return s, nil
}

// echoOnce is once for the echo.
func (b *bench) echoOnce(ctx context.Context, p harness.Point) (s sample, err error) {
	err = b.charge(&s, b.echo, func() (harness.Load, error) { return b.EchoLoad(ctx, b.echoPath, echoPort, p) })
	return s, err
}

// charge takes a load for s, and the processor time of the server.
func (b *bench) charge(s *sample, server int, load func() (harness.Load, error)) error {
	before, err := harness.ProcessCPU(server)
	if err != nil {
		return err
	}
	if s.Load, err = load(); err != nil {
		return err
	}
	after, err := harness.ProcessCPU(server)
	s.targetCPU = float64(after-before) / float64(time.Microsecond) / max(s.IOs, 1)
	return err
}

func (b *bench) client(ctx context.Context, p harness.Point, c contender, duration string, random bool) (l harness.Load, err error) {
	err = b.Load(ctx, &l, "--duration", duration, "--warmup", "0s", fmt.Sprintf("--random=%t", random), fmt.Sprintf("--write=%t", p.Write),
		"--depth", fmt.Sprint(p.Depth), "--size", fmt.Sprint(p.Size), "--sessions", fmt.Sprint(max(p.Sessions, 1)), c.url)
	return l, err
}
