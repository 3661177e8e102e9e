package mirror

import (
	"context"
	"log/slog"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"oneshot/ha/replica"
)

// meter counts what its connection has taken.
type meter struct {
	net.Conn
	n atomic.Int64
}

func (m *meter) Write(b []byte) (int, error) {
	n, err := m.Conn.Write(b)
	m.n.Add(int64(n))
	return n, err
}

// intruder is a connection with node b as the node a would have one.
func (l *lab) intruder(a, b *node) *meter {
	l.t.Helper()
	return l.intruderOf(greetingMagic, a, b)
}

func (l *lab) intruderOf(magic uint64, a, b *node) *meter {
	l.t.Helper()
	c, err := l.dial(context.Background(), a.id, b.id)
	if err != nil {
		l.t.Fatal(err)
	}
	g := greeting{magic, b.mirror.sameness, a.id, b.id}
	if _, err := c.Write(appendFrame(nil, new(coder), frameGreeting, 0, func(c *coder) { c.greeting(&g) })); err != nil {
		l.t.Fatal(err)
	}
	if _, err := c.Read(make([]byte, 1<<10)); err != nil {
		l.t.Fatal(err)
	}
	return &meter{Conn: c}
}

// TestInboxIsBounded: a member that sends faster than the core takes it waits. Neither long frames nor many short ones take
// more memory than they may, and none is lost.
func TestInboxIsBounded(t *testing.T) {
	for _, kind := range []string{"echoes", "posts"} {
		t.Run(kind, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := newLab(t, 2)
				l.begin()
				a, b := l.nodes[0], l.nodes[1]
				a.kill()
				m := b.mirror
				c := l.intruder(a, b)
				synctest.Wait() // the core knows the connection, or nothing of it would be read
				held := make(chan struct{})
				m.push(item{call: func() { <-held }}) // the core is busy
				frame := appendFrame(nil, new(coder), frameEcho, 0, func(c *coder) { c.echo(&replica.Echo{No: 1}) })
				bytes := 2 << 20
				if kind == "posts" {
					data := make([]byte, 1<<20)
					p := post{stream: 1, bell: replica.Bell{First: 1}, recs: []replica.Record{{Seq: 1, Kind: replica.KindWrite, Len: 1 << 20, Sum: sumOf(data)}}}
					bytes = 12 << 20
					frame = append(appendFrame(nil, new(coder), framePost, len(data), func(c *coder) { c.post(&p) }), data...)
				}
				sent := make(chan int, 1)
				go func() {
					n := 0
					for ; n*len(frame) < bytes; n++ {
						if _, err := c.Write(frame); err != nil {
							break
						}
					}
					sent <- n
				}()
				synctest.Wait()
				m.mu.Lock()
				waiting := len(m.inbox)
				m.mu.Unlock()
				// What waits, a frame that is read, and a buffer. Short frames count for more than their bytes.
				if taken, most := c.n.Load(), int64(maxHeld+2<<20); taken == 0 || taken > most || waiting > 4096+10 {
					t.Errorf("%d bytes in %d frames wait, and %d bytes may", taken, waiting, most)
				}
				close(held)
				if n := <-sent; n*len(frame) < bytes {
					t.Errorf("the connection has ended after %d frames", n)
				}
				_ = c.Close()
				a.start()
				l.await(b, "both in sync", func(s replica.State) bool { return s.View.InSync.Len() == 2 })
				l.end()
			})
		})
	}
}

// lines counts lines of a log that have a text.
type lines struct {
	slog.Handler
	text string
	n    *atomic.Int64
}

func (h lines) Enabled(context.Context, slog.Level) bool { return true }
func (h lines) WithAttrs([]slog.Attr) slog.Handler       { return h }
func (h lines) Handle(_ context.Context, r slog.Record) error {
	if strings.Contains(r.Message, h.text) {
		h.n.Add(1)
	}
	return nil
}

// TestLogIsBounded: who connects and is refused, or leaves, a thousand times does not write a thousand lines.
func TestLogIsBounded(t *testing.T) {
	for text, greets := range map[string]bool{"was refused": false, "has ended": true} {
		t.Run(text, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var n atomic.Int64
				l := newLab(t, 2)
				l.log = slog.New(lines{text: text, n: &n})
				l.begin()
				a, b := l.nodes[0], l.nodes[1]
				a.kill()
				time.Sleep(2 * logSilence)
				n.Store(0)
				for range 1000 {
					if greets {
						_ = l.intruder(a, b).Close()
						continue
					}
					c, err := l.dial(context.Background(), a.id, b.id)
					if err != nil {
						t.Fatal(err)
					}
					_, _ = c.Write(make([]byte, prefixLen)) // it is refused meanwhile
					_ = c.Close()
				}
				synctest.Wait()
				if n := n.Load(); n != 1 {
					t.Errorf("%d lines", n)
				}
				b.kill()
			})
		})
	}
}
