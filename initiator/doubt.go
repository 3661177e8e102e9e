package initiator

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
)

// A target can put another disk in the place of one that a session uses, or other blocks; all that it says is a unit attention, to one
// of the commands that are under way. Before a command of LU is sent again after such a one, somebody looks:
//
//	sent ─► unit attention ─┬─ of other news ──────────────► sent again
//	                        └─ that raises doubt ─► doubted ─┬─ the same disk ─► sent again, with all that came meanwhile
//	                                                         └─ another one ───► the session ends
//
// A command that LU has not prepared may have the unit attention, too: TEST UNIT READY, say. Then somebody looks before the next command of LU
// is sent.
//
// A medium that has changed needs no look: the command fails. What was under way beside it may have been done by the other disk: so there is no session in which a copy could go on, or a flush
// could say that everything is there.

// errOther is the end of a session that has another disk.
var errOther = errors.New("the target has put another disk in its place")

// raisesDoubt reports whether a unit attention may mean that the unit is another one, or has other blocks.
func raisesDoubt(sense []byte) bool {
	switch _, asc, ascq := senseCodes(sense); asc {
	case ascReset, ascTarget:
		return true
	case ascParameters:
		return ascq == ascqCapacity
	}
	return false
}

// Additional sense codes (SPC-4 annex F).
const (
	ascMedium     = 0x28 // NOT READY TO READY CHANGE, MEDIUM MAY HAVE CHANGED
	ascReset      = 0x29 // POWER ON, RESET, …: also of a unit that was not there before
	ascParameters = 0x2a
	ascqCapacity  = 0x09 // CAPACITY DATA HAS CHANGED
	ascTarget     = 0x3f // TARGET OPERATING CONDITIONS, INQUIRY DATA, REPORTED LUNS DATA HAVE CHANGED
)

// doubt keeps c, which a unit attention has come for, until somebody has looked. The lock is held.
func (s *Session) doubt(c *Command) {
	s.doubted.push(c)
	s.doubts++
	if !s.looking {
		s.looking = true
		s.looks.Go(s.look)
	}
}

// look looks at the units of doubted commands, and has those sent again, or ends them because nobody knows.
func (s *Session) look() {
	s.mu.Lock()
	var seen map[*LU]error
	for {
		doubts := s.doubts
		seen = make(map[*LU]error)
		for unit := s.unseen(seen); unit != nil; unit = s.unseen(seen) {
			s.mu.Unlock()
			err := unit.isSame(context.Background(), s)
			if errors.Is(err, errOther) {
				s.stop(err) // and all commands with it
				return
			}
			s.mu.Lock()
			seen[unit] = err
		}
		if s.doubts == doubts {
			break
		}
	}
	if s.err != nil { // lost ends the commands, or has
		s.mu.Unlock()
		return
	}
	var again list
	for c := s.doubted.pop(); c != nil; c = s.doubted.pop() {
		if c.Err = seen[c.unit]; c.Err != nil {
			s.finished.push(c)
		} else {
			again.push(c)
		}
	}
	for c := s.waiting.pop(); c != nil; c = s.waiting.pop() {
		again.push(c)
	}
	s.waiting, s.looking = again, false
	if s.incoming { // that goroutine does the rest
		s.mu.Unlock()
		return
	}
	over := s.finished
	s.finished = list{}
	s.issue()
	s.mover.flush()
	s.mu.Unlock()
	s.tell(over)
}

// unseen returns a unit of doubted commands that is not in seen, or nil. The lock is held.
func (s *Session) unseen(seen map[*LU]error) *LU {
	for c := s.doubted.head; c != nil; c = c.next {
		if _, has := seen[c.unit]; !has {
			return c.unit
		}
	}
	return nil
}

// heard notes that a command which LU has not prepared, or which is over, had a unit attention that raises doubt. The lock is held.
func (s *Session) heard(lun int) {
	s.news++
	s.known = nil
	if _, is := s.disks[lun]; is {
		s.disks[lun] = ""
	}
}

// knows reports whether u is the unit that was found at its LUN. The lock is held.
func (s *Session) knows(u *LU) bool {
	if u == s.known {
		return true
	}
	if is, found := s.disks[u.lun]; found && is != u.is {
		return false
	}
	s.known = u
	return true
}

// heardSoFar is for found, before somebody asks what is at a LUN.
func (s *Session) heardSoFar() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.news
}

// found notes that l is at its LUN, unless something was heard since: then that is not known.
func (s *Session) found(l *LU, news int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.disks == nil {
		s.disks = make(map[int]string)
	}
	s.disks[l.lun], s.known = l.is, nil
	if s.news != news {
		s.disks[l.lun] = ""
	}
}

// Check says whether the target has put another disk in the place of l. The session would end then, at the latest with the next
// command, so who has copied something, and flushed it, need not ask.
func (l *LU) Check(ctx context.Context) error { return l.isSame(ctx, l.s) }

// isSame looks whether the unit in s is l still. An error other than errOther says that nobody knows.
func (l *LU) isSame(ctx context.Context, s *Session) error {
	news := s.heardSoFar()
	names, err := s.unitNames(ctx, l.lun) // first: the target may give no access before
	switch {
	case err != nil:
		return err
	case names != l.names:
		return fmt.Errorf("LUN %d: %w", l.lun, errOther)
	}
	switch _, block, err := s.capacity(ctx, l.lun); { // takes unit attentions
	case err != nil:
		return err
	case block != l.block:
		return fmt.Errorf("LUN %d: %w: it has blocks of %d bytes, not of %d", l.lun, errOther, block, l.block)
	}
	s.found(l, news)
	return nil
}

// unitNames returns the designators of the unit itself (SPC-4 §7.8.6), not those of the way to it; none: it has none.
func (s *Session) unitNames(ctx context.Context, lun int) (string, error) {
	b, err := s.Inquiry(ctx, lun, 0x83)
	if _, answered := errors.AsType[*StatusError](err); answered {
		return "", nil
	}
	if err != nil || len(b) < 4 {
		return "", err
	}
	var names strings.Builder
	for b = b[4:min(len(b), 4+int(binary.BigEndian.Uint16(b[2:])))]; len(b) >= 4 && len(b)-4 >= int(b[3]); b = b[4+int(b[3]):] {
		if b[1]&association == 0 {
			names.Write(b[:4+int(b[3])])
		}
	}
	return names.String(), nil
}
