package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"syscall"
	"time"

	"oneshot/backend"
	"oneshot/backend/file"
	"oneshot/backend/memory"
	"oneshot/endpoint"
	"oneshot/endpoint/load"
	"oneshot/endpoint/wal"
	"oneshot/transport/rdma"
	"oneshot/transport/rdma/local"
	"oneshot/volume"
)

const (
	memorySize = 16 << 20
	block      = 4096
	appenders  = 16
	record     = 512
)

// fileSize is larger than what disks keep in memory of their own; tests make it smaller.
var fileSize int64 = 256 << 20

var points = []point{
	{"memory, 4 KiB read, batch 32", 0, []contender{{"endpoint", memoryLoad(32)}, {"memcpy", copyLoad}}},
	{"memory, 4 KiB read, depth 1", 0, []contender{{"endpoint", memoryLoad(1)}, {"memcpy", copyLoad}}},
	{"file, O_DIRECT, 4 KiB random read, depth 32", 0.95, []contender{{"endpoint", fileLoad(rdma.OpRead)}, {"fio, io_uring", fio("randread")}}},
	{"file, O_DIRECT, 4 KiB random write, depth 32", 0.95, []contender{{"endpoint", fileLoad(rdma.OpWrite)}, {"fio, io_uring", fio("randwrite")}}},
	{"log, 16 appenders, 512 B", 0.95, []contender{{"endpoint/wal", logLoad}, {"pwrite and fdatasync", plainLog}}},
	{"remote, memory, 4 KiB read, depth 32", 1.3, []contender{
		{"endpoint", over(memoryStore, remoteLoad(load.Config{Depth: 32}))}, {"one-shot READ of a LUN", over(memoryStore, lunLoad(32))},
	}},
	{"remote, memory, 4 KiB read, depth 1", 1 / 0.85, []contender{ // of the latency
		{"endpoint", over(memoryStore, remoteLoad(load.Config{Depth: 1}))},
		{"one-shot READ of a LUN", over(memoryStore, lunLoad(1))},
		{"bare exchange of as many bytes", bareRead},
	}},
	{"remote, file, 4 KiB durable write, depth 1", 1 / 0.6, []contender{ // of the latency
		{"endpoint", over(inFile, remoteLoad(load.Config{Depth: 1, Op: load.Write, Durable: true}))},
		{"WRITE and SYNCHRONIZE CACHE of a LUN", over(inFile, syncedLUN)},
		{"bare exchange, pwrite and fdatasync", bareWrite},
	}},
	{"remote, log, 16 appenders, 512 B", 0.8, []contender{
		{"endpoint/wal", over(inFile, remoteLog)},
		{"pwrite and fdatasync in one process", plainLog},
		{"bare exchange, pwrite and fdatasync", bareLog},
	}},
}

// processor is the processor time of this process.
func processor() time.Duration {
	var r syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &r) // cannot fail
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}

// clocked is how many operations are done between two looks at the clock, which takes as long as a tenth of one.
const clocked = 32

// timed runs step, which returns how many operations it has done, for some time.
func timed(seconds float64, step func() (int, error)) (s sample, n int, err error) {
	begin, cpu := time.Now(), processor()
	for end := begin.Add(time.Duration(seconds * float64(time.Second))); n == 0 || time.Now().Before(end); {
		for end := n + clocked; n < end; {
			k, err := step()
			if n += k; err != nil {
				return s, n, err
			}
		}
	}
	took := time.Since(begin).Seconds()
	return sample{rate: float64(n) / took, cpu: float64((processor() - cpu).Microseconds()) / float64(n)}, n, nil
}

// host serves a store to this process.
type host struct {
	store  *counting
	volume *volume.Volume
	dev    *local.Device
	e      *endpoint.Endpoint
}

// counting counts what makes writes durable.
type counting struct {
	backend.Store
	mu    sync.Mutex
	syncs int
}

// Pass has everything be as in the store below.
func (c *counting) Pass(backend.Ability) backend.Store { return c.Store }

