package scsi

import (
	"bytes"
	"encoding/binary"
	"testing"
)

// parked starts a READ that the store keeps.
func (b *bench) parked(attr Attr) *Task {
	b.t.Helper()
	task := b.task(rw10(0x28, 0, 1), nil, 512)
	task.Attr = attr
	if next := task.Start(); next != Wait {
		b.t.Fatalf("Start: %v, want Wait", next)
	}
	return task
}

func (b *bench) parkedBench() *bench {
	b.store.hold = holdAll
	return b
}

// running reports whether the store has the operation of task.
func (b *bench) running(task *Task) bool {
	for _, op := range b.store.held {
		if op.Done == &task.r {
			return true
		}
	}
	return false
}

// wakeUps resumes the tasks whose owner was told, until nobody is.
func (b *bench) wakeUps() {
	for {
		select {
		case task := <-b.owner.ready:
			if next := task.Resume(); next == Done || next == Aborted {
				task.Release()
			}
		default:
			return
		}
	}
}

// drain ends all tasks.
func (b *bench) drain() {
	for b.store.complete() > 0 {
		b.wakeUps()
	}
}

// end completes the operation of task only.
func (b *bench) end(task *Task) {
	for i, op := range b.store.held {
		if op.Done == &task.r {
			b.store.held = append(b.store.held[:i:i], b.store.held[i+1:]...)
			b.store.do(op)
			op.Done.OpDone(op)
			b.wakeUps()
			return
		}
	}
	b.t.Fatal("the store does not have the operation")
}

// TestOrder is SAM-5 §8: who begins when.
func TestOrder(t *testing.T) {
	b := newBench(t, false, nil).parkedBench()
	wantRunning := func(what string, tasks map[*Task]bool) {
		t.Helper()
		for task, want := range tasks {
			if b.running(task) != want {
				t.Fatalf("%s: a task of attribute %d runs: %v", what, task.Attr, !want)
			}
		}
	}
	s1, s2 := b.parked(Simple), b.parked(Simple)
	o1 := b.parked(Ordered)
	s3 := b.parked(Simple)
	o2 := b.parked(Ordered)
	h1 := b.parked(HeadOfQueue)
	s4 := b.parked(Simple)
	wantRunning("at first", map[*Task]bool{s1: true, s2: true, o1: false, s3: false, o2: false, h1: true, s4: false})
	b.end(s1)
	b.end(s2)
	wantRunning("ORDERED waits for HEAD OF QUEUE", map[*Task]bool{o1: false, s3: false})
	b.end(h1)
	wantRunning("the first ORDERED", map[*Task]bool{o1: true, s3: false, o2: false, s4: false})
	h2 := b.parked(HeadOfQueue)
	wantRunning("HEAD OF QUEUE overtakes", map[*Task]bool{h2: true})
	b.end(o1)
	wantRunning("SIMPLE waits for HEAD OF QUEUE", map[*Task]bool{s3: false})
	b.end(h2)
	wantRunning("SIMPLE between ORDERED", map[*Task]bool{s3: true, o2: false, s4: false})
	b.end(s3)
	wantRunning("the second ORDERED", map[*Task]bool{o2: true, s4: false})
	b.end(o2)
	wantRunning("the last", map[*Task]bool{s4: true})
	b.end(s4)
	if gate, running := b.lu.gate.Load(), b.lu.running(); gate != 0 || running != 0 {
		t.Fatalf("at the end: gate %d, %d running", gate, running)
	}
}

// TestOrderAbort: a dormant ORDERED task that is aborted does not hold anybody back.
func TestOrderAbort(t *testing.T) {
	b := newBench(t, false, nil).parkedBench()
	s1, o1, s2 := b.parked(Simple), b.parked(Ordered), b.parked(Simple)
	o1.Abort()
	b.wakeUps()
	if !b.running(s2) {
		t.Fatal("the SIMPLE task behind an aborted ORDERED one does not run")
	}
	b.end(s1)
	b.end(s2)
	if gate, running := b.lu.gate.Load(), b.lu.running(); gate != 0 || running != 0 {
		t.Fatalf("at the end: gate %d, %d running", gate, running)
	}
}

