// Package wal is a log in a partition: records that are appended, made durable many at a time, and read again
// after a restart.
//
//	l, err := wal.Open(ctx, e, wal.Options{})
//	err = l.Replay(ctx, l.First(), func(lsn uint64, p []byte) error { … })
//	lsn, w := l.Append(record)
//	err = w.Wait()                // the record is durable
//	err = l.Truncate(lsn)         // those before it are not needed any more
//
// # Promises
//
// A record is replayed if its Wait has returned nil and it was not truncated. Records are replayed in the order
// of their LSNs, which is that of Append, each with the bytes that were appended, and up to some record all of
// them: one whose Wait did not return nil may be there or not, but none behind one that is missing.
//
// # Shape
//
//	partition │ segment 1 │ segment 2 │ … │ segment n │       a ring: then again from the start
//	segment   │ header │ mark │ record │ record │ … │         each padded to the block
//
// One goroutine writes. It takes all that has been appended meanwhile, and posts it as one durable Write, which is
// contiguous; while that is under way more is appended for the next time. If several
// waited for a batch, they have their turn to append before the next one is taken. There is never more under way than
// one batch, and everything before it is durable.
//
// # Why what is old is never replayed
//
// The ring is written again and again, and a crash may leave any part of the last batch. An entry counts only if
// its sequence is the next one and its checksum, of which the epoch is a part, is right.
//
//   - What an earlier lap has left has smaller sequences.
//   - What a crash has left behind a hole would have the right sequence as soon as the hole is filled. So each
//     time that a log is opened its entries get another epoch. The first thing that is written is a mark with
//     the new epoch, and it is durable before anything is written in that epoch.
//
// # Damage
//
// A crash tears the last batch only, and that proves nothing: it may have been acknowledged or not. What is missing before something that a
// later batch has written was durable. Then the log is damaged, and Open says so (DamagedError) instead of forgetting records. It finds
// a later batch by
//
//   - a header: it is durable before anything is written to its segment, and is written when all before it is durable;
//   - an entry, up to the end of the segment or in the next one, that says that it is the first of its batch, or that is of the next epoch;
//   - an entry that ends more than batchSize behind the hole, for no batch is longer. Of the entries of one epoch nothing else tells in logs of
//     the first version, which do not say where batches begin. A log keeps its version until somebody makes another one in its place.
//
// So damage in the last batch is taken for the end of the log.
//
// # One life at a time
//
// The endpoint is opened with endpoint.Options.Sole: so nothing that an earlier life has sent is written after Open has begun to read.
// An earlier life that still runs loses its connection, and so does a later one if the earlier one comes back. Whoever makes a connection anew
// looks whether somebody else has written where its batch belongs, before it writes that again (commit.go). Then its log has ended, with
// ErrTaken: no record that was acknowledged is overwritten. The first thing that a life writes, a mark or a header, has a number of its own: otherwise two
// that have found the same end and append the same would each take what the other has written for its own.
//
// Open flushes before it returns: what it has found may have been in a cache only, and must not be gone after
// the next crash. Before that it writes again what the last batch may have written: if that has failed, a flush does not help.
package wal

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"time"

	"oneshot/endpoint"
	"oneshot/transport/rdma"
)

const (
	minBlock       = 512
	minSegment     = 4 // blocks
	defaultSegment = 64 << 20
	maxEntry       = 1 << 20 // of one, padded
	batchSize      = 2 << 20 // of all that is written at a time
	maxTries       = 20      // of one batch, over connections that end
	firstPause     = 10 * time.Millisecond
	lastPause      = time.Second
)

// Options say how a log is to be.
type Options struct {
	// Segment is the size of a segment in bytes; Truncate frees whole segments. 0: the size that the log has;
	// a new log gets 64 MiB, or a quarter of the partition if that is less.
	Segment int64
	// Create makes a new log, whatever the partition holds. Without it, Open refuses a partition that holds
	// neither a log nor zeroes where headers would be.
	Create bool
}