func (c *counting) Submit(op *backend.Op) bool {
	if op.Kind == backend.Flush || op.Kind == backend.Write && op.Flags&(backend.FUA|backend.Barrier) != 0 {
		c.mu.Lock()
		c.syncs++
		c.mu.Unlock()
	}
	return c.Store.Submit(op)
}

func serve(ctx context.Context, s backend.Store, o endpoint.Options) (*host, error) {
	h := &host{store: &counting{Store: s}}
	var err error
	if h.volume, err = volume.New(volume.Config{Store: h.store}); err != nil {
		return nil, err
	}
	h.dev = local.Open(local.Config{Open: func(_ context.Context, name string, want rdma.Rights, _ func(error)) (local.Opened, error) {
		v := h.volume.Open(nil)
		return local.Opened{
			Medium: v, Memory: h.volume.Lends(), Close: v.Close,
			Info: rdma.Endpoint{Name: name, Rights: rdma.AllRights | want&rdma.RightSole, Durability: rdma.DurabilityMedium},
		}, nil
	}})
	o.Device = h.dev
	h.e, err = endpoint.Open(ctx, "rdma+local:///bench/part", o)
	return h, err
}

func (h *host) close() error { return errors.Join(h.e.Close(), h.dev.Close(), h.volume.Close()) }

// queue keeps depth works under way at places of area bytes. It posts again after batch completions at most.
func (h *host) queue(op rdma.Opcode, depth, batch int, area int64) (step func() (int, error), err error) {
	buf, err := h.e.Alloc(depth * block)
	if err != nil {
		return nil, err
	}
	all := make([]rdma.Work, depth)
	cs := make([]rdma.Completion, batch)
	next := make([]rdma.Work, 0, depth)
	for i := range all {
		sge, err := h.e.SGE(buf[i*block : (i+1)*block])
		if err != nil {
			return nil, err
		}
		all[i] = rdma.Work{ID: uint64(i), Op: op, Flags: rdma.Signaled, SGL: []rdma.SGE{sge}}
		next = append(next, all[i])
	}
	ctx := context.Background()
	return func() (int, error) {
		for i := range next {
			next[i].RemoteOffset = uint64(rand.Int64N(area/block) * block)
		}
		if _, err := h.e.Post(next); err != nil {
			return 0, err
		}
		n := h.e.Poll(cs)
		if n == 0 {
			if err := h.e.Wait(ctx); err != nil {
				return 0, err
			}
			n = h.e.Poll(cs)
		}
		next = next[:0]
		for _, c := range cs[:n] {
			if c.Status != rdma.StatusOK {
				return 0, fmt.Errorf("%v: %v: %w", c.Op, c.Status, c.Err)
			}
			next = append(next, all[c.ID])
		}
		return n, nil
	}, nil
}

// run measures step, and what was copied.
func (h *host) run(step func() (int, error), seconds float64) (sample, error) {
	before := h.e.Counters()
	s, n, err := timed(seconds, step)
	s.copies = float64(h.e.Counters().Sub(before).Copies) / float64(n)
	return s, err
}

func memoryLoad(depth int) func(context.Context, string, float64) (sample, error) {
	return func(ctx context.Context, _ string, seconds float64) (s sample, err error) {
		m, err := memory.New(memorySize)
		if err != nil {
			return s, err
		}
		h, err := serve(ctx, m, endpoint.Options{Free: true})
		if err != nil {
			return s, err
		}
		defer func() { err = errors.Join(err, h.close()) }()
		fill, err := h.e.Alloc(memorySize)
		if err != nil {
			return s, err
		}
		if err := h.e.WriteAt(ctx, fill, 0); err != nil {
			return s, err
		}
		step, err := h.queue(rdma.OpRead, depth, depth, memorySize)
		if err != nil {
			return s, err
		}
		return h.run(step, seconds)
	}
}

