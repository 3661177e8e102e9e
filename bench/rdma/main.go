// Command rdma measures the flows of RDMA side by side: one workload over the same provider,
// with memory registered for each command, registered once, and advertised in the command's
// header (one-shot). For comparison it also measures iSCSI over TCP. It writes a Markdown table and a
// picture.
//
//	make bench-rdma                 or: go run ./bench/rdma [flags]
//	make bench-nic                  or: go run ./bench/rdma -nic [flags]
//
// With -nic it measures some of the flows with the RDMA device in the client's process and in another
// one, where each hand-over is one (nic.go).
//
// One daemon serves a RAM-backed disk on the loopback interface over all of them; the client is
// this project's initiator. The daemon is pinned to one core and the client to another. In each
// round every contender has its turn, in an order that rotates; the figures are medians of the
// rounds. Compare the rows of one run.
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"os"
	"os/exec"
	"path/filepath"

	"oneshot/bench/harness"
)

func main() {
	if len(os.Args) > 1 && os.Args[1] == streamArg {
		log.Fatal(serveStream())
	}
	b := &bench{Pair: harness.Pair{Options: harness.Options{Rounds: 3, Seconds: 0.7}}}
	b.Flags()
	flag.BoolVar(&b.nic, "nic", false, "measure with the RDMA device in another process, too")
	harness.Main(&b.Options, func(ctx context.Context) error {
		return b.Run(func(dir string) error { return b.run(ctx, dir) })
	})
}

// bench is a run.
type bench struct {
	harness.Pair
	nic bool
}

func (b *bench) run(ctx context.Context, dir string) error {
	if err := b.start(dir); err != nil {
		return err
	}
	// The first write of a page of a memory store allocates it, which must not be measured.
	if err := b.fill(ctx); err != nil {
		return err
	}
	points, contenders, write := points(), contenders, writeReport
	if b.nic {
		points, contenders, write = nicPoints(), nicContenders(dir), writeNICReport
		if err := b.cards(dir); err != nil {
			return err
		}
	}
	results, err := harness.Each(&b.Options, points, func(p harness.Point) (result, error) { return b.measure(ctx, p, contenders) })
	if err != nil {
		return err
	}
	return write(b.Options, results)
}

const (
	iqn      = "iqn.2026-11.example.oneshot:bench"
	tcpAt    = "127.0.0.1:24001"
	rdmaAt   = "127.0.0.1:24002"
	diskText = "256MiB"
)

// start starts the daemon and the server of the raw stream.
func (b *bench) start(dir string) error {
	config := filepath.Join(dir, "bench.yaml")
	text := fmt.Sprintf(`log: {level: warn}
limits: {memory_per_connection: 128MiB}
stores: {disk: {type: memory, size: %s}}
targets: [{iqn: %s, luns: {0: disk}}]
portals:
  - {transport: tcp, listen: "%s"}
  - {transport: iwarp, listen: "%s"}
`, diskText, iqn, tcpAt, rdmaAt)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	if _, err := b.Start(harness.TargetCore, b.Target, "serve", "--config", config); err != nil {
		return err
	}
	if _, err := b.Start(harness.TargetCore, self, streamArg); err != nil {
		return err
	}
	return harness.Await("tcp", tcpAt, streamAt)
}

// fill writes the whole disk.
func (b *bench) fill(ctx context.Context) error {
	out, err := exec.CommandContext(ctx, b.Initiator, "bench", "--write", "--size", "1MiB", "--depth", "4", "--warmup", "0s", "--duration", "2s",
		"iscsi://"+tcpAt+"/"+iqn+"/0").CombinedOutput()
	if err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	return nil
}
