package rdma

import "time"

// NudgeTime is how long the answer to the first message may take before Nudge is called, again and again.
const NudgeTime = 300 * time.Millisecond

// Nudge sends what means nothing, a Write of no bytes, whose completion is signaled. What comes to siw within milliseconds of
// its MPA Reply lies unread there until something else comes: so whoever has connected over a device of the kernel, and speaks
// first, calls it while he waits for the answer.
func Nudge(qp QueuePair) {
	_, _ = qp.Post([]Work{{Op: OpWrite, Flags: Signaled}}) // if the connection has ended, whoever waits hears of that
}
