package quorum

import (
	"net"
	"sync"
)

// gathered is a connection below TLS, which writes each record of 16 KiB by itself. A Stream gathers the records of a
// write, and writes them at once.
type gathered struct {
	net.Conn

	mu sync.Mutex // held over writes: records keep their order
	on bool
	b  []byte
}

// gathersUpTo is how many bytes of a stream's user are gathered.
const gathersUpTo = 256 << 10

func (g *gathered) Write(b []byte) (int, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.on {
		return g.Conn.Write(b)
	}
	g.b = append(g.b, b...)
	return len(b), nil
}

func (g *gathered) begin() {
	g.mu.Lock()
	g.on = true
	g.mu.Unlock()
}

// end writes what was gathered.
func (g *gathered) end() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.on = false
	if len(g.b) == 0 {
		return nil
	}
	_, err := g.Conn.Write(g.b)
	g.b = g.b[:0]
	return err
}

// Write implements net.Conn.
func (s *Stream) Write(b []byte) (n int, err error) {
	s.writes.Lock()
	defer s.writes.Unlock()
	for first := true; err == nil && (first || len(b) > 0); first = false {
		part := b[:min(len(b), gathersUpTo)]
		b = b[len(part):]
		s.g.begin()
		var k int
		k, err = s.Conn.Write(part)
		n += k
		if e := s.g.end(); err == nil {
			err = e
		}
	}
	return n, err
}
