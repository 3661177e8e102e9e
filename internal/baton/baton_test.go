package baton

import (
	"sync"
	"testing"
)

// sum adds what tasks have, and counts the calls of Flush. It needs no lock of its own.
type sum struct {
	Baton
	ready   Ready[task]
	total   int
	flushes int
	tasks   int // resumed
}

type task struct {
	mark Mark
	n    int
}

func newSum() *sum {
	s := new(sum)
	s.Drive(s)
	return s
}

func (s *sum) Resume() {
	s.ready.Take()
	for t := s.ready.Next(); t != nil; t = s.ready.Next() {
		s.total += t.n
		s.tasks++
	}
}

func (s *sum) Flush() { s.flushes++ }

func (s *sum) put(t *task) {
	s.ready.Put(t, &t.mark)
	s.Awaken(!s.ready.Corked())
}

// What is left while somebody holds the baton is done by the holder before it lets go; what is left while nobody does, by who
// leaves it; whatever interleaving: all of it once.
func TestHolderDoesTheRest(t *testing.T) {
	s := newSum()
	const tasks, posts = 200, 100
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range tasks {
				s.put(&task{n: 1})
			}
		})
		wg.Go(func() {
			for range posts {
				if !s.Post(func() { s.total += 1000 }) {
					t.Error("a baton that was given to nobody takes no post")
				}
			}
		})
		wg.Go(func() {
			for range tasks {
				s.Lock()
				s.Unlock() //nolint:staticcheck // others find it taken
			}
		})
	}
	wg.Wait()
	s.Lock()
	if want := 4 * (tasks + 1000*posts); s.total != want {
		t.Errorf("%d was done, want %d", s.total, want)
	}
	s.Unlock()
}

// The holder flushes once more after what it was left, and a task that is put twice is resumed once.
func TestWhileHeld(t *testing.T) {
	s := newSum()
	s.Lock()
	one := &task{n: 1}
	s.put(one)
	s.put(one)
	if s.total != 0 || !one.mark.Queued() {
		t.Error("a task was resumed beside the holder")
	}
	s.Unlock()
	if s.tasks != 1 || s.flushes != 1 || one.mark.Queued() {
		t.Errorf("%d tasks resumed, %d flushes", s.tasks, s.flushes)
	}
	s.put(one) // a new life
	if s.tasks != 2 {
		t.Error("a task is not resumed a second time")
	}
}

// With a cork in, tasks wait for the last one to be taken out, or for a holder.
func TestCork(t *testing.T) {
	s := newSum()
	s.ready.Cork()
	s.ready.Cork()
	s.put(&task{n: 1})
	if s.ready.Uncork() || s.total != 0 {
		t.Error("the first of two corks lets tasks out")
	}
	if !s.ready.Uncork() {
		t.Error("the last cork does not tell of a task")
	}
	s.Awaken(true)
	if s.total != 1 {
		t.Error("the task was not resumed")
	}
	s.ready.Cork()
	if s.ready.Uncork() {
		t.Error("a cork tells of a task, and there is none")
	}
	s.ready.Cork()
	s.put(&task{n: 1})
	s.Lock()
	s.Unlock() //nolint:staticcheck // it drives
	if s.total != 2 {
		t.Error("a holder leaves a task in the bottle")
	}
}

// What was posted to a baton that is given to another one is done by the holder of that, and later posts are refused.
func TestGive(t *testing.T) {
	from, to := newSum(), newSum()
	done := 0
	from.Lock()
	from.Post(func() { done++ })
	to.Lock()
	from.Give(&to.Baton)
	if done != 0 {
		t.Error("a post was done beside the holder")
	}
	to.Unlock()
	if done != 1 {
		t.Error("a post was lost on the way to another baton")
	}
	if from.Post(func() { done++ }) {
		t.Error("a baton that was given takes a post")
	}
	from.Lock() // it is free
	if done != 1 {
		t.Errorf("%d posts were done", done)
	}
	from.Unlock()
}

// Nothing is allocated for a task.
func TestAllocations(t *testing.T) {
	s := newSum()
	one := &task{n: 1}
	if n := testing.AllocsPerRun(1000, func() {
		s.Lock()
		s.put(one)
		s.Unlock()
		s.put(one)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
