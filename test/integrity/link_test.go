package integrity

import (
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"testing"
)

// link is a wire that breaks: a relay between initiators and a portal. It ends each connection after
// a random number of octets, in one of several ways.
type link struct {
	addr     string // where to connect
	portal   string
	listener net.Listener
	// life is the mean number of octets that pass before a connection is cut. 0: it is not cut.
	life atomic.Int64
	cuts atomic.Int64
	wg   sync.WaitGroup

	mu    sync.Mutex
	rng   *rand.Rand            // guarded by mu
	conns map[net.Conn]struct{} // guarded by mu
}

func newLink(tb testing.TB, portal string, life int64, seed uint64) *link {
	tb.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	l := &link{
		addr: listener.Addr().String(), portal: portal, listener: listener,
		rng: rand.New(rand.NewPCG(seed, 2)), conns: map[net.Conn]struct{}{},
	}
	l.life.Store(life)
	l.wg.Go(l.accept)
	tb.Cleanup(l.close)
	return l
}

func (l *link) accept() {
	for {
		c, err := l.listener.Accept()
		if err != nil {
			return
		}
		l.wg.Go(func() { l.relay(c.(*net.TCPConn)) })
	}
}

func (l *link) close() {
	_ = l.listener.Close()
	l.mu.Lock()
	for c := range l.conns {
		_ = c.Close()
	}
	l.mu.Unlock()
	l.wg.Wait()
}

func (l *link) enter(c net.Conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.conns[c] = struct{}{}
}

func (l *link) leave(c net.Conn) {
	_ = c.Close()
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.conns, c)
}

// fate says how many octets pass in each direction, and how the connection ends.
func (l *link) fate() (octets int64, reset bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	life := l.life.Load()
	if life == 0 {
		return never, false
	}
	return 1 + int64(l.rng.ExpFloat64()*float64(life)), l.rng.IntN(2) == 0
}

// relay carries one connection to its end.
func (l *link) relay(near *net.TCPConn) {
	l.enter(near)
	defer l.leave(near)
	c, err := net.Dial("tcp", l.portal)
	if err != nil {
		return // the daemon is down
	}
	far := c.(*net.TCPConn)
	l.enter(far)
	defer l.leave(far)
	octets, reset := l.fate()
	var left atomic.Int64
	left.Store(octets)
	var both sync.WaitGroup
	end := sync.OnceFunc(func() {
		if left.Load() <= 0 {
			l.cuts.Add(1)
		}
		for _, c := range []*net.TCPConn{near, far} {
			if reset {
				_ = c.SetLinger(0)
			}
			_ = c.Close()
		}
	})
	both.Go(func() { carry(far, near, &left); end() })
	both.Go(func() { carry(near, far, &left); end() })
	both.Wait()
}

// carry relays octets until either end closes, or the number of octets is reached. They may end within a PDU.
func carry(to, from *net.TCPConn, left *atomic.Int64) {
	b := make([]byte, 64<<10)
	for {
		n, err := from.Read(b)
		rest := left.Add(-int64(n))
		if rest < 0 {
			n = max(0, n+int(rest))
		}
		if _, lost := to.Write(b[:n]); lost != nil || err != nil || rest <= 0 {
			return
		}
	}
}
