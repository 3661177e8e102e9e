package iscsi

import (
	"encoding/binary"
	"fmt"
	"testing"

	"oneshot/backend"
	"oneshot/backend/faulty"
	"oneshot/backend/memory"
	"oneshot/internal/serial"
	"oneshot/iscsi/pdu"
	"oneshot/mem"
	"oneshot/scsi"
)

// discover opens a discovery session.
func discover(t *testing.T, n *Node) *recorder {
	t.Helper()
	f, text := request(0, 0, "SessionType=Discovery")
	_, r := begin(t, n, f, text)
	if got := r.take(); got != "Login Response" || r.last[36] != 0 {
		t.Fatalf("%q, status % x", got, []byte(r.last[36:38]))
	}
	return r
}

// Discovery sessions, which prove nothing, have a share of the connections: the oldest gives way.
func TestDiscoverySessionsGiveWay(t *testing.T) {
	n, c, r := session(t)
	l := *n.limits.Load()
	l.Connections = 64
	n.SetLimits(l)
	var all []*recorder
	for range discoveryShare(l.Connections) {
		all = append(all, discover(t, n))
	}
	drive(all[0].c, func() { all[0].c.Lost(nil) }) // and so leaves its place to another
	all[0].take()
	all = append(all[1:], discover(t, n))
	for i, x := range all {
		if got := x.take(); got != "" {
			t.Fatalf("session %d of the share: %q", i, got)
		}
	}
	discover(t, n)
	if x, y := all[0].take(), all[1].take(); x != "terminate false" || y != "" {
		t.Errorf("the oldest: %q, the next: %q", x, y)
	}
	// They are the first to go for those who come to log in to a target, too. The place of the one that was told to go, but is
	// still there, is free.
	l.Connections = len(n.guests.List())
	n.SetLimits(l)
	f, text := request(0, 0)
	f.ISID[5] = 9
	for _, want := range []string{"", "terminate false"} {
		f.ISID[5]++
		if _, x := begin(t, n, f, text); x.take() != "Login Response" || x.last[36] != 0 {
			t.Fatalf("a login: status % x", []byte(x.last[36:38]))
		}
		if x, y, z := all[0].take(), all[1].take(), all[2].take(); x != "" || y != want || z != "" {
			t.Errorf("the one that goes: %q, the oldest: %q, want %q, the next: %q", x, y, want, z)
		}
	}
	for _, x := range all[:2] {
		drive(x.c, func() { x.c.Lost(nil) })
	}
	f.ISID[5]++
	if _, x := begin(t, n, f, text); x.take() != "Login Response" || x.last[36] != 0 {
		t.Fatalf("a login, when they have gone: status % x", []byte(x.last[36:38]))
	}
	if x := all[2].take(); x != "terminate false" {
		t.Errorf("the oldest, when those who went are gone: %q", x)
	}
	if got := r.take(); got != "" || c.state != stateFullFeature {
		t.Errorf("a session with a target: %q", got)
	}
}

// The share is an eighth of the connections, 8 to 256.
func TestDiscoveryShare(t *testing.T) {
	for connections, want := range map[int]int{1: 8, 64: 8, 80: 10, 800: 100, 4096: 256} {
		if got := discoveryShare(connections); got != want {
			t.Errorf("of %d connections: %d, want %d", connections, got, want)
		}
	}
}

// A discovery session ends after some time, whatever its initiator sends.
func TestDiscoveryLasts(t *testing.T) {
	n, _, r := session(t)
	d := discover(t, n)
	for range discoveryTime {
		n.Tick()
		drive(d.c, d.c.Heard)
		drive(r.c, r.c.Heard)
	}
	if got := d.take(); got != "" {
		t.Fatalf("before: %q", got)
	}
	for range 3 {
		n.Tick()
	}
	if x, y := d.take(), r.take(); x != "terminate true" || y != "" {
		t.Errorf("%q, and the session with a target: %q", x, y)
	}
}

// large is a 64th of the memory.
const large = 16 << 10

// read asks for n bytes.
func read(c *Conn, itt uint32, sn serial.SN, n int) {
	cdb := make([]byte, 10)
	cdb[0], cdb[8] = 0x28, byte(n/512)
	f := pdu.SCSICommandFields{Final: true, Read: true, ITT: itt, CmdSN: sn, CDB: cdb, EDTL: uint32(n)}
	h, err := pdu.ParseSCSICommand(f.AppendTo(nil))
	if err != nil {
		panic(err)
	}
	drive(c, func() { c.Command(&Task{Conn: c}, h) })
}

