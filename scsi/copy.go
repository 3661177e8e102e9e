package scsi

import (
	"slices"

	"oneshot/volume"
)

// Copies between logical units without the initiator: EXTENDED COPY (xcopy.go) and WRITE USING
// TOKEN (rod.go). A copy is a list of steps that the task of the command does piece by piece,
// each read into one lease and then written. While a piece is read or written Task.lu is the logical
// unit that it is in.
//
// The volumes of source and destination are pinned: they are not closed before the command is over. A range
// that overlaps its own destination is copied from the end that does not overwrite what is
// still to be read.

// copyStep copies n bytes.
type copyStep struct {
	from *LogicalUnit // nil: zeroes
	to   *LogicalUnit
	src  int64 // bytes
	dst  int64
	n    int64
	rod  *volume.Token // which the source belongs to, or nil
}

// overwrites reports whether the step writes what x reads.
func (s *copyStep) overwrites(x *copyStep) bool {
	return x.from != nil && x.from.v == s.to.v && s.dst < x.src+x.n && x.src < s.dst+s.n
}

// copying is a copy under way. The task has it.
type copying struct {
	steps  []copyStep
	at     int   // the current step
	done   int64 // bytes of it
	result *copyResult
	pinned []pinned
	guards []*volume.Token // of a late copy: for what it is still to write to each of pinned; nil: nothing
	writes bool            // a piece is being written
	token  *rodToken       // whose data are copied; may be nil
	spends bool            // the token is deleted when all is copied
}

// pinned is a volume that a copy is about, and its term, in which all of the copy takes place.
type pinned struct {
	v    *volume.Volume
	term uint64
}

// termOf is the term of a volume that is pinned.
func (c *copying) termOf(v *volume.Volume) uint64 { return c.pinned[c.indexOf(v)].term }

func (c *copying) indexOf(v *volume.Volume) int {
	return slices.IndexFunc(c.pinned, func(p pinned) bool { return p.v == v })
}

// Sense data of copies that cannot go on (SPC-4 §6.4.6.1).
var (
	senseCopyFailed      = Sense{Key: keyCopyAborted, Code: 0x0d01} // THIRD PARTY DEVICE FAILURE
	senseCopyUnreachable = Sense{Key: keyCopyAborted, Code: 0x0d02} // COPY TARGET DEVICE NOT REACHABLE
	senseCopyWrongType   = Sense{Key: keyCopyAborted, Code: 0x0d03} // INCORRECT COPY TARGET DEVICE TYPE
	senseCopyAborted     = Sense{Key: keyCopyAborted}
)

// startCopy checks and pins what the steps are about, and begins. result is where to note how
// it goes. Nothing is copied if any step cannot be. token, unless it is nil, does not expire meanwhile, and is deleted when all is copied
// if spends is set.
func (t *Task) startCopy(steps []copyStep, result *copyResult, token *rodToken, spends bool) Next {
	c := &copying{steps: steps, result: result, token: token, spends: spends}
	t.copying = c
	if token != nil {
		t.Nexus.target.copies.enter(token)
	}
	most := int64(1)
	for i := range steps {
		s := &steps[i]
		for _, lu := range []*LogicalUnit{s.from, s.to} {
			if lu == nil || slices.ContainsFunc(c.pinned, func(p pinned) bool { return p.v == lu.v }) {
				continue
			}
			if !lu.v.Pin() {
				return t.copyEnd(senseCopyUnreachable)
			}
			term := lu.v.Term() // before it is looked at what the nexus may do
			if lu.v == t.lu.v {
				term = t.r.Term()
			}
			c.pinned = append(c.pinned, pinned{lu.v, term})
		}
		if bad := t.copyAllowed(s); bad != (Sense{}) {
			return t.copyEnd(bad)
		}
		if s.from != nil {
			most = max(most, s.n)
		}
	}
	t.Nexus.enterCopy(t)
	return t.r.CopyMemory(most, t.before((*Task).copyNext)) // in place of that of the parameter list
}

