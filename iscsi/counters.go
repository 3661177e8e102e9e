package iscsi

import (
	"strconv"
	"time"
)

// countersKey is a text key of this project (RFC 7143 §6.1: an X- key), with which an
// initiator asks what has crossed between the target and its network on this connection. The
// answer is a list of name:number; cpu_ns is the processor time of the target's process, if
// Config.CPUTime tells it.
const countersKey = "X-example.oneshot.Counters"

// private answers text keys that are in no standard.
func (c *Conn) private(key, _ string) (string, bool) {
	if key != countersKey {
		return "", false
	}
	var b []byte
	tell := func(name string, n uint64) {
		if len(b) > 0 {
			b = append(b, ',')
		}
		b = append(append(b, name...), ':')
		b = strconv.AppendUint(b, n, 10)
	}
	c.mover.Count(tell)
	if f := c.node.cfg.CPUTime; f != nil {
		tell("cpu_ns", uint64(f()/time.Nanosecond))
	}
	return string(b), true
}
