//go:build !race

package main

import (
	"context"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"oneshot/endpoint/object"
)

const objectsText = `
stores:
  heap: {type: mirror, size: 16MiB, copies: {a: {type: file, path: heap.img}, b: {type: file, path: heap.img}}}
portals:
  - {node: a, transport: iwarp, listen: "AT3", serve: objects, store: heap, clients: {app: correct-horse}}
  - {node: b, transport: iwarp, listen: "AT4", serve: objects, store: heap, clients: {app: correct-horse}}
`

// collector inserts, updates and deletes objects, and knows what there has to be. It is one client with one request at a time.
type collector struct {
	t       *testing.T
	c       *object.Client
	r       *rand.Rand
	id      int
	count   uint64
	objects map[object.Pointer][]byte
	gone    []object.Pointer
	changes *atomic.Int64
	news    chan struct{}
}

func (k *collector) bytes() []byte {
	n := 16 << k.r.IntN(14) // some are as long as they may be
	b := make([]byte, min(16+k.r.IntN(n), object.MaxObject))
	k.count++
	for i := 0; i+16 <= len(b); i += 16 {
		binary.BigEndian.PutUint64(b[i:], uint64(k.id))
		binary.BigEndian.PutUint64(b[i+8:], k.count)
	}
	return b
}

func (k *collector) any() (object.Pointer, bool) {
	for p := range k.objects { // in no order
		return p, true
	}
	return object.Pointer{}, false
}

// turn does one thing. Whatever happens to the nodes there is no error.
func (k *collector) turn(ctx context.Context) bool {
	failed := func(what string, err error) bool {
		if err != nil && ctx.Err() == nil {
			k.t.Errorf("client %d: %s: %v", k.id, what, err)
		}
		return err != nil
	}
	p, any := k.any()
	switch x := k.r.IntN(10); {
	case !any || x < 4 && len(k.objects) < 40:
		b := k.bytes()
		p, err := k.c.Insert(ctx, b)
		if failed("insert", err) {
			return false
		}
		if _, twice := k.objects[p]; twice {
			k.t.Errorf("client %d: %v was given to two objects", k.id, p)
		}
		k.objects[p] = b
	case x < 6:
		b := k.bytes()
		q, err := k.c.Update(ctx, p, b)
		if failed("update", err) {
			return false
		}
		delete(k.objects, p)
		k.objects[q] = b
		if q != p {
			k.gone = append(k.gone, p)
		}
	case x < 7:
		if failed("delete", k.c.Delete(ctx, p)) {
			return false
		}
		delete(k.objects, p)
		k.gone = append(k.gone, p)
	case x < 8 && len(k.gone) > 0:
		if _, err := k.c.Read(ctx, k.gone[k.r.IntN(len(k.gone))]); !errors.Is(err, object.ErrStale) && failed("read of what is gone", cmpErr(err)) {
			return false
		}
	case x < 9:
		return k.same(ctx, p, k.c.Read)
	default:
		return k.same(ctx, p, k.c.Peek) // nobody else changes it, and the client has waited for its own changes
	}
	k.changes.Add(1)
	select {
	case k.news <- struct{}{}:
	default:
	}
	return true
}

// cmpErr makes an error of none.
func cmpErr(err error) error {
	if err == nil {
		return errors.New("there is no error")
	}
	return err
}

func (k *collector) same(ctx context.Context, p object.Pointer, read func(context.Context, object.Pointer) ([]byte, error)) bool {
	b, err := read(ctx, p)
	if err != nil {
		if ctx.Err() == nil {
			k.t.Errorf("client %d: %v: %v", k.id, p, err)
		}
		return false
	}
	if string(b) != string(k.objects[p]) {
		k.t.Errorf("client %d: %v has other bytes", k.id, p)
	}
	return true
}

// TestMirrorObjects kills the primary under load, and has it come back, over and over: every change that was acknowledged is
// there, once, under the pointer that was given for it.
func TestMirrorObjects(t *testing.T) {
	s := newSiteOf(t, objectsText)
	s.startAll()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	const clients = 4
	var changes atomic.Int64
	var wg sync.WaitGroup
	var stop atomic.Bool
	var pause atomic.Int64 // nanoseconds that a client waits after each request: the nodes need the processors while they get level
	news := make(chan struct{}, 1)
	collectors := make([]*collector, clients)
	for i := range collectors {
		c, err := object.Open(ctx, object.Options{Nodes: []string{s.at[3+i%2]}, Name: "app", Secret: []byte("correct-horse")}) // one node tells of the other
		if err != nil {
			t.Fatal(err)
		}
		k := &collector{t: t, c: c, r: rand.New(rand.NewPCG(uint64(i), 2)), id: i, objects: map[object.Pointer][]byte{}, changes: &changes, news: news}
		collectors[i] = k
		wg.Go(func() {
			for !stop.Load() && k.turn(ctx) {
				pauseFor(ctx, time.Duration(pause.Load()))
			}
		})
	}
	more := func(n int64) {
		t.Helper()
		for until := changes.Load() + n; changes.Load() < until; {
			select {
			case <-news:
			case <-ctx.Done():
				t.Fatal("no change comes through")
			}
		}
	}
	more(200)
	for range 3 {
		lost := s.loses(func(name string) {
			pause.Store(0)
			more(50)
			s.kill(name)
		}, func(name string) { s.start(name) })
		more(200)
		pause.Store(int64(pace))
		s.start(lost)
	}
	stop.Store(true)
	wg.Wait()
	total := 0
	for _, k := range collectors {
		for p := range k.objects {
			k.same(ctx, p, k.c.Read)
			k.same(ctx, p, k.c.Peek)
			total++
		}
		for _, p := range k.gone {
			if _, err := k.c.Read(ctx, p); !errors.Is(err, object.ErrStale) {
				t.Errorf("%v is read after its end: %v", p, err)
			}
		}
		if err := k.c.Close(); err != nil {
			t.Error(err)
		}
	}
	if _, err := object.Open(ctx, object.Options{Nodes: s.at[3:5], Name: "app", Secret: []byte("wrong")}); !errors.Is(err, object.ErrDenied) {
		t.Errorf("a wrong secret: %v", err)
	}
	t.Logf("%d changes, %d objects", changes.Load(), total)
}