// Errors of a log.
var (
	// ErrFull: all segments are in use. Truncate makes room.
	ErrFull = errors.New("wal: the log is full: truncate it")
	// ErrTaken: another life of the program has opened the log and has gone on with it.
	ErrTaken = errors.New("wal: somebody else has opened the log meanwhile, and has written to it")
	// ErrClosed: the log is closed.
	ErrClosed = errors.New("wal: the log is closed")
)

// TooLongError says that a record is longer than this log can hold.
type TooLongError struct{ Len, Max int }

func (e *TooLongError) Error() string {
	return fmt.Sprintf("wal: the record has %d bytes, and this log holds records of up to %d", e.Len, e.Max)
}

// Log is a log. Its methods may be called from any goroutine. The first error of the endpoint is the log's for
// good: what was appended and not acknowledged may be there or not, and Open finds out.
type Log struct {
	e        *endpoint.Endpoint
	block    int64
	segment  int64
	segments uint64
	maxEntry int64
	batches  bool   // entries say where batches begin
	life     uint64 // tells this user of the log from another one who has found the same, and writes the same

	reading sync.Mutex // held by Replay; guards the two below
	reader  reader
	memory  [][]byte // of batches, from the endpoint; nil: given back

	mu    sync.Mutex
	space sync.Cond // the open batch was taken, or has failed
	work  sync.Cond // there is something to write
	done  sync.Cond // a batch has ended

	err     error  // of the endpoint, for good
	closing bool   // Close was called
	epoch   uint64 // of entries from now on
	marked  bool   // it stands in the log, or is about to
	serial  uint64 // of the segment that is written; 0: there is none yet
	pos     int64  // of the next entry in it
	next    uint64 // LSN
	durable uint64 // LSN of the last record that is durable
	needed  uint64 // LSN
	oldest  uint64 // serial of the oldest segment that is kept; durable
	freeing uint64 // what oldest will be when all marks are durable
	kept    []segment
	open    *batch // takes what is appended
	spare   *batch
	// together says that the last batch had more than one record. Then those who have waited for it are about to append
	// again, and the next batch waits until they have had their turn: otherwise it would be half of them each time.
	together bool

	wg  sync.WaitGroup
	ctx context.Context // of the writer
	end context.CancelFunc
	ws  [1]rdma.Work
	sgl [1]rdma.SGE
	cs  [1]rdma.Completion
	gen uint16 // generation of the last batch; 0: none
	on  uint64 // the connection since which nobody else has written, as far as the log has looked
}

// segment is one that is kept.
type segment struct {
	serial uint64
	first  uint64 // LSN
	epoch  uint64 // at its start
}

// batch is what is written at a time: contiguous, within a segment.
type batch struct {
	buf     []byte
	n       int
	off     int64  // in the partition
	at      cursor // of its first entry; of a header: the start of the segment
	behind  cursor // of a header: where entries of the segment before end; serial 0: there is none
	records int
	sealed  bool   // takes nothing more: a header or an epoch, which have to be durable before what follows
	last    uint64 // LSN of its last record; 0: there is none
	oldest  uint64 // what it says in a mark or header; 0: nothing
}

// Wait waits for a record.
type Wait struct {
	l   *Log
	lsn uint64
	err error
}

// Wait returns nil when the record is durable, and an error if it was not added, or if nobody knows whether it is
// durable.
func (w Wait) Wait() error {
	if w.err != nil {
		return w.err
	}
	l := w.l
	l.mu.Lock()
	defer l.mu.Unlock()
	for l.durable < w.lsn {
		if l.err != nil {
			return l.err
		}
		l.done.Wait()
	}
	return nil
}

