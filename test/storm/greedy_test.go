package storm

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"testing"

	"oneshot/initiator"
	"oneshot/internal/serial"
	"oneshot/iscsi/pdu"
	"oneshot/test/attack"
)

// TestGreedy attacks one daemon with initiators that use up memory: before a login, in discovery sessions,
// which need no secret, and in sessions whose answers they do not take. Each attack costs the daemon at
// most as much memory as its bound says, and the witness is not disturbed.
func TestGreedy(t *testing.T) {
	atLength(t)
	others := "" // that make the list of targets long
	for i := range 200 {
		others += fmt.Sprintf(", {iqn: %sother-%d, luns: {}}", iqn, i)
	}
	d := start(t, `
stores: {a: {type: memory, size: 16MiB}, b: {type: file, path: $DIR/b.img, size: 16MiB}, c: {type: memory, size: 1MiB}}
targets: [{iqn: `+iqn+`t, luns: {0: a, 1: b, 2: c}}`+others+`]
portals: [{listen: $PORTAL}]
management: {socket: $DIR/socket}
limits: {connections: 1024, login_timeout: 1h, nop_interval: 1h, nop_timeout: 1h, memory: 64MiB, memory_per_connection: 4MiB}
`)
	raiseDescriptors(t, 4000)
	registerMany(d, 2)
	g := &greedy{d, t, d.watch()}
	g.suffer([]assault{
		{"keys of a login", 40, g.keysOfALogin},
		{"one text with SendTargets a thousand times", 40, g.sendTargets},
		{"a byte of a PDU in many discovery sessions", 60, g.partsOfPDUs},
		{"pings in discovery sessions, echoes unread", 120, g.echoesOfDiscovery},
		{"pings in sessions, echoes unread", 120, g.echoes},
		{"pings that wait for a number that does not come", 60, g.outOfTurn},
		{"READs in the smallest segments, unread", 100, g.headers},
		// All of limits.memory; what the lists leave to the collector does not grow with them.
		{"lists of registrations, unread", 100, g.registrations},
		{"lists of registrations that all come due at once, unread", 100, g.registrationsAtOnce},
		{"READs, unread, for more than all I/O memory", 150, g.hogs},
	})
}

// assault is an attack on a daemon.
type assault struct {
	name  string
	bound int64 // most memory in MiB that it may cost
	f     func()
}

// suffer does one attack after the other, until one costs too much memory or has failed the test.
func (g *greedy) suffer(attacks []assault) {
	for _, a := range attacks {
		g.Works()
		g.bounded(a.name, a.bound, func() {
			a.f()
			g.Works()
		})
		if g.t.Failed() {
			return
		}
	}
}

type greedy struct {
	*daemon
	t *testing.T
	*attack.Witness
}

// dial opens a connection that the test closes.
func (g *greedy) dial() *net.TCPConn {
	g.t.Helper()
	c, err := net.DialTimeout("tcp", g.Portal(), patience)
	if err != nil {
		g.t.Fatal(err)
	}
	_ = c.(*net.TCPConn).SetReadBuffer(4096)
	return c.(*net.TCPConn)
}

func padded(header, data []byte) []byte {
	return append(append(header, data...), make([]byte, pdu.PaddedLen(len(data))-len(data))...)
}

// login logs in over c, with more keys besides the names. An empty target makes it a discovery session.
func (g *greedy) login(c net.Conn, name string, discovery bool, keys string) {
	g.t.Helper()
	text := "InitiatorName=" + rawName + name + "\x00"
	if discovery {
		text += "SessionType=Discovery\x00"
	} else {
		text += "TargetName=" + iqn + "t\x00"
	}
	text += keys
	f := pdu.LoginRequestFields{
		Transit: true, CSG: pdu.StageLoginOperationalNegotiation, NSG: pdu.StageFullFeaturePhase,
		ISID: pdu.ISID{0x80}, ITT: 1, CmdSN: 1, DataSegmentLength: len(text),
	}
	if _, err := c.Write(padded(f.AppendTo(nil), []byte(text))); err != nil {
		g.t.Fatal(err)
	}
	h := pdu.Header(make([]byte, pdu.BHSLen))
	_, err := io.ReadFull(c, h)
	if err == nil && h[36] == 0 {
		_, err = io.CopyN(io.Discard, c, int64(pdu.PaddedLen(h.DataSegmentLen())))
	}
	if err != nil || h[36] != 0 {
		g.t.Fatalf("login: %v, status %#x %#x", err, h[36], h[37])
	}
}

// flood sends b again and again by each of the connections, until the target takes no more or has
// ended them; the witness works meanwhile.
func (g *greedy) flood(conns []*net.TCPConn, b []byte, total int) {
	g.t.Helper()
	var all sync.WaitGroup
	for _, c := range conns {
		all.Go(func() {
			for sent := 0; sent < total; sent += len(b) {
				if _, err := c.Write(b); err != nil {
					return
				}
			}
		})
	}
	for range 10 {
		g.Works()
	}
	for _, c := range conns {
		_ = c.Close()
	}
	all.Wait()
}