// TestOrderedAfterLentRead: an ORDERED task waits until the bytes of an older READ have left.
func TestOrderedAfterLentRead(t *testing.T) {
	b := newBench(t, true, nil)
	read := b.task(rw10(0x28, 0, 1), nil, 512)
	if read.Start() != Done {
		t.Fatal("READ does not end at once")
	}
	write := b.task(rw10(0x2a, 0, 1), make([]byte, 512), 0)
	write.Attr = Ordered
	if write.Start() != Wait {
		t.Fatal("ORDERED does not wait for the answer of the older task")
	}
	read.Release()
	if ready := <-b.owner.ready; ready != write {
		t.Fatal("the wrong task")
	}
	if r := b.finish(write, write.Resume(), make([]byte, 512)); r.status != Good {
		t.Fatalf("ORDERED: %05x", r.code())
	}
}

// On a store that lends its memory, too, an initiator that takes no answers keeps others waiting no longer than for what it had asked for
// before anybody asked for an order: neither behind a task that is ORDERED or HEAD OF QUEUE, nor in front of one that is ORDERED.
func TestLentAnswersAreNotAwaited(t *testing.T) {
	for _, kept := range []Attr{Ordered, HeadOfQueue, Simple} {
		b := newBench(t, true, nil)
		copy(b.store.data, pattern(1, 512))
		deaf := b.newNexus()
		read := func() *Task {
			task := b.task(rw10(0x28, 0, 1), nil, 512)
			if task.Nexus, task.Attr = deaf, kept; task.Start() != Done || task.Status != Good || !bytes.Equal(task.In[0], pattern(1, 512)) {
				t.Fatalf("%d: READ: status %02x", kept, task.Status)
			}
			return task
		}
		write := func(attr Attr) *Task {
			task := b.task(rw10(0x2a, 1, 1), make([]byte, 512), 0)
			task.Attr = attr
			return task
		}
		if kept == Simple {
			b.run(write(Ordered), make([]byte, 512))
		}
		answer := read()
		for _, attr := range []Attr{Simple, Ordered} {
			task := write(attr)
			next := task.Start()
			if next != Pull {
				t.Fatalf("%d: a task of attribute %d waits until another initiator takes an answer: %v", kept, attr, next)
			}
			b.finish(task, next, make([]byte, 512))
		}
		answer.Release()
		if kept != Simple {
			continue
		}
		for range answersCopied {
			read().Release()
		}
		lent := read()
		if &lent.In[0][0] != &b.store.data[0] {
			t.Error("answers are copied for ever")
		}
		lent.Release()
	}
}

func (b *bench) manage(n *Nexus, fn TMF, task *Task) (response TMFResponse, done bool) {
	n.Manage(fn, 0, task, func(r TMFResponse) { response, done = r, true })
	return response, done
}

// TestAbortTask: in each phase of a task.
func TestAbortTask(t *testing.T) {
	for _, c := range []struct {
		name  string
		begin func(b *bench) *Task
		// let makes the task abort, after its owner was told.
		let func(b *bench, task *Task)
	}{
		{"pulling", func(b *bench) *Task {
			task := b.task(rw10(0x2a, 0, 1), make([]byte, 512), 0)
			if task.Start() != Pull {
				b.t.Fatal("WRITE does not pull")
			}
			return task
		}, nil},
		{"waiting for memory", func(b *bench) *Task {
			b.owner.empty = true
			return b.parked(Simple)
		}, nil},
		{"in the store", func(b *bench) *Task { return b.parked(Simple) }, func(b *bench, task *Task) { b.store.complete() }},
		{"dormant", func(b *bench) *Task {
			b.parked(Ordered)
			return b.parked(Simple)
		}, nil},
		{"waiting for a range", func(b *bench) *Task {
			other := b.task(caw(0, 1), make([]byte, 1024), 0)
			if other.Start() != Pull || other.Pulled() != Wait {
				b.t.Fatal("COMPARE AND WRITE does not wait for the store")
			}
			return b.parked(Simple)
		}, nil},
	} {
		b := newBench(t, false, nil).parkedBench()
		task := c.begin(b)
		done := false
		var response TMFResponse
		b.nexus.Manage(AbortTask, 0, task, func(r TMFResponse) { response, done = r, true })
		if done {
			t.Errorf("%s: the response comes before the release", c.name)
		}
		if c.let != nil {
			<-b.owner.ready
			if next := task.Resume(); next != Wait {
				t.Errorf("%s: %v while the store has the operation", c.name, next)
			}
			c.let(b, task)
		}
		if ready := <-b.owner.ready; ready != task {
			t.Errorf("%s: the wrong task is ready", c.name)
		}
		if next := task.Resume(); next != Aborted {
			t.Errorf("%s: %v, want Aborted", c.name, next)
		}
		if next := task.Resume(); next != Aborted {
			t.Errorf("%s: %v the second time", c.name, next)
		}
		task.Release()
		if !done || response != FunctionComplete {
			t.Errorf("%s: done %v, response %d", c.name, done, response)
		}
		if next := task.Resume(); next != Wait {
			t.Errorf("%s: a late Resume returns %v", c.name, next)
		}
		b.owner.empty = false
		b.drain()
		if gate, running := b.lu.gate.Load(), b.lu.running(); gate != 0 || running != 0 {
			t.Errorf("%s: at the end gate %d, %d running", c.name, gate, running)
		}
	}
}