// enterCopy notes a copy whose volumes are pinned. What the nexus may do with them is looked at afterwards, so who forbids it either keeps the
// copy from beginning, or finds it.
func (n *Nexus) enterCopy(t *Task) {
	n.copiersMu.Lock()
	defer n.copiersMu.Unlock()
	n.copiers = append(n.copiers, t)
}

func (n *Nexus) leaveCopy(t *Task) {
	n.copiersMu.Lock()
	defer n.copiersMu.Unlock()
	n.copiers = slices.DeleteFunc(n.copiers, func(o *Task) bool { return o == t })
}

// abortCopies aborts the copies of the nexus that read or write a volume and are commands to another logical unit than i's.
func (i *itl) abortCopies(m *manager) {
	n := i.nexus
	n.copiersMu.Lock()
	defer n.copiersMu.Unlock()
	for _, t := range n.copiers {
		if t.itl != i && slices.ContainsFunc(t.copying.pinned, func(p pinned) bool { return p.v == i.lu.v }) {
			t.itl.abortOne(m, t)
		}
	}
}

// copyAllowed checks a step against capacities, reservations and conditions.
func (t *Task) copyAllowed(s *copyStep) Sense {
	if s.to.writeProtected() {
		return senseCopyFailed
	}
	if bad := t.copyDenied(s.to, denials(writesMedium)); bad != (Sense{}) {
		return bad
	}
	if !s.to.holds(s.dst, s.n) || s.from != nil && !s.from.holds(s.src, s.n) {
		return senseCopyAborted
	}
	if s.from == nil || s.rod != nil { // who has a token may read what it stands for
		return Sense{}
	}
	return t.copyDenied(s.from, denials(readsMedium))
}

// copyDenied checks what the nexus may do with lu.
func (t *Task) copyDenied(lu *LogicalUnit, mask uint32) Sense {
	for _, i := range *t.Nexus.table.Load() {
		if i.lu != lu {
			continue
		}
		switch denied := i.denied.Load() & mask; {
		case denied&denyConditions != 0:
			return senseCopyUnreachable
		case denied != 0:
			return senseCopyFailed
		}
		return Sense{}
	}
	return senseCopyUnreachable
}

// holds reports whether [off, off+n) lies within the capacity.
func (lu *LogicalUnit) holds(off, n int64) bool {
	size := int64(lu.blocks()) << lu.blockShift
	return off >= 0 && n >= 0 && off <= size && n <= size-off
}

// copyNext begins the next piece.
func (t *Task) copyNext() Next {
	c := t.copying
	for c.at < len(c.steps) && c.done == c.steps[c.at].n {
		c.at, c.done = c.at+1, 0
		c.result.segments.Add(1)
	}
	if c.at == len(c.steps) {
		return t.copyEnd(Sense{})
	}
	s := &c.steps[c.at]
	if bad := t.copyAllowed(s); bad != (Sense{}) { // it may have changed since the last piece
		return t.copyEnd(bad)
	}
	if s.from == nil {
		t.n = min(s.n-c.done, volume.MaxZero)
		return t.copyInto(s, c.done)
	}
	t.n = min(s.n-c.done, int64(len(t.r.Data())))
	t.lu = s.from
	return t.r.CopyRead(s.from.v, c.termOf(s.from.v), s.src+s.next(c.done, t.n), t.n, t.before((*Task).copyHave))
}

// next is the offset of the next piece of n bytes in the step.
func (s *copyStep) next(done, n int64) int64 {
	if s.from != nil && s.from.v == s.to.v && s.dst > s.src && s.dst-s.src < s.n {
		return s.n - done - n
	}
	return done
}

func (t *Task) copyHave() Next {
	c := t.copying
	s := &c.steps[c.at]
	switch {
	case t.r.Err != nil:
		return t.copyFailed()
	case s.rod != nil && !s.rod.Valid():
		return t.copyEnd(senseTokenRevoked)
	}
	return t.copyInto(s, s.next(c.done, t.n))
}

