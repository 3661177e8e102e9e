//go:build !race

package mirror

import (
	"fmt"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"oneshot/backend"
	"oneshot/backend/backendtest"
	"oneshot/ha/replica"
	"oneshot/transport/rdma"
)

// BenchmarkMirror has both nodes in one process, over streams of a cluster as the daemon has, and over queue pairs, with copies that do all
// at once. Compare processor time: it holds on a machine that has other work.
func BenchmarkMirror(b *testing.B) {
	for _, depth := range []int{1, 32} {
		for _, kind := range []backend.Kind{backend.Write, backend.Read} {
			over(b, kind.String()+fmt.Sprint(depth), kind, depth, 4<<10)
		}
		over(b, "long"+fmt.Sprint(depth), backend.Write, depth, 256<<10)
	}
}

// over measures over both transports.
func over(b *testing.B, name string, kind backend.Kind, depth int, size int64) {
	b.Run(name+"/tcp", func(b *testing.B) { benchmark(b, nil, kind, depth, size) })
	b.Run(name+"/iwarp", func(b *testing.B) { benchmark(b, onIWARP, kind, depth, size) })
}

func benchmark(b *testing.B, device func() (rdma.Device, string), kind backend.Kind, depth int, size int64) {
	l := newLab(b, 2)
	l.device = device
	l.real, l.members = true, newMembers(b, true)
	defer l.members.close()
	l.size = max(testSize, 2*size*int64(depth)) // no two overlap
	for _, n := range l.nodes {
		n.disk = backendtest.NewDisk(l.size, 512)
	}
	l.wrap = func(s backend.Store) backend.Store { return &plain{s, make([]byte, l.size)} }
	l.tune = func(c *replica.Config) {
		c.Lease, c.Grace, c.SlowCopy = time.Minute, 2*time.Minute, time.Minute
	}
	for _, n := range l.nodes {
		n.start()
	}
	l.level(l.nodes[0])
	m := l.nodes[0].mirror
	done := make(ops, depth)
	all := make([]backend.Op, depth)
	for i := range all {
		all[i] = backend.Op{Kind: kind, Off: int64(i) * 2 * size, Len: size, Segs: [][]byte{bytesOf(int(size), 1)}, Done: done}
		done <- &all[i]
	}
	var before, after unix.Rusage
	_ = unix.Getrusage(unix.RUSAGE_SELF, &before)
	b.ResetTimer()
	for n := 0; n < b.N; {
		op := <-done
		for more := true; more; n++ { // all that is there, as a transport does
			op.Err, op.Flags = nil, backend.More
			if m.Submit(op) {
				done <- op
			}
			select {
			case op = <-done:
			default:
				more = false
			}
		}
		m.Kick()
	}
	for range depth {
		<-done
	}
	b.StopTimer()
	_ = unix.Getrusage(unix.RUSAGE_SELF, &after)
	cpu := func(r *unix.Rusage) int64 { return r.Utime.Nano() + r.Stime.Nano() }
	b.ReportMetric(float64(cpu(&after)-cpu(&before))/float64(b.N), "cpu-ns/op")
	b.ReportMetric(float64(after.Nvcsw-before.Nvcsw)/float64(b.N), "waits/op") // of threads
	l.end()
}

type ops chan *backend.Op

func (o ops) OpDone(op *backend.Op) { o <- op }
