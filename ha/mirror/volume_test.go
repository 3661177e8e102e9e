package mirror

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"oneshot/backend"
	"oneshot/backend/faulty"
	"oneshot/ha/replica"
	"oneshot/mem"
	"oneshot/volume"
)

// command is a request to a volume on a mirror, and who drives it.
type command struct {
	name string
	pool *mem.Pool
	r    volume.Request
	wake chan struct{} // a token: the request may go on
	gone chan struct{} // closed: the connection of its host has ended
	over chan struct{} // closed: what follows is known, and the request has been released

	data     []byte // that it pulls
	got      []byte
	err      error
	mismatch int64
	aborted  bool
}

func (c *command) Signal(flag *atomic.Bool) {
	wake := c.wake
	flag.Store(true)
	signal(wake)
}
func (c *command) Lease(n int) *mem.Lease { return c.pool.Lease(n) }
func (c *command) Begun()                 {}
func (c *command) Cork() backend.Uncorker { return nil }

// newCommand begins one that pulls data.
func newCommand(name string, v *volume.Volume, pool *mem.Pool, data []byte, begin func(r *volume.Request, then volume.Step) volume.Next) *command {
	c := &command{name: name, pool: pool, data: data, wake: make(chan struct{}, 1), gone: make(chan struct{}), over: make(chan struct{})}
	go func() {
		c.r.Begin(c, v, 512, mem.MaxLease, false, false)
		c.drive(begin(&c.r, func(*volume.Request) volume.Next { return volume.Done }))
	}()
	return c
}

// drive does what the request asks for until it ends.
func (c *command) drive(next volume.Next) {
	gone, aborts := c.gone, false
	for next != volume.Done && next != volume.Aborted {
		if next == volume.Pull {
			c.r.Place(0, c.data)
			next, _ = c.r.Pulled()
			continue
		}
		select {
		case <-c.wake:
		case <-gone:
			gone, aborts = nil, true
		}
		next, _ = c.r.Resume(aborts)
	}
	c.aborted = next == volume.Aborted
	c.got, c.err, c.mismatch = slices.Concat(c.r.In...), c.r.Err, c.r.Mismatch
	c.r.Settle()
	c.r.Release()
	close(c.over)
}

func (c *command) isOver() bool {
	select {
	case <-c.over:
		return true
	default:
		return false
	}
}

// TestCommandsLeaveHungDisk: the disk of the primary hangs while it works for commands of hosts, each of which needs its memory for something else.
// Until another node serves nothing ends that the disk may still write for, though the host's connection be gone. Then everything ends; the
// memory is nobody's before the disk has returned it, and what a command was to do after that is not done.
func TestCommandsLeaveHungDisk(t *testing.T) {
	for what, kinds := range map[string][]backend.Kind{"hangs": nil, "hangs when it reads": faulty.Reads} {
		for _, leaves := range []bool{false, true} {
			t.Run(fmt.Sprintf("disk %s, connection ends: %v", what, leaves), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) { testCommandsLeaveHungDisk(t, kinds, leaves) })
			})
		}
	}
}