// copyInto writes the piece at offset off of the step's destination.
func (t *Task) copyInto(s *copyStep, off int64) Next {
	c := t.copying
	t.lu = s.to
	c.writes = true
	if i := c.indexOf(s.to.v); c.guards != nil {
		piece := c.guards[i]
		c.guards[i] = c.guard(s.to.v, c.done+t.n) // before it is looked at that of the piece
		t.r.Guarded(piece)
	}
	return t.r.CopyWrite(s.to.v, c.termOf(s.to.v), s.dst+off, t.n, s.from == nil, t.before((*Task).copyWritten))
}

// copyIsLate has the copy leave alone what it has not come to if others change it from now on (volume.Request.Overdue).
func (t *Task) copyIsLate() {
	c := t.copying
	if c.guards != nil || t.ended != notEnded {
		return
	}
	done := c.done
	if c.writes {
		if s := &c.steps[c.at]; t.r.Parked() { // the piece has not its range yet
			t.r.Guarded(s.to.v.Guard([]volume.Range{{Off: s.dst + s.next(c.done, t.n), N: t.n}}))
		}
		done += t.n
	}
	for _, p := range c.pinned {
		c.guards = append(c.guards, c.guard(p.v, done))
	}
}

// guard is a token for what the copy is still to write to v, when done bytes of the current step are written; nil: nothing.
func (c *copying) guard(v *volume.Volume, done int64) *volume.Token {
	var left []volume.Range
	for i := c.at; i < len(c.steps); i, done = i+1, 0 {
		if s := &c.steps[i]; s.to.v == v && done < s.n {
			left = append(left, volume.Range{Off: s.dst + s.next(done, s.n-done), N: s.n - done})
		}
	}
	if left == nil {
		return nil
	}
	return v.Guard(left)
}

func (t *Task) copyWritten() Next {
	c := t.copying
	if c.writes = false; t.r.Err != nil {
		return t.copyFailed()
	}
	c.done += t.n
	c.result.bytes.Add(t.n)
	return t.r.Yield(t.before((*Task).copyNext))
}

// copyFailed ends the copy as a store has failed.
func (t *Task) copyFailed() Next {
	t.lu.log.storeError(t)
	s := t.lu.senseOf(t.r.Err)
	switch {
	case t.r.Err == volume.ErrOvertaken:
		return t.copyEnd(s)
	case s.Code == senseNoSpace.Code:
		return t.copyEnd(senseNoSpace)
	case s == senseTransition && t.copying.repeats():
		return t.copyEnd(s)
	}
	return t.copyEnd(senseCopyFailed)
}

// repeats reports whether the copy may be done again from its beginning, whatever it has done: it writes nothing that it reads.
func (c *copying) repeats() bool {
	for i := range c.steps {
		if slices.ContainsFunc(c.steps, func(x copyStep) bool { return c.steps[i].overwrites(&x) }) {
			return false
		}
	}
	return true
}

// copyEnd ends the command.
func (t *Task) copyEnd(s Sense) Next {
	t.lu = t.itl.lu
	c := t.copying
	if s == (Sense{}) && c.spends {
		t.Nexus.target.copies.delete(c.token)
	}
	c.result.end(s)
	if s != (Sense{}) {
		return t.check(s)
	}
	return t.good()
}

// leaveCopy lets go of what a copy has pinned, when it has ended.
func (t *Task) leaveCopy() {
	t.Nexus.leaveCopy(t)
	t.lu = t.itl.lu
	t.copying.result.end(Sense{Key: keyAbortedCommand}) // unless it has ended before
	if t.copying.token != nil {
		t.Nexus.target.copies.leave(t.copying.token)
	}
	for _, g := range t.copying.guards {
		if g != nil {
			g.Revoke()
		}
	}
	for _, p := range t.copying.pinned {
		p.v.Unpin()
	}
	t.copying = nil
}
