package quorum

import (
	"fmt"
	"maps"
	"slices"
	"time"
)

// Report is what a member tells the others of itself, without being asked, once in reportTime. A member of a former version tells nothing, which is the
// zero value.
type Report struct {
	Near  bool     // the others are near, and its disk is fast: a witness may lead
	Lame  bool     // its disk has taken too long lately: it is not to lead
	Stuck bool     // its disk takes nothing now, so it takes no part
	Pace  uint8    // calls of Core.Tick that its round trips ask for in a tick; 0: it takes each for one
	Heard []uint64 // members whose reports it has had lately, in the order of their numbers
}

const (
	reportTime = 5 * tickTime      // between two reports
	heardTicks = 2 * electionTicks // after which a report counts no more
	maxPace    = 16
	samples    = 16 // that are kept of a round trip, some 5 s; as many of saving
)

// What a good place for the lead has. Who has been one stays one up to twice as much.
const (
	nearRTT  = 2 * time.Millisecond
	nearSync = 10 * time.Millisecond
)

// Who takes longer than lameSync for a batch of its log is lame, and is so until no batch has for lameTicks.
const (
	lameSync  = time.Second
	lameTicks = placeRest
)

// reported is what this node knows of another member by its reports.
type reported struct {
	Report
	at   uint64 // tick of the last one
	rtts recent
}

// recent are the newest durations of something.
type recent struct {
	d [samples]time.Duration
	n int // that there were
}

func (r *recent) add(d time.Duration) {
	r.d[r.n%samples] = d
	r.n++
}

// sorted returns those that are kept, the shortest first.
func (r *recent) sorted() []time.Duration {
	d := slices.Clone(r.d[:min(r.n, samples)])
	slices.Sort(d)
	return d
}

// Report returns what this member tells the others.
func (c *Core) Report() Report {
	r := Report{Near: c.near, Lame: c.isLame(), Pace: c.wants}
	for _, number := range slices.Sorted(maps.Keys(c.reports)) {
		if c.hears(number) != nil {
			r.Heard = append(r.Heard, number)
		}
	}
	return r
}

// Reported takes the report of a member that was admitted, and the round trip of messages with it, less than 0 if that was not measured. It says
// whether the member has become stuck, or is so no more.
func (c *Core) Reported(from uint64, r Report, rtt time.Duration) (turned bool) {
	was := c.reports[from]
	if was == nil {
		was = &reported{}
		c.reports[from] = was
	}
	turned = was.Stuck != r.Stuck
	was.Report, was.at = r, c.ticks
	if rtt >= 0 {
		was.rtts.add(rtt)
	}
	return turned
}

// Saved says how long it took to make a batch of the log durable.
func (c *Core) Saved(took time.Duration) {
	c.saves.add(took)
	if took > lameSync {
		c.lameUntil = c.ticks + lameTicks
	}
}

// isLame says whether the disk of this node has taken so long lately that it should not lead: each change would wait for it.
func (c *Core) isLame() bool { return c.ticks < c.lameUntil }

// hears returns what a member has reported lately, nil if it has not.
func (c *Core) hears(number uint64) *reported {
	if r := c.reports[number]; r != nil && c.ticks-r.at <= heardTicks {
		return r
	}
	return nil
}

// lookAtPlace finds out whether this node is near the others. The shortest round trip of those that are kept counts: a longer one has waited for a
// processor, or behind other messages. Of syncs it is the one in the middle.
func (c *Core) lookAtPlace() {
	rtt, sync := nearRTT, nearSync
	if c.near {
		rtt, sync = 2*rtt, 2*sync
	}
	saves := c.saves.sorted()
	near, others := len(saves) > 0 && saves[len(saves)/2] < sync, 0
	for _, v := range c.conf.GetVoters() {
		if r := c.hears(v); r != nil {
			others++
			rtts := r.rtts.sorted()
			near = near && len(rtts) > 0 && rtts[0] < rtt
		}
	}
	c.near = near && others > 0
}

// ownPace returns how many calls of Tick the round trips with other voters ask for in a tick. A tick is to be a round trip at least, so a
// node waits five for a leader: two are needed for the votes, and a packet that is lost holds up what is behind it for one and 200 ms more. Ticks become
// shorter again when a round trip is shorter by an eighth than what asks for longer ones: one that is about as long as some ticks would have them change for ever.
func (c *Core) ownPace() uint8 {
	var most time.Duration
	for _, v := range c.conf.GetVoters() {
		if r := c.hears(v); r != nil {
			if rtts := r.rtts.sorted(); len(rtts) > 0 {
				most = max(most, rtts[0])
			}
		}
	}
	paceOf := func(d time.Duration) uint8 { return uint8(min(max((d+tickTime-1)/tickTime, 1), maxPace)) }
	return max(paceOf(most), min(c.wants, paceOf(most+most/8)))
}

// setPace takes the longest tick that a voter asks for who is heard, so all who hear each other have one length. A leader of longer ticks than a
// follower's is too slow with its heartbeats: the follower asks for votes, in vain, and knows no leader meanwhile. So while a voter
// of a former version is there, ticks stay short.
func (c *Core) setPace() {
	c.wants = c.ownPace()
	pace := c.wants
	for _, v := range c.conf.GetVoters() {
		if r := c.hears(v); r != nil && v != c.log.id.Number {
			if r.Pace == 0 {
				c.pace = 1
				return
			}
			pace = max(pace, min(r.Pace, maxPace))
		}
	}
	c.pace = int(pace)
}

// beat is the payload of an idle frame: a report, and what measures the round trip. Times are of the clock of who has made them, ns from a beginning
// that nobody else knows.
//
//	a ── Sent 100 ──► b          b waits 30 ns, until its own beat is due
//	  ◄── Echo 100, Held 30 ──   at 137: the round trip was 7 ns
type beat struct {
	Sent  uint64
	Echo  uint64 // Sent of the newest beat that has come; 0: none has
	Held  uint64 // ns since it came
	Parts bool   // this node takes frames in parts
	Report
}

func (b *beat) encode() []byte {
	var flags uint8
	if b.Near {
		flags |= 1
	}
	if b.Lame {
		flags |= 2
	}
	if b.Parts {
		flags |= 4
	}
	if b.Stuck {
		flags |= 8
	}
	p := append(appendU64([]byte{1}, b.Sent, b.Echo, b.Held), flags, b.Pace)
	return appendU64(p, b.Heard...)
}

// decodeBeat reads the payload of an idle frame. That of a member of a former version has none.
func decodeBeat(p []byte) (*beat, error) {
	c := cursor{b: p}
	if v := c.u8(); c.err == nil && v != 1 {
		return nil, fmt.Errorf("a report has format %d, which this version does not know", v)
	}
	b := &beat{Sent: c.u64(), Echo: c.u64(), Held: c.u64()}
	flags := c.u8()
	b.Near, b.Lame, b.Parts, b.Stuck = flags&1 != 0, flags&2 != 0, flags&4 != 0, flags&8 != 0
	b.Pace = c.u8()
	for c.err == nil && len(c.b) > 0 {
		b.Heard = append(b.Heard, c.u64())
	}
	if err := c.end(); err != nil {
		return nil, err
	}
	return b, nil
}

// roundTrip returns how long the beat that b answers and b itself were on their way, less than 0 if b answers none of this life. now is of the clock of
// that beat.
func (b *beat) roundTrip(now uint64) time.Duration {
	if b.Echo == 0 || now-b.Echo > uint64(silence) || now-b.Echo < b.Held {
		return -1
	}
	return time.Duration(now - b.Echo - b.Held)
}
