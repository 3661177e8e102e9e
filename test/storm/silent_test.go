package storm

import (
	"encoding/binary"
	"fmt"
	"io"

	"oneshot/ddp"
	"oneshot/initiator"
	"oneshot/internal/serial"
	"oneshot/iscsi/pdu"
	"oneshot/iser/isertest"
)

const (
	silentPeers    = 24
	silentCommands = 8       // of each; the memory of a connection is enough for half of them
	silentLen      = 1 << 20 // of each command
)

// silent is the CDB of READ(16) or WRITE(16) for as much as a silent peer asks for.
func silent(op byte) []byte {
	cdb := binary.BigEndian.AppendUint32([]byte{0: op, 9: 0}, silentLen/512)
	return append(cdb, 0, 0)
}

// peers are initiators made of octets, over RDMA.
func (g *commander) peers() (all []*isertest.Peer) {
	offer := ddp.OneShotFlags(0)
	if g.way == initiator.OneShot {
		offer = isertest.EveryOffer
	}
	for i := range silentPeers {
		p := isertest.Connect(g.t, g.Portals[1], g.way == initiator.OneShot, offer)
		p.ISID, p.LUN = byte(i), 1
		p.LogIn(iqn + "t")
		all = append(all, p)
	}
	return all
}

// silentWrites are WRITEs whose data the target asks for, and which nobody sends. They keep their memory, for the target waits for long
// here; the witness goes on meanwhile.
func (g *commander) silentWrites() {
	before := g.status().Buffers.InUse
	var conns []io.Closer
	if g.way == initiator.TCP {
		var b []byte
		for k := range silentCommands {
			f := pdu.SCSICommandFields{
				Final: true, Write: true, Attr: pdu.AttrSimple, LUN: 1 << 48, ITT: uint32(k), EDTL: silentLen, CmdSN: serial.SN(1 + k), CDB: silent(0x8a),
			}
			b = f.AppendTo(b)
		}
		for i := range silentPeers {
			c := g.greedy.dial()
			g.login(c, fmt.Sprint("silent", i), false, "InitialR2T=Yes\x00ImmediateData=No\x00")
			if _, err := c.Write(b); err != nil {
				g.t.Fatal(err)
			}
			conns = append(conns, c)
		}
	} else {
		for _, p := range g.peers() {
			for k := range silentCommands {
				p.Command(silent(0x8a), nil, uint32(0x100*(1+k)), 0, silentLen)
			}
			conns = append(conns, p.Conn)
		}
	}
	g.crowded()
	for _, c := range conns {
		_ = c.Close()
	}
	g.until("the memory is back", func() bool { return g.status().Buffers.InUse <= before+4<<20 })
}

// deafReads are READs whose answers nobody takes from the wire. The target drops those that go on without taking anything; the
// witness goes on meanwhile.
func (g *commander) deafReads() {
	was := g.logged("has taken no answers for")
	peers := g.peers()
	for _, p := range peers {
		if err := p.Conn.SetReadBuffer(4096); err != nil {
			g.t.Fatal(err)
		}
		for k := range 2 * silentCommands { // more than sockets hold
			p.Command(silent(0x88), nil, 0, uint32(0x100*(1+k)), silentLen)
		}
	}
	g.crowded()
	g.until("those who take nothing are dropped", func() bool { return g.logged("has taken no answers for") > was })
	for _, p := range peers {
		_ = p.Conn.Close()
	}
}
