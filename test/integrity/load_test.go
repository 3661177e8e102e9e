package integrity

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"

	"oneshot/initiator"
	"oneshot/test/medium"
)

// The first sectors of each disk are for commands that must be atomic; the rest is for all others.
const (
	counterAt   = 0  // COMPARE AND WRITE counts here, in blocks of 4096 bytes
	bitsAt      = 8  // ORWRITE sets bits here
	atomicAt    = 16 // WRITE ATOMIC writes all of this
	atomicLen   = 128
	generalAt   = 256
	specialSize = 8 // of counter and bits, in sectors
)

// disk is a store. Several LUNs may show it.
type disk struct {
	name    string
	model   *model // of everything except counter and bits
	sectors int
	through bool           // each write is durable when it is acknowledged
	medium  *medium.Medium // nil: a medium that does not fail

	counter struct {
		sync.Mutex
		good, maybe int            // increments with GOOD, and of unknown outcome
		taken       map[uint64]int // by value: how many commands counted to it with GOOD
	}
	bits struct {
		sync.Mutex
		next int
		set  []int // with GOOD
	}
}

func newDisk(name string, sectors int) *disk {
	d := &disk{name: name, model: newModel(sectors), sectors: sectors}
	d.counter.taken = map[uint64]int{}
	return d
}

// view is a LUN: a disk as a target shows it.
type view struct {
	disk   *disk
	lun    int
	block  int // bytes
	atomic bool
}

// worker sends one command at a time through a host.
type worker struct {
	run   *run
	host  *host
	views []*view
	rng   *rand.Rand
}

// work sends commands until none are left.
func (w *worker) work(ctx context.Context, left *atomic.Int64) error {
	for left.Add(-1) >= 0 {
		if err := w.one(ctx, w.views[w.rng.IntN(len(w.views))]); err != nil {
			return fmt.Errorf("%s: %w", w.host.name, err)
		}
	}
	return nil
}

func (w *worker) one(ctx context.Context, v *view) error {
	switch n := w.rng.IntN(100); {
	case n < 30:
		return w.read(ctx, v)
	case n < 62:
		return w.write(ctx, v)
	case n < 70:
		return w.blank(ctx, v)
	case n < 84 && v.disk.model.volatile: // counter and bits would not outlive the power
		return w.write(ctx, v)
	case n < 78:
		return w.count(ctx, v)
	case n < 84:
		return w.setBit(ctx, v)
	case n < 90:
		if v.atomic {
			return w.atomicWrite(ctx, v)
		}
		return w.write(ctx, v)
	case n < 95:
		return w.readAtomic(ctx, v)
	default:
		return w.flush(ctx, v)
	}
}

// span picks a range of the general part. Most ranges are in a small area, so that many overlap.
func (w *worker) span(v *view) (at, n int) {
	per := v.block / sectorSize
	blocks := (v.disk.sectors - generalAt) / per
	n = 1 + w.rng.IntN([]int{1, 4, 16, 64, 256}[w.rng.IntN(5)]*8/per)
	n = min(n, blocks)
	at = w.rng.IntN(blocks - n + 1)
	return generalAt + at*per, n * per
}

// cdb16 returns a CDB of 16 bytes with a range of sectors.
func cdb16(v *view, opcode, flags byte, at, n int) []byte {
	cdb := make([]byte, 16)
	cdb[0], cdb[1] = opcode, flags
	per := v.block / sectorSize
	binary.BigEndian.PutUint64(cdb[2:], uint64(at/per))
	binary.BigEndian.PutUint32(cdb[10:], uint32(n/per))
	return cdb
}

// transfer is READ or WRITE in one of its forms.
func (w *worker) transfer(v *view, write bool, at, n int) []byte {
	var op, fua byte
	if write {
		op = 2
		if w.rng.IntN(8) == 0 {
			fua = 0x08
		}
	}
	per := v.block / sectorSize
	lba, blocks := at/per, n/per
	switch w.rng.IntN(4) {
	case 0:
		cdb := make([]byte, 10)
		cdb[0], cdb[1] = 0x28+op, fua
		binary.BigEndian.PutUint32(cdb[2:], uint32(lba))
		binary.BigEndian.PutUint16(cdb[7:], uint16(blocks))
		return cdb
	case 1:
		cdb := make([]byte, 12)
		cdb[0], cdb[1] = 0xa8+op, fua
		binary.BigEndian.PutUint32(cdb[2:], uint32(lba))
		binary.BigEndian.PutUint32(cdb[6:], uint32(blocks))
		return cdb
	case 2:
		if blocks <= 255 && lba < 1<<21 && fua == 0 {
			return []byte{0x08 + op, byte(lba >> 16), byte(lba >> 8), byte(lba), byte(blocks), 0}
		}
	}
	return cdb16(v, 0x88+op, fua, at, n)
}

