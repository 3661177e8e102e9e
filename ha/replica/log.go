package replica

import (
	"slices"
	"time"
)

// log holds the records from base+1 on without a gap.
type log struct {
	base    uint64
	entries []entry
	memory  bool // nothing that this node has acknowledged is missing
	results []Result
	trim    uint64 // all of S have the records up to it durable
	looks   uint64 // how often a record, or a granule to be copied, was looked at: what steps cost
	// early are the granules of records before the log begins that may not be durable on all of S, until trim
	// reaches earlyTo.
	early   Bits
	earlyTo uint64
}

type entry struct {
	Record
	state entryState
	begun bool          // the disk may have any part of it: given to it, perhaps refused, or not known from a former life; a KindCheck: outside S
	at    time.Duration // when it came; on a primary, when it was committed
}

type entryState uint8

const (
	stateHeld    entryState = iota
	stateWriting            // the disk has it
	stateApplied
)

func (l *log) last() uint64 { return l.base + uint64(len(l.entries)) }

// entry returns the one of seq, or nil. It is valid until the log changes.
func (l *log) entry(seq uint64) *entry {
	l.looks++
	if seq <= l.base || seq > l.last() {
		return nil
	}
	return &l.entries[seq-l.base-1]
}

// handedOn returns copies of the records from seq on, for another node. What a primary before has copied to that node alone is
// not in this node's memory. The node does without: it differed before, and nobody has said that it does not.
func (c *Core) handedOn(seq uint64, to ID) []Record {
	at := len(c.made.recs)
	for i := seq - c.base - 1; i < uint64(len(c.entries)); i++ {
		c.made.recs = append(c.made.recs, c.entries[i].Record)
	}
	recs := c.made.recs[at:len(c.made.recs):len(c.made.recs)]
	for i := range recs {
		if r := &recs[i]; r.Kind == KindResync && r.Copy == to && (c.role != Primary || r.Term != c.view.Term) {
			r.Kind = KindNone
		}
	}
	return recs
}

// maxResults bounds what is kept of COMPARE AND WRITE, which each record is compared with. What was not answered when a primary is lost is among the newest.
const maxResults = 256

// append adds the next record, and does with it what does not wait for the disk.
func (c *Core) append(r Record) {
	if r.Seq != c.log.last()+1 {
		panic("replica: a gap in the log")
	}
	e := entry{Record: r, at: c.now}
	if !r.orders(c.cfg.Self) {
		e.state = stateApplied
	}
	c.entries = append(c.entries, e)
	if r.Kind == KindLost && r.Copy == c.cfg.Self {
		c.lostAt = r.Seq
	}
	if r.isWritten() {
		c.results = slices.DeleteFunc(c.results, func(o Result) bool { return r.overlaps(o.Off, o.Len) || o.Key == r.Key })
		if r.Key != 0 {
			c.results = append(c.results, Result{Key: r.Key, Term: r.Term, Seq: r.Seq, Off: r.Off, Len: r.Len})
		}
		if len(c.results) > maxResults {
			c.results = slices.Delete(c.results, 0, 1)
		}
	}
	c.markRecord(&r)
}

// trimLog forgets records that nobody will ask for.
func (c *Core) trimLog() {
	if c.role == Primary {
		c.trim = max(c.trim, c.lowest(c.durableBy))
	}
	if c.trim >= c.earlyTo {
		c.early = nil
	}
	n := 0
	for to := min(c.trim, c.durable, c.applied); c.base+uint64(n) < to && n < len(c.entries); {
		n++
	}
	if c.role == Primary {
		n = min(n, int(max(c.freed, c.base)-c.base))
	}
	c.entries = slices.Delete(c.entries, 0, n)
	c.base += uint64(n)
}

// lowest is the number that this node and all others have reached.
func (c *Core) lowest(of func(ID) uint64) uint64 {
	n := of(c.cfg.Self)
	for id := range c.others().All() {
		n = min(n, of(id))
	}
	return n
}
