package durable

import (
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
)

var errMedium = errors.New("the medium says no")

func good() error { return nil }

// What failed once fails for ever, whichever way it was met.
func TestFailureIsKept(t *testing.T) {
	bad := func() error { return errMedium }
	for name, fail := range map[string]func(*Door) error{
		"Sync": func(d *Door) error { d.sync = bad; defer func() { d.sync = good }(); return d.Sync() },
		"Do":   func(d *Door) error { return d.Do(bad) },
		"Fail": func(d *Door) error { return d.Fail(errMedium) },
		"panic": func(d *Door) (err error) {
			defer func() { err, _ = recover().(error) }()
			return d.Do(func() error { panic(errMedium) })
		},
	} {
		d := NewDoor(good)
		if err := d.Failure(); err != nil {
			t.Errorf("%s: at first: %v", name, err)
		}
		if err := fail(d); !errors.Is(err, errMedium) {
			t.Errorf("%s: %v", name, err)
		}
		for _, err := range []error{d.Sync(), d.Do(good), d.Failure(), d.Fail(errors.New("another one"))} {
			if _, ok := errors.AsType[*LostError](err); !ok || name != "panic" && !errors.Is(err, errMedium) {
				t.Errorf("%s: later: %v", name, err)
			}
		}
	}
}

// A sync waits for calls that were under way before it had ended, and is as good as they are. A
// call that begins later is not waited for.
func TestSyncWaitsForCalls(t *testing.T) {
	for _, fails := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			d := NewDoor(good)
			before := d.Enter()
			var err error
			ended := false
			var wg sync.WaitGroup
			wg.Go(func() { err = d.Sync(); ended = true })
			synctest.Wait()
			if ended {
				t.Fatal("a promise was given while a call might have been told of a loss")
			}
			later := d.Enter()
			if fails {
				_ = d.Fail(errMedium)
			}
			d.Leave(before)
			wg.Wait()
			if (err != nil) != fails {
				t.Errorf("the call failed: %v, the sync: %v", fails, err)
			}
			d.Leave(later)
			if err := d.Sync(); (err != nil) != fails {
				t.Errorf("the next sync: %v", err)
			}
		})
	}
}

// Whenever a call is told of a loss, no sync that began before it was over says that all is
// well: a medium that tells once, among many who ask.
func TestToldOnce(t *testing.T) {
	for round := range 300 {
		var told atomic.Bool // the medium has told somebody
		medium := func() error {
			if told.CompareAndSwap(false, true) {
				return errMedium
			}
			return nil
		}
		d := NewDoor(medium)
		var wg sync.WaitGroup
		start := make(chan struct{})
		for range 4 {
			wg.Go(func() {
				<-start
				token := d.Enter()
				if err := medium(); err != nil {
					_ = d.Fail(err)
				}
				d.Leave(token)
			})
			wg.Go(func() {
				<-start
				if err := d.Sync(); err == nil {
					t.Errorf("round %d: a sync is good, and the bytes are lost", round)
				}
			})
		}
		close(start)
		wg.Wait()
	}
}

// Nothing is left counted, whatever came in between.
func TestEnterAndSync(t *testing.T) {
	d := NewDoor(good)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 5000 {
				d.Leave(d.Enter())
			}
		})
		wg.Go(func() {
			for range 1000 {
				if err := d.Sync(); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if a, b := d.under[0].Load(), d.under[1].Load(); a != 0 || b != 0 || d.waiting.Load() {
		t.Errorf("%d and %d calls are counted, and none is under way", a, b)
	}
}

func TestAllocatesNothing(t *testing.T) {
	d := NewDoor(good)
	if n := testing.AllocsPerRun(100, func() {
		d.Leave(d.Enter())
		_ = d.Sync()
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
