package vm

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"

	"oneshot/test/targettest"
	"oneshot/transport/rdma"
	"oneshot/transport/rdma/iwarp"
)

// TestRPing: rping, a simple test program for RDMA, runs in the guest against a server that uses package iwarp.
// Its Sends name two buffers: the server reads one and writes the data into the other.
func TestRPing(t *testing.T) {
	startSiw.Do(t)
	for _, c := range []struct {
		count, size int
		show        bool // rping prints what comes back; it always compares
	}{{10, 64, true}, {10, 60000, false}} {
		t.Run(fmt.Sprint(c.size), func(t *testing.T) {
			s := newRPingServer(t)
			_, port, err := net.SplitHostPort(s.listener.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			served := make(chan error, 1)
			go func() { served <- s.serve(c.count, c.size) }()
			argv := []string{"rping", "-c", "-V", "-C", fmt.Sprint(c.count), "-S", fmt.Sprint(c.size), "-a", "10.0.2.2", "-p", port}
			if c.show {
				argv = append(argv, "-v")
			}
			out := guest.run(t, argv...)
			if err := <-served; err != nil {
				t.Errorf("the server: %v", err)
			}
			for n := 0; n < c.count && c.show; n++ {
				if want := fmt.Sprintf("ping data: %s\n", bytes.TrimRight(rpingData(n, c.size), "\x00")); !strings.Contains(out, want) {
					t.Errorf("rping does not say %.60q; it says %.400q", want, out)
				}
			}
		})
	}
}

// TestRPingPartitions: a portal for partitions rejects rping, which says nothing of partitions when it connects.
func TestRPingPartitions(t *testing.T) {
	startSiw.Do(t)
	tg := targettest.Start(t, `
stores: {d: {type: file, path: $DIR/d.img, size: 16MiB, partitioned: true}}
targets: [{iqn: "`+iqn+`"}]
portals: [{transport: iwarp, listen: $PORTAL, serve: partitions}]
`)
	tg.WaitLog(t.Context(), "portal open")
	out := guest.fails(t, "rping", "-c", "-C", "1", "-a", "10.0.2.2", "-p", tg.Port())
	if !strings.Contains(out, "RDMA_CM_EVENT_REJECTED") {
		t.Errorf("rping says %q", out)
	}
	tg.WaitLog(t.Context(), "its private data does not begin with OSP1")
}

// rpingData returns the n-th message of rping: its number, then printable letters, of which each message begins
// with the next one, and a zero.
func rpingData(n, size int) []byte {
	const first, last = 'A', 'z'
	b := fmt.Appendf(nil, "rdma-ping-%d: ", n)
	for c := n; len(b) < size-1; c++ {
		b = append(b, byte(first+c%(last-first+1)))
	}
	return append(b, 0)
}

// rpingServer is the server's side of rping.
type rpingServer struct {
	listener rdma.Listener
	device   rdma.Device
	domain   rdma.Domain
	cq       rdma.CompletionQueue
	qp       rdma.QueuePair
	region   rdma.Region // a message, and the data behind it
	wake     chan struct{}
	ended    chan error
}

// rpingInfo is the length of rping's messages: a buffer's address, its STag and its length.
const rpingInfo = 16

func newRPingServer(t *testing.T) *rpingServer {
	t.Helper()
	s := &rpingServer{wake: make(chan struct{}, 1), ended: make(chan error, 1)}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	var err error
	s.device, err = iwarp.Open(iwarp.Config{})
	must(err)
	s.domain, err = s.device.NewDomain()
	must(err)
	s.region, err = s.domain.Register(make([]byte, 2*rpingInfo+64<<10), rdma.AccessLocalWrite|rdma.AccessRemoteWrite)
	must(err)
	s.cq, err = s.device.NewCompletionQueue(16, func() {
		select {
		case s.wake <- struct{}{}:
		default:
		}
	})
	must(err)
	s.qp, err = s.device.NewQueuePair(rdma.QueuePairConfig{
		Domain: s.domain, SendCQ: s.cq, RecvCQ: s.cq, MaxWork: 4, MaxRecv: 4,
		Disconnected: func(err error) { s.ended <- err },
	})
	must(err)
	s.listener, err = s.device.Listen("127.0.0.1:0")
	must(err)
	t.Cleanup(func() {
		for _, err := range []error{
			s.listener.Close(), s.qp.Close(), s.cq.Close(), s.region.Deregister(), s.domain.Close(), s.device.Close(),
		} {
			if err != nil {
				t.Error(err)
			}
		}
	})
	return s
}

// serve answers count pings of size bytes each, and waits for the client's goodbye.
func (s *rpingServer) serve(count, size int) error {
	req, err := s.listener.Accept()
	if err != nil {
		return err
	}
	if err := s.receive(); err != nil {
		return err
	}
	if err := req.Accept(s.qp, rdma.ConnParams{}); err != nil {
		return err
	}
	for n := range count {
		if err := s.ping(n, size); err != nil {
			return fmt.Errorf("ping %d: %w", n, err)
		}
	}
	return <-s.ended
}

// ping is one round.
func (s *rpingServer) ping(n, size int) error {
	data := rdma.SGE{Bytes: s.region.Bytes()[2*rpingInfo:][:size], Region: s.region}
	for _, op := range []rdma.Opcode{rdma.OpRead, rdma.OpWrite} {
		stag, offset, length, err := s.info()
		if err != nil {
			return err
		}
		if length != size {
			return fmt.Errorf("a buffer of %d bytes, want %d", length, size)
		}
		transfer := rdma.Work{Op: op, Flags: rdma.Signaled, SGL: []rdma.SGE{data}, RemoteSTag: stag, RemoteOffset: offset}
		if err := s.do(transfer); err != nil {
			return err
		}
		if want := rpingData(n, size); !bytes.Equal(data.Bytes, want) {
			return fmt.Errorf("%v: %.40q, want %.40q", op, data.Bytes, want)
		}
		goAhead := rdma.SGE{Bytes: s.region.Bytes()[rpingInfo : 2*rpingInfo], Region: s.region}
		// Unsignalled, for the client's next message may complete before it does.
		if _, err := s.qp.Post([]rdma.Work{{Op: rdma.OpSend, SGL: []rdma.SGE{goAhead}}}); err != nil {
			return err
		}
	}
	return nil
}

// info waits for a message and posts the receive of the next.
func (s *rpingServer) info() (stag rdma.STag, offset uint64, length int, err error) {
	c, err := s.completion(rdma.OpReceive)
	if err != nil {
		return 0, 0, 0, err
	}
	if c.Bytes != rpingInfo {
		return 0, 0, 0, fmt.Errorf("a message of %d bytes, want %d", c.Bytes, rpingInfo)
	}
	b := s.region.Bytes()[:rpingInfo]
	offset, stag, length = binary.BigEndian.Uint64(b), rdma.STag(binary.BigEndian.Uint32(b[8:])), int(binary.BigEndian.Uint32(b[12:]))
	return stag, offset, length, s.receive()
}

func (s *rpingServer) receive() error {
	_, err := s.qp.PostReceive([]rdma.Receive{{SGL: []rdma.SGE{{Bytes: s.region.Bytes()[:rpingInfo], Region: s.region}}}})
	return err
}

// do posts w and waits for its end.
func (s *rpingServer) do(w rdma.Work) error {
	if _, err := s.qp.Post([]rdma.Work{w}); err != nil {
		return err
	}
	_, err := s.completion(w.Op)
	return err
}

// completion waits for the next completion, which has to be of op.
func (s *rpingServer) completion(op rdma.Opcode) (rdma.Completion, error) {
	var c [1]rdma.Completion
	for s.cq.Poll(c[:]) == 0 {
		if s.cq.Arm() {
			<-s.wake
		}
	}
	if c[0].Status != rdma.StatusOK || c[0].Op != op {
		return c[0], errors.Join(fmt.Errorf("%v: %v, want %v", c[0].Op, c[0].Status, op), c[0].Err)
	}
	return c[0], nil
}
