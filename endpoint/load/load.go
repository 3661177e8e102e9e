// Package load puts a load on a partition and says what it took: operations per second, latency, processor
// time, and what crossed between program and provider.
package load

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"golang.org/x/sys/unix"

	"oneshot/endpoint"
	"oneshot/internal/walk"
	"oneshot/transport/rdma"
)

// Op is what a load does.
type Op uint8

// The kinds of load.
const (
	Read  Op = iota
	Write    // destroys the content
	Mixed    // Config.Reads per cent of reads, and writes
	Swap     // compare and swap of 8 octets, zero for zero: changes nothing
)

var names = [...]string{"read", "write", "mixed", "cas"}

// ParseOp reads the name of a kind of load.
func ParseOp(s string) (Op, error) {
	for i, n := range names {
		if n == s {
			return Op(i), nil
		}
	}
	return 0, fmt.Errorf("%q is no kind of load: there are read, write, mixed and cas", s)
}

// Config is a load.
type Config struct {
	URL     string
	Options endpoint.Options
	Op      Op
	Reads   int // per cent, with Mixed
	Depth   int // works outstanding
	Size    int // bytes of a work, whole units; Swap: 8 whatever it says
	Random  bool
	// Durable has each write durable at completion. FlushEvery, if not 0, posts a fenced flush behind each so
	// many writes.
	Durable    bool
	FlushEvery int
	Warmup     time.Duration // before counting begins
	Duration   time.Duration
	Span       int64  // bytes, from the start of the partition, that are used; 0: all
	Seed       uint64 // of the offsets and of the mix
}

// Result is what a load took. Latencies are in microseconds, of works that are no flushes.
type Result struct {
	IOPS    float64 `json:"iops"`
	MBps    float64 `json:"mb_per_s"` // 10^6 bytes
	IOs     uint64  `json:"ios"`      // without flushes
	Reads   uint64  `json:"reads"`
	Flushes uint64  `json:"flushes"`
	Mean    float64 `json:"latency_mean_us"`
	P50     float64 `json:"latency_p50_us"`
	P90     float64 `json:"latency_p90_us"`
	P99     float64 `json:"latency_p99_us"`
	P999    float64 `json:"latency_p999_us"`
	Max     float64 `json:"latency_max_us"`
	CPU     float64 `json:"cpu_us"` // processor time of this process per I/O
	// Counts are those of the connection (rdma.Counters), per I/O.
	Counts map[string]float64 `json:"counts"`
	// Durability, Aging and Rights are those of the partition.
	Durability string        `json:"durability"`
	Aging      time.Duration `json:"aging_ns"`
	Rights     string        `json:"rights"`
}

// Latencies are counted in nanoseconds, to three digits, up to a minute.
const longest = int64(time.Minute)

// flushID marks the IDs of flushes; those of other works are places in load.works.
const flushID = 1 << 32

// load is one that runs.
type load struct {
	cfg   *Config
	e     *endpoint.Endpoint
	hist  *hdrhistogram.Histogram
	rnd   *rand.Rand
	walk  walk.Walk
	works []rdma.Work
	begun []time.Time // of works
	posts []rdma.Work // to be posted
	cs    []rdma.Completion

	writes  int // since the last flush
	flushes int // under way
	under   int // works under way, without flushes
	result  Result
}

// rights are those that the load needs.
func (c *Config) rights() (r rdma.Rights) {
	switch c.Op {
	case Read:
		return rdma.RightRead
	case Swap:
		r = rdma.RightAtomics
	case Mixed:
		r = rdma.RightRead | rdma.RightWrite
	case Write:
		r = rdma.RightWrite
	}
	if c.Durable || c.FlushEvery > 0 {
		r |= rdma.RightFlush
	}
	return r
}

// Run puts the load on. When ctx ends, what is under way is left to the end of the connection, and ctx's error
// is returned.
func Run(ctx context.Context, cfg Config) (r *Result, err error) {
	if cfg.Depth < 1 || cfg.Size < 1 || cfg.Duration <= 0 || cfg.Reads < 0 || cfg.Reads > 100 || cfg.FlushEvery < 0 {
		return nil, errors.New("a load has a depth, a size and a duration, and 0 to 100 per cent of reads")
	}
	if cfg.Op == Read && (cfg.Durable || cfg.FlushEvery > 0) {
		return nil, errors.New("a load of reads has nothing to make durable")
	}
	if cfg.Op == Swap {
		cfg.Size = 8
	}
	cfg.Options.MaxWork = 2 * cfg.Depth
	e, err := endpoint.Open(ctx, cfg.URL, cfg.Options)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, e.Close()) }()
	if i, need := e.Info(), cfg.rights(); i.Rights&need != need {
		return nil, &endpoint.RightsError{Name: i.Name, Want: need, Have: i.Rights}
	}
	l, err := newLoad(&cfg, e)
	if err != nil {
		return nil, err
	}
	if cfg.Warmup > 0 {
		if err := l.run(ctx, cfg.Warmup); err != nil {
			return nil, err
		}
	}
	return l.measure(ctx)
}

