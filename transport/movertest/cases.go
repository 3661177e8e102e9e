package movertest

import (
	"bytes"
	"context"
	"errors"
	mathrand "math/rand/v2"
	"strings"

	"oneshot/initiator"
	"oneshot/internal/rounds"
	"oneshot/iscsi/pdu"
	"oneshot/iscsi/text"
	"oneshot/scsi"
)

// readsAndWrites moves data of all sizes, with none of it, some of it and as much as goes along with
// the command (GetData, Answer).
func readsAndWrites(b *bench) {
	for _, immediate := range []int{-1, 0, 1 << 20} {
		s := b.dial(immediate, pdu.ISID{})
		model := make([]byte, storeSize)
		b.do(s, read(0, model[:2<<20]))
		b.do(s, read(2<<20, model[2<<20:4<<20]))
		rnd := mathrand.New(mathrand.NewPCG(1, uint64(immediate+2)))
		for i := range rounds.Of(60, 20) {
			n := blockSize << rnd.IntN(12)
			n += blockSize * rnd.IntN(3)
			off := blockSize * rnd.IntN((4<<20-n)/blockSize)
			if rnd.IntN(2) == 0 {
				data := random(uint64(i), n)
				b.do(s, write(off, data))
				copy(model[off:], data)
				continue
			}
			got := make([]byte, n)
			b.do(s, read(off, got))
			if !bytes.Equal(got, model[off:off+n]) {
				b.Fatalf("immediate %d: %d bytes at %d are not what was written", immediate, n, off)
			}
		}
		b.check(s.Close())
		b.idle()
	}
}

// outstanding has as many commands under way as the window takes, which end in any order.
func outstanding(b *bench) {
	const n = 32 << 10
	s := b.dial(0, pdu.ISID{})
	for round := range rounds.Of(8, 3) {
		var writes, reads []*initiator.Command
		for i := range window {
			writes = append(writes, write(i*n, random(uint64(round*window+i), n)))
			reads = append(reads, read(i*n, make([]byte, n)))
		}
		for _, cs := range [][]*initiator.Command{writes, reads} {
			over := start(s, cs...)
			for range cs {
				b.check((<-over).Failure())
			}
		}
		for i, c := range reads {
			if !bytes.Equal(c.In, writes[i].Out) {
				b.Fatalf("round %d: other bytes are read at %d than written", round, i*n)
			}
		}
	}
	b.idle()
}

// earlyAnswer has commands answered before their data has been fetched: they are wrong.
func earlyAnswer(b *bench) {
	for _, immediate := range []int{-1, 1 << 20} {
		s := b.dial(immediate, pdu.ISID{})
		for range 20 {
			c := write(storeSize, make([]byte, 128<<10))
			_ = s.Do(b.Context(), c)
			if c.Status != byte(scsi.CheckCondition) || len(c.Sense) < 8 {
				b.Fatalf("a WRITE beyond the end: status %#x, sense % x, %v", c.Status, c.Sense, c.Err)
			}
			c = read(storeSize, make([]byte, 4096))
			_ = s.Do(b.Context(), c)
			if c.Status != byte(scsi.CheckCondition) || c.Transferred != 0 {
				b.Fatalf("a READ beyond the end: status %#x, %d bytes, %v", c.Status, c.Transferred, c.Err)
			}
		}
		b.works(s)
	}
	b.idle()
}

// abortInStore aborts commands whose data is in, while the store has them (Forget).
func abortInStore(b *bench) {
	gate, ok := b.hold()
	if !ok {
		return
	}
	s := b.dial(0, pdu.ISID{})
	ctx, cancel := context.WithCancel(b.Context())
	ended := make(chan error)
	for i := range 4 {
		go func() { ended <- s.Do(ctx, write(i*128<<10, random(uint64(i), 64<<10))) }()
	}
	gate.Await(4)
	cancel()
	gate.Release()
	for range 4 {
		if err := <-ended; err != nil && !errors.Is(err, context.Canceled) && !errors.Is(err, initiator.ErrAborted) {
			b.Error(err)
		}
	}
	b.works(s)
	b.idle()
}

