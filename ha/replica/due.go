package replica

import "time"

// Due returns the time, by the clock of Step, at which this node wants a Tick at the latest. Who has something under way, or a reason to
// worry, wants one three times in a heartbeat. If all is quiet a primary wants one when its next beat is to go, and a member one in a
// heartbeat: a process that is woken for nothing costs its machine more than what it does then.
func (c *Core) Due() time.Duration {
	waiting := len(c.writes) + len(c.proving) + len(c.mends)
	if c.IsIdle() && waiting == 0 && !c.refused && c.proposed == nil {
		switch {
		case c.role == Primary && c.wanted == nil:
			return c.beatAt + c.cfg.Heartbeat
		case c.role == Follower && c.stream != 0 && c.fed && c.promised != c.view.Version && c.now-c.lastBeat < c.cfg.Heartbeat*3/2:
			return c.now + c.cfg.Heartbeat
		}
	}
	return c.now + c.cfg.Heartbeat/3
}

// brings says whether this primary brings a copy level.
func (c *Core) brings() bool {
	if c.role != Primary {
		return false
	}
	for id := range (c.cfg.Copies &^ c.view.InSync).All() {
		if c.peer[id].stream != 0 {
			return true
		}
	}
	return false
}
