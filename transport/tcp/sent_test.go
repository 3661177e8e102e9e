package tcp

import (
	"net"
	"testing"

	"oneshot/internal/iostat"
	"oneshot/iscsi/pdu"
)

// What is counted as answered and as sent is what has left: of a connection that ends while answers wait, the
// others have ended without an answer.
func TestAnswersThatNeverLeave(t *testing.T) {
	const n, size = 32, 4 << 20 // more than sockets hold
	b := newBench(t, newMemory(t), nil)
	p := b.dial("MaxRecvDataSegmentLength=65536")
	var m *Mover
	b.at(p, func(x *Mover) { m = x })
	m.conn.Lock()
	pdus, bytes := m.pdusOut, m.Out.Written
	m.conn.Unlock()
	for range n {
		p.command(rw16(0x88, 0, size), size, true, false, true, nil)
	}
	b.until(func() bool { // all are answered, and the socket takes no more
		m.conn.Lock()
		defer m.conn.Unlock()
		reads := b.stats().Commands[iostat.Read]
		return m.Out.Blocked() && reads.Count()+uint64(m.Out.Outstanding()) == n
	})
	if err := p.c.(*net.TCPConn).SetLinger(0); err != nil {
		t.Fatal(err)
	}
	p.c.Close()
	b.gone(0)
	m.conn.Lock()
	defer m.conn.Unlock()
	got := b.stats()
	left, lost := got.Commands[iostat.Read].Count(), got.Failed[iostat.AbortedCommand]
	bytes = m.Out.Written - bytes
	const one = 64 * (pdu.BHSLen + 64<<10) // the last Data-In PDU bears the status
	if left != bytes/one || left+lost != n || lost == 0 || got.ReadBytes != left*size {
		t.Errorf("%d commands are answered with %d bytes, %d are not, and %d bytes have left", left, got.ReadBytes, lost, bytes)
	}
	if pdus = m.pdusOut - pdus; pdus*(one/64) > bytes || pdus < left*64 {
		t.Errorf("%d PDUs count as sent, with %d bytes", pdus, bytes)
	}
}

// stats are those of the LUN.
func (b *bench) stats() iostat.Stats { return b.target.Stats()[0].Stats }