func testCommandsLeaveHungDisk(t *testing.T, kinds []backend.Kind, leaves bool) {
	const kib, mib = 1 << 10, 1 << 20 // a MiB is what waits for each other in a volume
	l := newLab(t, 2)
	store := l.withFaults()
	l.begin()
	defer l.end()
	a, b := l.nodes[0], l.nodes[1]
	bytesAt := bytesOf(testSize, 1)
	l.write(a, 0, bytesAt)
	time.Sleep(time.Minute) // all is durable
	v, err := volume.New(volume.Config{Store: a.mirror})
	if err != nil {
		t.Fatal(err)
	}
	pool := mem.NewPool(4 * mib)
	all := pool.Free()
	gate := store(a).Hold(faulty.Match{Kinds: kinds})
	defer gate.Release()

	other := bytes.Repeat([]byte{0xa5}, 8*kib)
	term := v.Term()
	begin := func(name string, data []byte, step func(r *volume.Request, then volume.Step) volume.Next) *command {
		c := newCommand(name, v, pool, data, step)
		synctest.Wait()
		return c
	}
	hang := []*command{
		begin("READ", nil, func(r *volume.Request, then volume.Step) volume.Next { return r.Read(0, 64*kib, 64*kib, false, then) }),
		begin("VERIFY", nil, func(r *volume.Request, then volume.Step) volume.Next { return r.Verify(64*kib, 400*kib, false, then) }),
		begin("VERIFY with data", bytesAt[512*kib:][:8*kib], func(r *volume.Request, then volume.Step) volume.Next {
			return r.Verify(512*kib, 8*kib, true, then)
		}),
		begin("copy", nil, func(r *volume.Request, then volume.Step) volume.Next {
			return r.CopyMemory(8*kib, func(r *volume.Request) volume.Next {
				return r.CopyRead(v, term, 640*kib, 8*kib, func(r *volume.Request) volume.Next {
					if r.Err != nil {
						return then(r)
					}
					return r.CopyWrite(v, term, 3*mib, 8*kib, false, then)
				})
			})
		}),
		begin("WRITE AND VERIFY", other, func(r *volume.Request, then volume.Step) volume.Next {
			return r.WriteAndVerify(768*kib, 8*kib, true, then)
		}),
		begin("COMPARE AND WRITE", slices.Concat(bytesAt[mib:][:8*kib], other), func(r *volume.Request, then volume.Step) volume.Next {
			return r.CompareAndWrite(mib, 8*kib, false, "", then)
		}),
		begin("ORWRITE", other, func(r *volume.Request, then volume.Step) volume.Next { return r.OrWrite(2*mib, 8*kib, false, then) }),
	}
	behind := begin("READ behind COMPARE AND WRITE", nil, func(r *volume.Request, then volume.Step) volume.Next {
		return r.Read(mib+64*kib, 8*kib, 8*kib, false, then)
	})
	write := begin("WRITE", other, func(r *volume.Request, then volume.Step) volume.Next {
		return r.Write(3*mib+64*kib, 8*kib, false, then)
	})
	if <-write.over; write.err != nil {
		t.Fatalf("what both nodes have in memory is written with %v", write.err)
	}
	copy(bytesAt[3*mib+64*kib:], other)

	if leaves {
		for _, c := range append(hang, behind) {
			close(c.gone)
		}
		<-behind.over // it has not come to the store
	}
	synctest.Wait()
	for _, c := range hang {
		if c.isOver() {
			t.Errorf("%s is over, with %v, and the disk has not returned its memory", c.name, c.err)
		}
	}
	l.await(b, "it takes over", func(s replica.State) bool { return s.Role == replica.Primary })
	time.Sleep(4 * time.Second)
	for _, c := range append(hang, behind) {
		if !c.isOver() {
			t.Errorf("%s waits for the disk", c.name)
			continue
		}
		var moved *backend.MovedError
		if c.aborted != leaves || !leaves && !errors.As(c.err, &moved) || len(c.got) != 0 || c.mismatch != -1 {
			t.Errorf("%s has ended with %v and %d bytes, aborted: %v, mismatch at %d", c.name, c.err, len(c.got), c.aborted, c.mismatch)
		}
	}
	if t.Failed() {
		gate.Release()
		for _, c := range append(hang, behind) {
			<-c.over
		}
		return
	}

	// All memory that can be had is somebody else's now.
	rest := bytes.Repeat([]byte{0x5a}, mem.PageSize)
	var others []*mem.Lease
	for o := pool.Lease(mem.PageSize); o != nil; o = pool.Lease(mem.PageSize) {
		copy(o.Bytes(), rest)
		others = append(others, o)
	}
	// The others have at least 64 KiB for READ, 256 for VERIFY, 16 for what was to be compared, 8 for the copy, 24 for COMPARE AND WRITE, 16 for ORWRITE.
	if had := int64(len(others)) * mem.PageSize; had > all-384*kib {
		t.Errorf("%d of %d bytes can be had before the disk has returned what it was given", had, all)
	}
	more := bytesOf(8*kib, 3)
	l.write(b, mib, more)
	copy(bytesAt[mib:], more)
	gate.Release()
	synctest.Wait()
	for _, o := range others {
		if !bytes.Equal(o.Bytes(), rest) {
			t.Error("the disk has written to memory that was somebody else's")
		}
		o.Release()
	}
	if err := v.Settled(); err != nil || pool.Free() != all {
		t.Errorf("%d bytes are leased still; %v", all-pool.Free(), err)
	}
	pool.Close()

	l.level(b)
	for _, n := range []*node{b, a} {
		b.mirror.push(item{event: replica.Switch{ID: isOrder, To: n.id}})
		l.level(n)
		verified := make([]byte, 8*kib) // it has not failed, and not succeeded: either
		if err := l.do(n, backend.Op{Kind: backend.Read, Off: 768 * kib, Len: 8 * kib, Segs: [][]byte{verified}}); err != nil {
			t.Fatal(err)
		}
		if bytes.Equal(verified, other) {
			copy(bytesAt[768*kib:], other)
		}
		l.expect(n, 0, bytesAt)
	}
}

