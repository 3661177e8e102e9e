// Package load puts a load on a disk and says what it took: I/Os per second, latency, processor
// time, and what crossed between program and network at both ends.
package load

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"golang.org/x/sys/unix"

	"oneshot/initiator"
	"oneshot/initiator/host"
	"oneshot/internal/walk"
)

// Config is a load.
type Config struct {
	URL     initiator.URL
	Options initiator.Options
	// NVMe, unless it is nil, is what the load is for instead of URL: a namespace, through as many queues of one controller as there
	// are sessions.
	NVMe     *host.URL
	Host     host.Options
	Sessions int
	Depth    int // commands outstanding, per session
	Size     int // bytes per command, whole blocks
	Write    bool
	FUA      bool // each write is durable when it ends
	Random   bool
	Warmup   time.Duration // before counting begins
	Duration time.Duration
	// Span is the part of the disk that is used, from its start, in bytes. 0: all.
	Span int64
	// Seed is that of the offsets.
	Seed uint64
}

// Result is what a load took. Latencies are in microseconds; counts per I/O are those of one end.
type Result struct {
	IOPS      float64 `json:"iops"`
	MBps      float64 `json:"mb_per_s"` // 10^6 bytes
	IOs       uint64  `json:"ios"`
	Mean      float64 `json:"latency_mean_us"`
	P50       float64 `json:"latency_p50_us"`
	P90       float64 `json:"latency_p90_us"`
	P99       float64 `json:"latency_p99_us"`
	P999      float64 `json:"latency_p999_us"`
	Max       float64 `json:"latency_max_us"`
	Initiator End     `json:"initiator"`
	// Card is the processor time per I/O, in microseconds, of the process that the RDMA device is in, if it is another one.
	Card float64 `json:"card_cpu_us,omitempty"`
	// Target is what the target tells of its end; nil if it does not.
	Target *End `json:"target,omitempty"`
}

// End is what one end of the connection took, per I/O.
type End struct {
	CPU float64 `json:"cpu_us"` // processor time of the process
	// Crossings is the sum of those to and from the device; see initiator.Crossings.
	Crossings    float64            `json:"crossings"`
	CrossingsOut float64            `json:"crossings_out"`
	CrossingsIn  float64            `json:"crossings_in"`
	Counts       map[string]float64 `json:"counts"`
}

// Latencies are counted in nanoseconds, to three digits, up to a minute.
const longest = int64(time.Minute)

// disk is a way to a disk, with a connection of its own. Its operations end by calls of done from one goroutine at a time.
type disk interface {
	Size() int64
	BlockSize() int
	// memory returns n bytes for operations.
	memory(n int) ([]byte, error)
	// operation returns one that reads to b, or writes from it, with fua durably.
	operation(b []byte, write, fua bool, done func(error)) operation
	counters() initiator.Counters
	// targetCounters are those of the other end, or initiator.ErrNotTold.
	targetCounters(context.Context) (initiator.Counters, error)
	close() error
}

// operation is a command that is used again and again.
type operation interface {
	// start begins it at an offset, where a whole operation fits.
	start(off int64)
}

// stream is the load of one session.
type stream struct {
	cfg  *Config
	disk disk
	hist *hdrhistogram.Histogram
	walk walk.Walk

	ops  []op
	end  time.Time
	live sync.WaitGroup // commands

	// What follows belongs to the goroutine that calls Done.
	ios uint64
	err error
}

type op struct {
	operation
	begun time.Time
	st    *stream
}

// Check says what makes no sense in cfg, whatever the disk is.
func (cfg *Config) Check() error {
	switch {
	case cfg.Sessions < 1 || cfg.Depth < 1 || cfg.Size < 1 || cfg.Duration <= 0:
		return errors.New("a load has at least one session, a depth, a size and a duration")
	case cfg.FUA && !cfg.Write:
		return errors.New("only a load that writes can have FUA")
	}
	return nil
}

// Run puts the load on. Commands under way when ctx ends are waited for, and ctx's error is
// returned.
func Run(ctx context.Context, cfg Config) (*Result, error) {
	if err := cfg.Check(); err != nil {
		return nil, err
	}
	cfg.Options.Depth, cfg.Host.Depth, cfg.Host.Queues = cfg.Depth, cfg.Depth, cfg.Sessions
	open := func(ctx context.Context, _ int) (disk, error) { return openSCSI(ctx, &cfg) }
	if cfg.NVMe != nil {
		c, err := openNVMe(ctx, &cfg)
		if err != nil {
			return nil, err
		}
		open = c.open
	}
	streams := make([]*stream, cfg.Sessions)
	defer func() {
		for _, st := range streams {
			if st != nil {
				_ = st.disk.close()
			}
		}
	}()
	for i := range streams {
		d, err := open(ctx, i)
		if err != nil {
			return nil, err
		}
		streams[i] = &stream{cfg: &cfg, disk: d, hist: hdrhistogram.New(1, longest, 3)}
		if err := streams[i].prepare(uint64(i)); err != nil {
			return nil, err
		}
	}
	if cfg.Warmup > 0 {
		if err := phase(ctx, streams, cfg.Warmup); err != nil {
			return nil, err
		}
	}
	return measure(ctx, &cfg, streams)
}

// phase runs all streams for d.
func phase(ctx context.Context, streams []*stream, d time.Duration) error {
	for _, st := range streams {
		st.begin(d)
	}
	return wait(ctx, streams)
}

// wait waits for the end of what runs.
func wait(ctx context.Context, streams []*stream) error {
	stop := context.AfterFunc(ctx, func() {
		for _, st := range streams {
			_ = st.disk.close()
		}
	})
	defer stop()
	for _, st := range streams {
		st.live.Wait()
		if st.err != nil {
			return errors.Join(ctx.Err(), st.err)
		}
	}
	return ctx.Err()
}