// Append adds a record, which it copies, and returns its LSN: they count from 1. Wait says when it is durable.
// Append itself waits if more than a batch has been appended while another one is written. With an error, which
// Wait returns, the LSN is 0 and nothing was added.
func (l *Log) Append(p []byte) (lsn uint64, w Wait) {
	size := l.sizeOf(p)
	if size > l.maxEntry {
		return 0, Wait{err: &TooLongError{len(p), int(l.maxEntry - entrySize)}}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.makeRoom(size, false); err != nil {
		return 0, Wait{err: err}
	}
	return l.putRecord(p)
}

// putRecord puts a record into the open batch, which has room.
func (l *Log) putRecord(p []byte) (lsn uint64, w Wait) {
	lsn = l.next
	l.put(l.epoch, uint32(len(p)), p)
	l.open.last = lsn
	l.open.records++
	l.next++
	return lsn, Wait{l: l, lsn: lsn}
}

// put puts an entry into the open batch, and says in it whether it is the first one. It returns its octets, with the padding.
func (l *Log) put(epoch uint64, length uint32, payload []byte) []byte {
	if l.batches && l.open.n == 0 {
		length |= firstBit
	}
	b := l.take(l.sizeOf(payload))
	putEntry(b, epoch, l.next, length, payload)
	return b
}

// sizeOf is that of an entry.
func (l *Log) sizeOf(payload []byte) int64 { return l.padded(entrySize + int64(len(payload))) }

func (l *Log) padded(n int64) int64 { return (n + l.block - 1) &^ (l.block - 1) }

// makeRoom returns when an entry of that size can be taken into the open batch: it begins the epoch, or another
// segment, if it has to. The lock is held, and released while it waits.
func (l *Log) makeRoom(size int64, forMark bool) error {
	for {
		switch {
		case l.err != nil:
			return l.err
		case l.closing:
			return ErrClosed
		}
		before := l.block // a mark
		if l.marked || forMark {
			before = 0
		}
		fits := l.serial != 0 && l.pos+before+size <= l.limit(forMark)
		if !fits && !l.hasNext() {
			if !forMark || l.freeing <= l.oldest {
				return ErrFull
			}
			l.done.Wait() // the mark that has the place of this one makes room
			continue
		}
		b := l.open
		switch {
		case fits && (l.marked || forMark) && !b.sealed && int64(b.n)+size <= batchSize:
			return nil
		case b.n > 0: // it has to go first
			l.space.Wait()
		case !fits:
			l.beginSegment()
		default:
			l.putMark(l.oldest)
		}
	}
}

// limit is where entries of the current segment have to end. In the last one there is always room for a mark,
// for Truncate writes one before there is room again.
func (l *Log) limit(forMark bool) int64 {
	if forMark || l.hasNext() {
		return l.segment
	}
	return l.segment - l.block
}

// hasNext reports whether another segment may be begun.
func (l *Log) hasNext() bool { return l.serial == 0 || l.serial+1-l.oldest < l.segments }

// beginSegment puts the header of the next segment into the open batch, which is empty. It has the epoch.
func (l *Log) beginSegment() {
	behind := l.here()
	l.serial++
	l.pos = 0
	h := header{
		batches: l.batches, block: uint32(l.block), segments: uint32(l.segments), segment: uint64(l.segment),
		serial: l.serial, epoch: l.epoch, first: l.next, oldest: l.oldest, needed: l.needed, life: l.life,
	}
	l.kept = append(l.kept, segment{l.serial, l.next, l.epoch})
	h.put(l.take(l.block))
	l.open.sealed = true
	l.open.behind = behind
	l.marked = true
}

// putMark puts a mark into the open batch. If it begins the epoch, it has to be durable before anything else is
// written.
func (l *Log) putMark(oldest uint64) {
	before := l.epoch
	if !l.marked { // then it belongs to the epoch before
		before--
		l.open.sealed = true
	}
	p := mark{l.epoch, oldest, l.needed}.bytes()
	b := l.put(before, markSize|markBit, p[:])
	binary.BigEndian.PutUint64(b[entrySize+markSize:], l.life)
	l.marked = true
	l.open.oldest = max(l.open.oldest, oldest)
	l.freeing = max(l.freeing, oldest)
}

// take returns the next size octets of the log, in the open batch, and wakes the writer.
func (l *Log) take(size int64) []byte {
	b := l.open
	if b.n == 0 {
		b.off = l.start(l.serial) + l.pos
		b.at = l.here()
		l.work.Signal()
	}
	p := b.buf[b.n : b.n+int(size)]
	b.n += int(size)
	l.pos += size
	return p
}

// here is where the next entry belongs.
func (l *Log) here() cursor {
	c := cursor{segment{}, l.pos, l.epoch, l.next}
	if n := len(l.kept); n > 0 {
		c.segment = l.kept[n-1]
	}
	if !l.marked {
		c.epoch--
	}
	return c
}

// start is where a segment begins in the partition.
func (l *Log) start(serial uint64) int64 { return int64((serial-1)%l.segments) * l.segment }

// First returns the LSN of the first record that is kept, or of the next one if there is none.
func (l *Log) First() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return max(l.needed, l.kept0())
}

