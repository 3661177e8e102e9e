package iser

import (
	"bytes"
	"maps"
	"slices"
	"testing"

	"oneshot/backend/memory"
	"oneshot/mem"
	"oneshot/scsi"
	"oneshot/volume"
)

// fetched are the commands whose data-out is fetched, and with what it would do harm: something
// that would be executed. TestFetchedIsAll holds them against the command table.
var fetched = append(parameters(), []fetchedCommand{
	{"WRITE(6)", []byte{0x0a, 0, 0, 8, 8, 0}, []byte("harm"), 4096},
	{"WRITE(10)", []byte{0x2a, 5: 8, 8: 8, 9: 0}, []byte("harm"), 4096},
	{"WRITE(12)", []byte{0xaa, 5: 8, 9: 8, 11: 0}, []byte("harm"), 4096},
	{"WRITE(16)", rw16(0x8a, 8, 128), []byte("harm"), 65536},
	{"WRITE(16) of several Reads", rw16(0x8a, 8, 2048), []byte("harm"), 1 << 20},
	{"WRITE AND VERIFY(10)", []byte{0x2e, 5: 8, 8: 8, 9: 0}, []byte("harm"), 4096},
	{"WRITE AND VERIFY(12)", []byte{0xae, 5: 8, 9: 8, 11: 0}, []byte("harm"), 4096},
	{"WRITE AND VERIFY(16)", rw16(0x8e, 8, 8), []byte("harm"), 4096},
	{"VERIFY(10), BYTCHK 1", []byte{0x2f, 2, 5: 8, 8: 8, 9: 0}, []byte{0}, 4096},
	{"VERIFY(12), BYTCHK 1", []byte{0xaf, 2, 5: 8, 9: 8, 11: 0}, []byte{0}, 4096},
	{"VERIFY(16), BYTCHK 1", append([]byte{0x8f, 2}, rw16(0x8f, 8, 8)[2:]...), []byte{0}, 4096},
	{"WRITE SAME(10)", []byte{0x41, 5: 8, 8: 8, 9: 0}, []byte("harm"), 512},
	{"WRITE SAME(16)", rw16(0x93, 8, 8), []byte("harm"), 512},
	{"WRITE SAME(16), UNMAP", append([]byte{0x93, 8}, rw16(0x93, 0, 8)[2:]...), []byte{0}, 512},
	{"ORWRITE(16)", rw16(0x8b, 8, 8), []byte("harm"), 4096},
	{"WRITE ATOMIC(16)", []byte{0x9c, 9: 8, 13: 8, 15: 0}, []byte("harm"), 4096},
	{"COMPARE AND WRITE", []byte{0x89, 9: 8, 13: 1, 15: 0}, append(make([]byte, 512), bytes.Repeat([]byte("harm"), 128)...), 1024},
	{"UNMAP", []byte{0x42, 8: 24, 9: 0}, []byte{0, 22, 0, 16, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 64, 0, 0, 0, 0}, 24},
	{"MODE SELECT(6)", []byte{0x15, 0x10, 0, 0, 24, 0}, []byte{0, 0, 0, 0, 8, 18, 23: 0}, 24},
	{"MODE SELECT(10)", []byte{0x55, 0x10, 8: 28, 9: 0}, []byte{8: 8, 9: 18, 27: 0}, 28},
	{"EXTENDED COPY", []byte{0x83, 13: 16, 15: 0}, make([]byte, 16), 16},
	{"POPULATE TOKEN", []byte{0x83, 0x10, 13: 32, 15: 0}, []byte{1: 30, 15: 16, 27: 8, 31: 0}, 32},
	{"WRITE USING TOKEN", []byte{0x83, 0x11, 12: 2, 13: 0x20, 15: 0}, make([]byte, 544), 544},
	{"SET TARGET PORT GROUPS", []byte{0xa4, 0x0a, 9: 8, 11: 0}, []byte{4: 3, 7: 1}, 8},
	{"SANITIZE, OVERWRITE", []byte{0x48, 0x81, 8: 8, 9: 0}, []byte{1, 0, 0, 4, 'h', 'a', 'r', 'm'}, 8},
}...)

type fetchedCommand struct {
	name string
	cdb  []byte
	data []byte // repeated to fill n
	n    int
}

// parameters are those of PERSISTENT RESERVE OUT, one for each service action.
func parameters() (list []fetchedCommand) {
	for sa, name := range []string{
		"REGISTER", "RESERVE", "RELEASE", "CLEAR", "PREEMPT", "PREEMPT AND ABORT", "REGISTER AND IGNORE EXISTING KEY", "REGISTER AND MOVE",
	} {
		list = append(list, fetchedCommand{"PERSISTENT RESERVE OUT, " + name, []byte{0x5f, byte(sa), 1, 8: 24, 9: 0}, []byte{8: 1, 15: 1, 23: 0}, 24})
	}
	return list
}

// table is a logical unit that has every command.
type table struct {
	t     *testing.T
	pool  *mem.Pool
	nexus *scsi.Nexus
	ready chan *scsi.Task
	close func()
}

