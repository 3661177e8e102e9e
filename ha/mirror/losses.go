package mirror

import (
	"fmt"
	"log/slog"
	"strings"
	"time"

	"oneshot/ha/replica"
)

// losses are the ranges that no copy can read, which a copy that is brought level goes without, and that the log has not named yet. The
// administrator restores them, so all are named, as many in a line as are found within gatherLosses.
type losses struct {
	to     replica.ID
	since  time.Duration
	ranges []span // in the order in which they were found; neighbours are one
}

// gatherLosses is how long a line of the log waits for further ranges, and namedLosses how many it names: then it is written at once.
const (
	gatherLosses = time.Second
	namedLosses  = 64
)

// lose notes a range.
func (m *Mirror) lose(a *replica.Lost) {
	l := &m.losses
	m.lost += a.Len
	if len(l.ranges) > 0 && l.to != a.To {
		m.nameLosses()
	}
	if n := len(l.ranges); n > 0 && l.ranges[n-1].off+l.ranges[n-1].n == a.Off {
		l.ranges[n-1].n += a.Len
		return
	}
	if len(l.ranges) == namedLosses {
		m.nameLosses()
	}
	if len(l.ranges) == 0 {
		l.to, l.since = a.To, m.now
	}
	l.ranges = append(l.ranges, span{a.Off, a.Len})
}

// nameLosses writes the line that is due.
func (m *Mirror) nameLosses() {
	l := &m.losses
	var text strings.Builder
	var n int64
	for _, r := range l.ranges {
		n += r.n
		fmt.Fprintf(&text, " %d+%d", r.off, r.n)
	}
	l.ranges = l.ranges[:0]
	m.opts.Log.LogAttrs(m.ctx, slog.LevelError, "no copy of a mirror can read parts of it: a copy that is brought level goes without, and reads there fail until they are written",
		slog.Int("node", int(l.to)), slog.String("ranges", text.String()[1:]), slog.Int64("bytes", n))
}
