//go:build !race

package main

import (
	"context"
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"oneshot/initiator"
	"oneshot/iscsi/pdu"
	"oneshot/mgmt"
)

// host is an initiator port that reaches the mirror through both nodes.
type host struct {
	t    *testing.T
	ctx  context.Context
	s    *site
	name string
	at   map[string]*initiator.Session
}

func newHost(ctx context.Context, s *site, name string) *host {
	h := &host{t: s.t, ctx: ctx, s: s, name: name, at: map[string]*initiator.Session{}}
	s.t.Cleanup(func() {
		for _, session := range h.at {
			_ = session.Close()
		}
	})
	return h
}

// do sends a command to a node until it takes it. After a lost session it logs in again; it sends again what ended with BUSY, or NOT
// READY, as that of a node that stands by.
func (h *host) do(node string, c initiator.Command) *initiator.Command {
	h.t.Helper()
	return h.doAt([]string{node}, c)
}

// doAt does it at one node after the other.
func (h *host) doAt(nodes []string, c initiator.Command) *initiator.Command {
	h.t.Helper()
	var last string
	for i := 0; h.ctx.Err() == nil; i++ {
		node, sent := nodes[i%len(nodes)], c
		sent.Attentions = 8
		session, err := h.login(node)
		if err == nil {
			err = session.Do(h.ctx, &sent)
		}
		switch {
		case err != nil && sent.Status == 0:
			if session != nil {
				_ = session.Close()
				delete(h.at, node)
			}
			last = err.Error()
		case sent.Status == initiator.StatusBusy, len(sent.Sense) > 13 && (sent.Sense[2]&0xf == 6 || sent.Sense[2]&0xf == 2):
			last = fmt.Sprintf("status %#x, sense % x", sent.Status, sent.Sense)
		default:
			return &sent
		}
		select {
		case <-time.After(10 * time.Millisecond):
		case <-h.ctx.Done():
		}
	}
	h.t.Fatalf("%s: % x at %s: %s", h.name, c.CDB, nodes, last)
	return nil
}

func (h *host) login(node string) (*initiator.Session, error) {
	if h.at[node] != nil {
		return h.at[node], nil
	}
	i := map[string]int{"a": 3, "b": 4}[node]
	u, err := initiator.ParseURL("iscsi://" + h.s.at[i] + "/iqn.2026-11.example.oneshot:lab/0")
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(h.ctx, pathTime)
	defer cancel()
	session, err := initiator.Dial(ctx, u, initiator.Options{InitiatorName: "iqn.2026-11.example.hosts:" + h.name, ISID: pdu.ISID{0x40, 0, 0, 0, 0, 1}})
	if err == nil {
		h.at[node] = session
	}
	return session, err
}

// out is PERSISTENT RESERVE OUT, of a kind with registrants, to be kept over a loss of power if keep is set.
func (h *host) out(node string, action byte, key, other uint64, keep bool) {
	h.t.Helper()
	const registrants = 5 // WRITE EXCLUSIVE – REGISTRANTS ONLY
	list := make([]byte, 24)
	binary.BigEndian.PutUint64(list, key)
	binary.BigEndian.PutUint64(list[8:], other)
	if keep {
		list[20] = 1
	}
	if c := h.do(node, initiator.Command{CDB: []byte{0x5f, action, registrants, 0, 0, 0, 0, 0, 24, 0}, Out: list}); c.Status != initiator.StatusGood {
		h.t.Fatalf("%s: PERSISTENT RESERVE OUT %d through %s: status %#x", h.name, action, node, c.Status)
	}
}

// keys is READ KEYS: the generation, and the keys.
func (h *host) keys(node string) string {
	h.t.Helper()
	b := make([]byte, 256)
	c := h.do(node, initiator.Command{CDB: []byte{0x5e, 0, 0, 0, 0, 0, 0, 1, 0, 0}, In: b})
	if c.Status != initiator.StatusGood {
		h.t.Fatalf("%s: READ KEYS through %s: status %#x", h.name, node, c.Status)
	}
	text := fmt.Sprint(binary.BigEndian.Uint32(b), ":")
	for at, end := 8, 8+int(binary.BigEndian.Uint32(b[4:])); at < end; at += 8 {
		text += fmt.Sprintf(" %d", binary.BigEndian.Uint64(b[at:]))
	}
	return text
}

// writes writes a block through whichever of the nodes serves, and returns the status.
func (h *host) writes(nodes ...string) byte {
	h.t.Helper()
	return h.doAt(nodes, initiator.Command{CDB: []byte{0x2a, 0, 0, 0, 0, 0, 0, 0, 1, 0}, Out: make([]byte, 512)}).Status
}

