package file

import (
	"fmt"
	"path/filepath"
	"testing"

	"oneshot/backend"
	"oneshot/mem"
)

// waiter is a Completer that one goroutine waits on.
type waiter chan struct{}

func (w waiter) OpDone(*backend.Op) { w <- struct{}{} }

// run does op and waits for it.
func run(s backend.Store, op *backend.Op) error {
	if !s.Submit(op) {
		<-op.Done.(waiter)
	}
	return op.Err
}

func BenchmarkFile(b *testing.B) {
	p := mem.NewPool(64 << 20)
	for _, direct := range []bool{false, true} {
		for _, kind := range []backend.Kind{backend.Read, backend.Write} {
			for _, depth := range []int{1, 32} {
				b.Run(fmt.Sprintf("direct=%v/%v/depth=%d", direct, kind, depth), func(b *testing.B) {
					s, err := Open(Config{Path: filepath.Join(b.TempDir(), "f"), Size: 64 << 20, Direct: direct, BlockSize: 4096})
					if err != nil {
						b.Fatal(err)
					}
					defer s.Close()
					l := p.Lease(1 << 20)
					defer l.Release()
					w := make(waiter, depth)
					for off := int64(0); off < 64<<20; off += 1 << 20 {
						if err := run(s, &backend.Op{Kind: backend.Write, Off: off, Len: 1 << 20, Segs: [][]byte{l.Bytes()}, Done: w}); err != nil {
							b.Fatal(err)
						}
					}
					ops := make([]backend.Op, depth)
					for i := range ops {
						ops[i] = backend.Op{Kind: kind, Len: 4096, Segs: [][]byte{l.Bytes()[i*4096:][:4096]}, Done: w}
					}
					b.ReportAllocs()
					b.ResetTimer()
					pending := 0
					for i := 0; i < b.N; i += depth {
						for k := range ops {
							ops[k].Off = int64((i+k)*7919%16384) * 4096
							if !s.Submit(&ops[k]) {
								pending++
							}
						}
						for ; pending > 0; pending-- {
							<-w
						}
					}
				})
			}
		}
	}
}