// hog logs in and asks for as much as the window has room for, but takes no answers.
func hog(t *testing.T, n *Node, isid byte) *recorder {
	t.Helper()
	f, text := request(0, 0, "DataDigest=CRC32C")
	f.ISID[5] = isid
	c, r := begin(t, n, f, text)
	command(c, 1, 77, false, testUnitReady, 0) // takes the unit attention
	r.keeps = true
	for i := range uint32(4) {
		read(c, 10+i, serial.SN(78+i), large)
	}
	return r
}

// Sessions that take no answers leave memory for one that does, and get what they have waited for
// when they do.
func TestMemoryIsLeft(t *testing.T) {
	n, c, r := session(t, "DataDigest=CRC32C")
	n.cfg.MemoryPerConnection = int(n.pool.Limit())
	l := *n.limits.Load()
	l.Connections, l.Sessions = 100, 100
	n.SetLimits(l)
	command(c, 1, firstCmdSN, false, testUnitReady, 0)
	var hogs []*recorder
	for i := range 50 { // 200 READs of a 64th each
		hogs = append(hogs, hog(t, n, byte(50+i)))
	}
	r.take()
	for i := range 100 {
		read(c, uint32(20+i), first+1+serial.SN(i), 4096)
		if got := r.take(); got == "" || r.status != 0 {
			t.Fatalf("READ %d of the one that reads: %q, status %#x, %d bytes are left", i, got, r.status, n.pool.Free())
		}
	}
	for _, h := range hogs {
		h.keeps = false
		drive(h.c, func() {})
	}
	for i, h := range hogs {
		if got := h.take(); got != "Login Response, answer 1, answer 10, answer 11, answer 12, answer 13" {
			t.Errorf("hog %d: %q", i, got)
		}
	}
}

// When so many take no answers that hardly any memory is left, they lose it.
func TestHogsAreDropped(t *testing.T) {
	n, c, r := session(t, "DataDigest=CRC32C")
	command(c, 1, firstCmdSN, false, testUnitReady, 0)
	l := *n.limits.Load()
	l.Connections, l.Sessions = 200, 200
	n.SetLimits(l)
	var hogs []*recorder
	for i := range 100 {
		hogs = append(hogs, hog(t, n, byte(50+i)))
	}
	r.take()
	read(c, 20, first+1, large)
	seconds := 0
	for ; r.take() == ""; seconds++ {
		if seconds > 3*hogTime {
			t.Fatalf("%d bytes are left, and the one that reads still waits", n.pool.Free())
		}
		drive(c, c.Heard)
		n.Tick()
		for _, h := range hogs {
			if h.c.dropped && h.c.state < stateCleanup {
				h.keeps = false
				drive(h.c, func() { h.c.Lost(nil) })
			}
		}
	}
	if seconds < hogTime {
		t.Errorf("some are dropped after %d s", seconds)
	}
	for _, h := range hogs {
		h.keeps = false
		drive(h.c, func() {})
	}
}

// Memory is scarce when the largest command would not find any, though a small one would.
func TestHogsKeepLargeOnesWaiting(t *testing.T) {
	n, c, _ := session(t, "")
	n.most = large
	c.unsent, c.moved = 1, 100
	var taken []*mem.Lease
	take := func(size int) { taken = append(taken, n.pool.Lease(size)) }
	for n.pool.Free() >= n.pool.Limit()/4+3*large {
		take(large)
	}
	if c.hogs(100 + 2*hogTime) {
		t.Errorf("%d bytes are scarce", n.pool.Free())
	}
	for n.pool.Free() >= n.pool.Limit()/4+large/2 {
		take(large / 4)
	}
	if !c.hogs(100 + 2*hogTime) {
		t.Errorf("%d bytes are plenty for one who wants %d", n.pool.Free(), large)
	}
	if c.hogs(100 + hogTime) {
		t.Error("it is dropped too early")
	}
	for _, l := range taken {
		l.Release()
	}
	c.unsent = 0
}

// A command that needs more than a connection's share has it when nothing else is at work.
func TestLargerThanTheShare(t *testing.T) {
	n, c, r := session(t, "DataDigest=CRC32C")
	n.cfg.MemoryPerConnection = large / 2
	command(c, 1, firstCmdSN, false, testUnitReady, 0)
	r.take()
	r.keeps = true
	read(c, 2, first+1, large)
	read(c, 3, first+2, large)
	if got := r.take(); got != "answer 2" {
		t.Fatalf("%q", got)
	}
	r.keeps = false
	drive(c, func() {})
	drive(c, func() {})
	if got := r.take(); got != "answer 3" {
		t.Errorf("when the first has left: %q", got)
	}
}

