package iwarp

import (
	"bytes"
	"testing"

	"golang.org/x/sys/unix"

	"oneshot/transport/rdma"
	"oneshot/transport/rdma/manager"
)

// One transfer of more than 4 GiB is moved, and not only reckoned with: lengths and tagged offsets beyond
// 32 bits get to the wire, and every piece to its place. The source is sparse; where nothing is looked
// at, the pieces of the sink lie on one another.
func TestBeyond4GiB(t *testing.T) {
	const piece, pieces = 1 << 20, 4097
	const size = piece * pieces
	s := setup{device: Config{NoCRC: true}}
	client, server := newEnd(t, s), newEnd(t, s)
	connect(t, client, server, s)
	defer server.close()
	defer client.close()
	b, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE)
	check(t, err)
	defer func() { check(t, unix.Munmap(b)) }()
	source, err := client.dom.Register(b, rdma.AccessLocalWrite|rdma.AccessRemoteRead)
	check(t, err)
	defer func() { check(t, source.Deregister()) }()

	// Pieces that are looked at: the first, the last below 4 GiB, and the one above.
	seen := map[int]int{0: 1, pieces - 2: 2, pieces - 1: 3} // and where they go
	locals := make([]rdma.SGE, pieces)
	for i := range locals {
		locals[i] = server.sge(seen[i]*piece, piece)[0]
		if seen[i] > 0 {
			for j := range 64 {
				b[i*piece+j], b[(i+1)*piece-1-j] = byte(i+j), byte(i*3+j)
			}
		}
	}
	var it manager.Item
	it.ID = 7
	limits := manager.ReadLimits(server.dev.Limits(), 0)
	check(t, it.Init(rdma.OpRead, limits, locals, []manager.Remote{{STag: source.STag(), Offset: source.Base(), Len: size}}))
	if it.Count() < size/(32*piece) {
		t.Errorf("%d Reads for %d octets", it.Count(), size)
	}
	var q manager.Queue
	q.Init(16)
	q.Push(&it)
	ws, sgl := make([]rdma.Work, 8), make([]rdma.SGE, 512)
	client.recv(1, 0, 8) // the responder speaks when it has heard of the initiator
	client.post(rdma.Work{ID: 2, Op: rdma.OpWrite, RemoteSTag: 1})
	var moved int64
	for done := false; !done; {
		if n := q.Fill(ws, sgl); n > 0 {
			for i := range ws[:n] {
				for _, e := range ws[i].SGL {
					moved += int64(len(e.Bytes))
				}
			}
			server.post(ws[:n]...)
			continue
		}
		if c := server.next(); c.Status != rdma.StatusOK {
			t.Fatalf("%+v", c)
		}
		done = q.Completed(&it)
	}
	if moved != size {
		t.Errorf("%d octets were asked for, want %d", moved, int64(size))
	}
	if got := server.qp.Counters().BytesIn; got != size {
		t.Errorf("%d octets came, want %d", got, int64(size))
	}
	for i, at := range seen {
		if got := server.mem.Bytes()[at*piece:][:piece]; !bytes.Equal(got, b[i*piece:][:piece]) {
			t.Errorf("piece %d is not what was to be read", i)
		}
	}
}