// keysOfALogin sends 16 MiB of keys in one login.
func (g *greedy) keysOfALogin() {
	c := g.dial()
	defer func() { _ = c.Close() }()
	go func() { _, _ = io.Copy(io.Discard, c) }()
	names := []byte("InitiatorName=" + rawName + "keys\x00TargetName=" + iqn + "t\x00")
	first := pdu.LoginRequestFields{CSG: pdu.StageLoginOperationalNegotiation, CmdSN: 1, ISID: pdu.ISID{0x80}, DataSegmentLength: len(names)}
	_, err := c.Write(padded(first.AppendTo(nil), names))
	for i := 0; err == nil && i < 16<<20/8000; i++ {
		var text bytes.Buffer
		for k := 0; text.Len() < 7900; k++ {
			fmt.Fprintf(&text, "X-%d.%d=NotUnderstood\x00", i, k) // has no answer, so the login goes on
		}
		f := pdu.LoginRequestFields{CSG: pdu.StageLoginOperationalNegotiation, CmdSN: 1, ISID: pdu.ISID{0x80}, DataSegmentLength: text.Len()}
		_, err = c.Write(padded(f.AppendTo(nil), text.Bytes()))
	}
}

// sendTargets asks for all targets a thousand times in each text.
func (g *greedy) sendTargets() {
	text := bytes.Repeat([]byte("SendTargets=All\x00"), 500)
	f := pdu.TextRequestFields{Immediate: true, Final: true, TTT: pdu.ReservedTag, ITT: 2, CmdSN: 1, DataSegmentLength: len(text)}
	var conns []*net.TCPConn
	for i := range 20 {
		c := g.dial()
		g.login(c, fmt.Sprint("text", i), true, "MaxRecvDataSegmentLength=16777215\x00")
		conns = append(conns, c)
	}
	g.flood(conns, padded(f.AppendTo(nil), text), 1<<20)
}

// partsOfPDUs opens more discovery sessions than the limit allows, and sends one byte of a PDU in each. An
// honest initiator can still log in, and all of them together hold almost no I/O memory.
func (g *greedy) partsOfPDUs() {
	var conns []*net.TCPConn
	for i := range 1100 {
		c := g.dial()
		g.login(c, fmt.Sprint("part", i), true, "")
		if _, err := c.Write([]byte{0x40}); err != nil && !errors.Is(err, net.ErrClosed) {
			g.t.Fatal(err)
		}
		conns = append(conns, c)
	}
	g.Works()
	g.until("the I/O memory is free", func() bool { return g.status().Buffers.InUse < 8<<20 })
	s, err := g.daemon.login("t", nil)
	if err == nil {
		err = s.Close()
	}
	if err != nil {
		g.t.Errorf("the honest: %v", err)
	}
	ctx, cancel := context.WithTimeout(g.t.Context(), patience)
	defer cancel()
	found, err := initiator.Discover(ctx, initiator.URL{Address: g.Portal()}, initiator.Options{})
	if err != nil || len(found) == 0 {
		g.t.Errorf("the honest discovers %v, %v", found, err)
	}
	for _, c := range conns {
		_ = c.Close()
	}
}

// pings returns as many pings as fit into 1 MiB.
func pings(each int) []byte {
	f := pdu.NOPOutFields{Immediate: true, ITT: 3, TTT: pdu.ReservedTag, CmdSN: 1, DataSegmentLength: each}
	return bytes.Repeat(padded(f.AppendTo(nil), make([]byte, each)), 1<<20/each)
}

func (g *greedy) echoesOfDiscovery() {
	var conns []*net.TCPConn
	for i := range 100 {
		c := g.dial()
		g.login(c, fmt.Sprint("echo", i), true, "MaxRecvDataSegmentLength=262144\x00")
		conns = append(conns, c)
	}
	g.flood(conns, pings(8<<10), 16<<20)
}

func (g *greedy) echoes() {
	g.flood(g.askers("echo", 12), pings(256<<10), 256<<20)
}

// outOfTurn leaves out the first number of its session, and fills the rest of the command window with the largest pings.
func (g *greedy) outOfTurn() {
	const each = 256 << 10
	var b []byte
	for k := range 126 {
		f := pdu.NOPOutFields{ITT: uint32(k), TTT: pdu.ReservedTag, CmdSN: serial.SN(2 + k), DataSegmentLength: each}
		b = append(f.AppendTo(b), make([]byte, each)...)
	}
	g.flood(g.askers("hole", 12), b, 1)
}

// reads returns a full command window of READs of 1 MiB from a LUN.
func reads(lun uint64) (b []byte) {
	const each = 1 << 20
	for k := range 128 {
		cdb := []byte{0: 0x88, 12: each / 512 >> 8, 13: each / 512 & 0xff, 15: 0} // READ(16)
		f := pdu.SCSICommandFields{
			Final: true, Read: true, Attr: pdu.AttrSimple, LUN: lun << 48, ITT: uint32(k), EDTL: each, CmdSN: serial.SN(1 + k), CDB: cdb,
		}
		b = f.AppendTo(b)
	}
	return b
}

