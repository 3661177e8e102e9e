// Package durable keeps what a store promises about durability: it is the one door through
// which a store asks its medium to make bytes durable.
//
// A medium tells only once that it has lost bytes which it had taken, and it tells whoever
// happens to ask next: Linux reports a failed write-back to one call of fdatasync(2), of
// fsync(2), or of a write with RWF_DSYNC, whichever writer the bytes were of, and forgets it.
// So the first failure is kept: after it the door promises nothing until the store is opened
// again. And a promise waits for every call that may have met a failure and has not said so
// yet, for the bytes that are promised here may be the ones that were lost there:
//
//	write with DSYNC  ──Enter──[ the kernel reports the loss ]──Fail──Leave──►
//	Sync                            ──fdatasync: good──wait────────────────► failed
package durable

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
)

// Door makes a medium's bytes durable, and remembers the first failure. Its methods may be
// called from any number of goroutines. One sync serves all who call Sync while another one runs.
type Door struct {
	sync   func() error
	wanted atomic.Uint64 // how many have asked

	epoch   atomic.Uint64
	under   [2]atomic.Int64 // calls between Enter and Leave, by the parity of the epoch
	waiting atomic.Bool     // drain waits for a token
	drained chan struct{}   // a token: all calls of an epoch may have left

	mu      sync.Mutex // held over sync: who waits for it wants one too
	started uint64     // wanted when the last sync started; guarded by mu

	lost atomic.Pointer[LostError] // why nothing is promised any more; set once
}

// NewDoor returns a door to the medium that sync makes durable.
func NewDoor(sync func() error) *Door {
	return &Door{sync: sync, drained: make(chan struct{}, 1)}
}

// LostError says that written bytes could not be made durable.
type LostError struct{ Err error }

func (e *LostError) Error() string {
	return "written bytes could not be made durable and may be lost (flushes are refused until the store is opened again; check the medium and the data first): " + e.Err.Error()
}

// Unwrap returns what the medium said.
func (e *LostError) Unwrap() error { return e.Err }

// Wanted returns how many Syncs have been asked for so far.
func (d *Door) Wanted() uint64 { return d.wanted.Load() }

// Failure returns why nothing is promised any more: a *LostError, or nil. It does not wait.
func (d *Door) Failure() error {
	if err := d.lost.Load(); err != nil {
		return err
	}
	return nil
}

// Fail records that the medium has failed to make bytes durable, and returns what Failure
// returns from now on.
func (d *Door) Fail(err error) error {
	d.lost.CompareAndSwap(nil, &LostError{err})
	return d.lost.Load()
}

// Sync makes durable all that had completed when it was called. Once it has failed it fails
// for ever.
func (d *Door) Sync() error {
	turn := d.wanted.Add(1)
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.Failure(); err != nil {
		return err
	}
	if d.started >= turn {
		return nil // that one started after we had asked, and so after what we ask about
	}
	d.started = d.wanted.Load()
	return d.through(d.sync)
}

// Do is Sync with another call, which makes more durable than Sync's does: the size of a file,
// say. It is made for this caller alone.
func (d *Door) Do(sync func() error) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.Failure(); err != nil {
		return err
	}
	return d.through(sync)
}

// through calls sync and keeps its failure. Called with mu held.
func (d *Door) through(sync func() error) error {
	if err := d.guarded(sync); err != nil {
		return d.Fail(err)
	}
	d.drain()
	return d.Failure()
}

// guarded calls sync. A panic, of a plugin say, leaves open what was lost.
func (d *Door) guarded(sync func() error) error {
	defer func() {
		if v := recover(); v != nil {
			_ = d.Fail(fmt.Errorf("%w: %v", errPanic, v))
			panic(v)
		}
	}()
	return sync()
}

var errPanic = errors.New("the medium's code panicked")

// Token is what Enter returns and Leave takes. The zero value belongs to no call.
type Token struct{ n uint64 } // the epoch, counted from 1

// Valid reports whether the token belongs to a call.
func (t Token) Valid() bool { return t.n != 0 }

// Enter announces a call that makes bytes durable by itself, apart from Sync: it may be the one that
// is told of a loss. The caller calls Fail if it was, and Leave in any case. In between it calls
// neither Sync nor Do, and does not wait for another goroutine that does.
func (d *Door) Enter() Token {
	for {
		e := d.epoch.Load()
		d.under[e&1].Add(1)
		if d.epoch.Load() == e {
			return Token{e + 1}
		}
		d.Leave(Token{e + 1}) // a Sync came in between, and need not wait for us
	}
}

// Leave ends what Enter began. Of the zero token it does nothing.
func (d *Door) Leave(t Token) {
	if t.n == 0 {
		return
	}
	if d.under[(t.n-1)&1].Add(-1) == 0 && d.waiting.Load() {
		select {
		case d.drained <- struct{}{}:
		default:
		}
	}
}

// drain waits for the calls that have entered. Called with mu held, so that nothing is left of
// the epoch before the current one.
func (d *Door) drain() {
	e := d.epoch.Load()
	if d.under[e&1].Load() == 0 {
		return // who enters from now on begins after what is promised was made durable
	}
	d.waiting.Store(true)
	d.epoch.Store(e + 1)
	for d.under[e&1].Load() != 0 {
		<-d.drained
	}
	d.waiting.Store(false)
}
