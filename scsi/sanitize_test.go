package scsi

import (
	"bytes"
	"errors"
	"testing"

	"oneshot/backend"
	"oneshot/volume"
)

const sanitizeNow = sanitizeIMMED

func sanitizeCDB(action byte, n int) []byte {
	return []byte{0x48, action, 0, 0, 0, 0, 0, byte(n >> 8), byte(n), 0}
}

func overwriteList(flags byte, pattern ...byte) []byte {
	return append([]byte{flags, 0, byte(len(pattern) >> 8), byte(len(pattern))}, pattern...)
}

// sanitized waits for the end of a sanitize operation.
func (b *bench) sanitized() {
	<-b.lu.v.Sanitized()
}

func TestSanitize(t *testing.T) {
	for _, lends := range []bool{true, false} {
		b := newBench(t, lends, nil)
		fill := func() { copy(b.store.data, bytes.Repeat([]byte{0xee}, len(b.store.data))) }
		every := func(want string) bool {
			for off := 0; off < len(b.store.data); off += 512 {
				if string(b.store.data[off:off+512]) != want {
					return false
				}
			}
			return true
		}
		repeat := func(s string) string { return string(bytes.Repeat([]byte(s), 512/len(s)+1)[:512]) }

		fill()
		list := overwriteList(1, 'a', 'b', 'c')
		if r := b.do(sanitizeCDB(sanitizeOverwrite, len(list)), list, 0); r.status != Good || !every(repeat("abc")) {
			t.Errorf("lends %v, overwrite: %05x, % x", lends, r.code(), b.store.data[:8])
		}
		// SBC-4, service action OVERWRITE: the pattern is inverted between passes, and begins such that it is what stays.
		for _, passes := range []byte{1, 2, 3} {
			var writes []byte
			b.store.fail = func(op *backend.Op) error {
				if op.Kind == backend.Write {
					writes = append(writes, op.Segs[0][0])
				}
				return nil
			}
			list = overwriteList(0x80|passes, 0x0f)
			r := b.do(sanitizeCDB(sanitizeOverwrite, len(list)), list, 0)
			if want := []byte{0x0f, 0xf0, 0x0f}[3-passes:]; r.status != Good || !every(repeat("\x0f")) || !bytes.Equal(writes, want) {
				t.Errorf("lends %v, %d passes, inverted: %05x, % x after writes of % x", lends, passes, r.code(), b.store.data[:8], writes)
			}
		}
		b.store.fail = nil
		fill()
		if r := b.do(sanitizeCDB(sanitizeNow|sanitizeBlockErase, 0), nil, 0); r.status != Good {
			t.Errorf("lends %v, block erase: %05x", lends, r.code())
		}
		b.sanitized()
		if !every(repeat("\x00")) || len(b.store.mapped) != 0 {
			t.Errorf("lends %v: after a block erase", lends)
		}
		for name, c := range map[string]struct {
			cdb, list []byte
			want      int
		}{
			"erase with a list":     {sanitizeCDB(sanitizeBlockErase, 8), make([]byte, 8), 0x52400},
			"exit with a list":      {sanitizeCDB(sanitizeExit, 8), make([]byte, 8), 0x52400},
			"no pattern":            {sanitizeCDB(sanitizeOverwrite, 4), overwriteList(1), 0x52400},
			"longer than a block":   {sanitizeCDB(sanitizeOverwrite, 517), overwriteList(1, make([]byte, 513)...), 0x52400},
			"no pass":               {sanitizeCDB(sanitizeOverwrite, 5), overwriteList(0, 1), 0x52600},
			"test":                  {sanitizeCDB(sanitizeOverwrite, 5), overwriteList(0x21, 1), 0x52600},
			"pattern length 0":      {sanitizeCDB(sanitizeOverwrite, 5), []byte{1, 0, 0, 0, 1}, 0x52600},
			"pattern length beyond": {sanitizeCDB(sanitizeOverwrite, 5), []byte{1, 0, 0, 2, 1}, 0x51a00},
			"reserved bit":          {[]byte{0x48, 0x42, 0, 0, 0, 0, 0, 0, 0, 0}, nil, 0x52400},
			"reserved byte":         {[]byte{0x48, 0x02, 0, 0, 0, 0, 1, 0, 0, 0}, nil, 0x52400},
			"cryptographic erase":   {sanitizeCDB(3, 0), nil, 0x52400},
			"exit without failure":  {sanitizeCDB(sanitizeExit, 0), nil, 0},
		} {
			if got := verdict(b.do(c.cdb, c.list, 0)); got != c.want {
				t.Errorf("lends %v, %s: %05x, want %05x", lends, name, got, c.want)
			}
		}
		if !every(repeat("\x00")) {
			t.Error("a refused SANITIZE has changed something")
		}
	}
}

