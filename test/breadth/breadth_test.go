// Package breadth tests commands that hosts rarely use, with a whole daemon: reservations that survive a
// kill, copies without the initiator, and paths with access states of their own.
package breadth

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"

	"oneshot/initiator"
	"oneshot/test/targettest"
)

func TestMain(m *testing.M) {
	if url := os.Getenv(envWriter); url != "" {
		first, err := strconv.ParseUint(os.Args[1], 10, 64)
		if err == nil {
			err = writer(url, first)
		}
		fmt.Fprintln(os.Stderr, "writer:", err)
		os.Exit(1)
	}
	targettest.Main(m)
}

const iqn = "iqn.2026-11.example.oneshot:"

// host is a session of an initiator.
type host struct {
	t *testing.T
	*initiator.Session
}

// login logs in, and takes the unit attentions of LUNs 0 and 1, if they exist.
func login(t *testing.T, portal, target string) *host {
	t.Helper()
	u, err := initiator.ParseURL("iscsi://" + portal + "/" + iqn + target)
	if err != nil {
		t.Fatal(err)
	}
	s, err := initiator.Dial(t.Context(), u, initiator.Options{})
	if err != nil {
		t.Fatal(err)
	}
	h := &host{t, s}
	for lun := range 2 {
		h.do(lun, make([]byte, 6), nil, 0)
	}
	return h
}

// answer is the data of a command and, if it failed, status or sense: 0xKAAQQ for CHECK CONDITION.
type answer struct {
	data []byte
	code int
}

const conflict = 0x18 << 24

func (h *host) do(lun int, cdb, out []byte, in int) answer {
	h.t.Helper()
	c := &initiator.Command{LUN: lun, CDB: cdb, Out: out}
	if in > 0 {
		c.In = make([]byte, in)
	}
	err := h.Do(h.t.Context(), c)
	if e, failed := errors.AsType[*initiator.StatusError](err); failed {
		if e.Key == 0 {
			return answer{nil, int(e.Status) << 24}
		}
		return answer{nil, int(e.Key)<<16 | int(e.ASC)<<8 | int(e.ASCQ)}
	}
	if err != nil {
		h.t.Fatal(err)
	}
	return answer{data: c.In[:min(len(c.In), c.Transferred)]}
}

func (h *host) expect(what string, want int, a answer) []byte {
	h.t.Helper()
	if a.code != want {
		h.t.Errorf("%s: %#x, want %#x", what, a.code, want)
	}
	return a.data
}

func write(lba byte) []byte { return []byte{0x2a, 0, 0, 0, 0, lba, 0, 0, 1, 0} }
func read(lba byte) []byte  { return []byte{0x28, 0, 0, 0, 0, lba, 0, 0, 1, 0} }

// A reservation with APTPL still keeps other initiators out after the daemon was killed; one without does not.
func TestReservationsOutliveAKill(t *testing.T) {
	tg := targettest.Start(t, `
state: $DIR/state
stores: {a: {type: file, path: $DIR/a.img, size: 1MiB}, b: {type: file, path: $DIR/b.img, size: 1MiB}}
targets: [{iqn: `+iqn+`t, luns: {0: a, 1: b}}]
portals: [{listen: $PORTAL}]
`)
	h := login(t, tg.Portal(), "t")
	for lun, aptpl := range []byte{1, 0} {
		list := make([]byte, 24)
		binary.BigEndian.PutUint64(list[8:], 0xabcd)
		list[20] = aptpl
		h.expect("REGISTER", 0, h.do(lun, []byte{0x5f, 0, 0, 0, 0, 0, 0, 0, 24, 0}, list, 0))
		binary.BigEndian.PutUint64(list, 0xabcd)
		h.expect("RESERVE", 0, h.do(lun, []byte{0x5f, 1, 1, 0, 0, 0, 0, 0, 24, 0}, list, 0))
	}
	tg.Kill()
	_ = h.Close() // its target is gone
	tg.Start()
	h = login(t, tg.Portal(), "t")
	h.expect("WRITE, APTPL", conflict, h.do(0, write(0), make([]byte, 512), 0))
	h.expect("WRITE, no APTPL", 0, h.do(1, write(0), make([]byte, 512), 0))
	keys := h.expect("READ KEYS", 0, h.do(0, []byte{0x5e, 0, 0, 0, 0, 0, 0, 1, 0, 0}, nil, 256))
	if !bytes.HasSuffix(keys, []byte{0xab, 0xcd}) || len(keys) != 16 {
		t.Errorf("READ KEYS: % x", keys)
	}
	if err := h.Close(); err != nil {
		t.Error(err)
	}
}

