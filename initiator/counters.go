package initiator

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"oneshot/iscsi/text"
)

// Counter is a count with its name.
type Counter struct {
	Name  string
	Value uint64
}

// Counters are what has crossed between an end and its network. Over TCP these are the system
// calls that read and write, also those that find nothing to read or no room (all that a Sink reads at once counts as one), PDUs,
// bytes, and those of them (bytes_moved) that were received elsewhere than where they belong, and copied; over RDMA those of
// rdma.Counters.
type Counters []Counter

// Get returns the count of a name, 0 if there is none.
func (c Counters) Get(name string) uint64 {
	for _, x := range c {
		if x.Name == name {
			return x.Value
		}
	}
	return 0
}

// Sub returns what has been added to c since o.
func (c Counters) Sub(o Counters) Counters {
	d := make(Counters, len(c))
	for i, x := range c {
		d[i] = Counter{x.Name, x.Value - o.Get(x.Name)}
	}
	return d
}

// Crossings are the hand-overs between a program and what moves its bytes, whatever is in each
// (docs/protocols/one-shot.md §7). Over RDMA that is the device: posting work is one way, and taking
// completions the other; making memory known and taking that back are a command and its answer each.
// Receives are posted beforehand, and not counted, as in the source. Over TCP it is the kernel, and a
// hand-over is a system call that writes or reads.
type Crossings struct {
	Out uint64 // to the device
	In  uint64 // from the device
}

// Sum is both ways together.
func (c Crossings) Sum() uint64 { return c.Out + c.In }

// Crossings counts those of one end.
func (c Counters) Crossings() Crossings {
	known := c.Get("registrations") + c.Get("deregistrations")
	return Crossings{
		Out: c.Get("writes") + c.Get("posts") + known,
		In:  c.Get("reads") + c.Get("polls") + known,
	}
}

// ErrNotTold: the target does not know the question.
var ErrNotTold = errors.New("the target does not tell what crosses it")

// countersKey is a text key of this project's targets (RFC 7143 §6.1: an X- key).
const countersKey = "X-example.oneshot.Counters"

// TargetCounters asks the target for the counters of its end of the connection, and for
// cpu_ns, the processor time of its process.
func (s *Session) TargetCounters(ctx context.Context) (Counters, error) {
	pairs, err := s.Text(ctx, text.Pair{Key: countersKey, Value: "?"})
	if err != nil {
		return nil, err
	}
	v, ok := value(pairs, countersKey)
	if !ok || v == text.NotUnderstood || v == text.Irrelevant || v == text.Reject {
		return nil, ErrNotTold
	}
	var c Counters
	for item := range strings.SplitSeq(v, ",") {
		name, number, _ := strings.Cut(item, ":")
		n, err := strconv.ParseUint(number, 10, 64)
		if err != nil {
			return nil, fmt.Errorf("the target's counters: %q", clip(item))
		}
		c = append(c, Counter{name, n})
	}
	return c, nil
}
