package iser

import "testing"

// What is counted as answered and as sent is what has left: of a connection that ends while answers wait, the
// others have ended without an answer.
func TestAnswersThatNeverLeave(t *testing.T) {
	const n, posted, size = 16, 8, 1 << 20 // more than sockets hold
	const messages = size/(256<<10) + 1    // of an answer: RDMA Writes, and a Send
	for framing, direct := range map[string]bool{"iSER": false, "iSCSI-direct": true} {
		t.Run(framing, func(t *testing.T) {
			b := newBench(t)
			p := b.raw(direct, 1)
			check(t, p.Conn.SetReadBuffer(64<<10))
			wait(func() bool { // the answers of the login are counted
				answered, _ := b.counted()
				return answered == 2
			})
			before := b.device.Counters()
			for i := range n {
				p.Command(rw16(0x88, 0, size/blockSize), nil, 0, uint32(0x100+i), size)
			}
			wait(func() bool { return b.device.Counters().Works-before.Works >= messages*posted })
			check(t, p.Conn.SetLinger(0))
			check(t, p.Conn.Close())
			wait(func() bool { return b.node.Connections() == 0 })
			sent := b.device.Counters().Sub(before)
			answered, aborted := b.counted()
			answered -= 2
			read := b.disk.Stats()[0].ReadBytes
			if answered+aborted < posted || answered >= posted || read != answered*size {
				t.Errorf("%d commands are answered with %d bytes, %d are not", answered, read, aborted)
			}
			// Of the last one perhaps some Writes.
			if sent.MessagesOut/messages != answered || sent.BytesOut < answered*size || sent.BytesOut > (answered+1)*(size+200) {
				t.Errorf("%d messages and %d bytes have left, with %d answers", sent.MessagesOut, sent.BytesOut, answered)
			}
		})
	}
}
