package targettest

import (
	"bytes"
	"net"
	"sync"
	"testing"
)

// Relay is a link between initiator and target that can be cut, and that can swallow what it is given.
type Relay struct {
	listen net.Listener
	to     string
	wg     sync.WaitGroup

	mu     sync.Mutex
	conns  map[net.Conn]struct{} // guarded by mu
	down   bool                  // guarded by mu
	silent map[net.Conn]bool     // guarded by mu
	first  [][]byte              // guarded by mu; what each connection began with
}

// NewRelay begins to pass connections on to that address, until the test ends.
func NewRelay(tb testing.TB, to string) *Relay {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	r := &Relay{listen: l, to: to, conns: make(map[net.Conn]struct{}), silent: make(map[net.Conn]bool)}
	r.wg.Go(r.accept)
	tb.Cleanup(func() {
		_ = l.Close()
		r.Cut(true)
		r.wg.Wait()
	})
	return r
}

// Addr is where it listens.
func (r *Relay) Addr() string { return r.listen.Addr().String() }

func (r *Relay) accept() {
	for {
		c, err := r.listen.Accept()
		if err != nil {
			return
		}
		d, err := net.Dial("tcp", r.to)
		if err != nil {
			_ = c.Close()
			continue
		}
		r.mu.Lock()
		if r.down {
			_, _ = c.Close(), d.Close()
		} else {
			r.conns[c], r.conns[d] = struct{}{}, struct{}{}
			r.wg.Go(func() { r.pass(c, d, true) })
			r.wg.Go(func() { r.pass(d, c, false) })
		}
		r.mu.Unlock()
	}
}

func (r *Relay) pass(from, to net.Conn, first bool) {
	b := make([]byte, 64<<10)
	for {
		n, err := from.Read(b)
		r.mu.Lock()
		if first && n > 0 {
			r.first = append(r.first, bytes.Clone(b[:n]))
			first = false
		}
		silent := r.silent[from]
		r.mu.Unlock()
		if err == nil && !silent {
			_, err = to.Write(b[:n])
		}
		if err != nil {
			_, _ = from.Close(), to.Close()
			return
		}
	}
}

// Cut ends all connections; down: and those that come, too.
func (r *Relay) Cut(down bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.down = down
	for c := range r.conns {
		_ = c.Close()
	}
	clear(r.conns)
}

// Swallow has nothing pass on the connections that there are, which stay open.
func (r *Relay) Swallow() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for c := range r.conns {
		r.silent[c] = true
	}
}

// Beginnings are the first bytes of each connection to the target.
func (r *Relay) Beginnings() [][]byte {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.first
}