// copyOf is the parameter list of an EXTENDED COPY of blocks from the first half of the disk with that serial number to the second.
func copyOf(serial string, blocks uint16) []byte {
	const header, target, segment, half = 16, 32, 28, 1024
	b := make([]byte, header+target+segment)
	b[1] = 0x18 // nothing is to be kept
	binary.BigEndian.PutUint16(b[2:], target)
	binary.BigEndian.PutUint32(b[8:], segment)
	t := b[header:]
	naa := scsi.LocalNAA(serial)
	t[0], t[4], t[5], t[7] = 0xe4, 1, 3, byte(len(naa))
	copy(t[8:], naa[:])
	s := t[target:]
	s[0], s[3] = 0x02, segment-4
	binary.BigEndian.PutUint16(s[10:], blocks)
	binary.BigEndian.PutUint64(s[20:], half)
	return b
}

// A command that has given back the memory of its parameter list, and waits for more, has nothing at work: it is told when others give some back.
func TestSecondLeaseIsWaitedFor(t *testing.T) {
	n, c, r := session(t)
	command(c, 1, firstCmdSN, false, testUnitReady, 0)
	r.take()
	list := copyOf("1", 128)
	cdb := make([]byte, 16)
	cdb[0] = 0x83
	binary.BigEndian.PutUint32(cdb[10:], uint32(len(list)))
	f := pdu.SCSICommandFields{Final: true, Write: true, ITT: 2, CmdSN: first + 1, CDB: cdb, EDTL: uint32(len(list))}
	h, err := pdu.ParseSCSICommand(f.AppendTo(nil))
	if err != nil {
		t.Fatal(err)
	}
	task := &Task{Conn: c}
	drive(c, func() { c.Command(task, h) })
	if got := r.take(); got != "fetch 2" {
		t.Fatal(got)
	}
	others := n.pool.Lease(512 << 10) // which are other connections'
	more := n.pool.Lease(256 << 10)
	drive(c, func() {
		copy(task.Out[0], list)
		c.GotData(task)
	})
	if got := r.take(); got != "" {
		t.Fatalf("with %d bytes free: %q, status %#x", n.pool.Free(), got, r.status)
	}
	others.Release()
	more.Release()
	if got := r.take(); got != "answer 2" || r.status != scsi.Good {
		t.Errorf("when others have given memory back: %q, status %#x", got, r.status)
	}
}

// sessionOnFaulty is session with a disk whose store hangs or fails as it is told.
func sessionOnFaulty(t testing.TB) (*Node, *Conn, *recorder, *faulty.Store) {
	t.Helper()
	inner, err := memory.New(1 << 20)
	if err != nil {
		t.Fatal(err)
	}
	store := faulty.New(inner, 1)
	n, c, r := sessionOn(t, store)
	return n, c, r, store
}

// What waits for memory does not wait for a command whose store does not return it.
func TestMemoryBehindOneThatHangs(t *testing.T) {
	n, c, r, store := sessionOnFaulty(t)
	command(c, 9, first, false, testUnitReady, 0)
	gate := store.Hold(faulty.Match{Kinds: []backend.Kind{backend.Write}, Times: 1})
	command(c, 10, first+1, false, write1(), 512)
	drive(c, func() { c.GotData(c.Find(10)) })
	gate.Await(1)
	others, more := n.pool.Lease(512<<10), n.pool.Lease(256<<10) // which are other connections'
	r.take()
	read(c, 11, first+2, 4096)
	if got := r.take(); got != "" {
		t.Errorf("with %d bytes free: %q", n.pool.Free(), got)
	}
	others.Release()
	more.Release()
	n.Tick()
	if got := r.take(); got != "answer 11" {
		t.Errorf("a second after others have given memory back: %q", got)
	}
	gate.Release()
	if got := r.take(); got != "answer 10" {
		t.Errorf("in the end: %q", got)
	}
}

// A command that waits for much memory does not wait for ever beside others that come later and take less.
func TestFirstComeFirstServed(t *testing.T) {
	n, c, r, store := sessionOnFaulty(t)
	command(c, 9, first, false, testUnitReady, 0)
	n.cfg.MemoryPerConnection = 96 << 10
	gate := store.Hold(faulty.Match{Kinds: []backend.Kind{backend.Read}})
	defer gate.Release()
	const much = 1000 // the tag of the one that waits
	sn := first
	for itt := range uint32(3) { // all memory
		sn++
		read(c, 10+itt, sn, 32<<10)
	}
	sn++
	read(c, much, sn, 64<<10)
	r.take()
	for itt := range uint32(50) {
		gate.Await(1)
		gate.Next()
		if r.take() == fmt.Sprintf("answer %d", much) {
			return
		}
		sn++
		read(c, 20+itt, sn, 32<<10)
	}
	t.Error("a READ waits for memory while 50 that have come later had some")
}