// kept0 is the LSN of the first record that stands in the log.
func (l *Log) kept0() uint64 {
	if len(l.kept) == 0 {
		return l.next
	}
	return l.kept[0].first
}

// Durable returns the LSN of the last record that is durable; below First, or 0: there is none.
func (l *Log) Durable() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.durable
}

// Truncate says that records below lsn are not needed any more. If that frees segments, it returns when this is
// durable, and the segments may be written again. If it frees none, it is forgotten at a restart.
func (l *Log) Truncate(lsn uint64) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if lsn > l.next {
		return fmt.Errorf("wal: truncate below %d: the next record is %d", lsn, l.next)
	}
	oldest := l.oldest
	for _, s := range l.kept {
		if s.first <= lsn {
			oldest = s.serial
		}
	}
	if oldest <= l.oldest {
		l.needed = max(l.needed, lsn)
		return nil
	}
	if err := l.makeRoom(l.block, true); err != nil {
		return err
	}
	l.needed = max(l.needed, lsn)
	l.putMark(max(oldest, l.oldest))
	for l.oldest < oldest {
		if l.err != nil {
			return l.err
		}
		l.done.Wait()
	}
	return nil
}

// run is the writer.
func (l *Log) run() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for {
		for l.open.n == 0 && !l.closing {
			l.work.Wait()
		}
		b := l.open
		if b.n == 0 || l.err != nil {
			return
		}
		if l.together {
			l.mu.Unlock()
			runtime.Gosched()
			l.mu.Lock()
		}
		l.together = b.records > 1
		l.open, l.spare = l.spare, nil
		l.space.Broadcast()
		l.mu.Unlock()
		err := l.commit(b)
		l.mu.Lock()
		l.ends(b, err)
	}
}

// ends notes how a batch has ended.
func (l *Log) ends(b *batch, err error) {
	if err != nil {
		l.err = fmt.Errorf("wal: records could not be made durable; open the log again: %w", err)
		l.space.Broadcast()
	} else {
		l.durable = max(l.durable, b.last)
		if b.oldest > l.oldest {
			l.oldest = b.oldest
			for len(l.kept) > 0 && l.kept[0].serial < l.oldest {
				l.kept = l.kept[1:]
			}
		}
	}
	b.n, b.records, b.sealed, b.last, b.oldest = 0, 0, false, 0, 0
	l.spare = b
	l.done.Broadcast()
}

// Close waits until everything that was appended is durable, and ends the log. The endpoint stays open.
func (l *Log) Close() error {
	l.mu.Lock()
	l.closing = true
	l.work.Broadcast()
	l.space.Broadcast()
	l.mu.Unlock()
	l.wg.Wait()
	l.end()
	l.reading.Lock()
	defer l.reading.Unlock()
	err := l.release()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err == nil {
		l.err = ErrClosed
		l.done.Broadcast()
	} else if !errors.Is(l.err, ErrClosed) {
		err = errors.Join(l.err, err)
	}
	return err
}
