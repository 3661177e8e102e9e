package scsi

import (
	"sync/atomic"
	"time"

	"oneshot/internal/latency"
)

// CommandClass is a class of commands that are counted together.
type CommandClass uint8

// The classes.
const (
	ClassRead  CommandClass = iota // READ of any length
	ClassWrite                     // WRITE of any length, also with VERIFY, atomic or not
	ClassOther                     // everything else: flushes, unmaps, compares, inquiries

	CommandClasses = 3
)

// classes has one entry for each operation code.
var classes = func() (c [256]CommandClass) {
	for i := range c {
		c[i] = ClassOther
	}
	for _, op := range []byte{0x08, 0x28, 0xa8, 0x88} {
		c[op] = ClassRead
	}
	for _, op := range []byte{0x0a, 0x2a, 0xaa, 0x8a, 0x2e, 0xae, 0x8e, 0x9c} {
		c[op] = ClassWrite
	}
	return c
}()

// LatencyBuckets is the number of buckets of a Histogram.
const LatencyBuckets = latency.Buckets

// LatencyBound returns the latency below which everything in bucket i lies. The last bucket
// has no bound; its value is the largest Duration.
func LatencyBound(i int) time.Duration { return latency.Bound(i) }

// Histogram is how long commands took, from the arrival of the command to the departure of
// its answer.
type Histogram struct {
	Buckets [LatencyBuckets]uint64 // commands; LatencyBound says of which latency
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

// The failures: statuses other than GOOD, CHECK CONDITION by its sense key.
const (
	FailedMedium      Failure = iota // MEDIUM ERROR
	FailedHardware                   // HARDWARE ERROR: the store, for a reason of its own
	FailedProtect                    // DATA PROTECT: read-only, or no space
	FailedRequest                    // ILLEGAL REQUEST
	FailedAborted                    // ABORTED COMMAND, and commands that task management aborted
	FailedMiscompare                 // MISCOMPARE
	FailedAttention                  // UNIT ATTENTION
	FailedOtherSense                 // any other sense key
	FailedReservation                // RESERVATION CONFLICT
	FailedTaskSetFull                // TASK SET FULL, BUSY
	failures

	Failures = int(failures)
)

var failureNames = [Failures]string{
	"medium_error", "hardware_error", "data_protect", "illegal_request", "aborted_command",
	"miscompare", "unit_attention", "other_sense", "reservation_conflict", "task_set_full",
}

func (f Failure) String() string { return failureNames[f] }

// IOStats counts the commands of a logical unit or a nexus. It is a copy, and the caller's.
type IOStats struct {
	Commands              [CommandClasses]Histogram
	ReadBytes, WriteBytes uint64 // of commands of ClassRead and ClassWrite that ended well
	Failed                [Failures]uint64
	InFlight              int64 // commands begun and not answered, at about this moment
}

// Add adds o to s.
func (s *IOStats) Add(o *IOStats) {
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

// counts is IOStats of one I_T_L nexus, while it lives. Its writers hold the lock of one
// connection, so its cache lines stay with that connection; it is read seldom. It is atomic for the
// sake of its readers.
type counts struct {
	buckets [CommandClasses][LatencyBuckets]atomic.Uint64
	sums    [CommandClasses]atomic.Int64 // nanoseconds
	bytes   [2]atomic.Uint64             // ClassRead, ClassWrite
	failed  [Failures]atomic.Uint64
}

func (c *counts) addTo(s *IOStats) {
	for i := range c.buckets {
		h := &s.Commands[i]
		for j := range c.buckets[i] {
			h.Buckets[j] += c.buckets[i][j].Load()
		}
		h.Sum += time.Duration(c.sums[i].Load())
	}
	s.ReadBytes += c.bytes[ClassRead].Load()
	s.WriteBytes += c.bytes[ClassWrite].Load()
	for i := range c.failed {
		s.Failed[i] += c.failed[i].Load()
	}
}

// Account counts a command that has been answered took nanoseconds after it came. The
// transport calls it at most once for each command, between Done and Release. It allocates
// at the first command of an I_T_L nexus only.
func (t *Task) Account(took int64) {
	if t.itl == nil {
		return
	}
	c := t.itl.count()
	class := classes[t.CDB[0]]
	c.buckets[class][latency.Bucket(took)].Add(1)
	c.sums[class].Add(took)
	switch {
	case t.Status != Good && t.Status != ConditionMet:
		c.failed[t.failure()].Add(1)
	case class == ClassRead:
		c.bytes[ClassRead].Add(min(t.Transfer, uint64(t.DataInLen)))
	case class == ClassWrite:
		c.bytes[ClassWrite].Add(min(t.Transfer, uint64(t.DataOutLen)))
	}
}

// AccountAborted counts a command that ends without an answer.
func (t *Task) AccountAborted() {
	if t.itl != nil {
		t.itl.count().failed[FailedAborted].Add(1)
	}
}

// count returns the counts of i, which exist from the first command on: a target with a
// thousand units and a thousand sessions has a million I_T_L nexuses, most of them idle.
func (i *itl) count() *counts {
	if c := i.counts.Load(); c != nil {
		return c
	}
	i.counts.CompareAndSwap(nil, new(counts))
	return i.counts.Load()
}

var senseFailures = [16]Failure{
	keyNoSense: FailedOtherSense, 0x1: FailedOtherSense, 0x2: FailedOtherSense, keyMediumError: FailedMedium,
	keyHardwareError: FailedHardware, keyIllegalRequest: FailedRequest, keyUnitAttention: FailedAttention,
	keyDataProtect: FailedProtect, 0x8: FailedOtherSense, 0x9: FailedOtherSense, 0xa: FailedOtherSense,
	keyAbortedCommand: FailedAborted, 0xc: FailedOtherSense, 0xd: FailedOtherSense, keyMiscompare: FailedMiscompare,
	0xf: FailedOtherSense,
}

func (t *Task) failure() Failure {
	switch {
	case t.Status == ReservationConflict:
		return FailedReservation
	case t.Status == TaskSetFull || t.Status == Busy:
		return FailedTaskSetFull
	case t.Status == TaskAborted:
		return FailedAborted
	case len(t.Sense) < 3:
		return FailedOtherSense
	case t.Sense[0]&0x7f >= 0x72: // descriptor format (SPC-4 §4.5.2)
		return senseFailures[t.Sense[1]&0xf]
	}
	return senseFailures[t.Sense[2]&0xf]
}

// LUNStats is what happened on one LUN of a target since the target exists.
type LUNStats struct {
	LUN uint16
	LU  *LogicalUnit // which is there now
	IOStats
}

// Stats returns one entry for each LUN, in their order.
func (t *Target) Stats() []LUNStats {
	t.mu.Lock()
	defer t.mu.Unlock()
	all := make([]LUNStats, len(t.luns))
	at := make(map[uint16]*LUNStats, len(t.luns))
	for k, e := range t.luns {
		all[k].LUN, all[k].LU = e.lun, e.lu
		if past := t.past[e.lun]; past != nil {
			all[k].IOStats = *past
		}
		at[e.lun] = &all[k]
	}
	add := func(places []*itl) {
		for _, i := range places {
			if s := at[i.of]; s != nil {
				i.addTo(&s.IOStats)
			}
		}
	}
	for n := range t.nexuses {
		add(n.places())
	}
	for _, places := range t.leaving {
		add(places)
	}
	return all
}

func (i *itl) addTo(s *IOStats) {
	s.InFlight += i.running.Load()
	if c := i.counts.Load(); c != nil {
		c.addTo(s)
	}
}

// Stats returns what the nexus did on all logical units.
func (n *Nexus) Stats() (s IOStats) {
	n.target.mu.Lock()
	defer n.target.mu.Unlock()
	for _, i := range n.places() {
		i.addTo(&s)
	}
	return s
}

// history is what nexuses that have ended counted, so that the counts of a target never go
// back.
type history struct {
	past    map[uint16]*IOStats // by LUN
	leaving map[*Nexus][]*itl   // closed, with tasks that are still to be released
}

// leave notes that n has been closed. Target.mu is held.
func (t *Target) leave(n *Nexus, places []*itl) {
	if t.leaving == nil {
		t.past, t.leaving = make(map[uint16]*IOStats), make(map[*Nexus][]*itl)
	}
	t.leaving[n] = places
}

// remember keeps the counts of n, whose last task has been released.
func (t *Target) remember(n *Nexus) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, i := range t.leaving[n] {
		c := i.counts.Load()
		if c == nil {
			continue
		}
		if t.past[i.of] == nil {
			t.past[i.of] = new(IOStats)
		}
		c.addTo(t.past[i.of])
	}
	delete(t.leaving, n)
}
