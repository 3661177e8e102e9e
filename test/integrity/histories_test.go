package integrity

import (
	"strings"
	"testing"
)

// TestModel has the model judge short histories of one disk of eight sectors.
func TestModel(t *testing.T) {
	write := func(m *model, at, n int, o outcome) *change {
		c := m.begin("WRITE", at, n, false)
		m.finish(c, o)
		return c
	}
	read := func(m *model, together bool, cs ...*change) {
		b := make([]byte, len(cs)*sectorSize)
		for i, c := range cs {
			v := zeroes
			if c != nil {
				v = c.value
			}
			v.fill(b[i*sectorSize:][:sectorSize], i)
		}
		m.found(m.look(), 0, b, together)
	}
	tests := []struct {
		name  string
		run   func(m *model)
		wrong string // part of the finding; empty: there must be none
	}{
		{"what was written is read", func(m *model) { read(m, false, write(m, 0, 1, done)) }, ""},
		{"an acknowledged write is lost", func(m *model) { write(m, 0, 1, done); read(m, false, nil) }, "cannot be"},
		{"an older write comes back", func(m *model) { c := write(m, 0, 1, done); write(m, 0, 1, done); read(m, false, c) }, "cannot be"},
		{"a write under way may be seen or not", func(m *model) {
			c := m.begin("WRITE", 0, 1, false)
			read(m, false, nil)
			read(m, false, c)
		}, ""},
		{"a write under way that was seen stays", func(m *model) {
			c := m.begin("WRITE", 0, 1, false)
			read(m, false, c)
			read(m, false, nil)
		}, "cannot be"},
		{"writes side by side leave either", func(m *model) {
			a, b := m.begin("WRITE", 0, 1, false), m.begin("WRITE", 0, 1, false)
			m.finish(a, done)
			m.finish(b, done)
			read(m, false, a)
		}, ""},
		{"of two writes one is seen, then the other", func(m *model) {
			a, b := m.begin("WRITE", 0, 1, false), m.begin("WRITE", 0, 1, false)
			m.finish(a, done)
			m.finish(b, done)
			read(m, false, a)
			read(m, false, b)
		}, ""}, // the model takes this; only the order of the two with others is known to it
		{"an unknown write may be there", func(m *model) { read(m, false, write(m, 0, 1, unknown)) }, ""},
		{"an unknown write may be missing", func(m *model) { write(m, 0, 1, unknown); read(m, false, nil) }, ""},
		{"an unknown write takes effect after its end", func(m *model) {
			c := write(m, 0, 1, unknown)
			write(m, 0, 1, done)
			read(m, false, c)
		}, "cannot be"},
		{"a refused write is there", func(m *model) { read(m, false, write(m, 0, 1, refused)) }, "cannot be"},
		{"a sector of two changes", func(m *model) {
			a, c := write(m, 0, 1, done), write(m, 0, 1, done)
			b := make([]byte, sectorSize)
			c.value.fill(b, 0)
			a.value.fill(b[:256], 0)
			m.found(m.look(), 0, b, false)
		}, "several changes"},
		{"a sector of two changes, read while one is under way", func(m *model) {
			a, c := write(m, 0, 1, done), m.begin("WRITE", 0, 1, false)
			b := make([]byte, sectorSize)
			c.value.fill(b, 0)
			a.value.fill(b[:256], 0)
			m.found(m.look(), 0, b, false)
		}, ""},
		{"a pair that is zeroes in part", func(m *model) {
			c := write(m, 0, 1, done)
			b := make([]byte, sectorSize)
			c.value.fill(b, 0)
			clear(b[8+pairLen : 2*pairLen])
			m.found(m.look(), 0, b, false)
		}, "several changes"},
		{"a pair that is zeroes in part, read while a change is under way", func(m *model) {
			c := m.begin("WRITE", 0, 1, false)
			b := make([]byte, sectorSize)
			c.value.fill(b, 0)
			clear(b[8+pairLen : 2*pairLen])
			m.found(m.look(), 0, b, false)
		}, ""},
		{"a sector of two changes, neither of which may be there", func(m *model) {
			a, c := write(m, 0, 1, done), write(m, 0, 1, done)
			m.begin("WRITE", 0, 1, false)
			b := make([]byte, sectorSize)
			c.value.fill(b, 0)
			a.value.fill(b[:256], 0)
			m.found(m.look(), 0, b, false)
		}, "cannot be"},
		{"a sector in the wrong place", func(m *model) {
			c := write(m, 0, 2, done)
			b := make([]byte, sectorSize)
			c.value.fill(b, 1)
			m.found(m.look(), 0, b, false)
		}, "misplaced"},
		{"an atomic write is seen whole", func(m *model) { c := write(m, 0, 2, done); read(m, true, c, c) }, ""},
		{"an atomic write is seen in half", func(m *model) {
			a, b := m.begin("ATOMIC", 0, 2, false), m.begin("ATOMIC", 0, 2, false)
			m.finish(a, done)
			m.finish(b, done)
			read(m, true, a, b)
		}, "torn"},
		{"a read that began before the write ended", func(m *model) {
			start := m.look()
			write(m, 0, 1, done)
			m.found(start, 0, make([]byte, sectorSize), false)
		}, ""},
		{"a power cut takes what was not flushed", func(m *model) {
			m.volatile = true
			write(m, 0, 1, done)
			m.lose(false)
			read(m, false, nil)
		}, ""},
		{"a power cut takes what was flushed", func(m *model) {
			m.volatile = true
			write(m, 0, 1, done)
			m.flushed(m.look())
			m.lose(false)
			read(m, false, nil)
		}, "cannot be"},
		{"a power cut takes what a read has seen and nobody flushed", func(m *model) {
			m.volatile = true
			read(m, false, write(m, 0, 1, done))
			m.lose(false)
			read(m, false, nil)
		}, ""},
		{"a flush that began too early", func(m *model) {
			m.volatile = true
			start := m.look()
			write(m, 0, 1, done)
			m.flushed(start)
			m.lose(false)
			read(m, false, nil)
		}, ""},
		{"a power cut brings back what a flushed write has overwritten", func(m *model) {
			m.volatile = true
			c := write(m, 0, 1, done)
			write(m, 0, 1, done)
			m.flushed(m.look())
			m.lose(false)
			read(m, false, c)
		}, "cannot be"},
		{"a power cut brings back a write that was flushed before another one", func(m *model) {
			m.volatile = true
			c := write(m, 0, 1, done)
			m.flushed(m.look())
			for range 10 {
				write(m, 0, 1, done)
			}
			m.lose(false)
			read(m, false, c)
		}, ""},
		{"what the power cut left stays", func(m *model) {
			m.volatile = true
			c := write(m, 0, 1, done)
			m.lose(false)
			read(m, false, nil)
			read(m, false, c)
		}, ""}, // the model remembers no order between the two
		{"a write with FUA is lost", func(m *model) {
			m.volatile = true
			c := m.begin("WRITE", 0, 1, false)
			c.fua = true
			m.finish(c, done)
			m.lose(false)
			read(m, false, nil)
		}, "cannot be"},
		{"a flush says GOOD after an error of the medium", func(m *model) {
			m.volatile = true
			write(m, 0, 1, done)
			m.lose(true)
			m.flushed(m.look())
		}, "says GOOD"},
		{"a write under way while the medium loses bytes", func(m *model) {
			m.volatile = true
			c := m.begin("WRITE", 0, 1, false)
			m.lose(true)
			m.finish(c, done)
			read(m, false, nil)
		}, ""},
		{"a read that began before a write with FUA ended, while the medium loses bytes", func(m *model) {
			m.volatile = true
			start := m.look()
			c := m.begin("WRITE", 0, 1, false)
			c.fua = true
			m.finish(c, done)
			m.lose(true)
			m.found(start, 0, make([]byte, sectorSize), false)
		}, ""},
		{"a read that began after a write with FUA ended, while the medium loses bytes", func(m *model) {
			m.volatile = true
			m.look()
			c := m.begin("WRITE", 0, 1, false)
			c.fua = true
			m.finish(c, done)
			m.lose(true)
			read(m, false, nil)
		}, "cannot be"},
		{"old changes are forgotten and new ones kept", func(m *model) {
			var last *change
			for range 100 {
				last = write(m, 0, 1, done)
			}
			if n := len(m.sectors[0]); n > 8 {
				m.blame("%d changes are remembered", n)
			}
			read(m, false, last)
		}, ""},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			m := newModel(8)
			test.run(m)
			found := strings.Join(m.findings(), "\n")
			if (found != "") != (test.wrong != "") || !strings.Contains(found, test.wrong) {
				t.Errorf("findings: %q, want %q", found, test.wrong)
			}
		})
	}
}
