package tcp

import (
	"bytes"
	mathrand "math/rand/v2"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"oneshot/iscsi/pdu"
)

// logIn tries a login and returns the connection, the TSIH and the status.
func (b *bench) logIn(isid byte, tsih, cid uint16, keys ...string) (p *peer, newTSIH, status uint16) {
	b.t.Helper()
	c, err := net.Dial("tcp4", b.l.Addr().String())
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { _ = c.Close() })
	_ = c.SetDeadline(time.Now().Add(time.Minute)) // only a hang reaches it
	p = &peer{t: b.t, c: c, cmdSN: 100}
	keys = append([]string{"InitiatorName=iqn.2026-11.example:same", "TargetName=" + iqn}, keys...)
	text := strings.Join(keys, "\x00") + "\x00"
	f := pdu.LoginRequestFields{
		Transit: true, CSG: pdu.StageLoginOperationalNegotiation, NSG: pdu.StageFullFeaturePhase,
		ISID: pdu.ISID{0x80, 0, 0, 0, 0, isid}, TSIH: tsih, CID: cid, CmdSN: 100, ITT: 1, DataSegmentLength: len(text),
	}
	p.send(f.AppendTo(nil), []byte(text))
	h, _ := p.receive()
	r, err := pdu.ParseLoginResponse(h)
	if err != nil {
		b.t.Fatal(err)
	}
	return p, r.TSIH(), uint16(r.Status())
}

// RFC 7143 §6.3.5: a login of the same initiator port ends its old session first; another
// ISID is another session.
func TestReinstatement(t *testing.T) {
	for storeName, open := range stores {
		t.Run(storeName, func(t *testing.T) {
			b := newBench(t, open(t), nil)
			other, _, _ := b.logIn(2, 0, 0)
			old, oldTSIH, status := b.logIn(1, 0, 0)
			if status != 0 || oldTSIH == 0 {
				t.Fatalf("status %#x, TSIH %d", status, oldTSIH)
			}
			old.command(rw16(0x8a, 0, 64<<10), 64<<10, false, true, true, nil) // waits for its data
			fresh, newTSIH, status := b.logIn(1, 0, 0)
			if status != 0 || newTSIH == 0 || newTSIH == oldTSIH {
				t.Fatalf("status %#x, TSIH %d after %d", status, newTSIH, oldTSIH)
			}
			for { // the old connection is over
				if _, _, err := old.tryReceive(); err != nil {
					break
				}
			}
			for _, p := range []*peer{other, fresh} {
				p.finish(p.command(make([]byte, 6), 0, false, false, true, nil), nil) // takes the unit attention
				p.read(0, 4096)
			}
		})
	}
}

// RFC 7143 §6.3.1: a login that names a session.
func TestLoginForASession(t *testing.T) {
	b := newBench(t, newMemory(t), nil)
	old, tsih, _ := b.logIn(1, 0, 5)
	if _, _, status := b.logIn(1, tsih+1, 5); status != uint16(pdu.LoginSessionDoesNotExist) {
		t.Errorf("an unknown TSIH: status %#x", status)
	}
	if _, _, status := b.logIn(2, tsih, 5); status != uint16(pdu.LoginSessionDoesNotExist) {
		t.Errorf("another ISID: status %#x", status)
	}
	if _, _, status := b.logIn(1, tsih, 6); status != uint16(pdu.LoginTooManyConnections) {
		t.Errorf("a second connection: status %#x", status)
	}
	old.finish(old.command(make([]byte, 6), 0, false, false, true, nil), nil)
	old.read(0, 512) // none of these have disturbed the session
	again, same, status := b.logIn(1, tsih, 5)
	if status != 0 || same != tsih {
		t.Errorf("a connection in place of the only one: status %#x, TSIH %d", status, same)
	}
	again.cmdSN = old.cmdSN
	again.read(0, 512) // no unit attention: the session goes on
	if _, _, err := old.tryReceive(); err == nil {
		t.Error("the connection that was replaced lives")
	}
}

// Several connections of one session write and read at the same time, with the numbers of commands
// in one sequence, so that they wait for each other; one of them is lost and comes back now and then.
func TestConnectionsOfASession(t *testing.T) {
	const conns, rounds, area = 3, 60, 1 << 20
	for storeName, open := range stores {
		t.Run(storeName, func(t *testing.T) {
			b := newBench(t, open(t), nil)
			var shared atomic.Uint32
			shared.Store(100)
			lead, tsih, status := b.logIn(1, 0, 0, "MaxConnections=3", "InitialR2T=No")
			if status != 0 {
				t.Fatalf("status %#x", status)
			}
			lead.shared = &shared
			lead.finish(lead.command(make([]byte, 6), 0, false, false, true, nil), nil) // takes the unit attention
			join := func(cid uint16) *peer {
				p, same, status := b.logIn(1, tsih, cid)
				if status != 0 || same != tsih {
					t.Fatalf("connection %d: status %#x, TSIH %d of %d", cid, status, same, tsih)
				}
				p.shared, p.itt = &shared, uint32(cid)<<24
				return p
			}
			var all sync.WaitGroup
			for cid := range uint16(conns) {
				p := lead
				if cid > 0 {
					p = join(cid)
				}
				all.Go(func() {
					rnd := mathrand.New(mathrand.NewPCG(1, uint64(cid)))
					for round := range rounds {
						if cid == 2 && round%20 == 19 {
							if rnd.IntN(2) == 0 {
								_ = p.c.Close()
							}
							itt := p.itt
							p = join(cid)
							p.itt = itt
						}
						data := random(uint64(cid)<<32|uint64(round), blockSize*(1+rnd.IntN(64)))
						off := int(cid)*area + blockSize*rnd.IntN(area/blockSize-64)
						immediate := rnd.IntN(min(len(data), 4000) + 1)
						p.write(off, data, immediate, rnd.IntN(2)*min(len(data)-immediate, 20000))
						if !bytes.Equal(p.read(off, len(data)), data) {
							t.Errorf("connection %d reads other bytes than it wrote", cid)
						}
					}
				})
			}
			all.Wait()
			if list := b.node.Sessions(); len(list) != 1 || len(list[0].Connections) != conns {
				t.Errorf("%+v", list)
			}
		})
	}
}