func newTable(t *testing.T, pool *mem.Pool) *table {
	t.Helper()
	store, err := memory.New(storeSize)
	check(t, err)
	v, err := volume.New(volume.Config{Store: store})
	check(t, err)
	lu, err := scsi.NewLogicalUnit(scsi.LUConfig{Volume: v, Serial: "1", Removable: true, TPGS: scsi.ALUAImplicit | scsi.ALUAExplicit})
	check(t, err)
	target := scsi.NewTarget(scsi.TargetConfig{Name: iqn})
	target.SetLU(0, lu)
	x := &table{t: t, pool: pool, ready: make(chan *scsi.Task, 16)}
	x.nexus = target.NewNexus(scsi.ISCSIPort("iqn.2026-11.example:table", [6]byte{0x80}))
	for range 2 { // unit attentions
		x.pulls(make([]byte, 6), 0, 0, nil)
	}
	x.close = func() {
		gone := make(chan struct{})
		x.nexus.Close(func() { close(gone) })
		<-gone
		check(t, lu.Close())
		check(t, v.Close())
	}
	return x
}

func (x *table) TaskReady(t *scsi.Task) {
	select {
	case x.ready <- t:
	default: // there are enough already
	}
}

func (x *table) Lease(_ *scsi.Task, n int) *mem.Lease { return x.pool.Lease(n) }

// pulls begins a command, and reports what it is called and whether it asks for data-out. One that does, or
// that waits, is aborted. The initiator offers out bytes of data-out, and has room for data-in; in is called with the data-in of one that has ended.
func (x *table) pulls(cdb []byte, out, room int, in func([]byte)) (name string, pulls bool) {
	task := &scsi.Task{Owner: x, Nexus: x.nexus, CDB: cdb, DataOutLen: uint32(out), DataInLen: uint32(room)}
	next := task.Start()
	name, pulls = task.Command(), next == scsi.Pull
	if next == scsi.Pull || next == scsi.Wait {
		task.Abort()
		for next == scsi.Pull || next == scsi.Wait {
			for <-x.ready != task {
			}
			next = task.Resume()
		}
	}
	if in != nil && task.Status == scsi.Good {
		in(bytes.Join(task.In, nil))
	}
	task.Release()
	return name, pulls
}

// TestFetchedIsAll: fetched has every command that takes data-out. Which do the target tells: the commands that
// REPORT SUPPORTED OPERATION CODES lists (SPC-4 §6.35) are tried with any two bytes of their CDBs set.
func TestFetchedIsAll(t *testing.T) {
	pool := mem.NewPool(64 << 20)
	defer pool.Close()
	tried := make(map[string]bool)
	for _, c := range fetched {
		x := newTable(t, pool)
		name, pulls := x.pulls(c.cdb, c.n, 0, nil)
		x.close()
		if tried[name] = true; !pulls {
			t.Errorf("%s takes no data", c.name)
		}
	}
	takes := make(map[string]bool)
	x := newTable(t, pool)
	var all []byte
	x.pulls([]byte{0xa3, 0x0c, 8: 0x40, 11: 0}, 0, 1<<14, func(b []byte) { all = b[4:] })
	usages := make(map[[2]byte][]byte)
	for ; len(all) >= 8; all = all[8:] {
		option := 1 + all[5]&1
		x.pulls([]byte{0xa3, 0x0c, option, all[0], all[2], all[3], 8: 1, 11: 0}, 0, 256, func(b []byte) { usages[[2]byte{all[0], all[3]}] = b[4:] })
	}
	x.close()
	if len(usages) < 70 {
		t.Fatalf("%d commands are listed", len(usages))
	}
	for code, usage := range usages {
		x := newTable(t, pool)
		if name, ok := x.anyPulls(code, usage); ok {
			takes[name] = true
		}
		x.close()
	}
	for _, name := range slices.Sorted(maps.Keys(takes)) {
		if !tried[name] {
			t.Errorf("%s takes data-out, and no lost connection is tried with it", name)
		}
	}
	for name := range tried {
		if !takes[name] {
			t.Errorf("%s takes data-out, and was not found to", name)
		}
	}
}

// anyPulls tries CDBs of a command until one asks for data-out.
func (x *table) anyPulls(code [2]byte, usage []byte) (name string, ok bool) {
	values := []byte{0x00, 0x01, 0x02, 0x08, 0x10, 0x18, 0x20, 0x80}
	base := make([]byte, len(usage))
	base[0], base[1] = code[0], code[1]
	fields := usage[1 : len(usage)-1] // not CONTROL
	tried := make(map[string]bool)    // CDBs; the bits of most fields leave few
	for i := range fields {
		for j := range i + 1 {
			for _, v := range values {
				for _, w := range values {
					cdb := bytes.Clone(base)
					cdb[1+i] |= v & fields[i]
					cdb[1+j] |= w & fields[j]
					if tried[string(cdb)] {
						continue
					}
					tried[string(cdb)] = true
					for _, out := range []int{1 << 20, 512, 1024} { // a lot, a block, and two
						if name, ok := x.pulls(cdb, out, 0, nil); ok {
							return name, true
						}
					}
				}
			}
		}
	}
	return "", false
}
