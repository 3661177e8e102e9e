package storm

import (
	"bytes"
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"

	"oneshot/initiator"
	"oneshot/test/targettest"
)

// TestTermWhileFetching: the daemon is told to stop while it fetches the data of a WRITE over RDMA. However the
// connection ends after that, the store has all data of the WRITE or none of it, and no bytes that were in the
// daemon's memory before.
func TestTermWhileFetching(t *testing.T) {
	for transport, scheme := range map[string]string{"iSER": "iser+iwarp", "iSCSI-direct": "oneshot+iwarp"} {
		for _, c := range []struct {
			name   string
			end    func(t *testing.T, d *targettest.Target, l *valve)
			either bool // all of it may be written
		}{
			{"a second signal", func(t *testing.T, d *targettest.Target, _ *valve) { term(t, d) }, false},
			{"RST", func(t *testing.T, _ *targettest.Target, l *valve) { l.end(t, 0, true) }, false},
			{"FIN", func(t *testing.T, _ *targettest.Target, l *valve) { l.end(t, 0, false) }, false},
			{"half of the data and RST", func(t *testing.T, _ *targettest.Target, l *valve) { l.end(t, writeLen/2, true) }, false},
			{"half of the data and FIN", func(t *testing.T, _ *targettest.Target, l *valve) { l.end(t, writeLen/2, false) }, false},
			{"all of the data", func(t *testing.T, _ *targettest.Target, l *valve) { l.open(t) }, true},
		} {
			t.Run(transport+"/"+c.name, func(t *testing.T) { termWhileFetching(t, scheme, c.end, c.either) })
		}
	}
}

const writeLen = 256 << 10

func termWhileFetching(t *testing.T, scheme string, end func(*testing.T, *targettest.Target, *valve), either bool) {
	d := targettest.Start(t, `
stores: {disk: {type: file, path: $DIR/disk.img, size: 4MiB}, other: {type: memory, size: 16MiB}}
targets: [{iqn: `+iqn+`t, luns: {0: disk}}, {iqn: `+iqn+`other, luns: {0: other}}]
portals: [{transport: iwarp, listen: $PORTAL}]
limits: {memory: 64MiB}
`)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	login := func(address, target string) (*initiator.Session, *initiator.LU) {
		u, err := initiator.ParseURL(scheme + "://" + address + "/" + iqn + target)
		if err != nil {
			t.Fatal(err)
		}
		s, err := initiator.Dial(ctx, u, initiator.Options{Depth: 16, Immediate: -1})
		if err != nil {
			t.Fatal(err)
		}
		l, err := s.LU(ctx, 0)
		if err != nil {
			t.Fatal(err)
		}
		return s, l
	}
	// After that, the data of another session is in the daemon's I/O memory.
	s, l := login(d.Portal(), "other")
	var wg sync.WaitGroup
	harm := bytes.Repeat([]byte("harm"), writeLen/4)
	for i := range 32 {
		wg.Go(func() {
			if _, err := l.WriteAt(harm, int64(i*writeLen)); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}

	v := newValve(t, d.Portal())
	s, l = login(v.Addr().String(), "t")
	data := bytes.Repeat([]byte("good"), writeLen/4)
	w := &initiator.Command{Out: data}
	if err := l.Prepare(w, 0); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	v.arm()
	go func() {
		err := s.Do(ctx, w)
		done <- errors.Join(err, w.Failure())
	}()
	select {
	case <-v.shut: // the daemon's Read Request has come
	case err := <-done:
		t.Fatalf("the WRITE ends before its data was fetched: %v", err)
	}
	v.await(t, writeLen) // the initiator may end the session when it is asked to
	term(t, d)
	d.WaitLog(ctx, "draining")
	end(t, d, v)
	if err := <-done; err == nil && !either {
		t.Error("the WRITE ends well")
	}
	_ = s.Close()
	v.close()
	select {
	case <-d.Exited():
	case <-ctx.Done():
		t.Fatal("the daemon does not stop")
	}
	d.Kill()  // it is down
	d.Start() // which says that it can be served again
	d.Stop()
	got, err := os.ReadFile(filepath.Join(d.Dir, "disk.img"))
	if err != nil {
		t.Fatal(err)
	}
	want := make([]byte, len(got))
	if either && got[0] != 0 {
		copy(want, data)
	}
	if !bytes.Equal(got, want) {
		at := 0
		for got[at] == want[at] {
			at++
		}
		t.Errorf("the disk has %q at %d", got[at:at+8], at)
	}
}

func term(t *testing.T, d *targettest.Target) {
	t.Helper()
	if err := syscall.Kill(d.PID(), syscall.SIGTERM); err != nil {
		t.Error(err)
	}
}

// valve forwards one connection. After it was armed, the next octets from the target shut it: from then on it keeps
// the octets of the initiator.
type valve struct {
	net.Listener
	shut chan struct{} // closed when it is shut
	wg   sync.WaitGroup

	mu                sync.Mutex
	grown             *sync.Cond // kept has grown, or nothing more comes
	armed, kept, over bool
	bytes             []byte // that are kept
	initiator, target *net.TCPConn
}

func newValve(t *testing.T, target string) *valve {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	v := &valve{Listener: l, shut: make(chan struct{})}
	v.grown = sync.NewCond(&v.mu)
	v.wg.Go(func() {
		from, err := l.Accept()
		if err != nil {
			return
		}
		to, err := net.Dial("tcp", target)
		if err != nil {
			_ = from.Close()
			return
		}
		v.mu.Lock()
		v.initiator, v.target = from.(*net.TCPConn), to.(*net.TCPConn)
		v.mu.Unlock()
		v.wg.Go(v.forward)
		v.back()
	})
	t.Cleanup(v.close)
	return v
}

func (v *valve) arm() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.armed = true
}

// keep shuts it now.
func (v *valve) keep() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.kept = true
	close(v.shut)
}

