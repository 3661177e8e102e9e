package server

import (
	"errors"
	"net"
	"sync/atomic"
	"testing"
	"testing/synctest"
)

// A service has at most maxServed connections at a time. Closing one, once or several times, makes room for one
// more. A listener that waits for room notices its own end.
func TestLimitedListener(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inner := new(eagerListener)
		l := newLimitedListener(inner)
		conns, end := make(chan net.Conn, 2*maxServed), make(chan error)
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					end <- err
					return
				}
				conns <- c
			}
		}()
		check := func(want int32) {
			t.Helper()
			synctest.Wait()
			if got := inner.accepted.Load(); got != want {
				t.Errorf("%d connections, want %d", got, want)
			}
		}
		check(maxServed)
		c := <-conns
		_ = c.Close()
		_ = c.Close()
		check(maxServed + 1)
		_ = l.Close()
		_ = l.Close()
		if err := <-end; !errors.Is(err, net.ErrClosed) {
			t.Error(err)
		}
	})
}

// eagerListener always has a connection to accept.
type eagerListener struct{ accepted atomic.Int32 }

func (l *eagerListener) Accept() (net.Conn, error) {
	l.accepted.Add(1)
	c, _ := net.Pipe()
	return c, nil
}

func (l *eagerListener) Close() error   { return nil }
func (l *eagerListener) Addr() net.Addr { return nil }
