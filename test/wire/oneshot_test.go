package wire

import (
	"encoding/binary"
	"fmt"
	"sync"
	"testing"

	client "oneshot/initiator"
	"oneshot/test/targettest"
)

// TestOneShot captures sessions over one-shot RDMA in each of its encodings, and reads them as the
// specification has them: what is advertised is used as its command says, and closed once, with the
// response to that command.
func TestOneShot(t *testing.T) {
	for _, c := range []struct {
		name    string
		keys    string
		opcodes bool
		want    uint16
	}{
		{"flags", "header: every", false, byFlags | every},
		{"opcodes", "header: every", true, byOpcodes | every},
		{"flags, STag only where it is valid", "header: validated", false, byFlags | validated},
		{"opcodes, STag only where it is valid", "header: validated", true, byOpcodes | validated},
	} {
		t.Run(c.name, func(t *testing.T) {
			tg := targettest.Start(t, fmt.Sprintf(`
stores:  {disk: {type: memory, size: 64MiB}}
targets: [{iqn: %q, luns: {0: disk}}]
portals: [{transport: iwarp, listen: $PORTAL, one_shot: {%s}}]
`, iqn, c.keys))
			capture, err := startCapture(t.Context(), tg.Port())
			check(t, err)
			commands := talkOneShot(t, tg.Portal(), c.opcodes)
			pcapng, err := capture.stop(t.Context())
			check(t, err)
			judgeOneShot(t, pcapng, tg.Port(), c.want|advertise|closing, commands)
			if t.Failed() {
				keep(t, pcapng)
			}
		})
	}
}

// talkOneShot reads and writes, one by one and side by side, and returns how many commands had buffers
// to advertise at least.
func talkOneShot(t *testing.T, address string, opcodes bool) int {
	t.Helper()
	u, err := client.ParseURL("oneshot+iwarp://" + address + "/" + iqn + "/0")
	check(t, err)
	s, err := client.Dial(t.Context(), u, client.Options{Opcodes: opcodes, Immediate: 1024})
	check(t, err)
	l, err := s.LU(t.Context(), 0)
	check(t, err)
	n := 0
	for _, size := range []int{512, 4096, 70 * 512, 300 << 10} {
		b := make([]byte, size)
		_, err := l.WriteAt(b, 0)
		check(t, err)
		_, err = l.ReadAt(b, 0)
		check(t, err)
		if n++; size > 1024 {
			n++
		}
	}
	var wg sync.WaitGroup
	for i := range 20 {
		wg.Go(func() {
			if _, err := l.WriteAt(make([]byte, 8192), int64(i)<<20); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	check(t, l.Flush(t.Context()))
	err = s.Do(t.Context(), &client.Command{CDB: []byte{0x28, 2: 0x7f, 8: 1, 9: 0}, In: make([]byte, 512)})
	if err == nil {
		t.Error("a READ beyond the end succeeds")
	}
	check(t, s.Close())
	return n + 20 + 1
}

func judgeOneShot(t *testing.T, pcapng []byte, port string, want uint16, commands int) {
	t.Helper()
	all, err := directions(t.Context(), pcapng, port)
	check(t, err)
	sessions := 0
	for _, out := range all {
		if out.fromTarget || len(out.octets) == 0 {
			continue
		}
		for _, in := range all {
			if in.fromTarget && in.stream == out.stream {
				sessions++
				judgeStream(t, out.octets, in.octets, want, commands)
			}
		}
	}
	if sessions != 1 {
		t.Errorf("%d connections were captured, want 1", sessions)
	}
}

// use is what became of an STag that was advertised.
type use struct {
	itt         uint32
	write, read bool
	ended       bool
}

func judgeStream(t *testing.T, out, in []byte, want uint16, commands int) {
	t.Helper()
	offered, out, err := startFrame(out, "MPA ID Req Frame")
	check(t, err)
	chosen, in, err := startFrame(in, "MPA ID Rep Frame")
	check(t, err)
	if chosen != want || chosen&^offered != 0 {
		t.Errorf("offered %#x, chosen %#x, want %#x", offered, chosen, want)
	}
	there, err := messages(out, chosen, false)
	check(t, err)
	back, err := messages(in, chosen, true)
	check(t, err)
	uses := make(map[uint32]*use)
	for _, m := range there {
		if m.closes {
			t.Errorf("the initiator closes %08x", m.stag)
		}
		if !m.advertises {
			continue
		}
		if len(m.payload) < 48 || m.payload[0]&0x3f != 1 {
			t.Fatalf("an STag is advertised with % x", m.payload)
		}
		if uses[m.stag] != nil || m.stag == 0 {
			t.Errorf("STag %08x is advertised twice", m.stag)
		}
		uses[m.stag] = &use{
			itt: binary.BigEndian.Uint32(m.payload[16:]), read: m.payload[1]&0x40 != 0, write: m.payload[1]&0x20 != 0,
		}
	}
	closed := 0
	for _, m := range back {
		switch {
		case m.advertises:
			t.Errorf("the target advertises %08x", m.stag)
		case m.closes:
			closed++
			u := uses[m.stag]
			if u == nil || u.ended {
				t.Fatalf("the target closes %08x, which is not open", m.stag)
			}
			u.ended = true
			if m.payload[0]&0x3f != 0x21 || binary.BigEndian.Uint32(m.payload[16:]) != u.itt {
				t.Errorf("%08x of the command %#x is closed with % x", m.stag, u.itt, m.payload[:20])
			}
		case m.opcode == 1:
			if u := uses[m.readFrom]; u == nil || u.ended || !u.write {
				t.Errorf("a Read Request for %08x: %+v", m.readFrom, u)
			}
		case m.tagged && m.opcode == 0 && len(m.payload) > 0:
			if u := uses[m.stag]; u == nil || u.ended || !u.read {
				t.Errorf("a Write to %08x: %+v", m.stag, u)
			}
		case m.opcode == 4 || m.opcode == 6 || m.opcode == 7:
			t.Errorf("opcode %d from the target", m.opcode)
		}
	}
	if closed != len(uses) || closed < commands {
		t.Errorf("%d STags were advertised and %d closed, want %d at least", len(uses), closed, commands)
	}
}