// forward carries what the initiator sends.
func (v *valve) forward() {
	b := make([]byte, 64<<10)
	for {
		n, err := v.initiator.Read(b)
		v.mu.Lock()
		if v.kept {
			v.bytes = append(v.bytes, b[:n]...)
		} else {
			_, _ = v.target.Write(b[:n])
		}
		v.over = v.over || err != nil
		v.grown.Broadcast()
		v.mu.Unlock()
		if err != nil {
			return
		}
	}
}

// back carries what the target sends.
func (v *valve) back() {
	b := make([]byte, 64<<10)
	for {
		n, err := v.target.Read(b)
		v.mu.Lock()
		if v.armed && n > 0 {
			v.armed, v.kept = false, true
			close(v.shut)
		}
		v.mu.Unlock()
		if n > 0 {
			_, _ = v.initiator.Write(b[:n])
		}
		if err != nil {
			_ = v.initiator.Close()
			return
		}
	}
}

// await returns when n octets are kept.
func (v *valve) await(t *testing.T, n int) {
	t.Helper()
	v.mu.Lock()
	defer v.mu.Unlock()
	for len(v.bytes) < n {
		if v.over {
			t.Fatalf("%d octets are kept, and no more come; want %d", len(v.bytes), n)
		}
		v.grown.Wait()
	}
}

// end sends the first n kept octets, and ends the connection to the target.
func (v *valve) end(t *testing.T, n int, reset bool) {
	t.Helper()
	v.mu.Lock()
	defer v.mu.Unlock()
	if _, err := v.target.Write(v.bytes[:n]); err != nil {
		t.Error(err)
	}
	if reset {
		_ = v.target.SetLinger(0)
	}
	_ = v.target.Close()
}

// open sends the kept octets, and forwards all later ones.
func (v *valve) open(t *testing.T) {
	t.Helper()
	v.mu.Lock()
	defer v.mu.Unlock()
	v.kept = false
	if _, err := v.target.Write(v.bytes); err != nil {
		t.Error(err)
	}
}

func (v *valve) close() {
	_ = v.Listener.Close()
	v.mu.Lock()
	for _, c := range []*net.TCPConn{v.initiator, v.target} {
		if c != nil {
			_ = c.Close()
		}
	}
	v.mu.Unlock()
	v.wg.Wait()
}