func (s *site) wantKeys(h *host, node, want string) {
	s.t.Helper()
	if got := h.keys(node); got != want {
		s.t.Errorf("through %s: %s, want %s", node, got, want)
	}
}

const (
	actReserve        = 1
	actPreemptAbort   = 5
	actRegisterIgnore = 6
)

// TestMirrorReservations is what fence_scsi does: all nodes of a cluster of hosts register on all paths, one reserves, and one is
// fenced. It is fenced at whichever node it tries, after the primary was killed, and after all nodes were.
func TestMirrorReservations(t *testing.T) {
	s := newMirror(t)
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	good, bad := newHost(ctx, s, "good"), newHost(ctx, s, "bad")
	start := func(name string) { s.start(name) }
	s.level("a")
	for i, h := range []*host{good, bad} {
		h.out("a", actRegisterIgnore, 0, uint64(i+1), true)
		h.out("b", actRegisterIgnore, 0, uint64(i+1), true)
	}
	good.out("b", actReserve, 1, 0, false) // of a node that does not serve
	for _, node := range []string{"a", "b"} {
		s.wantKeys(bad, node, "4: 1 1 2 2")
	}
	if status := bad.writes("a", "b"); status != initiator.StatusGood {
		t.Errorf("who is registered gets %#x", status)
	}

	// The primary is killed, and the host that is to be fenced is so through the one that is left.
	lost := s.loses(s.kill, start)
	left := other(lost)
	good.out(left, actPreemptAbort, 1, 2, false)
	if status := bad.writes(left); status != initiator.StatusReservationConflict {
		t.Errorf("fenced, it gets %#x from %s", status, left)
	}
	if status := good.writes(left); status != initiator.StatusGood {
		t.Errorf("the other host gets %#x", status)
	}
	s.start(lost)
	s.wantKeys(bad, lost, "5: 1 1")
	s.level("a")
	if again := s.loses(s.kill, start); again != lost { // the node that was not there serves
		if status := bad.writes(lost); status != initiator.StatusReservationConflict {
			t.Errorf("fenced while %s was away, it gets %#x from it", lost, status)
		}
		s.start(again)
	} else {
		s.start(lost)
	}
	s.level("a")

	// All lose their power.
	for _, name := range []string{"a", "b", "w"} {
		s.kill(name)
	}
	for _, name := range []string{"w", "a", "b"} {
		s.start(name)
	}
	s.level("a")
	s.wantKeys(bad, "a", "5: 1 1")
	s.wantKeys(bad, "b", "5: 1 1")
	if status := bad.writes("a", "b"); status != initiator.StatusReservationConflict {
		t.Errorf("fenced before the loss of power, it gets %#x", status)
	}
	if status := good.writes("a", "b"); status != initiator.StatusGood {
		t.Errorf("the other host gets %#x", status)
	}
}

// freeze stops a daemon, and returns when none of its threads runs any more.
func (s *site) freeze(name string) {
	s.t.Helper()
	p := s.daemons[name].Process
	if err := p.Signal(syscall.SIGSTOP); err != nil {
		s.t.Fatal(err)
	}
	for running := true; running; {
		threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", p.Pid))
		if err != nil {
			s.t.Fatal(err)
		}
		running = len(threads) == 0
		for _, thread := range threads {
			b, err := os.ReadFile(thread)
			_, state, found := strings.Cut(string(b), ") ")
			running = running || err != nil || !found || state[0] != 'T'
		}
	}
}

// TestMirrorReservationsAlone: while a node hears nobody, no reservation changes there; and none changes elsewhere that the
// primary has not taken.
func TestMirrorReservationsAlone(t *testing.T) {
	s := newMirror(t)
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	primary := s.level("a")
	h := newHost(ctx, s, "good")
	h.out(primary, actRegisterIgnore, 0, 1, true)
	stopped := []string{other(primary), "w"}
	for _, name := range stopped {
		s.freeze(name)
	}
	list := make([]byte, 24)
	list[15] = 2
	session, err := h.login(primary)
	if err != nil {
		t.Fatal(err)
	}
	c := &initiator.Command{CDB: []byte{0x5f, actRegisterIgnore, 0, 0, 0, 0, 0, 0, 24, 0}, Out: list, Attentions: 8}
	if err := session.Do(ctx, c); c.Status != initiator.StatusBusy {
		t.Errorf("without a majority: status %#x, %v", c.Status, err)
	}
	for _, name := range stopped {
		if err := s.daemons[name].Process.Signal(syscall.SIGCONT); err != nil {
			t.Fatal(err)
		}
	}
	h.out(primary, actRegisterIgnore, 0, 2, true)
	s.untilCluster(primary, "somebody serves", func(c *mgmt.Cluster) bool { return c.Mirrors[0].Primary != "" })
	if keys := h.keys(primary); !strings.HasSuffix(keys, ": 2") {
		t.Errorf("%s", keys)
	}
}