func (w *worker) read(ctx context.Context, v *view) error {
	at, n := w.span(v)
	return w.look(ctx, v, at, n, w.transfer(v, false, at, n), false)
}

func (w *worker) readAtomic(ctx context.Context, v *view) error {
	return w.look(ctx, v, atomicAt, atomicLen, w.transfer(v, false, atomicAt, atomicLen), true)
}

// look reads, and compares the result with the model.
func (w *worker) look(ctx context.Context, v *view, at, n int, cdb []byte, together bool) error {
	b := make([]byte, n*sectorSize)
	start := v.disk.model.look()
	res, err := w.do(ctx, &initiator.Command{LUN: v.lun, CDB: cdb, In: b}, nil)
	if err != nil || res != done {
		v.disk.model.blink(start)
		return err
	}
	v.disk.model.found(start, at, b, together)
	return nil
}

// alter runs a command that changes [at, at+n), and tells the model.
func (w *worker) alter(ctx context.Context, v *view, what string, at, n int, blank bool, make func(c *change) *initiator.Command) error {
	m := v.disk.model
	c := m.begin(fmt.Sprintf("%s of %s to %s LUN %d, sectors %d..%d", what, w.host.name, v.disk.name, v.lun, at, at+n-1), at, n, blank)
	cmd := make(c)
	switch cmd.CDB[0] {
	case 0x2a, 0xaa, 0x8a: // WRITE(10), (12) and (16)
		c.fua = v.disk.through || cmd.CDB[1]&0x08 != 0
	default:
		c.fua = v.disk.through
	}
	_, err := w.do(ctx, cmd, func(o outcome) { m.finish(c, o) })
	return err
}

func (w *worker) write(ctx context.Context, v *view) error {
	at, n := w.span(v)
	return w.alter(ctx, v, "WRITE", at, n, false, func(c *change) *initiator.Command {
		b := make([]byte, n*sectorSize)
		c.value.fill(b, at)
		cdb := w.transfer(v, true, at, n)
		if w.rng.IntN(10) == 0 {
			cdb = cdb16(v, 0x8e, 0, at, n) // WRITE AND VERIFY(16), SBC-3 §5.52
		}
		return &initiator.Command{LUN: v.lun, CDB: cdb, Out: b}
	})
}

// blank writes zeroes with commands that carry no data.
func (w *worker) blank(ctx context.Context, v *view) error {
	at, n := w.span(v)
	per := v.block / sectorSize
	if w.rng.IntN(2) == 0 {
		return w.alter(ctx, v, "UNMAP", at, n, true, func(*change) *initiator.Command {
			p := make([]byte, 24) // SBC-3 §5.28: the LBPRZ of these disks makes unmapped blocks zeroes
			binary.BigEndian.PutUint16(p, 22)
			binary.BigEndian.PutUint16(p[2:], 16)
			binary.BigEndian.PutUint64(p[8:], uint64(at/per))
			binary.BigEndian.PutUint32(p[16:], uint32(n/per))
			return &initiator.Command{LUN: v.lun, CDB: []byte{0x42, 0, 0, 0, 0, 0, 0, 0, 24, 0}, Out: p}
		})
	}
	return w.alter(ctx, v, "WRITE SAME", at, n, true, func(*change) *initiator.Command {
		flags := []byte{0x00, 0x01, 0x08, 0x09}[w.rng.IntN(4)] // NDOB, UNMAP
		c := &initiator.Command{LUN: v.lun, CDB: cdb16(v, 0x93, flags, at, n)}
		if flags&1 == 0 {
			c.Out = make([]byte, v.block)
		}
		return c
	})
}

