package mirror

import (
	"bytes"
	"net"
	"reflect"
	"strings"
	"testing"
	"testing/synctest"

	"oneshot/ha/replica"
)

// TestFrames: what was sent is what comes, and a byte that has changed on its way is noticed, wherever it is.
func TestFrames(t *testing.T) {
	view := replica.View{Version: 7, Term: 3, Primary: 2, Life: 9, InSync: 5, First: 44, Planned: true}
	var bits replica.Bits
	bits.Set(3)
	bits.Set(70000)
	for _, m := range []replica.Msg{
		replica.Hello{Version: 1, Stream: 2, Memory: true, Last: 3, Applied: 4, Durable: 5, Suspects: bits, Sizes: []int64{6, 7}},
		replica.Ack{Stream: 1, Received: 2, Applied: 3, Durable: 4, Failed: true},
		replica.Ack{Stream: 1, Received: 2, Applied: 3, Durable: 4, Synced: 5},
		replica.Ask{Version: 1},
		replica.Promise{Version: 1, Stream: 2, Memory: true, Last: 3, Applied: 4, Durable: 5},
		replica.Deny{View: view},
		replica.Fetch{Version: 1, Stream: 2, First: 3},
		replica.Lend{Stream: 1, Job: 2, Off: 3, Len: 4, Addr: 5},
		replica.Lent{Stream: 1, Job: 2, Sum: 3, Failed: true},
		replica.Hashed{Seq: 1, Digest: replica.Digest{1, 2, 3}, Failed: true},
	} {
		kind, head := frameAck, func(c *coder) { a := m.(replica.Ack); c.ack(&a) }
		if _, isAck := m.(replica.Ack); !isAck {
			kind, head = message(m)
		}
		frame := appendFrame(nil, new(coder), kind, 0, head)
		f, err := readFrame(frame)
		got := f.msg
		if kind == frameAck {
			got = f.ack
		}
		if err != nil || !reflect.DeepEqual(got, m) {
			t.Errorf("%+v comes as %+v, %v", m, got, err)
		}
		for i := range frame {
			bad := bytes.Clone(frame)
			bad[i] ^= 0x10
			if f, err := readFrame(bad); err == nil {
				t.Errorf("%T with another byte %d comes as %+v", m, i, f)
			}
		}
	}
}

// TestFramesOfBefore: what a former version does not know is not in what it gets.
func TestFramesOfBefore(t *testing.T) {
	size := func(f func(c *coder)) int { return len(appendFrame(nil, new(coder), frameAck, 0, f)) - prefixLen }
	if n := size(func(c *coder) { c.ack(&replica.Ack{Durable: 1, Failed: true}) }); n != 4*8+1 {
		t.Errorf("an Ack has %d bytes", n)
	}
	var last byte
	size(func(c *coder) {
		c.bell(&replica.Bell{Sync: 1})
		last = c.b[len(c.b)-1]
	})
	if last != 0 {
		t.Errorf("a Bell ends with %d", last)
	}
}

// readFrame reads a frame that may have a MiB of head and of data.
func readFrame(b []byte) (*received, error) {
	f, r := new(received), bytes.NewReader(b)
	head, data, err := f.readPrefix(r, 1<<20, 1<<20)
	if err == nil {
		err = f.readRest(r, head, data)
	}
	return f, err
}

// TestCorruptPost: a record comes as it was sent, or not at all.
func TestCorruptPost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, 2)
		l.begin()
		defer l.end()
		m := l.nodes[1].mirror
		data := bytesOf(1024, 5)
		var bits replica.Bits
		bits.Set(9)
		p := post{stream: 7, bell: replica.Bell{First: 3, Trim: 1, Freed: 2, Sync: 4, Synced: true, Start: &replica.Start{
			Last: 2, Results: []replica.Result{{Key: 1, Term: 2, Seq: 3, Off: 4, Len: 5}}, Early: bits,
		}}, recs: []replica.Record{
			{Term: 2, Seq: 3, Kind: replica.KindWrite, Off: 512, Len: 1024, Addr: 4096, Sum: sumOf(data), Key: 1, Atomic: true},
			{Term: 2, Seq: 4, Kind: replica.KindResync, Copy: 0, Off: 512, Len: 1024, Addr: 8192},
		}}
		frame := append(appendFrame(nil, new(coder), framePost, len(data), func(c *coder) { c.post(&p) }), data...)
		read := func(b []byte) (*received, error) {
			f, err := readFrame(b)
			if err == nil {
				err = m.checkPost(&f.post, f.data, false)
			}
			return f, err
		}
		got, err := read(frame)
		if err != nil || !reflect.DeepEqual(got.post, p) || !bytes.Equal(got.data, data) {
			t.Fatalf("%+v comes as %+v, %v", p, got, err)
		}
		for i := range frame {
			bad := bytes.Clone(frame)
			bad[i] ^= 0x10
			if got, err := read(bad); err == nil {
				t.Errorf("a post with another byte %d comes as %+v", i, got)
			}
		}
	})
}