func TestAbortFinished(t *testing.T) {
	b := newBench(t, false, nil).parkedBench()
	task := b.parked(Simple)
	b.store.complete()
	<-b.owner.ready
	if task.Resume() != Done {
		t.Fatal("READ does not end")
	}
	done := false
	b.nexus.Manage(AbortTask, 0, task, func(r TMFResponse) { done = r == TaskDoesNotExist })
	if done {
		t.Error("the response overtakes the answer of the task")
	}
	if task.Resume() != Done {
		t.Error("a finished task was aborted")
	}
	task.Release()
	if !done {
		t.Error("no response that the task does not exist")
	}
}

func TestManage(t *testing.T) {
	b := newBench(t, false, nil).parkedBench()
	mine := b.nexus
	other := b.newNexus()
	start := func(n *Nexus) *Task {
		task := b.task(rw10(0x28, 0, 1), nil, 512)
		task.Nexus = n
		if task.Start() != Wait {
			t.Fatal("READ does not wait for the store")
		}
		return task
	}
	for _, c := range []struct {
		fn           TMF
		mine, others bool // which tasks are aborted
		want         TMFResponse
		uaMine       uint32
		uaOthers     uint32
	}{
		{AbortTask, false, false, TaskDoesNotExist, 0, 0},
		{AbortTaskSet, true, false, FunctionComplete, 0, 0},
		{ClearACA, false, false, NotSupported, 0, 0},
		{ClearTaskSet, true, true, FunctionComplete, 0, uaCommandsCleared},
		{LUNReset, true, true, FunctionComplete, uaLUReset, uaLUReset},
		{TargetWarmReset, true, true, FunctionComplete, uaTargetReset, uaTargetReset},
		{TargetColdReset, true, true, FunctionComplete, uaPowerOn, uaPowerOn},
		{QueryTask, false, false, FunctionComplete, 0, 0},
		{QueryTaskSet, false, false, FunctionSucceeded, 0, 0},
		{ITNexusReset, true, false, FunctionComplete, uaNexusLoss, 0},
		{QueryAsyncEvent, false, false, FunctionComplete, 0, 0},
		{TMF(8), false, false, NotSupported, 0, 0},
		{TMF(200), false, false, NotSupported, 0, 0},
	} {
		b.lu.mode.bits.Store(modeDSense)
		a, o := start(mine), start(other)
		var response TMFResponse
		calls := 0
		mine.Manage(c.fn, 0, nil, func(r TMFResponse) { response = r; calls++ })
		if (calls == 0) != c.mine {
			t.Errorf("function %d: %d responses at once", c.fn, calls)
		}
		b.store.complete()
		for _, x := range []struct {
			task    *Task
			aborted bool
		}{{a, c.mine}, {o, c.others}} {
			next := x.task.Resume()
			if (next == Aborted) != x.aborted || (next == Done) == x.aborted {
				t.Errorf("function %d: %v, want aborted %v", c.fn, next, x.aborted)
			}
			if calls > 0 && c.mine && x.task == a {
				t.Errorf("function %d: the response comes too early", c.fn)
			}
			x.task.Release()
		}
		if calls != 1 || response != c.want {
			t.Errorf("function %d: %d responses, %d, want %d", c.fn, calls, response, c.want)
		}
		for len(b.owner.ready) > 0 {
			<-b.owner.ready
		}
		reset := c.fn == LUNReset || c.fn == TargetWarmReset || c.fn == TargetColdReset
		if got := b.lu.mode.bits.Load() == 0; got != reset {
			t.Errorf("function %d: mode parameters reset: %v", c.fn, got)
		}
		if m, o := mine.lookup(0).ua.Swap(0), other.lookup(0).ua.Swap(0); m != c.uaMine || o != c.uaOthers {
			t.Errorf("function %d: unit attentions %x and %x, want %x and %x", c.fn, m, o, c.uaMine, c.uaOthers)
		}
	}
	for _, fn := range []TMF{AbortTask, AbortTaskSet, ClearTaskSet, LUNReset, QueryTask, QueryTaskSet, QueryAsyncEvent} {
		mine.Manage(fn, 5<<48, nil, func(r TMFResponse) {
			if r != LUNDoesNotExist {
				t.Errorf("function %d on an absent LUN: %d", fn, r)
			}
		})
	}
	task := start(mine)
	if r, _ := b.manage(mine, QueryTask, task); r != FunctionSucceeded {
		t.Errorf("QUERY TASK: %d", r)
	}
	if r, _ := b.manage(other, QueryTask, task); r != FunctionComplete {
		t.Errorf("QUERY TASK of another nexus: %d", r)
	}
	closed := false
	mine.Close(func() { closed = true })
	if closed {
		t.Error("the nexus is closed before its task is released")
	}
	b.store.complete()
	if task.Resume() != Aborted {
		t.Error("the loss of the nexus does not abort its task")
	}
	task.Release()
	if !closed || len(b.lu.itls) != 1 {
		t.Errorf("closed %v, %d nexuses left", closed, len(b.lu.itls))
	}
}

