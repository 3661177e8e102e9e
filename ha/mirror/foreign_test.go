package mirror

import (
	"testing"
	"testing/synctest"

	"oneshot/ha/replica"
)

// TestForeignMessage: a member whose messages have numbers that are not possible loses its connection, and nothing else happens.
func TestForeignMessage(t *testing.T) {
	for what, msg := range map[string]func(stream uint64) replica.Msg{
		"lend into no memory":     func(s uint64) replica.Msg { return replica.Lend{Stream: s, Len: 512, Addr: 1 << 40} },
		"lend into more than all": func(s uint64) replica.Msg { return replica.Lend{Stream: s, Len: 1 << 62} },
		"lend before the memory":  func(s uint64) replica.Msg { return replica.Lend{Stream: s, Len: 512, Addr: -512} },
		"lend nothing":            func(s uint64) replica.Msg { return replica.Lend{Stream: s, Len: -512, Addr: 512} },
		"lend behind the store":   func(s uint64) replica.Msg { return replica.Lend{Stream: s, Len: 512, Off: testSize} },
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := newLab(t, 2)
				l.begin()
				a, b := l.nodes[0], l.nodes[1]
				c := l.intruder(a, b) // takes the place of the primary's
				var hello replica.Hello
				for hello.Stream == 0 { // the member asks its primary for records
					var f received
					head, data, err := f.readPrefix(c, 1<<20, 1<<20)
					if err == nil {
						err = f.readRest(c, head, data)
					}
					if err != nil {
						t.Fatal(err)
					}
					hello, _ = f.msg.(replica.Hello)
				}
				kind, head := message(msg(hello.Stream))
				if _, err := c.Write(appendFrame(nil, new(coder), kind, 0, head)); err != nil {
					t.Fatal(err)
				}
				for err := error(nil); err == nil; {
					_, err = c.Read(make([]byte, 1<<10))
				}
				l.await(a, "both in sync", func(s replica.State) bool { return s.Role == replica.Primary && s.View.InSync.Len() == 2 })
				l.end()
			})
		})
	}
}

// TestForeignBitmap: granules that no disk can have are not taken for some that are there.
func TestForeignBitmap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, 2)
		l.begin()
		a, b := l.nodes[0], l.nodes[1]
		a.kill()
		l.await(b, "alone", func(s replica.State) bool { return s.Role == replica.Primary && s.View.InSync.Len() == 1 })
		c := l.intruder(a, b)
		hello := replica.Hello{Version: b.mirror.State().View.Version, Stream: 1, Memory: true}
		hello.Suspects.Set(int((1<<63 + 1<<30) / uint64(b.mirror.cfg.Granule))) // its place is more than an int64 holds
		kind, head := message(hello)
		if _, err := c.Write(appendFrame(nil, new(coder), kind, 0, head)); err != nil {
			t.Fatal(err)
		}
		for err := error(nil); err == nil; {
			_, err = c.Read(make([]byte, 1<<10))
		}
		a.start()
		l.await(b, "both in sync", func(s replica.State) bool { return s.Role == replica.Primary && s.View.InSync.Len() == 2 })
		l.end()
	})
}

// TestForeignSize: a copy that has less than nothing is not made larger: others would not take the record that does that.
func TestForeignSize(t *testing.T) {
	m := new(Mirror)
	for size, ok := range map[int64]bool{0: true, testSize: true, -512: false, -1 << 63: false} {
		if err := m.check(&received{kind: frameHello, msg: replica.Hello{Sizes: []int64{size}}}, false); (err == nil) != ok {
			t.Errorf("a copy of %d bytes: %v", size, err)
		}
	}
}

// TestForeignLoss: what nobody can read is at most a granule, for a copy remembers it by sectors.
func TestForeignLoss(t *testing.T) {
	m := new(Mirror)
	m.cfg.Granule = 64 << 10
	m.limit.Store(testSize)
	for n, ok := range map[int64]bool{512: true, 64 << 10: true, 64<<10 + 512: false, testSize: false} {
		p := post{recs: []replica.Record{{Seq: 1, Kind: replica.KindLost, Len: n}}, bell: replica.Bell{First: 1}}
		if err := m.checkPost(&p, nil, false); (err == nil) != ok {
			t.Errorf("%d bytes that nobody can read: %v", n, err)
		}
	}
	p := post{recs: []replica.Record{{Seq: 1, Kind: replica.KindLost + 1, Len: 512}}, bell: replica.Bell{First: 1}}
	if m.checkPost(&p, nil, false) == nil {
		t.Error("a record of a kind that does not exist")
	}
}
