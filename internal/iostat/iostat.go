// Package iostat counts commands, whichever protocol brings them: how many of each class, how long they took, and how
// they failed.
package iostat

import (
	"sync/atomic"
	"time"

	"oneshot/internal/latency"
)

// Class is a class of commands that are counted together.
type Class uint8

// The classes.
const (
	Read  Class = iota // READ of any length
	Write              // WRITE of any length, also with VERIFY, atomic or not
	Other              // everything else: flushes, unmaps, compares, inquiries

	Classes = 3
)

// Histogram is how long commands took, from the arrival of the command to the departure of
// its answer.
type Histogram struct {
	Buckets [latency.Buckets]uint64 // commands; latency.Bound says of which latency
	Sum     time.Duration
}

// Count is the number of commands.
func (h *Histogram) Count() (n uint64) {
	for _, b := range h.Buckets {
		n += b
	}
	return n
}

func (h *Histogram) add(o *Histogram) {
	for i, n := range o.Buckets {
		h.Buckets[i] += n
	}
	h.Sum += o.Sum
}

// Failure is a class of commands that did not end well.
type Failure uint8

// The failures, by sense key and status of SCSI, and by status of NVMe.
const (
	MediumError         Failure = iota // MEDIUM ERROR; Write Fault, Unrecovered Read Error
	HardwareError                      // HARDWARE ERROR, Internal Error: the store, for a reason of its own
	DataProtect                        // DATA PROTECT: read-only, or no space
	IllegalRequest                     // ILLEGAL REQUEST
	AbortedCommand                     // ABORTED COMMAND, and commands that somebody aborted
	Miscompare                         // MISCOMPARE, Compare Failure
	UnitAttention                      // UNIT ATTENTION
	OtherSense                         // any other sense key or status
	ReservationConflict                // RESERVATION CONFLICT
	TaskSetFull                        // TASK SET FULL, BUSY; Command Interrupted
	failures

	Failures = int(failures)
)

var failureNames = [Failures]string{
	"medium_error", "hardware_error", "data_protect", "illegal_request", "aborted_command",
	"miscompare", "unit_attention", "other_sense", "reservation_conflict", "task_set_full",
}

func (f Failure) String() string { return failureNames[f] }

// Stats counts commands. It is a copy, and the caller's.
type Stats struct {
	Commands              [Classes]Histogram
	ReadBytes, WriteBytes uint64 // of commands of Read and Write that ended well
	Failed                [Failures]uint64
	InFlight              int64 // commands begun and not answered, at about this moment
}

// Add adds o to s.
func (s *Stats) Add(o *Stats) {
	for i := range s.Commands {
		s.Commands[i].add(&o.Commands[i])
	}
	s.ReadBytes += o.ReadBytes
	s.WriteBytes += o.WriteBytes
	for i, n := range o.Failed {
		s.Failed[i] += n
	}
	s.InFlight += o.InFlight
}

// Counts are Stats while they are counted. Their writers hold the lock of one connection, so that their cache lines stay
// with that connection; they are read seldom. They are atomic for the sake of their readers.
type Counts struct {
	buckets [Classes][latency.Buckets]atomic.Uint64
	sums    [Classes]atomic.Int64 // nanoseconds
	bytes   [2]atomic.Uint64      // Read, Write
	failed  [Failures]atomic.Uint64
}

// AddTo adds what was counted to s.
func (c *Counts) AddTo(s *Stats) {
	for i := range c.buckets {
		h := &s.Commands[i]
		for j := range c.buckets[i] {
			h.Buckets[j] += c.buckets[i][j].Load()
		}
		h.Sum += time.Duration(c.sums[i].Load())
	}
	s.ReadBytes += c.bytes[Read].Load()
	s.WriteBytes += c.bytes[Write].Load()
	for i := range c.failed {
		s.Failed[i] += c.failed[i].Load()
	}
}

// Answered counts a command that was answered took nanoseconds after it came.
func (c *Counts) Answered(class Class, took int64) {
	c.buckets[class][latency.Bucket(took)].Add(1)
	c.sums[class].Add(took)
}

// Moved counts the bytes of a command of Read or Write that ended well.
func (c *Counts) Moved(class Class, bytes uint64) { c.bytes[class].Add(bytes) }

// Failed counts a command that did not end well, or was not answered.
func (c *Counts) Failed(f Failure) { c.failed[f].Add(1) }

// Lazy are counts that exist from the first command on: a target with a thousand units and a thousand connections has a
// million places where units are reached, most of them idle. The zero value is ready.
type Lazy struct{ counts atomic.Pointer[Counts] }

// Get returns the counts. It allocates the first time only.
func (l *Lazy) Get() *Counts {
	if c := l.counts.Load(); c != nil {
		return c
	}
	l.counts.CompareAndSwap(nil, new(Counts))
	return l.counts.Load()
}

// AddTo adds what was counted, if anything was, to s.
func (l *Lazy) AddTo(s *Stats) {
	if c := l.counts.Load(); c != nil {
		c.AddTo(s)
	}
}