func TestUnitAttentions(t *testing.T) {
	b := newBench(t, true, nil)
	n := b.target.NewNexus(client("iqn.2026-11.example.clients:b", 0x400000000001))
	do := func(cdb string, in int) result {
		task := b.task(unhex(t, cdb), nil, in)
		task.Nexus = n
		return b.run(task, nil)
	}
	const tur, inquiry, reportLUNs, requestSense = "00 00 00 00 00 00", "12 00 00 00 60 00", "a0 00 00 00 00 00 00 00 01 00 00 00", "03 00 00 00 ff 00"
	for _, cdb := range []string{inquiry, reportLUNs} {
		if r := do(cdb, 256); r.status != Good {
			t.Errorf("%s reports a unit attention: %05x", cdb, r.code())
		}
	}
	if r := do(tur, 0); r.code() != 0x62900 {
		t.Errorf("first command: %05x, want 62900", r.code())
	}
	if r := do(tur, 0); r.status != Good {
		t.Errorf("second command: %05x", r.code())
	}
	ua := &n.lookup(0).ua
	ua.Store(uaModeChanged | uaCapacityChanged | uaLUNsChanged)
	if r := do(requestSense, 64); r.status != Good || r.in[2] != 6 || r.in[12] != 0x2a || r.in[13] != 0x01 {
		t.Errorf("REQUEST SENSE: % x", r.in)
	}
	if r := do(reportLUNs, 64); r.status != Good || ua.Load() != uaCapacityChanged {
		t.Errorf("REPORT LUNS: %05x, pending %x", r.code(), ua.Load())
	}
	ua.Or(uaLUNsChanged)
	for _, want := range []int{0x62a09, 0x63f0e, 0} {
		if r := do("ff 00 00 00 00 00", 0); want != 0 && r.code() != want || want == 0 && r.code() != 0x52000 {
			t.Errorf("%05x, want %05x", r.code(), want)
		}
	}
	ua.Store(uaPowerOn | uaLUReset | uaNexusLoss | uaModeChanged)
	for _, want := range []int{0x62900, 0x62a01, 0} {
		if r := do(tur, 0); r.code() != want {
			t.Errorf("after a reset: %05x, want %05x", r.code(), want)
		}
	}
	// LUNs that come and go.
	b.target.SetLU(1, b.lu)
	if r := do(tur, 0); r.code() != 0x63f0e {
		t.Errorf("a new LUN: %05x, want 63f0e", r.code())
	}
	b.target.SetLU(1, nil)
	if r := do(tur, 0); r.code() != 0x63f0e {
		t.Errorf("a LUN less: %05x, want 63f0e", r.code())
	}
	b.target.SetLU(1, nil)
	if r := do(tur, 0); r.status != Good {
		t.Errorf("nothing changed: %05x", r.code())
	}
	b.target.SetLU(0, b.lu)
	if r := do(tur, 0); r.code() != 0x62900 {
		t.Errorf("another logical unit: %05x, want 62900", r.code())
	}
}

