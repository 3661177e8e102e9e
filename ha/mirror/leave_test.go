package mirror

import (
	"testing"
	"testing/synctest"
	"time"

	"oneshot/backend"
	"oneshot/backend/faulty"
	"oneshot/ha/replica"
)

// leaver owns an operation, and can leave its memory, unless it keeps it.
type leaver struct {
	done  chan *backend.Op
	keeps bool
	left  bool
	free  int
}

func (l *leaver) OpDone(op *backend.Op) { l.done <- op }

func (l *leaver) Leave() (free func(), ok bool) {
	if l.keeps {
		return nil, false
	}
	l.left = true
	return func() { l.free++ }, true
}

// TestReadsLeaveHungDisk: the primary's disk hangs while it reads for hosts. When the other node takes over the hosts are told so, though the
// disk has not let go of the memory: it is left to it until then. Who cannot do without has to wait.
func TestReadsLeaveHungDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, 2)
		store := l.withFaults()
		l.begin()
		defer l.end()
		a, b := l.nodes[0], l.nodes[1]
		want := bytesOf(128<<10, 1)
		l.written(a, want)
		hang := store(a).Hold(faulty.Match{})
		defer hang.Release()
		memory := make([]byte, 8192)
		read := func(c backend.Completer, at int) *backend.Op {
			op := &backend.Op{Kind: backend.Read, Off: 64<<10 + int64(at), Len: 4096, Segs: [][]byte{memory[at:][:4096]}, Term: a.mirror.Term(), Done: c}
			if a.mirror.Submit(op) {
				t.Fatalf("a disk that hangs has read: %v", op.Err)
			}
			return op
		}
		leaves, stays := &leaver{done: make(chan *backend.Op, 1)}, &leaver{done: make(chan *backend.Op, 1), keeps: true}
		op := read(leaves, 0)
		read(stays, 4096)
		proved := make(chan error, 1)
		go func() { proved <- backend.Prove(a.mirror, op.Term) }()
		l.serves(b)
		if over := <-leaves.done; !isMoved(over.Err) || !leaves.left || leaves.free != 0 {
			t.Errorf("the read has ended with %v; its memory was left: %v, and is free: %d", over.Err, leaves.left, leaves.free)
		}
		synctest.Wait()
		select {
		case err := <-proved:
			if !isMoved(err) {
				t.Errorf("a proof that it serves ends with %v", err)
			}
		default:
			t.Error("a proof that it serves waits for the disk")
		}
		op.Segs[0] = nil // the list of its pieces is the owner's again
		l.expect(b, 64<<10, want)
		select {
		case <-stays.done:
			t.Error("the disk may still write to the memory of a read that was ended")
		default:
		}
		hang.Release()
		if over := <-stays.done; !isMoved(over.Err) {
			t.Errorf("the read that had to wait has ended with %v", over.Err)
		}
		synctest.Wait()
		if leaves.free != 1 || string(memory) != string(want[:8192]) {
			t.Errorf("the memory that was left is free %d times, after what the disk has read", leaves.free)
		}
	})
}

// TestReadsKeepHungDisk: as long as a node serves, hosts ask again there. So it leaves no memory to its disk, or that would be more and more.
func TestReadsKeepHungDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, 2)
		store := l.withFaults()
		l.begin()
		defer l.end()
		a, b := l.nodes[0], l.nodes[1]
		l.written(a, bytesOf(128<<10, 1))
		b.kill()
		l.alone(a)
		hang := store(a).Hold(faulty.Match{})
		defer hang.Release()
		c := &leaver{done: make(chan *backend.Op, 1)}
		if a.mirror.Submit(&backend.Op{Kind: backend.Read, Off: 64 << 10, Len: 4096, Segs: [][]byte{make([]byte, 4096)}, Term: a.mirror.Term(), Done: c}) {
			t.Fatal("a disk that hangs has read")
		}
		time.Sleep(2 * usualHold)
		if s := a.mirror.State(); s.Role != replica.Primary || c.left {
			t.Errorf("as %v it has left the memory: %v", s.Role, c.left)
		}
		hang.Release()
		<-c.done
	})
}
