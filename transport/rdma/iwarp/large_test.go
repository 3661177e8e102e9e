package iwarp

import (
	"bytes"
	"os"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"oneshot/transport/rdma"
	"oneshot/transport/rdma/manager"
)

const (
	largePiece  = 1 << 20
	largePieces = 4097
	large       = largePiece * largePieces // over 4 GiB
)

// largeSeen maps the pieces that are checked to their places in small memory: the first one, the last one below
// 4 GiB, and the one above. All other pieces share place 0.
var largeSeen = map[int]int{0: 1, largePieces - 2: 2, largePieces - 1: 3}

// largeMemory returns more than 4 GiB of address space on 4 MiB of memory.
func largeMemory(t *testing.T) []byte {
	t.Helper()
	fd, err := unix.MemfdCreate("large", unix.MFD_CLOEXEC)
	check(t, err)
	defer unix.Close(fd)
	check(t, unix.Ftruncate(fd, 4*largePiece))
	b, err := unix.Mmap(-1, 0, large, unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE)
	check(t, err)
	t.Cleanup(func() { check(t, unix.Munmap(b)) })
	for i := range largePieces {
		_, err := unix.MmapPtr(fd, int64(largeSeen[i])*largePiece, unsafe.Pointer(&b[i*largePiece]), largePiece,
			unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_FIXED)
		check(t, err)
	}
	return b
}

// One transfer moves more than 4 GiB: lengths and tagged offsets beyond 32 bits are on the wire, and every piece
// comes to its place. The test uses RDMA Read; with ONESHOT_LARGE set it also uses RDMA Write, and memory that
// was advertised in one shot.
func TestBeyond4GiB(t *testing.T) {
	if testing.Short() {
		t.Skip("not in short runs: octets do not race")
	}
	for name, x := range map[string]struct {
		op      rdma.Opcode
		oneShot bool
	}{
		"Read":     {rdma.OpRead, false},
		"Write":    {rdma.OpWrite, false},
		"one-shot": {rdma.OpRead, true},
	} {
		if name == "Read" || os.Getenv("ONESHOT_LARGE") != "" {
			t.Run(name, func(t *testing.T) { beyond4GiB(t, x.op, x.oneShot) })
		}
	}
}

// Memory of more than 4 GiB is advertised in one shot, and read and written at its end.
func TestAdvertiseBeyond4GiB(t *testing.T) {
	client, server := pair(t, setup{depth: 4, client: offer(), server: offer()})
	b := largeMemory(t)
	for i := range 100 {
		b[large-100+i], server.mem.Bytes()[100+i] = byte(7*i), byte(11*i)
	}
	server.recv(1, 4096, 64)
	client.recv(1, 0, 64)
	client.post(rdma.Work{
		Op: rdma.OpSend, Flags: rdma.Advertise, SGL: client.sge(64, 8), Memory: []rdma.SGE{{Bytes: b}},
		Access: rdma.AccessRemoteRead | rdma.AccessRemoteWrite,
	})
	s := server.want(rdma.OpReceive, 1).STag
	server.post(rdma.Work{ID: 2, Op: rdma.OpRead, Flags: rdma.Signaled, SGL: server.sge(300, 100), RemoteSTag: s, RemoteOffset: large - 100})
	server.want(rdma.OpRead, 2)
	if !bytes.Equal(server.mem.Bytes()[300:400], b[large-100:]) {
		t.Error("not what is there was read")
	}
	server.post(
		rdma.Work{Op: rdma.OpWrite, SGL: server.sge(100, 100), RemoteSTag: s, RemoteOffset: large - 100},
		rdma.Work{Op: rdma.OpSend, Flags: rdma.Close, STag: s, SGL: server.sge(4096, 8)},
	)
	if c := client.want(rdma.OpReceive, 1); c.Flags != rdma.Closed || c.STag != s {
		t.Errorf("%+v; want the close of STag %08x", c, s)
	}
	if !bytes.Equal(server.mem.Bytes()[100:200], b[large-100:]) {
		t.Error("what was written is not there")
	}
}