// TestNoMemory: a task waits for memory and goes on when it is there.
func TestNoMemory(t *testing.T) {
	for _, cdb := range [][]byte{rw10(0x28, 0, 8), rw10(0x2a, 0, 8), rw10(0x2e, 0, 8), caw(0, 4), rw16(0x8b, 0, 8), rw16(0x93, 0, 8), rw10(0x2f, 0, 8)} {
		b := newBench(t, false, nil)
		b.owner.empty = true
		out := make([]byte, 8*512)
		if cdb[0] == 0x93 {
			out = out[:512]
		}
		task := b.task(cdb, out, 8*512)
		for range 3 {
			if next := task.Resume(); next != Wait {
				t.Fatalf("%02x: Resume before Start: %v", cdb[0], next)
			}
		}
		if next := task.Start(); next != Wait {
			t.Fatalf("%02x without memory: %v", cdb[0], next)
		}
		if next := task.Resume(); next != Wait {
			t.Fatalf("%02x still without memory: %v", cdb[0], next)
		}
		b.owner.empty = false
		if r := b.finish(task, task.Resume(), out); r.status != Good {
			t.Errorf("%02x: %05x", cdb[0], r.code())
		}
		if s := b.owner.pool.Stats(); s.Leases != 0 {
			t.Errorf("%02x: %d leases are left", cdb[0], s.Leases)
		}
	}
}

func TestFail(t *testing.T) {
	for _, lends := range []bool{true, false} {
		b := newBench(t, lends, nil)
		task := b.task(rw10(0x2a, 0, 1), make([]byte, 512), 0)
		if task.Start() != Pull {
			t.Fatal("WRITE does not pull")
		}
		if next := task.Resume(); next != Wait {
			t.Errorf("Resume of a task that pulls: %v, want Wait", next)
		}
		next := task.Fail(Sense{Key: 0xb, Code: 0x0c0d})
		if r := b.finish(task, next, nil); r.code() != 0xb0c0d {
			t.Errorf("%05x, want b0c0d", r.code())
		}
	}
}

// TestPlaceWhileQueued: a transport places immediate data of a command that takes none, while the
// command waits for its range. It leaves nothing that it has not entered.
func TestPlaceWhileQueued(t *testing.T) {
	b := newBench(t, false, nil)
	b.store.hold = holdTasks
	out := make([]byte, 1024)
	compare := func() *Task {
		task := b.task(caw(0, 1), out, 0)
		if next := task.Start(); next != Pull {
			t.Fatalf("COMPARE AND WRITE begins with %d", next)
		}
		place(task, out)
		if next := task.Pulled(); next != Wait {
			t.Fatalf("COMPARE AND WRITE goes on with %d", next)
		}
		return task
	}
	for name, cdb := range map[string][]byte{
		"VERIFY without BYTCHK": {0x2f, 0, 0, 0, 0, 0, 0, 0, 1, 0},
		"WRITE SAME with NDOB":  {0x93, bitNDOB, 13: 1, 15: 0},
	} {
		first, second := compare(), compare()
		queued := b.task(cdb, out, 0)
		if next := queued.Start(); next != Wait {
			t.Fatalf("%s begins with %d", name, next)
		}
		queued.BeginPlace(0, 512).End()
		for _, task := range []*Task{first, second, queued} {
			if r := b.finish(task, Wait, out); r.status != Good {
				t.Fatalf("%s: %v: %+v", name, task.CDB, r)
			}
		}
	}
	for range 2 {
		if r := b.do(caw(0, 1), out, 0); r.status != Good {
			t.Fatalf("COMPARE AND WRITE: %+v", r)
		}
	}
	if err := b.lu.v.Settled(); err != nil {
		t.Error(err)
	}
}