// gatedStore lets a sanitize operation do one operation per token.
type gatedStore struct {
	*fakeStore
	tokens chan error
	seen   chan struct{}
}

func (s *gatedStore) Submit(op *backend.Op) bool {
	if _, ok := op.Done.(*volume.Request); ok {
		return s.fakeStore.Submit(op)
	}
	s.seen <- struct{}{}
	if err := <-s.tokens; err != nil {
		op.Err = err
		return true
	}
	return s.fakeStore.Submit(op)
}

// newGatedBench is a bench of 4 MiB in which an overwrite does five operations, a flush included.
func newGatedBench(t *testing.T, store volume.Keeper) (*prBench, *gatedStore) {
	var gated *gatedStore
	b := newPRBench(t, func(c *benchConfig, s *fakeStore) {
		*s = *newFakeStore(4 << 20)
		gated = &gatedStore{s, make(chan error), make(chan struct{}, 16)}
		c.Store, c.Keeper = gated, store
	})
	return b, gated
}

// A sanitize operation goes on whatever happens to the command and the session; until its end
// commands fail, REQUEST SENSE says how far it is, and then everything works.
func TestSanitizeSurvives(t *testing.T) {
	b, gate := newGatedBench(t, nil)
	list := overwriteList(1, 0x55)
	task := b.task(sanitizeCDB(sanitizeOverwrite, len(list)), list, 0)
	task.Start()
	place(task, list)
	next := task.Pulled()
	if next != Wait {
		t.Fatalf("SANITIZE without IMMED: %v", next)
	}
	<-gate.seen // before the first write
	if v := verdict(b.as(b.b, []byte{0, 0, 0, 0, 0, 0}, nil, 0)); v != 0x2041b {
		t.Errorf("TEST UNIT READY: %05x", v)
	}
	if v := verdict(b.as(b.b, sanitizeCDB(sanitizeBlockErase, 0), nil, 0)); v != 0x2041b {
		t.Errorf("another SANITIZE: %05x", v)
	}
	if v := verdict(b.as(b.b, []byte{0x12, 0, 0, 0, 36, 0}, nil, 36)); v != 0 {
		t.Errorf("INQUIRY: %05x", v)
	}
	aborted := false
	b.nexus.Manage(AbortTask, 0, task, func(r TMFResponse) { aborted = r == FunctionComplete })
	if next = task.Resume(); next != Aborted {
		t.Fatalf("after ABORT TASK: %v", next)
	}
	task.Release()
	manage(t, b.nexus, LUNReset)
	manage(t, b.nexus, TargetColdReset)
	b.nexus.Close(func() {})
	if !aborted {
		t.Error("ABORT TASK is not answered")
	}
	b.nexus = b.client(4)
	gate.tokens <- nil
	gate.tokens <- nil
	<-gate.seen
	<-gate.seen // two of four pieces are written
	r := b.do([]byte{3, 0, 0, 0, 18, 0}, nil, 18)
	if got := hexOf(r.in); got[:6] != "700002" || got[24:28] != "041b" || r.in[15] != 0x80 || r.in[16] < 0x7f || r.in[16] > 0x80 {
		t.Errorf("REQUEST SENSE half way: %s", got)
	}
	for range 3 {
		gate.tokens <- nil
	}
	b.sanitized()
	if v := verdict(b.do(rw10(0x28, 0, 1), nil, 512)); v != 0 {
		t.Errorf("READ afterwards: %05x", v)
	}
	if !bytes.Equal(b.store.data, bytes.Repeat([]byte{0x55}, len(b.store.data))) {
		t.Error("not everything is overwritten")
	}
}