// TestCompareAndWriteDone: the primary does a COMPARE AND WRITE, and is lost before its host hears of it. The host sends it again to the other node, and learns
// that it was done: compared, the bytes would be others. Nobody else learns that, nor does the host when something was written there since.
func TestCompareAndWriteDone(t *testing.T) {
	overEach(t, func(t *testing.T, l *lab) {
		l.begin()
		defer l.end()
		a, b := l.nodes[0], l.nodes[1]
		pool := mem.NewPool(4 << 20)
		defer pool.Close()
		const off, n = 64 << 10, 4096
		old, now := make([]byte, n), bytes.Repeat([]byte{0xa5}, n)
		// do has a host compare and write, and returns where the bytes are others; -1: nowhere.
		do := func(at *node, by string, off int64, from, to []byte) int64 {
			t.Helper()
			v, err := volume.New(volume.Config{Store: at.mirror})
			if err != nil {
				t.Fatal(err)
			}
			c := newCommand(by, v, pool, slices.Concat(from, to), func(r *volume.Request, then volume.Step) volume.Next {
				return r.CompareAndWrite(off, n, false, by, then)
			})
			if <-c.over; c.err != nil {
				t.Fatal(c.err)
			}
			return c.mismatch
		}
		for _, off := range []int64{off, 2 * off, 3 * off} {
			if at := do(a, "one", off, old, now); at >= 0 {
				t.Fatalf("byte %d is another one", at)
			}
		}
		if at := do(a, "one", off, old, now); at != 0 {
			t.Errorf("the node that has answered is asked once more: mismatch at %d", at)
		}
		a.kill()
		l.await(b, "primary", func(s replica.State) bool { return s.Role == replica.Primary })
		for _, x := range []struct {
			by       string
			off      int64
			from, to []byte
			want     int64
		}{
			{"one", off, old, now, -1},
			{"one", off, old, now, -1}, // this answer is lost, too
			{"other", off, old, now, 0},
			{"one", off, bytesOf(n, 3), now, 0},
			{"one", off, now, old, -1},
			{"one", off, now, old, 0},
			{"one", off, old, now, -1},
		} {
			if at := do(b, x.by, x.off, x.from, x.to); at != x.want && !(x.want == 0 && at > 0) {
				t.Errorf("%s, at %d: mismatch at %d, and should be %d", x.by, x.off, at, x.want)
			}
		}
		l.write(b, 2*off, now) // the same bytes, and yet not by that command
		if at := do(b, "one", 2*off, old, now); at != 0 {
			t.Errorf("something was written since: mismatch at %d", at)
		}
		time.Sleep(time.Minute)
		if at := do(b, "one", 3*off, old, now); at != 0 {
			t.Errorf("a minute after the takeover: mismatch at %d", at)
		}
		a.start()
		l.level(b)
	})
}
