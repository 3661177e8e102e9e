package stag

import (
	"sync"
	"sync/atomic"
	"testing"
)

// life is a one-shot STag on its way between the goroutines of TestConcurrentUse.
type life struct {
	tag    STag
	memory []byte
	done   chan struct{} // closed when the STag is Released or Revoked without references
}

// TestConcurrentUse: on each of several streams a driver advertises, a peer reads and closes, and
// another goroutine revokes. Other streams try all these STags. The driver writes to its memory as
// soon as the table says that it may. If a reference were still held then, the race detector or the
// octets would show it.
func TestConcurrentUse(t *testing.T) {
	table := NewTable(1000)
	d := table.NewDomain()
	var lastSeen atomic.Uint32
	var users, strangers sync.WaitGroup
	stop := make(chan struct{})
	for range 2 {
		strangers.Go(func() {
			st := table.NewStream(d, 1)
			for {
				select {
				case <-stop:
					return
				default:
				}
				s := STag(lastSeen.Load())
				if r, err := st.Acquire(RemoteRead, s, 0, 1); err == nil {
					t.Error("a stranger got at memory")
					r.Release()
				}
				if _, err := st.Close(s); err == nil {
					t.Error("a stranger closed an STag")
				}
			}
		})
	}
	for range 3 {
		st := table.NewStream(d, 16)
		lives, revokes := make(chan *life, 8), make(chan *life, 8)
		users.Go(func() { drive(t, st, lives, revokes, &lastSeen) })
		users.Go(func() { peer(t, st, lives) })
		users.Go(func() { revoke(st, revokes) })
	}
	users.Wait()
	close(stop)
	strangers.Wait()
}

func drive(t *testing.T, st *Stream, lives, revokes chan<- *life, lastSeen *atomic.Uint32) {
	defer close(lives)
	defer close(revokes)
	memory := make([]byte, 64)
	for i := range 1000 {
		for j := range memory {
			memory[j] = byte(i)
		}
		s, err := st.Reserve()
		if err != nil {
			t.Error(err)
			return
		}
		l := &life{tag: s, memory: memory, done: make(chan struct{})}
		st.Bind(s, Region{Segments: [][]byte{memory[:10], memory[10:]}, Access: all})
		st.Advertised(s)
		lastSeen.Store(uint32(s))
		lives <- l
		if i%3 == 0 {
			revokes <- l
		}
		<-l.done
		if err := st.Consume(s); err != nil {
			t.Errorf("done, but: %v", err)
		}
	}
}

// peer reads, holds several references, and closes while it does.
func peer(t *testing.T, st *Stream, lives <-chan *life) {
	for l := range lives {
		var refs []Ref
		value := -1
		for range 3 {
			r, err := st.Acquire(RemoteRead, l.tag, 5, 50)
			if err != nil {
				break // revoked
			}
			refs = append(refs, r)
		}
		quiet, err := st.Close(l.tag)
		finished := err == nil && quiet
		for i := range refs {
			for _, o := range read(&refs[i], 0, 50) {
				if value < 0 {
					value = int(o)
				}
				if int(o) != value {
					t.Error("memory changed under a reference")
				}
			}
			if refs[i].Release() {
				finished = true
			}
		}
		if finished {
			close(l.done)
		}
	}
}

// revoke revokes STags. It reports those that have no references; for others the last Release or the
// close does.
func revoke(st *Stream, revokes <-chan *life) {
	for l := range revokes {
		if quiet, err := st.Revoke(l.tag); err == nil && quiet {
			close(l.done)
		}
	}
}

// TestConcurrentRegions: goroutines read a region that another one invalidates and
// deregisters. Deregister returns only when nobody reads.
func TestConcurrentRegions(t *testing.T) {
	table := NewTable(1000)
	d := table.NewDomain()
	var tag atomic.Uint32
	var owner, readers sync.WaitGroup
	stop := make(chan struct{})
	for range 3 {
		readers.Go(func() {
			st := table.NewStream(d, 1)
			for {
				select {
				case <-stop:
					return
				default:
				}
				r, err := st.Acquire(RemoteRead, STag(tag.Load()), 0, 32)
				if err != nil {
					continue
				}
				if got := read(&r, 0, 32); got[0] != got[31] {
					t.Error("memory changed under a reference")
				}
				r.Release()
			}
		})
	}
	owner.Go(func() {
		memory := make([]byte, 32)
		region := Region{Segments: [][]byte{memory}, Access: all}
		for i := range 500 {
			for j := range memory {
				memory[j] = byte(i)
			}
			s := must(table.Register(d, nil, region))
			tag.Store(uint32(s))
			if i%2 == 0 {
				must(table.Invalidate(s))
			}
			if err := table.Deregister(s); err != nil {
				t.Error(err)
			}
		}
	})
	owner.Wait()
	close(stop)
	readers.Wait()
}