// TestCorruptMemory: what the other node has written into the memory here is taken as it was sent, or not at all.
func TestCorruptMemory(t *testing.T) {
	m := &Mirror{cfg: Usual(testSize), arena: make([]byte, 16<<10)}
	m.limit.Store(testSize)
	data := bytesOf(4096, 5)
	copy(m.arena[8192:], data)
	p := post{bell: replica.Bell{First: 1}, recs: []replica.Record{{Seq: 1, Kind: replica.KindWrite, Len: 4096, Addr: 8192, Sum: sumOf(data)}}}
	if err := m.checkPost(&p, nil, true); err != nil {
		t.Fatal(err)
	}
	for _, at := range []int{0, 1000, 4095} {
		m.arena[8192+at] ^= 0x10
		if err := m.checkPost(&p, nil, true); err == nil {
			t.Errorf("byte %d is another one, and the record is taken", at)
		}
		m.arena[8192+at] ^= 0x10
	}
}

// TestForeignPost: what does not fit this mirror ends the connection, and does not reach the core.
func TestForeignPost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, 2)
		l.begin()
		defer l.end()
		m := l.nodes[1].mirror
		good := replica.Record{Seq: 1, Kind: replica.KindZero, Off: 0, Len: 512}
		if err := m.checkPost(&post{bell: replica.Bell{First: 1}, recs: []replica.Record{good}}, nil, false); err != nil {
			t.Fatal(err)
		}
		for what, change := range map[string]func(r *replica.Record){
			"no such kind":        func(r *replica.Record) { r.Kind = 200 },
			"growth without room": func(r *replica.Record) { r.Kind, r.Off = replica.KindGrow, testSize },
			"before the store":    func(r *replica.Record) { r.Off = -512 },
			"behind the store":    func(r *replica.Record) { r.Off = testSize },
			"too long":            func(r *replica.Record) { r.Len = 1<<63 - 1 },
			"nothing":             func(r *replica.Record) { r.Len = 0 },
			"a long check":        func(r *replica.Record) { r.Kind, r.Len = replica.KindCheck, m.cfg.Granule+512 },
			"outside the memory":  func(r *replica.Record) { r.Kind, r.Copy, r.Addr = replica.KindResync, 0, m.cfg.Heap },
			"data missing":        func(r *replica.Record) { r.Kind = replica.KindWrite },
			"out of order":        func(r *replica.Record) { r.Seq = 2 },
		} {
			r := good
			change(&r)
			if err := m.checkPost(&post{bell: replica.Bell{First: 1}, recs: []replica.Record{r}}, nil, false); err == nil {
				t.Errorf("%s: %+v is taken", what, r)
			}
		}
	})
}

// TestGreetingIsBounded: nothing larger than a greeting is waited for before the greeting.
func TestGreetingIsBounded(t *testing.T) {
	frame := appendFrame(nil, new(coder), frameHello, 0, func(c *coder) { c.b = append(c.b, make([]byte, greetingLen+1)...) })
	here, there := net.Pipe()
	defer here.Close()
	go func() {
		_, _ = there.Write(frame[:prefixLen]) // the rest never comes
		_ = there.Close()
	}()
	if _, _, _, err := new(Mirror).greeted(here); err == nil || !strings.Contains(err.Error(), "are allowed") {
		t.Errorf("a head of %d bytes: %v", greetingLen+1, err)
	}
}
