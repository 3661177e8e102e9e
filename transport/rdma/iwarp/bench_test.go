package iwarp

import (
	"encoding/binary"
	"testing"

	"golang.org/x/sys/unix"

	"oneshot/transport/rdma"
)

// BenchmarkStream measures many operations at a time.
func BenchmarkStream(b *testing.B) {
	for _, x := range []struct {
		name  string
		op    rdma.Opcode
		n     int
		depth int
	}{
		{"write/256K", rdma.OpWrite, 256 << 10, 16},
		{"read/256K", rdma.OpRead, 256 << 10, 16},
		{"read/4K", rdma.OpRead, 4096, 32},
		{"write/4K", rdma.OpWrite, 4096, 32},
	} {
		b.Run(x.name, func(b *testing.B) {
			c, s := pair(b, setup{})
			works := []rdma.Work{{
				Op: x.op, Flags: rdma.Signaled, SGL: c.sge(0, x.n), RemoteSTag: s.mem.STag(),
			}}
			b.SetBytes(int64(x.n))
			b.ReportAllocs()
			out := 0
			for b.Loop() {
				if out == x.depth {
					c.next()
					out--
				}
				c.post(works...)
				out++
			}
			for ; out > 0; out-- {
				c.next()
			}
		})
	}
}

// BenchmarkEcho measures a server that answers in its event, as a target does: depth requests
// of 48 octets outstanding at a time.
func BenchmarkEcho(b *testing.B) {
	for _, depth := range []int{1, 32} {
		b.Run(map[int]string{1: "depth1", 32: "depth32"}[depth], func(b *testing.B) {
			s := setup{depth: 64}
			c, srv := newEnd(b, s), newEnd(b, s)
			srv.event = echo(srv)
			srv.cq.Arm()
			for i := range 64 {
				srv.recv(uint64(i), i*64, 64)
				c.recv(uint64(i), i*64, 64)
			}
			connect(b, c, srv, s)
			work := []rdma.Work{{Op: rdma.OpSend, SGL: c.sge(0, 48)}}
			rs := []rdma.Receive{{SGL: c.sge(0, 64)}}
			b.ReportAllocs()
			out := 0
			for b.Loop() {
				if out == depth {
					c.next()
					_, _ = c.qp.PostReceive(rs)
					out--
				}
				c.post(work...)
				out++
			}
			for ; out > 0; out-- {
				c.next()
			}
			c.close()
			srv.qp.Close()
			srv.cq.Close()
		})
	}
}

func echo(e *end) func() {
	var cs [64]rdma.Completion
	var ws [64]rdma.Work
	var rs [64]rdma.Receive
	for i := range ws {
		ws[i] = rdma.Work{Op: rdma.OpSend, SGL: e.sge(0, 48)}
		rs[i] = rdma.Receive{SGL: e.sge(64, 64)}
	}
	return func() {
		for {
			n := e.cq.Poll(cs[:])
			if n == 0 {
				if e.cq.Arm() {
					return
				}
				continue
			}
			if cs[0].Status != rdma.StatusOK {
				continue
			}
			_, _ = e.qp.PostReceive(rs[:n])
			_, _ = e.qp.Post(ws[:n])
		}
	}
}

// cpu returns the processor time that the process has taken so far, in nanoseconds.
func cpu(b *testing.B) int64 {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return u.Utime.Nano() + u.Stime.Nano()
}