// prepare makes the operations of stream i.
func (st *stream) prepare(i uint64) error {
	cfg, d := st.cfg, st.disk
	var order *rand.Rand
	if cfg.Random {
		order = rand.New(rand.NewPCG(cfg.Seed, i))
	}
	st.walk = walk.New(cfg.Size, d.Size(), cfg.Span, order)
	if cfg.Size%d.BlockSize() != 0 || st.walk.IsEmpty() {
		return fmt.Errorf("commands of %d bytes do not fit a disk of %d bytes in blocks of %d", cfg.Size, d.Size(), d.BlockSize())
	}
	mem, err := d.memory(cfg.Depth * cfg.Size)
	if err != nil {
		return err
	}
	for i := range mem {
		mem[i] = byte(i>>12) ^ byte(i)
	}
	st.ops = make([]op, cfg.Depth)
	for i := range st.ops {
		o := &st.ops[i]
		o.st, o.operation = st, d.operation(mem[i*cfg.Size:][:cfg.Size:cfg.Size], cfg.Write, cfg.FUA, o.done)
	}
	return nil
}

// begin starts commands, which start others for d.
func (st *stream) begin(d time.Duration) {
	st.hist.Reset()
	st.ios = 0
	now := time.Now()
	st.end = now.Add(d)
	st.live.Add(len(st.ops))
	offsets := make([]int64, len(st.ops))
	for i := range st.ops { // before they use walk themselves
		st.ops[i].begun, offsets[i] = now, st.walk.Next()
	}
	for i := range st.ops {
		st.ops[i].start(offsets[i])
	}
}

// done takes the end of a command, and starts it again.
func (o *op) done(err error) {
	st := o.st
	now := time.Now()
	if err != nil {
		if st.err == nil {
			st.err = err
		}
		st.live.Done()
		return
	}
	_ = st.hist.RecordValue(min(int64(now.Sub(o.begun)), longest))
	st.ios++
	if now.After(st.end) {
		st.live.Done()
		return
	}
	o.begun = now
	o.start(st.walk.Next())
}

// state is what is compared before and after.
type state struct {
	at             time.Time
	cpu            time.Duration
	counts, target initiator.Counters
	targetCPU      uint64
	targetTells    bool
	card           time.Duration // processor time of the card's process
}

// card is an RDMA device in another process.
type card interface {
	CardTime() (time.Duration, error)
}

func look(ctx context.Context, streams []*stream) (now state, err error) {
	now.targetTells = true
	for i, st := range streams {
		t, err := st.disk.targetCounters(ctx)
		switch {
		case errors.Is(err, initiator.ErrNotTold):
			now.targetTells = false
		case err != nil:
			return now, err
		}
		if i == 0 {
			now.targetCPU = t.Get("cpu_ns")
		}
		now.target = add(now.target, t)
		now.counts = add(now.counts, st.disk.counters())
	}
	if c, ok := streams[0].cfg.Options.Device.(card); ok {
		if now.card, err = c.CardTime(); err != nil {
			return now, err
		}
	}
	now.cpu, now.at = cpu(), time.Now()
	return now, nil
}

func add(a, b initiator.Counters) initiator.Counters {
	if len(b) == 0 {
		return a
	}
	sum := make(initiator.Counters, len(b))
	for i, c := range b {
		sum[i] = initiator.Counter{Name: c.Name, Value: c.Value + a.Get(c.Name)}
	}
	return sum
}

// measure runs the load and compares the states before and after.
func measure(ctx context.Context, cfg *Config, streams []*stream) (*Result, error) {
	before, err := look(ctx, streams)
	if err != nil {
		return nil, err
	}
	if err := phase(ctx, streams, cfg.Duration); err != nil {
		return nil, err
	}
	took := time.Since(before.at)
	spent := cpu() - before.cpu
	after, err := look(ctx, streams)
	if err != nil {
		return nil, err
	}
	hist := hdrhistogram.New(1, longest, 3)
	r := new(Result)
	for _, st := range streams {
		hist.Merge(st.hist)
		r.IOs += st.ios
	}
	r.IOPS = float64(r.IOs) / took.Seconds()
	r.MBps = r.IOPS * float64(cfg.Size) / 1e6
	us := func(p float64) float64 { return float64(hist.ValueAtQuantile(p)) / 1e3 }
	r.Mean, r.P50, r.P90, r.P99, r.P999 = hist.Mean()/1e3, us(50), us(90), us(99), us(99.9)
	r.Max = float64(hist.Max()) / 1e3
	r.Card = float64(after.card-before.card) / float64(max(r.IOs, 1)) / 1e3
	r.Initiator = end(r.IOs, spent, after.counts.Sub(before.counts))
	if after.targetTells {
		t := end(r.IOs, time.Duration(after.targetCPU-before.targetCPU), after.target.Sub(before.target))
		r.Target = &t
	}
	return r, nil
}

// end makes counts per I/O.
func end(ios uint64, cpu time.Duration, c initiator.Counters) End {
	per := func(n uint64) float64 { return float64(n) / float64(max(ios, 1)) }
	x := c.Crossings()
	e := End{
		CPU: per(uint64(cpu)) / 1e3, Counts: make(map[string]float64),
		Crossings: per(x.Sum()), CrossingsOut: per(x.Out), CrossingsIn: per(x.In),
	}
	for _, x := range c {
		if x.Value > 0 && x.Name != "cpu_ns" {
			e.Counts[x.Name] = per(x.Value)
		}
	}
	return e
}

func cpu() time.Duration {
	var r unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &r); err != nil {
		return 0
	}
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}
