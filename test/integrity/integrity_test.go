// Package integrity sends random commands of many sessions to the daemon, over every transport, and
// compares everything that it reads with a model of what each sector may hold. Meanwhile it cuts
// connections, aborts commands, changes the configuration and kills the daemon.
//
// The commands come from a seed, which the log of a test names. ONESHOT_INTEGRITY_SEED sets the seed,
// to repeat a run (the order of concurrent events still differs), and ONESHOT_INTEGRITY_COMMANDS how
// many commands a test sends.
package integrity

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"

	"oneshot/initiator"
	"oneshot/test/attack"
	"oneshot/test/targettest"
)

func TestMain(m *testing.M) { targettest.Main(m) }

const (
	iqn      = "iqn.2026-11.example.oneshot:"
	diskSize = 4 << 20
)

// run is one test.
type run struct {
	t      *testing.T
	target *targettest.Target
	seed   uint64
	aborts bool
	faults bool // errors of the medium are to be expected
	hosts  []*host
	links  []*link
	loads  [][]*worker // by host

	good, lost, aborted, failed, logins atomic.Int64
}

// number returns a number from an environment variable.
func number(t *testing.T, name string, otherwise uint64) uint64 {
	s := os.Getenv(name)
	if s == "" {
		return otherwise
	}
	n, err := strconv.ParseUint(s, 10, 64)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return n
}

func newRun(t *testing.T) *run {
	r := &run{t: t, seed: number(t, "ONESHOT_INTEGRITY_SEED", rand.Uint64())}
	t.Logf("ONESHOT_INTEGRITY_SEED=%d", r.seed)
	return r
}

func (r *run) start(config string) { r.target = targettest.Start(r.t, config) }

// host adds an initiator port, with workers that use views through portal over a link with the given life.
func (r *run) host(scheme, portal, target, query string, life int64, opt initiator.Options, workers int, views ...*view) {
	r.t.Helper()
	n := len(r.hosts)
	wire := newLink(r.t, portal, life, r.seed+uint64(n))
	h, err := newHost(r, n+1, fmt.Sprintf("%s://%s/%s%s%s", scheme, wire.addr, iqn, target, query), opt)
	if err != nil {
		r.t.Fatal(err)
	}
	r.hosts, r.links = append(r.hosts, h), append(r.links, wire)
	var load []*worker
	for i := range workers {
		rng := rand.New(rand.NewPCG(r.seed, uint64(n)<<16|uint64(i)))
		load = append(load, &worker{run: r, host: h, views: views, rng: rng})
	}
	r.loads = append(r.loads, load)
}

// work makes all workers send the given number of commands while meanwhile runs, and checks the disks at the
// end. progress tells meanwhile how many commands are left.
func (r *run) work(commands int64, disks []*disk, meanwhile func(ctx context.Context, left func() int64) error) {
	r.t.Helper()
	commands = int64(number(r.t, "ONESHOT_INTEGRITY_COMMANDS", uint64(commands)))
	ctx, cancel := context.WithCancelCause(r.t.Context())
	defer cancel(nil)
	for _, h := range r.hosts {
		context.AfterFunc(ctx, h.wake)
	}
	var left atomic.Int64
	left.Store(commands)
	var wg sync.WaitGroup
	for _, load := range r.loads {
		for _, w := range load {
			wg.Go(func() {
				if err := w.work(ctx, &left); err != nil {
					cancel(err)
				}
			})
		}
	}
	if meanwhile != nil {
		if err := meanwhile(ctx, left.Load); err != nil {
			cancel(err)
		}
	}
	wg.Wait()
	if err := context.Cause(ctx); err != nil {
		r.t.Fatal(err)
	}
	r.settle(ctx, disks)
	var cuts int64
	for _, l := range r.links {
		cuts += l.cuts.Load()
	}
	r.t.Logf("%d commands GOOD, %d aborted, %d failed, %d lost with their session; %d logins, %d connections cut",
		r.good.Load(), r.aborted.Load(), r.failed.Load(), r.lost.Load(), r.logins.Load(), cuts)
}

// settle ends everything that may be under way, and checks all of the disks through each view.
func (r *run) settle(ctx context.Context, disks []*disk) {
	r.t.Helper()
	for i, h := range r.hosts {
		r.links[i].life.Store(0)
		if _, err := h.use(ctx); err != nil {
			r.t.Fatal(err)
		}
	}
	for _, load := range r.loads {
		for _, v := range load[0].views {
			if err := load[0].settled(ctx, v); err != nil {
				r.t.Fatal(err)
			}
		}
	}
	for _, h := range r.hosts {
		h.close()
	}
	for _, d := range disks {
		for _, w := range d.model.findings() {
			r.t.Errorf("%s: %s", d.name, w)
		}
	}
}

// lives ends the daemon with end and starts it again, the given number of times, while there is work.
func (r *run) lives(lives int64, end func(life int64)) func(ctx context.Context, left func() int64) error {
	return func(ctx context.Context, left func() int64) error {
		whole := left()
		for life := int64(1); life < lives; life++ {
			for left() > whole*(lives-life)/lives && ctx.Err() == nil {
				r.progress(ctx)
			}
			for _, h := range r.hosts {
				h.rest()
			}
			end(life)
			r.target.Start()
			for _, h := range r.hosts {
				h.up()
			}
		}
		return nil
	}
}

// besides has an innocent session write and read back while there is work, on LUNs 0 and 1 of target i, and checks that the daemon grows by at
// most that many MiB.
func (r *run) besides(most int64, work func()) {
	r.t.Helper()
	u := initiator.URL{Address: r.target.Portals[0], Target: iqn + "i", LUN: -1}
	s, err := initiator.Dial(r.t.Context(), u, initiator.Options{InitiatorName: "iqn.2026-11.example.oneshot:innocent"})
	if err != nil {
		r.t.Fatal(err)
	}
	var disks []attack.Disk
	for lun := range 2 {
		lu, err := s.LU(r.t.Context(), lun)
		if err != nil {
			r.t.Fatal(err)
		}
		disks = append(disks, lu)
	}
	w := attack.Watch(r.t, attack.Seldom, disks, s.Close)
	attack.Bounded(r.t, r.target.PID(), "the load", most, work)
	w.Works()
}

// progress waits until one more command has ended.
func (r *run) progress(ctx context.Context) {
	s, err := r.hosts[0].use(ctx)
	if err == nil {
		_ = s.Do(ctx, &initiator.Command{LUN: 1, CDB: make([]byte, 6)}) // TEST UNIT READY
	}
}
