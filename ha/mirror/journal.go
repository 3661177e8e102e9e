package mirror

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"sync"

	"oneshot/backend"
	"oneshot/ha/quorum"
)

// A copy keeps atomic writes (replica.Record.Atomic) in a file beside its metadata, durably, before it writes the first byte of them to
// its disk, and forgets them when the disk has all of them durable. So a life that begins after a power cut completes them before anybody
// reads the copy. Writes that come together are kept together.
//
// A write that the disk has refused stays in the file: the disk may have a part of it. The core asks for it again, or gives it up; then
// the file forgets it before anything else is done in that range, for a later life must not overwrite what comes now.
const (
	journalName  = "journal"
	journalNew   = "journal.new"
	journalMagic = 0x6f736a6e6c000001
	maxTogether  = 8 << 20 // bytes that are kept together, if one write has no more
)

// span is a range of the copy.
type span struct{ off, n int64 }

func (s span) overlaps(off, n int64) bool { return off < s.off+s.n && s.off < off+n }

func (s span) covers(t span) bool { return s.off <= t.off && t.off+t.n <= s.off+s.n }

// whole is a write of which the copy has all bytes, or none.
type whole struct {
	off  int64
	data []byte
}

func (w *whole) span() span { return span{w.off, int64(len(w.data))} }

// journal is the file. It belongs to the goroutine of journalOn.
type journal struct {
	fsys quorum.FS
	disk string      // identity of the copy
	file quorum.File // nil: none that this life may write to
	buf  []byte
	kept []whole // what the file has, or may have; of writes that overlap the later one is the newer
}

// pendingIn returns the writes that an earlier life has begun and not ended, and the identity of their disk. What is torn was not begun.
func pendingIn(fsys quorum.FS) (disk string, list []whole, err error) {
	b, err := fsys.ReadFile(journalName)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "", nil, nil
	case err != nil:
		return "", nil, fmt.Errorf("the journal of the copy cannot be read: %w", err)
	}
	body, rest, ok := cutRecord(b)
	if !ok {
		return "", nil, nil
	}
	c := coder{b: body}
	var spans []span
	sum := codeJournal(&c, &disk, &spans, 0)
	at := int64(0)
	for _, s := range spans {
		if s.off < 0 || s.n < 0 || s.n > int64(len(rest))-at {
			return "", nil, nil
		}
		list = append(list, whole{s.off, rest[at : at+s.n]})
		at += s.n
	}
	if c.err != nil || sum != sumOf(rest[:at]) { // what follows is of a longer one before
		return "", nil, nil
	}
	return disk, list, nil
}

// codeJournal codes the head of the file; sum is of the bytes that follow.
func codeJournal(c *coder, disk *string, list *[]span, sum uint32) uint32 {
	magic, name := uint64(journalMagic), []byte(*disk)
	num(c, &magic, 8)
	many(c, &name, func(b *byte) { num(c, b, 1) })
	many(c, list, func(s *span) { num(c, &s.off, 8); num(c, &s.n, 8) })
	num(c, &sum, 4)
	if *disk = string(name); magic != journalMagic {
		c.err = errors.New("it is of another version")
	}
	return sum
}

// save has the file keep list instead of what it has, durably.
func (j *journal) save(list []whole) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("the journal of the copy cannot be written: %w", err)
		}
	}()
	b := append(j.buf[:0], make([]byte, 8)...) // keeps nothing
	if len(list) > 0 {
		var spans []span
		b = b[:0]
		for i := range list {
			spans = append(spans, list[i].span())
			b = append(b, list[i].data...)
		}
		disk, sum := j.disk, sumOf(b)
		head := metaRecord(func(c *coder) { codeJournal(c, &disk, &spans, sum) })
		b = slices.Insert(b, 0, head...)
	}
	j.buf = b
	if len(list) > 0 && len(j.kept) > 0 || j.file == nil {
		return j.replace(b)
	}
	if _, err := j.file.WriteAt(b, 0); err != nil {
		return err
	}
	return j.file.Sync()
}

// replace is for a file of which something may still be needed.
func (j *journal) replace(b []byte) error {
	j.close()
	f, err := replaceFile(j.fsys, journalName, journalNew, b)
	j.file = f
	return err
}

func (j *journal) close() {
	if j.file != nil {
		_ = j.file.Close() // all of it is durable
		j.file = nil
	}
}

// complete does what an earlier life has begun on this disk. What was begun on another one stays, in case that one comes back,
// until there is something else to keep.
func (j *journal) complete(s backend.Store) error {
	disk, list, err := pendingIn(j.fsys)
	if err != nil || len(list) == 0 {
		return err
	}
	kept, err := Inspect(j.fsys)
	if err != nil {
		return err
	}
	was := j.disk
	if kept != nil && backend.Is(s, backend.Identity(kept.Disk)) {
		was = kept.Disk // perhaps by an older kernel
	}
	switch disk {
	case was:
	case j.disk: // an older kernel has not known this disk since, and then all of it was brought level
		return j.save(nil)
	default:
		return nil
	}
	for _, k := range list {
		if err := do(s, backend.Op{Kind: backend.Write, Flags: backend.FUA, Off: k.off, Len: int64(len(k.data)), Segs: [][]byte{k.data}}); err != nil {
			return fmt.Errorf("an atomic write of %d bytes at %d was under way when this node ended, and cannot be completed on its copy: replace the disk, or remove the file %s to go on with a part of it: %w",
				len(k.data), k.off, journalName, err)
		}
	}
	return j.save(nil)
}