// headers asks for data in segments of 512 bytes, each of which has a header.
func (g *greedy) headers() {
	var conns []*net.TCPConn
	for i := range 8 {
		c := g.dial()
		g.login(c, fmt.Sprint("small", i), false, "MaxRecvDataSegmentLength=512\x00")
		conns = append(conns, c)
	}
	g.flood(conns, reads(0), 1)
}

// registerMany makes as many registrations for a LUN of target t as the bound allows, with the longest names.
func registerMany(d *daemon, lun int) {
	d.t.Helper()
	s, err := d.login("t", nil)
	if err != nil {
		d.t.Fatal(err)
	}
	defer func() { _ = s.Close() }()
	out := func(key, serviceActionKey uint64, flags byte, ids []byte) error {
		list := binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(nil, key), serviceActionKey)
		list = append(list, 0, 0, 0, 0, flags, 0, 0, 0)
		if ids != nil {
			list = append(binary.BigEndian.AppendUint32(list, uint32(len(ids))), ids...)
		}
		cdb := []byte{0: 0x5f, 7: byte(len(list) >> 8), 8: byte(len(list)), 9: 0}
		return s.Do(d.t.Context(), &initiator.Command{LUN: lun, CDB: cdb, Out: list, Attentions: 3})
	}
	const all, each, specIPT = 4095, 33, 0x08 // each: as many as fit into a parameter list of 8 KiB
	for first := 0; first < all; first += each {
		var ids []byte
		for i := first; i < min(first+each, all); i++ {
			name := fmt.Sprintf("%sregistered-%d-", iqn, i)
			name += strings.Repeat("x", 223-len(name)) // RFC 7143 §4.2.7.1: the most that a name has
			ids = append(ids, 0x05, 0, 0, 224)
			ids = append(append(ids, name...), 0)
		}
		if err := out(0, 1, specIPT, ids); err != nil {
			d.t.Fatalf("registration %d: %v", first, err)
		}
		if err := out(1, 0, 0, nil); err != nil { // so that it may register others again
			d.t.Fatal(err)
		}
	}
}

// fullStatus returns PERSISTENT RESERVE IN, READ FULL STATUS for LUN 2, with the largest allocation length.
func fullStatus(sn int) []byte {
	cdb := []byte{0: 0x5e, 1: 0x03, 7: 0xff, 8: 0xff, 15: 0}
	f := pdu.SCSICommandFields{
		Final: true, Read: true, Attr: pdu.AttrSimple, LUN: 2 << 48, ITT: uint32(sn), EDTL: 0xffff, CmdSN: serial.SN(sn), CDB: cdb,
	}
	return f.AppendTo(nil)
}

// registrations asks for the longest lists that a command makes of what the daemon knows.
func (g *greedy) registrations() {
	var all []byte
	for k := range 128 {
		all = append(all, fullStatus(1+k)...)
	}
	g.flood(g.askers("list", 32), all, 1)
}

// registrationsAtOnce sends the first command of each window last, so that all others wait for it.
func (g *greedy) registrationsAtOnce() {
	var all []byte
	for k := 127; k >= 0; k-- {
		all = append(all, fullStatus(1+k)...)
	}
	g.flood(g.askers("late", 32), all, 1)
}

// askers is a group of sessions.
func (g *greedy) askers(name string, n int) (conns []*net.TCPConn) {
	for i := range n {
		c := g.dial()
		g.login(c, fmt.Sprint(name, i), false, "MaxRecvDataSegmentLength=262144\x00")
		conns = append(conns, c)
	}
	return conns
}

// crowded waits until most of the I/O memory is taken. The witness, and others, go on meanwhile, and for some time after.
func (g *greedy) crowded(others ...*attack.Witness) {
	g.until("most of the I/O memory is taken", func() bool {
		g.Works()
		b := g.status().Buffers
		return b.InUse >= b.Limit*2/3
	})
	for range 10 {
		g.Works()
		for _, w := range others {
			w.Works()
		}
	}
}

// hogs are sessions that request more data than there is I/O memory, and take none of it. The target drops
// those that go on without taking anything. The witness, on the same store, goes on meanwhile.
func (g *greedy) hogs() {
	var conns []*net.TCPConn
	for i := range 32 {
		c := g.dial()
		g.login(c, fmt.Sprint("hog", i), false, "MaxRecvDataSegmentLength=262144\x00")
		if _, err := c.Write(reads(1)); err != nil {
			g.t.Fatal(err)
		}
		conns = append(conns, c)
	}
	g.crowded()
	g.until("those who take nothing are dropped", func() bool { return g.logged("has taken no answers for") > 0 })
	for _, c := range conns {
		_ = c.Close()
	}
}