func copyLoad(_ context.Context, _ string, seconds float64) (sample, error) {
	from, to := make([]byte, memorySize), make([]byte, 32*block)
	for i := range from {
		from[i] = byte(i)
	}
	s, _, err := timed(seconds, func() (int, error) {
		for i := range 32 {
			copy(to[i*block:(i+1)*block], from[rand.Int64N(memorySize/block)*block:])
		}
		return 32, nil
	})
	s.copies = 1
	return s, err
}

// prepare makes the file that both contenders use, all of it written.
func prepare(dir string) (string, error) {
	path := filepath.Join(dir, "blocks")
	if i, err := os.Stat(path); err == nil && i.Size() == fileSize {
		return path, nil
	}
	f, err := os.Create(path)
	if err != nil {
		return "", err
	}
	b := make([]byte, 1<<20)
	for i := range b {
		b[i] = byte(rand.Uint32())
	}
	for range fileSize / int64(len(b)) {
		if _, err := f.Write(b); err != nil {
			return "", errors.Join(err, f.Close())
		}
	}
	return path, errors.Join(f.Sync(), f.Close())
}

// diskBatch is after how many completions works are posted again to a disk: it begins with these while the others are still looked at.
// Many disks tell of a batch when all of it is done. Who posts 32 together then has 32 completions together, and no disk
// that works meanwhile. fio posts one at a time.
const diskBatch = 2

func fileLoad(op rdma.Opcode) func(context.Context, string, float64) (sample, error) {
	return func(ctx context.Context, dir string, seconds float64) (s sample, err error) {
		path, err := prepare(dir)
		if err != nil {
			return s, err
		}
		f, err := file.Open(file.Config{Path: path, Direct: true})
		if err != nil {
			return s, err
		}
		h, err := serve(ctx, f, endpoint.Options{Free: true})
		if err != nil {
			return s, err
		}
		defer func() { err = errors.Join(err, h.close()) }()
		step, err := h.queue(op, 32, diskBatch, fileSize)
		if err != nil {
			return s, err
		}
		return h.run(step, seconds)
	}
}

// fio returns the load of fio with io_uring, on the same file.
func fio(mode string) func(context.Context, string, float64) (sample, error) {
	return func(ctx context.Context, dir string, seconds float64) (s sample, err error) {
		path, err := prepare(dir)
		if err != nil {
			return s, err
		}
		out, err := exec.CommandContext(ctx, "fio", "--name=x", "--filename="+path, "--direct=1", "--ioengine=io_uring", "--iodepth=32", "--bs=4k",
			"--rw="+mode, "--thread=1", "--time_based=1", fmt.Sprintf("--runtime=%dms", int(seconds*1000)), "--output-format=json").Output()
		if err != nil {
			return s, fmt.Errorf("fio: %w", err)
		}
		return parseFIO(out)
	}
}

func parseFIO(out []byte) (s sample, err error) {
	var report struct {
		Jobs []struct {
			User   float64                `json:"usr_cpu"`
			System float64                `json:"sys_cpu"`
			Read   struct{ IOPS float64 } `json:"read"`
			Write  struct{ IOPS float64 } `json:"write"`
		} `json:"jobs"`
	}
	if err := json.Unmarshal(out, &report); err != nil || len(report.Jobs) != 1 {
		return s, fmt.Errorf("fio's report cannot be read: %w", errors.Join(err, errors.New("one job was expected")))
	}
	j := report.Jobs[0]
	s.rate = j.Read.IOPS + j.Write.IOPS
	s.cpu = (j.User + j.System) / 100 * 1e6 / s.rate
	return s, nil
}

