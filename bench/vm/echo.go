package main

import (
	"context"
	"fmt"
	"path/filepath"
	"time"

	"oneshot/bench/harness"
)

// The raw echo (bench/c/echo.c) beside targets that are in the kernel: two programs that move the bytes of a load over TCP, without a protocol and
// without a disk. What it takes, a target in user space takes at least: to be woken, to read and to write. With mirrors the two are on
// different machines, and what the initiator takes on the first one comes to it.

const (
	overNothing = "no protocol"
	echoPort    = 4425
	echoMiB     = 16 // of memory in each of the two, which the guest has to have
)

var rawEcho = contender{target: harness.RawEcho, transport: overNothing, port: echoPort}

// buildEcho makes the program. It needs no libraries.
func buildEcho(cache string) (string, error) {
	path := filepath.Join(cache, "echo")
	return path, harness.Compile(context.Background(), path, "-static", fmt.Sprintf("-DMEMORY_MIB=%d", echoMiB), "bench/c/echo.c")
}

// echoHost is the machine that answers, and its address.
func (b *bench) echoHost() (*guest, string) {
	if b.mirror {
		return b.peer, peerHost
	}
	return b.guest, host
}

func (b *bench) echoLoad(p harness.Point, seconds float64) []string {
	_, address := b.echoHost()
	p.FUA = false // there is no disk
	return harness.EchoLoad("echo", fmt.Sprintf("%s:%d", address, echoPort), p, seconds)
}

// startEcho starts the server, and waits until it answers.
func (b *bench) startEcho() error {
	g, address := b.echoHost()
	if _, err := g.Start("echo", "serve", fmt.Sprintf("%s:%d", address, echoPort)); err != nil {
		return err
	}
	for deadline := time.Now().Add(runTime); ; {
		_, err := b.run(b.echoLoad(points[0], 0.01)...)
		if err == nil || time.Now().After(deadline) {
			return err
		}
	}
}

// echo is one turn.
func (b *bench) echo(p harness.Point) (d side, err error) {
	out, err := b.run(b.echoLoad(p, b.Seconds)...)
	if err != nil {
		return d, err
	}
	f, err := harness.ParseFigures([]byte(out))
	if err != nil {
		return d, err
	}
	d.IOPS, d.TotalIOs = f.IOs/f.Seconds, f.IOs
	d.Latency.Percentile = map[string]float64{"50.000000": f.P50 * 1e3, "99.000000": f.P99 * 1e3}
	return d, nil
}
