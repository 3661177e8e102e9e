package file

import (
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"oneshot/backend"
	"oneshot/backend/backendtest"
	"oneshot/backend/fdio"
	"oneshot/mem"
)

const benchSize, benchPiece = 256 << 20, 4096

// BenchmarkRandom keeps depth operations of 4 KiB under way, at places that chance has
// chosen. batched is how a connection submits: what completed together is submitted anew
// together, and then kicked.
func BenchmarkRandom(b *testing.B) {
	path := filepath.Join(b.TempDir(), "f")
	fill(b, path)
	for _, direct := range []bool{true, false} {
		for _, kind := range []backend.Kind{backend.Read, backend.Write} {
			for _, depth := range []int{1, 32} {
				for _, c := range []struct {
					name    string
					io      fdio.IO
					batched bool
				}{{"threads", fdio.Threads, false}, {"uring", fdio.Uring, false}, {"uring-batched", fdio.Uring, true}} {
					b.Run(fmt.Sprintf("direct=%v/%v/depth=%d/%s", direct, kind, depth, c.name), func(b *testing.B) {
						random(b, Config{Path: path, Direct: direct, IO: c.io}, kind, depth, c.batched)
					})
				}
			}
		}
	}
}

func fill(b *testing.B, path string) {
	s := mustOpen(b, Config{Path: path, Size: benchSize})
	defer mustClose(b, s)
	piece := filled(1<<20, 7)
	for off := int64(0); off < benchSize; off += int64(len(piece)) {
		if err := backendtest.Do(s, &backend.Op{Kind: backend.Write, Off: off, Len: int64(len(piece)), Segs: [][]byte{piece}}); err != nil {
			b.Fatal(err)
		}
	}
}

// doneOps is a Completer that passes operations on.
type doneOps chan *backend.Op

func (d doneOps) OpDone(op *backend.Op) { d <- op }

func random(b *testing.B, cfg Config, kind backend.Kind, depth int, batched bool) {
	s := mustOpen(b, cfg)
	defer mustClose(b, s)
	p := mem.NewPool(4 << 20)
	defer p.Close()
	l := p.Lease(depth * benchPiece)
	defer l.Release()
	done := make(doneOps, depth)
	ops := make([]backend.Op, depth)
	idle := make([]*backend.Op, depth)
	for i := range ops {
		ops[i] = backend.Op{Kind: kind, Len: benchPiece, Segs: [][]byte{l.Bytes()[i*benchPiece:][:benchPiece]}, Done: done}
		if batched {
			ops[i].Flags = backend.More
		}
		idle[i] = &ops[i]
	}
	b.ReportAllocs()
	before := cpuTime()
	defer func() { b.ReportMetric(float64((cpuTime()-before).Nanoseconds())/float64(b.N), "cpu-ns/op") }()
	x := uint64(88172645463325252)
	pending := 0
	for n := 0; n < b.N || pending > 0; {
		submitted := false
		for len(idle) > 0 && n < b.N {
			op := idle[len(idle)-1]
			x ^= x << 13
			x ^= x >> 7
			x ^= x << 17
			op.Off = int64(x%(benchSize/benchPiece)) * benchPiece
			n++
			if !s.Submit(op) {
				idle = idle[:len(idle)-1]
				pending++
				submitted = true
			} else if op.Err != nil {
				b.Fatal(op.Err)
			}
		}
		if batched && submitted {
			s.Kick()
		}
		for first := true; pending > 0 && (first || len(done) > 0); first = false {
			op := <-done
			if op.Err != nil {
				b.Fatal(op.Err)
			}
			idle = append(idle, op)
			pending--
		}
	}
}

// cpuTime is what the process has used of processors. Interrupts and threads of the kernel's
// own are not in it.
func cpuTime() time.Duration {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		panic(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