func beyond4GiB(t *testing.T, op rdma.Opcode, oneShot bool) {
	s := setup{depth: 4, device: Config{NoCRC: !oneShot}}
	if oneShot {
		s.client, s.server = offer(), offer()
	}
	client, server := newEnd(t, s), newEnd(t, s)
	connect(t, client, server, s)
	defer server.close()
	defer client.close()
	b := largeMemory(t)
	remote := manager.Remote{Len: large}
	server.recv(1, 7*largePiece, 64)
	client.recv(1, 0, 64)
	first := rdma.Work{ID: 2, Op: rdma.OpSend, SGL: client.sge(64, 8)} // the responder may send after the initiator's first FPDU
	var answer rdma.Work
	if oneShot {
		first.Flags, first.Memory, first.Access = rdma.Advertise, []rdma.SGE{{Bytes: b}}, rdma.AccessRemoteRead
		client.post(first)
		c := server.want(rdma.OpReceive, 1)
		remote.STag = c.STag
		answer = rdma.Work{Op: rdma.OpSend, Flags: rdma.Close, STag: c.STag, SGL: server.sge(7*largePiece, 8)}
	} else {
		region, err := client.dom.Register(b, rdma.AccessLocalWrite|rdma.AccessRemoteRead|rdma.AccessRemoteWrite)
		check(t, err)
		defer func() { check(t, region.Deregister()) }()
		remote.STag, remote.Offset = region.STag(), region.Base()
		client.post(first)
		server.want(rdma.OpReceive, 1)
		answer = rdma.Work{Op: rdma.OpSend, SGL: server.sge(7*largePiece, 8)}
	}

	locals := make([]rdma.SGE, largePieces)
	for i := range locals {
		locals[i] = server.sge(largeSeen[i]*largePiece, largePiece)[0]
	}
	for i := range largeSeen {
		from := b[i*largePiece:][:largePiece]
		if op == rdma.OpWrite {
			from = locals[i].Bytes
		}
		for j := range 64 {
			from[j], from[largePiece-1-j] = byte(i+j), byte(i*3+j)
		}
	}
	limits := manager.ReadLimits(server.dev.Limits(), 0)
	if op == rdma.OpWrite {
		limits = manager.WriteLimits(server.dev.Limits(), 0)
	}
	transfer, end := new(manager.Item), new(manager.Item)
	transfer.ID, end.ID = 7, 8
	check(t, transfer.Init(op, limits, locals, []manager.Remote{remote}))
	if transfer.Count() < large/(32*largePiece) {
		t.Errorf("%d descriptors for %d octets", transfer.Count(), large)
	}
	end.HasMessage, end.Message = true, answer
	moved := server.drive(transfer) + server.drive(end) // the STag may be closed only after the Reads have completed
	if moved != large {
		t.Errorf("%d octets were asked for, want %d", moved, large)
	}
	c := client.want(rdma.OpReceive, 1)
	if oneShot && (c.Flags != rdma.Closed || c.STag != remote.STag) {
		t.Errorf("%+v; want the close of STag %08x", c, remote.STag)
	}
	counted := server.qp.Counters()
	if got := map[rdma.Opcode]uint64{rdma.OpRead: counted.BytesIn, rdma.OpWrite: counted.BytesOut}[op]; got != large+8 {
		t.Errorf("%d octets were moved, want %d and a message of 8", got, large)
	}
	for i, at := range largeSeen {
		if got := server.mem.Bytes()[at*largePiece:][:largePiece]; !bytes.Equal(got, b[i*largePiece:][:largePiece]) {
			t.Errorf("piece %d is not what was to be moved", i)
		}
	}
}

// drive has a queue post an item, waits until it has completed, and returns how many octets it has moved.
func (e *end) drive(it *manager.Item) (moved int64) {
	e.t.Helper()
	var q manager.Queue
	q.Init(16)
	q.Push(it)
	ws, sgl := make([]rdma.Work, 8), make([]rdma.SGE, 512)
	for done := false; !done; {
		if n := q.Fill(ws, sgl); n > 0 {
			for i := range ws[:n] {
				for _, x := range ws[i].SGL {
					if ws[i].Op != rdma.OpSend {
						moved += int64(len(x.Bytes))
					}
				}
			}
			e.post(ws[:n]...)
			continue
		}
		c := e.next()
		if c.Status != rdma.StatusOK {
			e.t.Fatalf("%+v", c)
		}
		done = q.Completed(it)
	}
	return moved
}
