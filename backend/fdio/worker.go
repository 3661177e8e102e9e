package fdio

import (
	"sync"
	"time"

	"oneshot/backend"
	"oneshot/mem"
)

const (
	// maxWorkers bounds the goroutines, and the threads, that wait for the medium: as many
	// as a solid state drive wants to be asked at once.
	maxWorkers = 32
	// idleTime is how long a worker waits for work before it ends.
	idleTime = 5 * time.Second
	// maxBatch bounds what a worker takes at once, for an operation that it has taken waits
	// for those before it.
	maxBatch = 8
)

// workers do what blocks. Work wakes at most one worker at a time; that one, when it has
// taken its share, wakes the next if there is more. So a burst that the page cache answers
// is done by few, and what waits for a medium is spread over many.
type workers struct {
	run func(*backend.Op, *worker)
	end func(*worker) // called when a worker has ended

	mu      sync.Mutex // not held over run
	queue   backend.Queue
	running int  // workers, idle ones included
	idle    int  // workers that wait for wake
	waking  bool // a worker was woken and has not looked at the queue yet
	closed  bool
	wake    chan struct{} // one token per worker woken; room for all
	wg      sync.WaitGroup
}

func (ws *workers) init(run func(*backend.Op, *worker), end func(*worker)) {
	ws.run, ws.end = run, end
	ws.wake = make(chan struct{}, maxWorkers)
}

// put hands op to the workers.
func (ws *workers) put(op *backend.Op) {
	ws.mu.Lock()
	ws.queue.Push(op)
	ws.rouse()
	ws.mu.Unlock()
}

// rouse gets a worker to look at the queue unless one is about to. Called with mu held.
func (ws *workers) rouse() {
	switch {
	case ws.waking || ws.queue.Len() == 0:
	case ws.idle > 0:
		ws.waking = true
		ws.idle--
		ws.wake <- struct{}{}
	case ws.running < maxWorkers:
		ws.waking = true
		ws.running++
		ws.wg.Add(1)
		go ws.loop()
	}
}

// worker is one goroutine that does operations.
type worker struct {
	batch backend.Queue
	lease *mem.Lease // the bounce buffer, once there was need of one
	timer *time.Timer
	fd    int // see descriptor; -1: there was no need of one
}

func (ws *workers) loop() {
	defer ws.wg.Done()
	w := worker{timer: time.NewTimer(idleTime), fd: -1}
	for fresh := true; ws.take(&w, &fresh); {
		for op := w.batch.Pop(); op != nil; op = w.batch.Pop() {
			ws.run(op, &w)
		}
	}
	w.timer.Stop()
	if w.lease != nil {
		w.lease.Release()
	}
	ws.end(&w)
}

// take fills the worker's batch, waiting for work if need be, and returns false when the
// worker shall end. fresh says that this worker was woken and has not looked yet.
func (ws *workers) take(w *worker, fresh *bool) bool {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	for {
		if *fresh {
			*fresh, ws.waking = false, false
		}
		if n := ws.queue.Len(); n > 0 {
			for range min(maxBatch, 1+n/maxWorkers) {
				w.batch.Push(ws.queue.Pop())
			}
			ws.rouse()
			return true
		}
		if ws.closed || !ws.wait(w, fresh) {
			ws.running--
			return false
		}
	}
}

// wait waits to be woken. It returns false when nobody did so for idleTime. Called with mu
// held, which it gives up in the meantime.
func (ws *workers) wait(w *worker, fresh *bool) bool {
	ws.idle++
	ws.mu.Unlock()
	w.timer.Reset(idleTime)
	select {
	case <-ws.wake:
		*fresh = true
	case <-w.timer.C:
	}
	ws.mu.Lock()
	if *fresh {
		return true
	}
	if ws.idle > 0 {
		ws.idle--
		return false
	}
	// Somebody has counted us as woken: the token is there, or another worker took it and
	// left us its own part of the bargain.
	<-ws.wake
	*fresh = true
	return true
}

// close ends the workers and waits for them. Nothing is queued any more.
func (ws *workers) close() {
	ws.mu.Lock()
	ws.closed = true
	for range ws.idle {
		ws.wake <- struct{}{}
	}
	ws.idle = 0
	ws.mu.Unlock()
	ws.wg.Wait()
}
