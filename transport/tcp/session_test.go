package tcp

import (
	"net"
	"testing"
	"time"

	"oneshot/iscsi/pdu"
)

// logIn tries a login and returns the connection, the TSIH and the status.
func (b *bench) logIn(isid byte, tsih, cid uint16) (p *peer, newTSIH, status uint16) {
	b.t.Helper()
	c, err := net.Dial("tcp4", b.l.Addr().String())
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { _ = c.Close() })
	_ = c.SetDeadline(time.Now().Add(time.Minute)) // only a hang reaches it
	p = &peer{t: b.t, c: c, cmdSN: 100}
	text := "InitiatorName=iqn.2026-11.example:same\x00TargetName=" + iqn + "\x00"
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
	if _, _, status := b.logIn(1, tsih, 5); status != uint16(pdu.LoginSessionDoesNotExist) {
		t.Errorf("a connection in place of the only one: status %#x", status)
	}
	if _, _, err := old.tryReceive(); err == nil {
		t.Error("the connection that was replaced lives")
	}
}