// do does an operation and waits for it.
func do(s backend.Store, op backend.Op) error {
	w := make(waiter, 1)
	op.Done = w
	if !s.Submit(&op) {
		<-w
	}
	return op.Err
}

// without returns what is kept outside of a range.
func (j *journal) without(off, n int64) []whole {
	return slices.DeleteFunc(slices.Clone(j.kept), func(k whole) bool { return k.span().overlaps(off, n) })
}

// forget has the file not keep anything in a range any more.
func (j *journal) forget(off, n int64) error {
	left := j.without(off, n)
	if len(left) == len(j.kept) {
		return nil
	}
	if err := j.save(left); err != nil {
		return err
	}
	j.kept = left
	return nil
}

// write does works, which are atomic, do not overlap, and get their errors. What was kept and not completed is completed before.
func (j *journal) write(s backend.Store, works []*work) {
	list := slices.Clone(j.kept)
	var news []whole
	for _, w := range works { // the same once more, or another one instead of what was given up
		list = slices.DeleteFunc(list, func(k whole) bool { return k.span().overlaps(w.op.Off, w.op.Len) })
		news = append(news, whole{w.op.Off, w.segs[0]})
	}
	list = append(list, news...)
	if err := j.save(list); err != nil {
		// It may have the one or the other. What is asked for again is kept once, or memory would grow until there is room.
		old := slices.DeleteFunc(slices.Clone(j.kept), func(k whole) bool {
			return slices.ContainsFunc(news, func(n whole) bool { return n.span().covers(k.span()) })
		})
		j.fail(works, append(old, news...), err)
		return
	}
	ops := make([]backend.Op, len(list))
	done := make(waiter, len(list))
	for i, k := range list {
		ops[i] = backend.Op{Kind: backend.Write, Off: k.off, Len: int64(len(k.data)), Segs: [][]byte{k.data}, Done: done}
		if s.Submit(&ops[i]) {
			done <- struct{}{}
		}
		if i < len(list)-len(works) { // those may overlap
			<-done
		}
	}
	for range works {
		<-done
	}
	if err := do(s, backend.Op{Kind: backend.Flush}); err != nil {
		j.fail(works, list, err)
		return
	}
	var left []whole
	for i := range list {
		if ops[i].Err != nil {
			left = append(left, list[i])
		}
	}
	j.kept = list
	if err := j.save(left); err != nil {
		j.fail(works, list, err)
		return
	}
	j.fail(nil, left, nil)
	for i, w := range works {
		w.op.Err = ops[len(list)-len(works)+i].Err
	}
}

// fail ends works with an error. The file keeps, or may keep, list, whose bytes may be others' memory.
func (j *journal) fail(works []*work, list []whole, err error) {
	for _, w := range works {
		w.op.Err = err
	}
	j.kept = nil
	for _, k := range list {
		j.kept = append(j.kept, whole{k.off, slices.Clone(k.data)})
	}
}

// journaling has the works of the copy that need the journal, in their order.
type journaling struct {
	mu    sync.Mutex // taken last
	queue []*work
	busy  bool // a goroutine does them
}

// journalLater gives a work to the goroutine, and begins one if there is none.
func (m *Mirror) journalLater(w *work) {
	q := &m.journaling
	q.mu.Lock()
	defer q.mu.Unlock()
	q.queue = append(q.queue, w)
	if !q.busy {
		q.busy = true
		m.syncer.Go(m.journalOn)
	}
}

// next returns works that are atomic and can be kept together, or one that is not atomic; none: the goroutine is to end.
func (q *journaling) next() (works []*work) {
	q.mu.Lock()
	defer q.mu.Unlock()
	n, bytes := 0, int64(0)
	for ; n < len(q.queue); n++ {
		w := q.queue[n]
		if n > 0 && (!w.isAtomic() || !q.queue[0].isAtomic() || bytes+w.op.Len > maxTogether) {
			break
		}
		bytes += w.op.Len
	}
	works = slices.Clone(q.queue[:n])
	q.queue = slices.Delete(q.queue, 0, n)
	q.busy = n > 0
	return works
}

func (w *work) isAtomic() bool { return w.op.Flags&backend.Atomic != 0 }

// journalOn does works until none is left.
func (m *Mirror) journalOn() {
	for works := m.journaling.next(); len(works) > 0; works = m.journaling.next() {
		m.doJournaled(works)
		for _, w := range works {
			w.OpDone(&w.op)
		}
	}
}

func (m *Mirror) doJournaled(works []*work) {
	j := &m.journal
	if w := works[0]; w.isAtomic() {
		j.write(m.opts.Copy, works)
	} else if w.op.Err = j.forget(w.op.Off, w.op.Len); w.op.Err == nil {
		w.op.Err = do(m.opts.Copy, w.op)
	}
	var kept []span
	for i := range j.kept {
		kept = append(kept, j.kept[i].span())
	}
	for _, w := range works {
		w.journaled, w.kept = true, kept
	}
	if cap(j.buf) > maxPiece {
		j.buf = nil
	}
}

// needsJournal says whether the copy cannot be given a work directly.
func (m *Mirror) needsJournal(w *work) bool {
	return w.isAtomic() || slices.ContainsFunc(m.kept, func(s span) bool { return s.overlaps(w.op.Off, w.op.Len) })
}

// MaxAtomic implements backend.AtomicWriter: an atomic write is one record.
func (m *Mirror) MaxAtomic() int64 {
	return min(maxPiece, m.cfg.Heap/8) / int64(m.info.BlockSize) * int64(m.info.BlockSize)
}

var _ backend.AtomicWriter = (*Mirror)(nil)