// abortBeforeItsTurn aborts commands that wait behind an ORDERED one, and whatever has come of their
// data with them.
func abortBeforeItsTurn(b *bench) {
	gate, ok := b.hold()
	if !ok {
		return
	}
	for _, immediate := range []int{-1, 1 << 20} {
		s := b.dial(immediate, pdu.ISID{})
		first := write(0, bytes.Repeat([]byte{0xaa}, 64<<10))
		first.Attr = pdu.AttrOrdered
		cs := []*initiator.Command{first}
		for range 4 {
			cs = append(cs, write(0, bytes.Repeat([]byte{0xbb}, 64<<10)))
		}
		over := start(s, cs...)
		// Commands begin in order, and this one does not wait for others.
		b.do(s, &initiator.Command{CDB: make([]byte, 6), Attr: pdu.AttrHeadOfQueue})
		gate.Await(1)
		b.resetUnit(gate.Release)
		_ = s.Do(b.Context(), &initiator.Command{CDB: make([]byte, 6)}) // takes the unit attention
		got := make([]byte, 64<<10)
		b.do(s, read(0, got))
		if bytes.IndexByte(got, 0xbb) >= 0 {
			b.Error("a command that was aborted before its turn has written")
		}
		b.works(s)
		b.check(s.Close())
		for range cs {
			if c := <-over; c.Err == nil {
				b.Errorf("status %#x of a command that was reset", c.Status)
			}
		}
		gate, _ = b.hold()
	}
	gate.Release()
	b.idle()
}

// resetUnit resets the logical unit, as another initiator would, and returns when the tasks that it
// had are over. meanwhile is called when they have been told.
func (b *bench) resetUnit(meanwhile func()) {
	done := make(chan struct{})
	n := b.disk.NewNexus(scsi.ISCSIPort("iqn.2026-11.example:other", [6]byte{0x80, 5: 1}))
	n.Manage(scsi.LUNReset, 0, nil, func(scsi.TMFResponse) { close(done) })
	meanwhile()
	<-done
	gone := make(chan struct{})
	n.Close(func() { close(gone) })
	<-gone
}

// reset aborts the commands of one session by what another one asks for. They have no answer.
func reset(b *bench) {
	gate, ok := b.hold()
	if !ok {
		return
	}
	s := b.dial(0, pdu.ISID{})
	over := start(s, write(0, make([]byte, 64<<10)), write(128<<10, make([]byte, 64<<10)))
	gate.Await(2)
	b.resetUnit(gate.Release)
	_ = s.Do(b.Context(), &initiator.Command{CDB: make([]byte, 6)}) // takes the unit attention
	b.works(s)
	b.check(s.Close())
	for range 2 {
		if c := <-over; c.Err == nil {
			b.Errorf("status %#x of a command that was reset", c.Status)
		}
	}
	b.idle()
}

// logoutUnderLoad logs out while commands are in the store: they have no answer, the logout has one when the store has let go of
// them, and nothing of the session is left then.
func logoutUnderLoad(b *bench) {
	s := b.dial(0, pdu.ISID{})
	other := b.dial(0, pdu.ISID{})
	gate, holds := b.hold()
	var cs []*initiator.Command
	for i := range 8 {
		cs = append(cs, write(i*128<<10, make([]byte, 128<<10)))
	}
	over := start(s, cs...)
	if holds {
		gate.Await(8)
	}
	closed := make(chan error, 1)
	go func() { closed <- s.Close() }()
	if holds {
		b.until("the session ends", func() bool { return len(b.node.Sessions()) == 1 })
		if len(closed) > 0 {
			b.Error("the logout was answered while commands are in the store")
		}
		gate.Release()
	}
	b.check(<-closed)
	for range cs {
		if c := <-over; c.Err == nil && holds {
			b.Errorf("status %#x of a command whose session has ended", c.Status)
		}
	}
	b.until("the session is over", func() bool { return b.node.Connections() == 1 })
	b.works(other)
	b.idle()
}