// It begins when what was under way has ended, so that nothing is written behind it.
func TestSanitizeWaitsForTasks(t *testing.T) {
	for _, lends := range []bool{true, false} {
		b := newBench(t, lends, nil)
		data := bytes.Repeat([]byte{0xdd}, 512)
		write := b.task(rw10(0x2a, 5, 1), data, 0)
		if next := write.Start(); next != Pull {
			t.Fatal(next)
		}
		if r := b.do(sanitizeCDB(sanitizeNow|sanitizeBlockErase, 0), nil, 0); r.status != Good {
			t.Fatalf("SANITIZE: %05x", r.code())
		}
		if done, under := b.lu.v.Progress(); done != 0 || !under {
			t.Error("it begins while a WRITE is under way")
		}
		place(write, data)
		b.finish(write, write.Pulled(), data)
		b.sanitized()
		if !bytes.Equal(b.store.data, make([]byte, len(b.store.data))) {
			t.Errorf("lends %v: a WRITE outlives a SANITIZE", lends)
		}
		if g := b.lu.gate.Load(); g != 0 {
			t.Errorf("gate %x", g)
		}
	}
}

// A store that fails leaves the logical unit failed, until another SANITIZE, or EXIT FAILURE
// MODE if the SANITIZE that failed allowed it.
func TestSanitizeFails(t *testing.T) {
	for _, unrestricted := range []bool{false, true} {
		b := newBench(t, false, nil)
		b.store.fail = func(op *backend.Op) error {
			if op.Kind == backend.Discard {
				return &backend.MediumError{Kind: op.Kind, Err: errors.New("broken")}
			}
			return nil
		}
		flags := byte(sanitizeBlockErase)
		if unrestricted {
			flags |= sanitizeAUSE
		}
		expect := func(what string, cdb []byte, code int) {
			t.Helper()
			if v := verdict(b.do(cdb, make([]byte, 512), 512)); v != code {
				t.Errorf("AUSE %v, %s: %05x, want %05x", unrestricted, what, v, code)
			}
		}
		expect("SANITIZE", sanitizeCDB(flags, 0), 0x33103)
		expect("READ", rw10(0x28, 0, 1), 0x33103)
		if unrestricted {
			expect("exit", sanitizeCDB(sanitizeExit, 0), 0)
		} else {
			expect("exit", sanitizeCDB(sanitizeExit, 0), 0x52400)
			expect("SANITIZE that allows it", sanitizeCDB(sanitizeBlockErase|sanitizeAUSE, 0), 0x52400)
			expect("exit after it", sanitizeCDB(sanitizeExit, 0), 0x52400)
			b.store.fail = nil
			expect("SANITIZE again", sanitizeCDB(sanitizeBlockErase, 0), 0)
		}
		expect("READ afterwards", rw10(0x28, 0, 1), 0)
	}
}

func TestSanitizeIsRefused(t *testing.T) {
	b := newPRBench(t, func(c *benchConfig, _ *fakeStore) { c.ReadOnly = true })
	if v := verdict(b.do(sanitizeCDB(sanitizeBlockErase, 0), nil, 0)); v != 0x72700 {
		t.Errorf("write protected: %05x", v)
	}
	b = newPRBench(t, nil)
	b.must(b.a, proutRegister, 0, 0, 1)
	b.must(b.a, proutReserve, writeExclusive, 1, 0)
	if v := verdict(b.as(b.b, sanitizeCDB(sanitizeBlockErase, 0), nil, 0)); v != conflicts {
		t.Errorf("reserved by another: %05x", v)
	}
	if v := verdict(b.as(b.a, sanitizeCDB(sanitizeBlockErase, 0), nil, 0)); v != 0 {
		t.Errorf("by the holder: %05x", v)
	}
	b.sanitized()
}

// FuzzOverwrite reads any parameter list of an overwrite.
func FuzzOverwrite(f *testing.F) {
	f.Add(overwriteList(1, 0))
	f.Add(overwriteList(0x9f, pattern(1, 512)...))
	f.Add([]byte{1, 0, 2, 0, 1})
	f.Fuzz(func(t *testing.T, list []byte) {
		order, s, ok := parseOverwrite(list, 512)
		if ok != (s == Sense{}) || ok && (len(order.Pattern) < 1 || len(order.Pattern) > 512 || order.Count < 1 || order.Count > 31) {
			t.Fatalf("%v, %+v, %+v", ok, s, order)
		}
		if ok && order.Block != 512 {
			t.Fatalf("blocks of %d bytes", order.Block)
		}
	})
}