// protects is MODE SELECT of SWP.
func (h *host) protects(node string, is byte) {
	h.t.Helper()
	list := make([]byte, 8+12)
	list[8], list[9], list[11], list[12] = 0x0a, 0x0a, 0x10, is<<3
	if c := h.do(node, initiator.Command{CDB: []byte{0x55, 0x10, 0, 0, 0, 0, 0, 0, byte(len(list)), 0}, Out: list}); c.Status != initiator.StatusGood {
		h.t.Fatalf("MODE SELECT through %s: status %#x, sense % x", node, c.Status, c.Sense)
	}
}

// isProtected reports whether a WRITE through whichever of the nodes serves ends with WRITE PROTECTED, and whether a node tells so.
func (h *host) isProtected(nodes ...string) (refuses, tells bool) {
	h.t.Helper()
	c := h.doAt(nodes, initiator.Command{CDB: []byte{0x2a, 0, 0, 0, 0, 0, 0, 0, 1, 0}, Out: make([]byte, 512)})
	b := make([]byte, 64)
	sense := h.do(nodes[0], initiator.Command{CDB: []byte{0x1a, 8, 0x0a, 0, 64, 0}, In: b})
	return len(c.Sense) > 13 && c.Sense[2]&0xf == 7 && c.Sense[12] == 0x27, sense.Status == initiator.StatusGood && b[4+4]&8 != 0
}

// TestMirrorModes: what a host has selected through a node that does not serve holds where the mirror is served, after a takeover, and at
// a node that was away; it ends with a loss of power of all.
func TestMirrorModes(t *testing.T) {
	s := newMirror(t)
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	h, another := newHost(ctx, s, "one"), newHost(ctx, s, "two")
	want := func(is bool, nodes ...string) {
		t.Helper()
		if refuses, tells := another.isProtected(nodes...); refuses != is || tells != is {
			t.Errorf("at %v writes are refused: %v, and MODE SENSE says so: %v; want %v", nodes, refuses, tells, is)
		}
	}
	h.protects(other(s.level("a")), 1)
	want(true, "a", "b")
	lost := s.loses(s.kill, func(name string) { s.start(name) })
	want(true, other(lost))
	h.protects(other(lost), 0)
	want(false, other(lost))
	h.protects(other(lost), 1)
	s.start(lost)
	s.level("a")
	want(true, lost, other(lost))
	for _, name := range []string{"a", "b", "w"} {
		s.kill(name)
	}
	for _, name := range []string{"w", "a", "b"} {
		s.start(name)
	}
	s.level("a")
	want(false, "a", "b")
}

// TestMirrorConformance runs libiscsi's tests of persistent reservations, of WRITE ATOMIC and of copies. They are of one path, and ask for a node that serves: on a
// busy machine that may change in the middle of one, which is done again then.
func TestMirrorConformance(t *testing.T) {
	s := newMirror(t)
	for _, name := range []string{
		"PrinReadKeys", "PrinServiceactionRange", "PrinReportCapabilities", "ProutRegister", "ProutReserve", "ProutClear", "ProutPreempt", "WriteAtomic16.Simple", "WriteAtomic16.BeyondEol", "WriteAtomic16.ZeroBlocks",
		"ExtendedCopy.Simple", "ExtendedCopy.ParamHdr", "ExtendedCopy.DescrLimits", "ExtendedCopy.DescrType", "ExtendedCopy.ValidTgtDescr", "ExtendedCopy.ValidSegDescr", "ReceiveCopyResults.CopyStatus", "ReceiveCopyResults.OpParams",
	} {
		for primary, done := s.level("w"), false; !done; {
			at := map[string]string{"a": s.at[3], "b": s.at[4]}[primary]
			out, err := exec.CommandContext(t.Context(), "iscsi-test-cu", "--dataloss", "--test=ALL."+name, "iscsi://"+at+"/iqn.2026-11.example.oneshot:lab/0").CombinedOutput()
			text := string(out)
			done = err == nil && !strings.Contains(text, "[FAILED]") && !strings.Contains(text, "[SKIPPED]") && strings.Contains(text, "passed")
			if was := primary; !done {
				if primary = s.level("w"); primary == was {
					t.Errorf("%s: %v\n%s", name, err, text)
					done = true
				}
			}
		}
	}
}
