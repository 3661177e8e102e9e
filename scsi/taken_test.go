package scsi

import (
	"bytes"
	"testing"
)

// replacing is a bench with another disk that can come to LUN 0, and the initiator port of nexus b.
type replacing struct {
	*bench
	store *fakeStore // of the other disk
	other *LogicalUnit
}

func newReplacing(t *testing.T) *replacing {
	t.Helper()
	x := &replacing{bench: newBench(t, true, nil), store: newFakeStore(testBlocks * 512)}
	x.other = x.unit(LUConfig{Volume: volumeOf(fakeLender{x.store}), Serial: "0002"})
	return x
}

func (x *replacing) unit(cfg LUConfig) *LogicalUnit {
	x.t.Helper()
	lu, err := NewLogicalUnit(cfg)
	if err != nil {
		x.t.Fatal(err)
	}
	return lu
}

// send runs a command, again while unit attentions are pending, as Linux does.
func (x *replacing) send(n *Nexus, lun uint64, cdb, out []byte, in int) result {
	x.t.Helper()
	for {
		task := x.task(cdb, out, in)
		task.Nexus, task.LUN = n, lun<<48
		if r := x.run(task, out); r.code()>>16 != keyUnitAttention {
			return r
		}
	}
}

// writes expects a WRITE to the LUN to end with code, and the other disk to be written to or not.
func (x *replacing) writes(what string, n *Nexus, lun uint64, code int, reaches bool) {
	x.t.Helper()
	clear(x.store.data)
	block := bytes.Repeat([]byte{0x5a}, 512)
	if r := x.send(n, lun, rw10(0x2a, 3, 1), block, 0); r.code() != code {
		x.t.Errorf("%s: WRITE ends with %05x, want %05x", what, r.code(), code)
	}
	if bytes.Contains(x.store.data, block) != reaches {
		x.t.Errorf("%s: the other disk is written to: %v", what, !reaches)
	}
}

func (x *replacing) ask(n *Nexus, page byte) {
	x.t.Helper()
	if r := x.send(n, 0, []byte{0x12, min(page, 1), page, 1, 0, 0}, nil, 256); r.status != Good || r.in[0] != 0 {
		x.t.Errorf("INQUIRY, page %02x: %05x", page, r.code())
	}
}

func (x *replacing) nexusOf(isid uint64) *Nexus {
	return x.target.NewNexus(client("iqn.2026-11.example.clients:a", isid))
}

// The commands of an initiator that has a disk reach no other one that comes to its LUN, over the same session or another one, until it has asked
// for the name of that.
func TestDiskReplaced(t *testing.T) {
	x := newReplacing(t)
	n, late := x.nexusOf(1), x.nexusOf(2)
	x.writes("before", n, 0, 0, false)
	x.target.SetLU(0, x.other)
	x.writes("over the same session", n, 0, 0x52500, false)
	if r := x.send(n, 0, make([]byte, 6), nil, 0); r.code() != 0x52500 {
		t.Errorf("TEST UNIT READY: %05x", r.code())
	}
	x.ask(n, 0)
	x.ask(n, 0x80)
	x.writes("after it has asked for less", n, 0, 0x52500, false)
	again := x.nexusOf(1) // before the target has noticed the end of the former session
	x.writes("over a second session", again, 0, 0x52500, false)
	n.Close(func() {})
	again.Close(func() {})
	again = x.nexusOf(1)
	x.writes("over a new session", again, 0, 0x52500, false)
	x.ask(again, 0x83)
	x.writes("after it has asked", again, 0, 0, true)
	again.Close(func() {})
	x.writes("over yet another session", x.nexusOf(1), 0, 0, true)
	x.writes("of another initiator port", late, 0, 0x52500, false)
	x.writes("of one that has come afterwards", x.nexusOf(3), 0, 0, true)
}

// The number that a disk had is not another's either after some time without any.
func TestDiskReplacedLater(t *testing.T) {
	x := newReplacing(t)
	n := x.nexusOf(1)
	x.target.SetLU(0, nil)
	x.writes("a LUN without a disk", n, 0, 0x52500, false)
	x.target.SetLUs([]LUChange{{0, x.other}, {1, x.other}})
	x.writes("another disk", n, 0, 0x52500, false)
	x.writes("a LUN that was not there", n, 1, 0, true)
	x.target.SetLU(0, x.lu)
	x.writes("its own disk", n, 0, 0, false)
}

// Who asks while disks change has been told of the one, and does not reach the other.
func TestDiskReplacedWhileAsked(t *testing.T) {
	x := newReplacing(t)
	n := x.nexusOf(1)
	x.target.SetLU(0, x.other)
	asked := n.lookup(0)
	x.target.SetLU(0, x.lu)
	asked.identified()
	if r := x.send(n, 0, rw10(0x28, 0, 1), nil, 512); r.code() != 0x52500 {
		t.Errorf("READ of the former disk: %05x", r.code())
	}
	x.target.SetLU(0, x.other)
	x.writes("the disk that it was told of", n, 0, 0, true)
}

// Initiators notice nothing of a disk that is shown in another way, or under another name.
func TestSameDiskReplaced(t *testing.T) {
	x := newReplacing(t)
	n := x.nexusOf(1)
	gone := x.nexusOf(2)
	gone.Close(func() {})
	v := x.lu.v
	for _, c := range []struct {
		what string
		cfg  LUConfig
		code int
	}{
		{"read-only", LUConfig{Volume: v, Serial: "0001", ReadOnly: true}, 0x72700},
		{"another product", LUConfig{Volume: v, Serial: "0001", Product: "DISK"}, 0},
		{"another name", LUConfig{Volume: v, Serial: "0003"}, 0},
		{"opened again", LUConfig{Volume: volumeOf(newFakeStore(testBlocks * 512)), Serial: "0003"}, 0},
		{"larger blocks", LUConfig{Volume: v, Serial: "0003", BlockSize: 4096}, 0x52500},
	} {
		x.target.SetLU(0, x.unit(c.cfg))
		x.writes(c.what, n, 0, c.code, false)
		x.writes(c.what+", over a new session", x.nexusOf(2), 0, c.code, false)
	}
}

// So much and no more is remembered of initiators that have gone.
func TestManyInitiatorsRemembered(t *testing.T) {
	x := newReplacing(t)
	x.nexusOf(0)
	for isid := range uint64(2 * maxTaken) {
		x.nexusOf(isid + 1).Close(func() {})
	}
	if n := len(x.target.taken); n != maxTaken+2 { // besides, two are there
		t.Errorf("%d are", n)
	}
	x.target.SetLU(0, x.other)
	x.writes("the first, which has not gone, over a second session", x.nexusOf(0), 0, 0x52500, false)
	x.writes("one that is forgotten", x.nexusOf(1), 0, 0, true)
	x.writes("the last", x.nexusOf(2*maxTaken), 0, 0x52500, false)
}