func (w *worker) atomicWrite(ctx context.Context, v *view) error {
	return w.alter(ctx, v, "WRITE ATOMIC", atomicAt, atomicLen, false, func(c *change) *initiator.Command {
		b := make([]byte, atomicLen*sectorSize)
		c.value.fill(b, atomicAt)
		cdb := cdb16(v, 0x9c, 0, atomicAt, 0) // SBC-4 §5.50
		binary.BigEndian.PutUint16(cdb[12:], uint16(atomicLen*sectorSize/v.block))
		return &initiator.Command{LUN: v.lun, CDB: cdb, Out: b}
	})
}

func (w *worker) flush(ctx context.Context, v *view) error {
	m := v.disk.model
	start := m.look()
	defer m.blink(start)
	res, err := w.do(ctx, &initiator.Command{LUN: v.lun, CDB: []byte{0: 0x91, 15: 0}}, nil) // SYNCHRONIZE CACHE(16)
	if err == nil && res == done {
		m.flushed(start)
	}
	return err
}

// special reads the sectors of counter or bits.
func (w *worker) special(ctx context.Context, v *view, at int) (b []byte, ok bool, err error) {
	b = make([]byte, specialSize*sectorSize)
	res, err := w.do(ctx, &initiator.Command{LUN: v.lun, CDB: cdb16(v, 0x88, 0, at, specialSize), In: b}, nil)
	return b, res == done, err
}

// count adds one to the counter. A lost update shows as two commands that counted to the same number.
func (w *worker) count(ctx context.Context, v *view) error {
	b, ok, err := w.special(ctx, v, counterAt)
	if err != nil || !ok {
		return err
	}
	was := binary.LittleEndian.Uint64(b)
	for i := 0; i < len(b); i += 8 {
		if n := binary.LittleEndian.Uint64(b[i:]); n != was {
			v.disk.model.blame("%s: COMPARE AND WRITE is torn: word %d is %d, word 0 is %d", v.disk.name, i/8, n, was)
			return nil
		}
	}
	next := make([]byte, len(b))
	for i := 0; i < len(b); i += 8 {
		binary.LittleEndian.PutUint64(next[i:], was+1)
	}
	cdb := cdb16(v, 0x89, 0, counterAt, 0) // SBC-3 §5.3
	cdb[13], cdb[10], cdb[11], cdb[12] = byte(len(b)/v.block), 0, 0, 0
	d := v.disk
	_, err = w.do(ctx, &initiator.Command{LUN: v.lun, CDB: cdb, Out: append(b, next...)}, func(o outcome) {
		d.counter.Lock()
		defer d.counter.Unlock()
		switch o {
		case done:
			d.counter.good++
			d.counter.taken[was+1]++
		case unknown:
			d.counter.maybe++
		case refused: // among others, because another was faster
		}
	})
	return err
}

// setBit sets a bit that no other command sets.
func (w *worker) setBit(ctx context.Context, v *view) error {
	d := v.disk
	d.bits.Lock()
	bit := d.bits.next
	d.bits.next++
	d.bits.Unlock()
	if bit >= specialSize*sectorSize*8 {
		return w.flush(ctx, v) // all are set
	}
	b := make([]byte, specialSize*sectorSize)
	b[bit/8] = 1 << (bit % 8)
	_, err := w.do(ctx, &initiator.Command{LUN: v.lun, CDB: cdb16(v, 0x8b, 0, bitsAt, specialSize), Out: b}, func(o outcome) {
		if o == done {
			d.bits.Lock()
			defer d.bits.Unlock()
			d.bits.set = append(d.bits.set, bit)
		}
	})
	return err
}

// settled compares counter, bits and everything else with the results of the commands. No command is
// under way.
func (w *worker) settled(ctx context.Context, v *view) error {
	d := v.disk
	if d.model.volatile {
		return w.settledBlocks(ctx, v)
	}
	b, err := w.insist(ctx, v, counterAt, specialSize)
	if err != nil {
		return err
	}
	got := int(binary.LittleEndian.Uint64(b))
	if got < d.counter.good || got > d.counter.good+d.counter.maybe {
		d.model.blame("%s: %d COMPARE AND WRITEs said GOOD, %d have an unknown outcome, and the counter says %d",
			d.name, d.counter.good, d.counter.maybe, got)
	}
	for n, times := range d.counter.taken {
		if times > 1 {
			d.model.blame("%s: %d COMPARE AND WRITEs counted to %d", d.name, times, n)
		}
	}
	if b, err = w.insist(ctx, v, bitsAt, specialSize); err != nil {
		return err
	}
	for _, bit := range d.bits.set {
		if b[bit/8]&(1<<(bit%8)) == 0 {
			d.model.blame("%s: bit %d, which an ORWRITE has set, is not set", d.name, bit)
		}
	}
	return w.settledBlocks(ctx, v)
}