func newLoad(cfg *Config, e *endpoint.Endpoint) (*load, error) {
	i := e.Info()
	l := &load{
		cfg: cfg, e: e, hist: hdrhistogram.New(1, longest, 3), rnd: rand.New(rand.NewPCG(cfg.Seed, 0)),
		works: make([]rdma.Work, cfg.Depth), begun: make([]time.Time, cfg.Depth), cs: make([]rdma.Completion, 2*cfg.Depth),
	}
	var order *rand.Rand
	if cfg.Random {
		order = l.rnd
	}
	l.walk = walk.New(cfg.Size, i.Size, cfg.Span, order)
	if cfg.Op != Swap && cfg.Size%i.Unit != 0 || l.walk.IsEmpty() {
		return nil, fmt.Errorf("operations of %d bytes do not fit %s, which has %d bytes in units of %d", cfg.Size, i.Name, i.Size, i.Unit)
	}
	buf, err := e.Alloc(cfg.Depth * cfg.Size)
	if err != nil {
		return nil, err
	}
	for at := range buf {
		buf[at] = byte(at>>12) ^ byte(at)
	}
	for n := range l.works {
		sge, err := e.SGE(buf[n*cfg.Size:][:cfg.Size:cfg.Size])
		if err != nil {
			return nil, err
		}
		l.works[n] = rdma.Work{ID: uint64(n), Flags: rdma.Signaled, SGL: []rdma.SGE{sge}}
	}
	return l, nil
}

// add has work n done at the next place.
func (l *load) add(n int, now time.Time) {
	w := &l.works[n]
	w.Flags = rdma.Signaled
	w.RemoteOffset = uint64(l.walk.Next())
	switch {
	case l.cfg.Op == Swap:
		w.Op = rdma.OpCompareSwap
	case l.cfg.Op == Read || l.cfg.Op == Mixed && l.rnd.IntN(100) < l.cfg.Reads:
		w.Op = rdma.OpRead
	default:
		w.Op = rdma.OpWrite
	}
	changes := w.Op != rdma.OpRead
	if changes && l.cfg.Durable {
		w.Flags |= rdma.Durable
	}
	l.begun[n] = now
	l.posts = append(l.posts, *w)
	l.under++
	if !changes || l.cfg.FlushEvery == 0 {
		return
	}
	if l.writes++; l.writes >= l.cfg.FlushEvery && l.flushes < l.cfg.Depth {
		l.writes = 0
		l.flushes++
		l.posts = append(l.posts, rdma.Work{ID: flushID, Op: rdma.OpFlush, Flags: rdma.Signaled | rdma.Fence})
	}
}

// run keeps the load up for d, and waits for the end of what is under way.
func (l *load) run(ctx context.Context, d time.Duration) error {
	now := time.Now()
	end := now.Add(d)
	for n := range l.works {
		l.add(n, now)
	}
	for l.under > 0 || l.flushes > 0 {
		if len(l.posts) > 0 {
			if _, err := l.e.Post(l.posts); err != nil {
				return err
			}
			l.posts = l.posts[:0]
		}
		if err := l.e.Wait(ctx); err != nil {
			return err
		}
		n := l.e.Poll(l.cs)
		now = time.Now()
		for i := range l.cs[:n] {
			if err := l.done(&l.cs[i], now, now.Before(end)); err != nil {
				return err
			}
		}
	}
	return nil
}

// done counts a completion, and has its work done again if there is to be more.
func (l *load) done(c *rdma.Completion, now time.Time, more bool) error {
	if c.Status != rdma.StatusOK {
		return &endpoint.Error{Op: c.Op, Off: int64(l.works[c.ID&(flushID-1)].RemoteOffset), N: int64(l.cfg.Size), Status: c.Status, Err: c.Err}
	}
	if c.ID == flushID {
		l.flushes--
		l.result.Flushes++
		return nil
	}
	l.under--
	l.result.IOs++
	if c.Op == rdma.OpRead {
		l.result.Reads++
	}
	_ = l.hist.RecordValue(min(int64(now.Sub(l.begun[c.ID])), longest))
	if more {
		l.add(int(c.ID), now)
	}
	return nil
}

// measure runs the load and looks what has changed.
func (l *load) measure(ctx context.Context) (*Result, error) {
	l.hist.Reset()
	l.result = Result{}
	before, spent, begin := l.e.Counters(), processor(), time.Now()
	if err := l.run(ctx, l.cfg.Duration); err != nil {
		return nil, err
	}
	took, used := time.Since(begin).Seconds(), processor()-spent
	r, h := l.result, l.hist
	each := float64(max(r.IOs, 1))
	r.IOPS = float64(r.IOs) / took
	r.MBps = r.IOPS * float64(l.cfg.Size) / 1e6
	us := func(p float64) float64 { return float64(h.ValueAtQuantile(p)) / 1e3 }
	r.Mean, r.P50, r.P90, r.P99, r.P999, r.Max = h.Mean()/1e3, us(50), us(90), us(99), us(99.9), float64(h.Max())/1e3
	r.CPU = float64(used.Nanoseconds()) / 1e3 / each
	r.Counts = make(map[string]float64)
	for name, n := range l.e.Counters().Sub(before).All() {
		if n > 0 {
			r.Counts[name] = float64(n) / each
		}
	}
	i := l.e.Info()
	r.Durability, r.Aging, r.Rights = i.Durability.String(), i.Aging, i.Rights.String()
	return &r, nil
}

// processor is the processor time of this process.
func processor() time.Duration {
	var u unix.Rusage
	_ = unix.Getrusage(unix.RUSAGE_SELF, &u) // cannot fail
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