// One host makes a token for a disk, and another host uses it for a disk of another target.
func TestTokenGoesToAnotherHost(t *testing.T) {
	tg := targettest.Start(t, `
stores: {a: {type: memory, size: 1MiB}, b: {type: file, path: $DIR/b.img, size: 1MiB}}
targets: [{iqn: `+iqn+`a, luns: {0: a}}, {iqn: `+iqn+`b, luns: {1: b}}]
portals: [{listen: $PORTAL}]
`)
	source, destination := login(t, tg.Portal(), "a"), login(t, tg.Portal(), "b")
	block := bytes.Repeat([]byte("source! "), 64)
	source.expect("WRITE", 0, source.do(0, write(9), block, 0))
	populate := make([]byte, 32)
	populate[1], populate[15], populate[16+7], populate[16+11] = 30, 16, 9, 1
	source.expect("POPULATE TOKEN", 0, source.do(0, []byte{0x83, 0x10, 0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0, 32, 0, 0}, populate, 0))
	info := source.expect("RECEIVE ROD TOKEN INFORMATION", 0, source.do(0, []byte{0x84, 7, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0}, nil, 1024))
	if len(info) != 38+512 {
		t.Fatalf("%d bytes of information", len(info))
	}
	use := make([]byte, 552)
	binary.BigEndian.PutUint16(use, 550)
	copy(use[16:], info[38:])
	use[535], use[536+7], use[536+11] = 16, 100, 1
	cdb := []byte{0x83, 0x11, 0, 0, 0, 0, 0, 0, 0, 8, 0, 0, 2, 0x28, 0, 0}
	destination.expect("WRITE USING TOKEN", 0, destination.do(1, cdb, use, 0))
	if got := destination.expect("READ", 0, destination.do(1, read(100), nil, 512)); !bytes.Equal(got, block) {
		t.Errorf("other data are there: %q", got[:16])
	}
	source.expect("WRITE", 0, source.do(0, write(9), make([]byte, 512), 0))
	destination.expect("WRITE USING TOKEN, when the source has changed", 0x52306, destination.do(1, cdb, use, 0))
	for _, h := range []*host{source, destination} {
		if err := h.Close(); err != nil {
			t.Error(err)
		}
	}
}

// Two portal groups are two paths. One is set to standby through the other, reports that, and is set back.
func TestPathsHaveStates(t *testing.T) {
	tg := targettest.Start(t, `
stores: {a: {type: memory, size: 1MiB}}
targets: [{iqn: `+iqn+`t, luns: {0: {store: a, alua: both}}}]
portals: [{listen: $PORTAL}, {listen: $PORTAL2, group: 2}]
`)
	one, two := login(t, tg.Portals[0], "t"), login(t, tg.Portals[1], "t")
	groups := one.expect("REPORT TARGET PORT GROUPS", 0, one.do(0, []byte{0xa3, 0x0a, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0}, nil, 256))
	if len(groups) != 28 || groups[4+3] != 1 || groups[16+3] != 2 {
		t.Fatalf("target port groups % x", groups)
	}
	id := two.expect("VPD 83", 0, two.do(0, []byte{0x12, 1, 0x83, 1, 0, 0}, nil, 256))
	if !strings.Contains(string(id), ":t,t,0x0002\x00") || !bytes.Contains(id, []byte{1, 0x15, 0, 4, 0, 0, 0, 2}) {
		t.Errorf("the second path calls itself % x", id)
	}
	set := func(state byte) {
		t.Helper()
		one.expect("SET TARGET PORT GROUPS", 0, one.do(0, []byte{0xa4, 0x0a, 0, 0, 0, 0, 0, 0, 0, 8, 0, 0}, []byte{0, 0, 0, 0, state, 0, 0, 2}, 0))
		two.expect("after SET TARGET PORT GROUPS", 0x62a06, two.do(0, make([]byte, 6), nil, 0))
	}
	set(2)
	two.expect("READ in standby", 0x2040b, two.do(0, read(0), nil, 512))
	one.expect("READ on the other path", 0, one.do(0, read(0), nil, 512))
	set(1)
	two.expect("READ afterwards", 0, two.do(0, read(0), nil, 512))
	for _, h := range []*host{one, two} {
		if err := h.Close(); err != nil {
			t.Error(err)
		}
	}
}