// dropUnderLoad has the target end the session (Terminate) while commands are in the store, and data
// on its way.
func dropUnderLoad(b *bench) {
	for _, immediate := range []int{-1, 1 << 20} {
		s := b.dial(immediate, pdu.ISID{})
		var cs []*initiator.Command
		for i := range window {
			if i%2 == 0 {
				cs = append(cs, write(i*128<<10, make([]byte, 128<<10)))
			} else {
				cs = append(cs, read(i*128<<10, make([]byte, 128<<10)))
			}
		}
		gate, holds := b.hold()
		over := start(s, cs...)
		if holds {
			gate.Await(1)
		}
		for _, x := range b.node.Sessions() {
			b.node.DropSession(x.TSIH, "the test says so")
		}
		if holds {
			gate.Release()
		}
		for range cs {
			<-over
		}
		b.until("the session is over", func() bool { return b.node.Connections() == 0 })
		b.idle()
	}
}

// reinstatement logs in once more for the same initiator port: the old session's commands are over
// before the new one is there.
func reinstatement(b *bench) {
	isid := pdu.ISID{0x80, 0, 0, 0, 0, 7}
	old := b.dial(0, isid)
	gate, holds := b.hold()
	over := start(old, write(0, make([]byte, 64<<10)))
	if holds {
		gate.Await(1)
		go gate.Release() // without which the login would wait
	}
	s := b.dial(0, isid)
	c := <-over
	if holds && c.Err == nil && c.Status != 0 {
		b.Errorf("status %#x of the old session's command", c.Status)
	}
	b.until("the old connection is gone", func() bool { return b.node.Connections() == 1 })
	b.works(s)
	b.idle()
}

// scarceMemory has more commands wait for memory than it is enough for at once.
func scarceMemory(b *bench) {
	var sessions []*initiator.Session
	for range 4 {
		sessions = append(sessions, b.dial(0, pdu.ISID{}))
	}
	var hog []func()
	for l := b.pool.Lease(1 << 20); l != nil; l = b.pool.Lease(1 << 20) {
		hog = append(hog, l.Release)
	}
	for _, release := range hog[:min(24, len(hog))] {
		release()
	}
	hog = hog[min(24, len(hog)):]
	var all []<-chan *initiator.Command
	for range rounds.Of(4, 2) { // the sessions ask for 24 MiB in each
		for _, s := range sessions {
			var cs []*initiator.Command
			for i := range 6 {
				cs = append(cs, read(i<<20, make([]byte, 1<<20)))
			}
			all = append(all, start(s, cs...))
		}
	}
	for _, over := range all {
		for range 6 {
			if c := <-over; c.Failure() != nil && c.Status != byte(scsi.TaskSetFull) {
				b.Error(c.Failure())
			}
		}
	}
	for _, release := range hog {
		release()
	}
	for _, s := range sessions {
		b.works(s)
	}
	b.idle()
}

// textKeys are of the session's own PDUs (SendControl), and ask for the mover's counts (Count).
func textKeys(b *bench) {
	s := b.dial(0, pdu.ISID{})
	found, err := s.Text(b.Context(), text.Pair{Key: "SendTargets", Value: ""})
	b.check(err)
	if len(found) < 2 || found[0] != (text.Pair{Key: "TargetName", Value: iqn}) || !strings.HasPrefix(found[1].Value, b.URL.Address) {
		b.Errorf("SendTargets: %v", found)
	}
	counters, err := s.TargetCounters(b.Context())
	b.check(err)
	if len(counters) == 0 {
		b.Error("nothing is counted")
	}
	b.works(s)
}
