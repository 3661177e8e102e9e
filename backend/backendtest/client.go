package backendtest

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"

	"oneshot/backend"
)

// Do submits op to s, waits until it has completed and returns its error. It sets op.Done.
func Do(s backend.Store, op *backend.Op) error {
	w := make(waiter, 1)
	op.Done = w
	if !s.Submit(op) {
		<-w
	}
	return op.Err
}

// waiter is a Completer that one goroutine waits on.
type waiter chan struct{}

func (w waiter) OpDone(*backend.Op) { w <- struct{}{} }

// call is one operation under the eyes of the suite: it completes once, and with it ends
// the store's right to its buffers.
type call struct {
	op    backend.Op
	clock *atomic.Int64 // ticks with every completion
	ended atomic.Int32
	at    int64 // the tick of the completion
	done  chan struct{}
	after []byte // Read: what the buffers held at completion
}

// OpDone is told by the store.
func (c *call) OpDone(op *backend.Op) {
	if op != &c.op {
		panic("backendtest: another operation completed here")
	}
	c.end()
	close(c.done) // panics when called twice
}

func (c *call) end() {
	c.at = c.clock.Add(1)
	c.ended.Add(1)
	if c.op.Kind == backend.Read {
		c.after = join(c.op.Segs)
	}
}

// client submits operations and remembers them all, to look at them again at the end.
type client struct {
	t     testing.TB
	s     backend.Store
	clock atomic.Int64

	mu    sync.Mutex
	calls []*call
}

// open opens a store for a test of the suite. When the test ends, it looks at every
// operation again and closes the store.
func open(t *testing.T, f func(t *testing.T) backend.Store) *client {
	c := &client{t: t, s: f(t)}
	t.Cleanup(func() {
		if err := c.s.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
		c.check()
	})
	return c
}

// check finds operations that completed not once, and buffers that were changed after
// completion.
func (c *client) check() {
	for _, k := range c.calls {
		if n := k.ended.Load(); n != 1 {
			c.t.Errorf("%v of %d bytes at %d completed %d times", k.op.Kind, k.op.Len, k.op.Off, n)
		}
		if k.op.Kind == backend.Read && !holds(k.op.Segs, k.after) {
			c.t.Errorf("read of %d bytes at %d: buffers changed after completion", k.op.Len, k.op.Off)
		}
	}
}

// submit starts an operation.
func (c *client) submit(op backend.Op) *call {
	k := &call{op: op, clock: &c.clock, done: make(chan struct{})}
	k.op.Done = k
	c.mu.Lock()
	c.calls = append(c.calls, k)
	c.mu.Unlock()
	if c.s.Submit(&k.op) {
		k.end()
		close(k.done)
	}
	return k
}

// wait returns the operation's error once it has completed.
func (c *call) wait() error {
	<-c.done
	return c.op.Err
}

// must is wait for operations that cannot fail.
func (c *client) must(k *call) *call {
	c.t.Helper()
	if err := k.wait(); err != nil {
		c.t.Fatalf("%v of %d bytes at %d: %v", k.op.Kind, k.op.Len, k.op.Off, err)
	}
	return k
}

func (c *client) write(off int64, b []byte, f backend.Flags) *call {
	return c.submit(backend.Op{Kind: backend.Write, Off: off, Len: int64(len(b)), Segs: [][]byte{b}, Flags: f})
}

func (c *client) read(off, n int64, f backend.Flags) *call {
	return c.submit(backend.Op{Kind: backend.Read, Off: off, Len: n, Segs: [][]byte{filled(n, 0xA5)}, Flags: f})
}

func (c *client) over(k backend.Kind, off, n int64, f backend.Flags) *call {
	return c.submit(backend.Op{Kind: k, Off: off, Len: n, Flags: f})
}

// expect reads and compares.
func (c *client) expect(off int64, want []byte) {
	c.t.Helper()
	same(c.t, fmt.Sprintf("read at %d", off), c.must(c.read(off, int64(len(want)), 0)).after, want)
}

func same(t testing.TB, what string, got, want []byte) {
	t.Helper()
	if string(got) == string(want) {
		return
	}
	for i := range want {
		if i >= len(got) || got[i] != want[i] {
			t.Fatalf("%s: %d bytes, want %d, and they differ from byte %d on", what, len(got), len(want), i)
		}
	}
	t.Fatalf("%s: %d bytes, want %d", what, len(got), len(want))
}

func join(segs [][]byte) []byte { return bytes.Join(segs, nil) }

// holds reports whether segs hold want.
func holds(segs [][]byte, want []byte) bool {
	for _, s := range segs {
		if len(s) > len(want) || !bytes.Equal(s, want[:len(s)]) {
			return false
		}
		want = want[len(s):]
	}
	return len(want) == 0
}

func filled(n int64, v byte) []byte { return bytes.Repeat([]byte{v}, int(n)) }

// pattern returns n bytes of no regularity, others for each seed.
func pattern(n int64, seed uint64) []byte {
	b := make([]byte, n)
	x := seed*0x9E3779B97F4A7C15 + 1
	for p := b; len(p) > 0; {
		x ^= x << 13
		x ^= x >> 7
		x ^= x << 17
		p = p[copy(p, chance[x%(1<<16):][:512]):]
	}
	return b
}

// chance is where patterns have most of their bytes from: the race detector looks at copies in one go, and
// at each byte that is computed.
var chance = func() []byte {
	b := make([]byte, 1<<16+512)
	_, _ = rand.NewChaCha8([32]byte{}).Read(b)
	return b
}()

// cut splits b into segments of the given lengths, over and over.
func cut(b []byte, lens ...int) (segs [][]byte) {
	for i := 0; len(b) > 0; i++ {
		n := min(lens[i%len(lens)], len(b))
		segs, b = append(segs, b[:n:n]), b[n:]
	}
	return segs
}
