package load

import (
	"context"
	"errors"

	"oneshot/initiator"
)

// scsi is a session with a logical unit.
type scsi struct {
	*initiator.LU
	s    *initiator.Session
	ours bool // the target, which tells its counters
	mem  *initiator.Memory
}

func openSCSI(ctx context.Context, cfg *Config) (disk, error) {
	s, err := initiator.Dial(ctx, cfg.URL, cfg.Options)
	if err != nil {
		return nil, err
	}
	lun := max(cfg.URL.LUN, 0)
	d := &scsi{s: s}
	if d.LU, err = s.LU(ctx, lun); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	// Others are not asked: tgt drops connections that send a text key it does not know.
	id, err := s.Identify(ctx, lun)
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	d.ours = id.Vendor == "ONESHOT"
	return d, nil
}

func (d *scsi) memory(n int) (b []byte, err error) {
	if d.mem, err = d.s.Alloc(n); err != nil {
		return nil, err
	}
	return d.mem.Bytes(), nil
}

func (d *scsi) counters() initiator.Counters { return d.s.Counters() }

func (d *scsi) targetCounters(ctx context.Context) (initiator.Counters, error) {
	if !d.ours {
		return nil, initiator.ErrNotTold
	}
	return d.s.TargetCounters(ctx)
}

func (d *scsi) close() error {
	err := d.s.Close()
	if d.mem != nil {
		err = errors.Join(err, d.mem.Free()) // once: two may close it, at the end and when ctx ends
	}
	return err
}

// scsiOp is a READ or WRITE.
type scsiOp struct {
	d   *scsi
	c   initiator.Command
	fua bool
}

func (d *scsi) operation(b []byte, write, fua bool, done func(error)) operation {
	o := &scsiOp{d: d, fua: fua}
	o.c.Memory = d.mem
	o.c.Done = func(c *initiator.Command) { done(c.Failure()) }
	if o.c.In = b; write {
		o.c.In, o.c.Out = nil, b
	}
	return o
}

func (o *scsiOp) start(off int64) {
	if err := o.d.Prepare(&o.c, off); err != nil {
		panic(err) // prepare has looked
	}
	if o.fua {
		o.c.CDB[1] |= 1 << 3 // SBC-4 §5.48
	}
	o.d.s.Start(&o.c)
}