// group has each appender append once at least, and until the time is over.
func group(seconds float64, add func(p []byte) error) (s sample, n int, err error) {
	end := time.Now().Add(time.Duration(seconds * float64(time.Second)))
	var mu sync.Mutex
	var all sync.WaitGroup
	begin, cpu := time.Now(), processor()
	for range appenders {
		all.Go(func() {
			p, k := make([]byte, record), 0
			var failed error
			for ; failed == nil && (k == 0 || time.Now().Before(end)); k++ {
				failed = add(p)
			}
			mu.Lock()
			n, err = n+k, errors.Join(err, failed)
			mu.Unlock()
		})
	}
	all.Wait()
	took := time.Since(begin).Seconds()
	return sample{rate: float64(n) / took, cpu: float64((processor() - cpu).Microseconds()) / float64(n)}, n, err
}

func logLoad(ctx context.Context, dir string, seconds float64) (s sample, err error) {
	path, err := prepare(dir)
	if err != nil {
		return s, err
	}
	f, err := file.Open(file.Config{Path: path})
	if err != nil {
		return s, err
	}
	h, err := serve(ctx, f, endpoint.Options{Sole: true})
	if err != nil {
		return s, err
	}
	defer func() { err = errors.Join(err, h.close()) }()
	l, err := wal.Open(ctx, h.e, wal.Options{Create: true})
	if err != nil {
		return s, err
	}
	defer func() { err = errors.Join(err, l.Close()) }()
	before := h.store.syncs // nothing is under way; making the log took some
	s, n, err := appendAll(l, seconds)
	s.copies, s.syncs = 1, float64(h.store.syncs-before)/float64(n)
	return s, err
}

// plainLog is what a program does by itself: one goroutine writes and syncs what all have appended meanwhile.
func plainLog(_ context.Context, dir string, seconds float64) (s sample, err error) {
	path, err := prepare(dir)
	if err != nil {
		return s, err
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return s, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	s, syncs, err := groupedLog(seconds, func(b []byte, off int64) error {
		if _, err := f.WriteAt(b, off); err != nil {
			return err
		}
		return syscall.Fdatasync(int(f.Fd()))
	})
	s.copies, s.syncs = 1, syncs
	return s, err
}

// groupedLog has commit write what all have appended meanwhile, and make it durable. syncs is how often it did, per record.
func groupedLog(seconds float64, commit func(b []byte, off int64) error) (s sample, syncs float64, err error) {
	g := &grouped{commit: commit}
	g.work.L, g.done.L = &g.mu, &g.mu
	var writer sync.WaitGroup
	writer.Go(g.write)
	s, n, err := group(seconds, g.add)
	g.mu.Lock()
	g.over = true
	g.work.Signal()
	g.mu.Unlock()
	writer.Wait()
	return s, float64(g.syncs) / float64(n), errors.Join(err, g.err)
}

// grouped is a log with as much as is needed: no sequence, no checksum, and records of whole sectors.
type grouped struct {
	commit     func(b []byte, off int64) error
	mu         sync.Mutex
	work, done sync.Cond
	buf, spare []byte
	off        int64
	added      int // records
	durable    int
	syncs      int
	together   bool // the last batch had more than one
	over       bool
	err        error
}

func (g *grouped) add(p []byte) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.buf = append(append(g.buf, p...), p...) // with its header it would take two sectors, as in the log
	g.added++
	n := g.added
	g.work.Signal()
	for g.durable < n && g.err == nil {
		g.done.Wait()
	}
	return g.err
}

func (g *grouped) write() {
	g.mu.Lock()
	defer g.mu.Unlock()
	for {
		for len(g.buf) == 0 && !g.over {
			g.work.Wait()
		}
		if len(g.buf) == 0 {
			return
		}
		if g.together { // as the log does
			g.mu.Unlock()
			runtime.Gosched()
			g.mu.Lock()
		}
		b, n, off := g.buf, g.added, g.off
		g.together = n > g.durable+1
		if off+int64(len(b)) > fileSize {
			off = 0
		}
		g.buf, g.off = g.spare[:0], off+int64(len(b))
		g.mu.Unlock()
		err := g.commit(b, off)
		g.mu.Lock()
		g.spare, g.durable, g.err = b, n, err
		g.syncs++
		g.done.Broadcast()
	}
}