// settledBlocks is settled without counter and bits.
func (w *worker) settledBlocks(ctx context.Context, v *view) (err error) {
	const piece = 512
	d := v.disk
	for at := atomicAt; at < d.sectors; at += piece {
		n := min(piece, d.sectors-at)
		start := d.model.look()
		var b []byte
		if b, err = w.insist(ctx, v, at, n); err != nil {
			return err
		}
		d.model.found(start, at, b, false)
	}
	return nil
}

// insist reads until it succeeds.
func (w *worker) insist(ctx context.Context, v *view, at, n int) ([]byte, error) {
	c := &initiator.Command{LUN: v.lun, CDB: cdb16(v, 0x88, 0, at, n), In: make([]byte, n*sectorSize)}
	for range 1000 {
		res, err := w.do(ctx, c, nil)
		if err != nil || res == done {
			return c.In, err
		}
	}
	return nil, fmt.Errorf("the %d sectors at %d of LUN %d cannot be read, however often it is tried: %w", n, at, v.lun, c.Failure())
}

// do runs a command and returns its outcome. It also calls told, if that is set, as soon as the
// outcome is certain: a command whose session was lost may take effect until the next login. An error
// means that the command has failed in a way that is wrong for this load.
func (w *worker) do(ctx context.Context, c *initiator.Command, told func(outcome)) (outcome, error) {
	if told == nil {
		told = func(outcome) {}
	}
	for {
		s, err := w.host.use(ctx)
		if err != nil {
			told(refused)
			return refused, err
		}
		limit, cancel := context.WithCancel(ctx)
		if w.run.aborts && w.rng.IntN(100) == 0 {
			cancel() // the command leaves, and an ABORT TASK after it
		}
		_ = s.Do(limit, c) // its error may be the context's; Failure has the command's
		cancel()
		switch o, bad := w.judge(c); {
		case bad != nil:
			told(unknown)
			return unknown, bad
		case o == again:
		case o == lost:
			w.host.drop(s, func() { told(unknown) })
			return unknown, nil
		default:
			told(o)
			return o, nil
		}
	}
}

// Besides the outcomes that the model hears of:
const (
	again outcome = iota + 10 // refused, and to be sent again
	lost                      // the session has ended: unknown until the next login, and afterwards
)

// judge returns the outcome of a command, and an error if this outcome is wrong for this load.
func (w *worker) judge(c *initiator.Command) (outcome, error) {
	err := c.Failure()
	e, status := errors.AsType[*initiator.StatusError](err)
	switch {
	case err == nil:
		w.run.good.Add(1)
		return done, nil
	case errors.Is(err, initiator.ErrAborted):
		w.run.aborted.Add(1)
		return unknown, nil
	case !status:
		w.run.lost.Add(1)
		return lost, nil
	case e.Status == initiator.StatusBusy, e.Status == initiator.StatusTaskSetFull, e.Key == keyUnitAttention:
		return again, nil
	case e.Key == keyMiscompare && e.Opcode == 0x89:
		return refused, nil // another was faster
	case w.run.faults && (e.Key == keyMediumError || e.Key == keyHardwareError):
		w.run.failed.Add(1)
		return unknown, nil
	case e.Status == initiator.StatusTaskAborted, e.Key == keyAbortedCommand:
		w.run.aborted.Add(1)
		return unknown, nil
	}
	return unknown, fmt.Errorf("LUN %d: CDB %x: %w", c.LUN, c.CDB, err)
}

// Sense keys (SPC-4 §4.5.6).
const (
	keyMediumError    = 0x3
	keyHardwareError  = 0x4
	keyUnitAttention  = 0x6
	keyAbortedCommand = 0xb
	keyMiscompare     = 0xe
)