// BenchmarkFlows measures the cost of storage writes and reads of 512 octets for both ends together, 32 at a time:
// with memory that is advertised in one shot, and with memory that is registered, bound, unbound and freed for each
// of them. cpu-ns/op is processor time, which other processes disturb less than ns/op.
func BenchmarkFlows(b *testing.B) {
	const depth, size = 32, 512
	for _, pull := range []bool{true, false} {
		name := map[bool]string{true: "/write", false: "/read"}[pull]
		access := map[bool]rdma.Access{true: rdma.AccessRemoteRead, false: rdma.AccessRemoteWrite}[pull]
		run := func(b *testing.B, s setup, batch func(c *end, n int)) {
			s.depth, s.shared = 2*depth, false
			c, srv := newEnd(b, s), newEnd(b, s)
			srv.event = storage(srv, pull, size)
			srv.cq.Arm()
			for i := range 2 * depth {
				srv.recv(uint64(i), i*64, 64)
				c.recv(uint64(i), i*64, 64)
			}
			connect(b, c, srv, s)
			b.ReportAllocs()
			before := cpu(b)
			b.ResetTimer()
			for n := b.N; n > 0; n -= depth {
				batch(c, min(n, depth))
			}
			b.StopTimer()
			b.ReportMetric(float64(cpu(b)-before)/float64(b.N), "cpu-ns/op")
			c.close()
			srv.qp.Close()
			srv.cq.Close()
		}
		b.Run("one-shot"+name, func(b *testing.B) {
			offer := &rdma.OneShotOffer{Flags: true, Advertise: true, Close: true, Window: depth}
			var ws [depth]rdma.Work
			run(b, setup{client: offer, server: offer}, func(c *end, n int) {
				if ws[0].SGL == nil {
					for i := range ws {
						ws[i] = rdma.Work{
							Op: rdma.OpSend, Flags: rdma.Advertise, SGL: c.sge(8192, 48), Memory: c.sge(16384+i*size, size), Access: access,
						}
					}
				}
				c.post(ws[:n]...)
				c.take(n)
			})
		})
		b.Run("conventional"+name, func(b *testing.B) {
			var ws [depth]rdma.Work
			var regions [depth]rdma.Region
			var windows [depth]rdma.Window
			run(b, setup{}, func(c *end, n int) {
				for i := range n {
					var err error
					if regions[i], err = c.dom.Register(c.mem.Bytes()[16384+i*size:][:size], rdma.AccessLocalWrite); err != nil {
						b.Fatal(err)
					}
					if windows[i] == nil {
						if windows[i], err = c.dom.NewWindow(); err != nil {
							b.Fatal(err)
						}
					}
					ws[i] = rdma.Work{
						Op: rdma.OpBind, Window: windows[i], SGL: append(ws[i].SGL[:0], rdma.SGE{Bytes: regions[i].Bytes(), Region: regions[i]}), Access: access,
						Stamp: c.mem.Bytes()[8192+i*48:][:4],
					}
				}
				c.post(ws[:n]...)
				for i := range n {
					sgl := append(ws[i].SGL[:0], rdma.SGE{Bytes: c.mem.Bytes()[8192+i*48:][:48], Region: c.mem})
					ws[i] = rdma.Work{Op: rdma.OpSend, SGL: sgl, STag: ws[i].STag}
				}
				c.post(ws[:n]...)
				c.take(n)
				for i := range n {
					ws[i] = rdma.Work{Op: rdma.OpLocalInvalidate, STag: ws[i].STag, SGL: ws[i].SGL[:0], Flags: rdma.Signaled}
				}
				c.post(ws[:n]...)
				for range n {
					c.next()
				}
				for _, r := range regions[:n] {
					if err := r.Deregister(); err != nil {
						b.Fatal(err)
					}
				}
			})
		})
	}
}

// take takes n messages, and posts their receives again.
func (e *end) take(n int) {
	sgl := [1]rdma.SGE{{Region: e.mem}}
	rs := [1]rdma.Receive{{SGL: sgl[:]}}
	for ; n > 0; n-- {
		c := e.next()
		if c.Op != rdma.OpReceive || c.Status != rdma.StatusOK {
			e.t.Fatalf("%+v; want a message", c)
		}
		rs[0].ID, sgl[0].Bytes = c.ID, e.mem.Bytes()[c.ID*64:][:64]
		if _, err := e.qp.PostReceive(rs[:]); err != nil {
			e.t.Fatal(err)
		}
	}
}

// storage is a target: it pulls the data of writes, pushes the data of reads, and answers.
func storage(e *end, pull bool, size int) func() {
	var cs [64]rdma.Completion
	var works []rdma.Work
	receives := make([]rdma.Receive, 0, len(cs))
	sink, answer := e.sge(16384, size), e.sge(8192, 48)
	var slots [64][]rdma.SGE
	for i := range slots {
		slots[i] = e.sge(i*64, 64)
	}
	end := func(s rdma.STag) {
		w := rdma.Work{Op: rdma.OpSend, SGL: answer}
		if e.qp.OneShot() != nil {
			w.Flags, w.STag = rdma.Close, s
		}
		works = append(works, w)
	}
	return func() {
		for {
			n := e.cq.Poll(cs[:])
			if n == 0 {
				if e.cq.Arm() {
					return
				}
				continue
			}
			works, receives = works[:0], receives[:0]
			for i := range cs[:n] {
				c := &cs[i]
				switch {
				case c.Status != rdma.StatusOK:
				case c.Op == rdma.OpRead:
					end(rdma.STag(c.ID))
				case c.Op == rdma.OpReceive:
					s := c.STag
					if c.Flags&rdma.Advertised == 0 {
						s = rdma.STag(binary.BigEndian.Uint32(slots[c.ID][0].Bytes))
					}
					receives = append(receives, rdma.Receive{ID: c.ID, SGL: slots[c.ID]})
					if pull {
						works = append(works, rdma.Work{ID: uint64(s), Op: rdma.OpRead, Flags: rdma.Signaled, SGL: sink, RemoteSTag: s})
						continue
					}
					works = append(works, rdma.Work{Op: rdma.OpWrite, SGL: sink, RemoteSTag: s})
					end(s)
				}
			}
			_, _ = e.qp.PostReceive(receives)
			_, _ = e.qp.Post(works)
		}
	}
}