// TestBoundedMemory: no command waits for a lease that it can never have, and what the Block Limits
// page announces can be had.
func TestBoundedMemory(t *testing.T) {
	const most = 64 << 10
	b := newBench(t, false, nil)
	b.nexus.BoundMemory(most)
	b.owner.most = most
	page := b.do([]byte{0x12, 1, 0xb0, 0, 64, 0}, nil, 64).in
	transfer, compare := uint16(binary.BigEndian.Uint32(page[8:])), page[5]
	if transfer != most/512 || compare != most/1024 {
		t.Fatalf("transfers of %d blocks are announced, COMPARE AND WRITE of %d", transfer, compare)
	}
	out := make([]byte, most+512)
	for _, op := range []byte{0x28, 0x2a, 0x2e, 0x2f} { // READ, WRITE, WRITE AND VERIFY, VERIFY
		if r := b.do(rw10(op, 0, transfer), out[:most], most); r.status != Good {
			t.Errorf("%02x of the longest transfer: %05x", op, r.code())
		}
		cdb := rw10(op, 0, transfer+1)
		if op == 0x2f {
			cdb[1] = bytchkCompare
		}
		if r := b.do(cdb, out[:most+512], most+512); r.code() != 0x52400 {
			t.Errorf("%02x of a longer transfer: %05x", op, r.code())
		}
	}
	if r := b.do(caw(0, compare), out[:most], 0); r.status != Good {
		t.Errorf("the longest COMPARE AND WRITE: %05x", r.code())
	}
	if r := b.do(caw(0, compare+1), make([]byte, most+1024), 0); r.code() != 0x52400 {
		t.Errorf("a longer COMPARE AND WRITE: %05x", r.code())
	}
	if r := b.do(rw16(0x93, 0, testBlocks), bytes.Repeat([]byte{1}, 512), 0); r.status != Good {
		t.Errorf("WRITE SAME: %05x", r.code())
	}
}

// TestManageAfterReplacement: commands that began on the unit that was at the LUN before are commands to
// the LUN: task management reaches them when another unit is there, or none.
func TestManageAfterReplacement(t *testing.T) {
	for _, fn := range []TMF{AbortTask, AbortTaskSet, ClearTaskSet, LUNReset} {
		for _, gone := range []bool{false, true} {
			b := newBench(t, false, nil).parkedBench()
			task := b.parked(Simple)
			next, err := NewLogicalUnit(LUConfig{Volume: b.lu.v, Serial: "0002"})
			if err != nil {
				t.Fatal(err)
			}
			if gone {
				next = nil
			}
			b.target.SetLU(0, next)
			response, done := b.manage(b.nexus, fn, task)
			if gone && fn != AbortTask {
				if response != LUNDoesNotExist || !done {
					t.Errorf("%d without a unit: %d", fn, response)
				}
				b.drain()
				continue
			}
			if done {
				t.Errorf("%d, gone %v: answered %d before the command has ended", fn, gone, response)
			}
			b.store.complete()
			if next := task.Resume(); next != Aborted {
				t.Errorf("%d, gone %v: the command is not aborted: %v", fn, gone, next)
			}
			task.Release()
		}
	}
}

// TestOrderWithoutAnswer: an initiator that takes no answers keeps nobody in the task set waiting, for its tasks have ended: neither behind
// a task of its own that is ORDERED or HEAD OF QUEUE, nor in front of an ORDERED one, nor a sanitize operation.
func TestOrderWithoutAnswer(t *testing.T) {
	for _, kept := range []Attr{Simple, Ordered, HeadOfQueue} {
		for _, aborted := range []bool{false, true} {
			b := newBench(t, false, nil).parkedBench()
			deaf := b.task(rw10(0x28, 0, 1), nil, 512)
			deaf.Nexus, deaf.Attr = b.newNexus(), kept
			if deaf.Start() != Wait {
				t.Fatal("READ does not wait for the store")
			}
			dormant := b.parked(Ordered)
			if aborted {
				deaf.Abort()
			}
			b.store.complete()
			for ready := range len(b.owner.ready) {
				if task := <-b.owner.ready; task == deaf && ready == 0 {
					deaf.Resume() // and not Release: the answer does not leave
				}
			}
			if next := dormant.Resume(); next != Wait || !b.running(dormant) {
				t.Fatalf("%d, aborted %v: ORDERED waits until another initiator takes an answer: %v", kept, aborted, next)
			}
			b.end(dormant)
			simple := b.parked(Simple)
			if !b.running(simple) {
				t.Errorf("%d, aborted %v: SIMPLE waits until another initiator takes an answer", kept, aborted)
			}
			drained := false
			b.lu.Drain(func() { drained = true })
			if drained {
				t.Error("drained with a task in the store")
			}
			b.end(simple)
			if !drained {
				t.Errorf("%d, aborted %v: a sanitize operation waits until an initiator takes an answer", kept, aborted)
			}
			if b.lu.Idle() {
				t.Error("idle with an answer under way")
			}
			deaf.Release()
			if gate, running := b.lu.gate.Load(), b.lu.running(); gate != 0 || running != 0 || !b.lu.Idle() {
				t.Errorf("at the end: gate %d, %d running, idle %v", gate, running, b.lu.Idle())
			}
		}
	}
}
