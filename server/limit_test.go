package server

import (
	"errors"
	"net"
	"sync/atomic"
	"testing"
	"testing/synctest"
)

// A service has so many connections at a time and no more; one that is closed, however often, makes
// room for one, and the end of the service is noticed while there is none.
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

// eagerListener has a connection whenever it is asked.
type eagerListener struct{ accepted atomic.Int32 }

func (l *eagerListener) Accept() (net.Conn, error) {
	l.accepted.Add(1)
	c, _ := net.Pipe()
	return c, nil
}

func (l *eagerListener) Close() error   { return nil }
func (l *eagerListener) Addr() net.Addr { return nil }
