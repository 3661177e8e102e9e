package load

import (
	"context"
	"errors"
	"fmt"
	"io"

	"oneshot/initiator"
	"oneshot/initiator/host"
)

// nvme is a controller with a namespace, of which each queue is a disk.
type nvme struct {
	*host.Namespace
	c *host.Controller
}

func openNVMe(ctx context.Context, cfg *Config) (*nvme, error) {
	c, err := host.Dial(ctx, *cfg.NVMe, cfg.Host)
	if err != nil {
		return nil, err
	}
	n, err := c.Namespace(ctx, max(cfg.NVMe.NSID, 1))
	switch {
	case err != nil:
	case c.Queues() < cfg.Sessions:
		err = fmt.Errorf("%v: the controller grants %d I/O queues, not %d", cfg.NVMe, c.Queues(), cfg.Sessions)
	case cfg.Size > n.MaxTransfer():
		err = fmt.Errorf("%v: the controller takes commands of %d bytes at most", cfg.NVMe, n.MaxTransfer())
	default:
		return &nvme{n, c}, nil
	}
	return nil, errors.Join(err, c.Close())
}

func (n *nvme) open(_ context.Context, queue int) (disk, error) { return &nvmeQueue{n, queue}, nil }

// nvmeQueue is one of its queues.
type nvmeQueue struct {
	*nvme
	queue int
}

func (q *nvmeQueue) memory(n int) ([]byte, error) { return make([]byte, n), nil }

// counters are those of all queues, which the first one tells.
func (q *nvmeQueue) counters() initiator.Counters {
	if q.queue > 0 {
		return nil
	}
	c := q.c.Counters()
	return initiator.Counters{
		{Name: "writes", Value: c.Writes}, {Name: "reads", Value: c.Reads}, {Name: "bytes_out", Value: c.BytesOut}, {Name: "bytes_in", Value: c.BytesIn},
	}
}

func (q *nvmeQueue) targetCounters(context.Context) (initiator.Counters, error) {
	return nil, initiator.ErrNotTold
}

func (q *nvmeQueue) close() error { return q.c.Close() }

// nvmeOp is a Read or Write.
type nvmeOp struct {
	q   *nvmeQueue
	x   host.Command
	fua bool
}

func (q *nvmeQueue) operation(b []byte, write, fua bool, done func(error)) operation {
	o := &nvmeOp{q: q, fua: fua}
	o.x.Done = func(x *host.Command) {
		err := x.Failure()
		if err == nil && x.Transferred < len(x.In) {
			err = io.ErrUnexpectedEOF
		}
		done(err)
	}
	if o.x.In = b; write {
		o.x.In, o.x.Out = nil, b
	}
	return o
}

func (o *nvmeOp) start(off int64) {
	if err := o.q.Prepare(&o.x, off); err != nil {
		panic(err) // prepare has looked
	}
	if o.fua {
		o.x.DWords[2] |= 1 << 30 // NVM Command Set, Write, CDW12
	}
	o.q.c.Start(o.q.queue, &o.x)
}
