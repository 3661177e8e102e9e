package scsi

import (
	"encoding/hex"
	"testing"
	"testing/synctest"

	"oneshot/backend"
)

func hexOf(b []byte) string { return hex.EncodeToString(b) }

// meterStore knows its space.
type meterStore struct{ *fakeStore }

func (meterStore) Usage() (used, available int64, err error) { return 3 << 20, 1 << 40, nil }

func TestLogPages(t *testing.T) {
	b := newBench(t, false, func(c *benchConfig, s *fakeStore) { c.Store = meterStore{s} })
	sense := func(page, sub byte, pointer, alloc uint16) []byte {
		return []byte{0x4d, 0, 0x40 | page, sub, 0, byte(pointer >> 8), byte(pointer), byte(alloc >> 8), byte(alloc), 0}
	}
	for _, c := range []struct {
		name string
		cdb  []byte
		want string // data, or the sense if it has 5 digits
	}{
		{"supported pages", sense(0, 0, 0, 255), "00 00 00 04  00 0c 0d 2f"},
		{"supported subpages", sense(0, 0xff, 0, 255), "40 ff 00 0a  00 00 00 ff 0c 00 0d 00 2f 00"},
		{"temperature", sense(0x0d, 0, 0, 255), "0d 00 00 0c  00 00 03 02 00 ff  00 01 03 02 00 ff"},
		{"temperature, cut", sense(0x0d, 0, 0, 6), "0d 00 00 0c  00 00"},
		{"reference temperature", sense(0x0d, 0, 1, 255), "0d 00 00 06  00 01 03 02 00 ff"},
		{"provisioning", sense(0x0c, 0, 0, 255), `0c 00 00 18
			00 01 03 08  00 10 00 00 01 00 00 00    # available: 1 TiB in units of 1 MiB
			00 02 03 08  00 00 00 03 01 00 00 00    # used`},
		{"exceptions", sense(0x2f, 0, 0, 255), "2f 00 00 08  00 00 03 04 00 00 ff 00"},
		{"beyond the last parameter", sense(0x0d, 0, 2, 255), "52400"},
		{"unknown page", sense(0x11, 0, 0, 255), "52400"},
		{"unknown subpage", sense(0x0d, 1, 0, 255), "52400"},
		{"threshold values", []byte{0x4d, 0, 0x0d, 0, 0, 0, 0, 0, 255, 0}, "52400"},
		{"to be saved", []byte{0x4d, 1, 0x4d, 0, 0, 0, 0, 0, 255, 0}, "52400"},
		{"defects (10)", []byte{0x37, 0, 0x1d, 0, 0, 0, 0, 0, 255, 0}, "00 1d 00 00"},
		{"defects (12)", []byte{0xb7, 0x0d, 0, 0, 0, 0, 0, 0, 0, 255, 0, 0}, "00 0d 00 00 00 00 00 00"},
		{"defects (12), cut", []byte{0xb7, 0x0d, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0}, "00 0d 00"},
	} {
		r := b.do(c.cdb, nil, 256)
		switch {
		case len(c.want) == 5:
			if got := r.code(); r.status != CheckCondition || got != 0x52400 {
				t.Errorf("%s: %05x", c.name, got)
			}
		case r.status != Good || hexOf(r.in) != hexOf(unhex(t, c.want)):
			t.Errorf("%s: status %02x, % x", c.name, r.status, r.in)
		}
	}
	if r := b.do([]byte{0x12, 1, 0xb2, 0, 255, 0}, nil, 255); r.in[4] != thresholdExponent {
		t.Errorf("threshold exponent in VPD B2: % x", r.in)
	}
	var _ backend.Meter = meterStore{}
}

// hangingMeter takes its time to tell of its space.
type hangingMeter struct {
	meterStore
	release chan struct{}
}

func (m hangingMeter) Usage() (used, available int64, err error) {
	<-m.release
	return m.meterStore.Usage()
}

// A file system that does not say what space there is keeps the LOG SENSE, and not the connection that it came by.
func TestLogSenseWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := hangingMeter{release: make(chan struct{})}
		b := newBench(t, false, func(c *benchConfig, s *fakeStore) { m.meterStore = meterStore{s}; c.Store = m })
		task := b.task([]byte{0x4d, 0, 0x4c, 0, 0, 0, 0, 0, 255, 0}, nil, 255)
		started := make(chan Next, 1)
		go func() { started <- task.Start() }()
		synctest.Wait()
		if len(started) == 0 {
			t.Error("the connection hangs")
		}
		close(m.release)
		if r := b.finish(task, <-started, nil); r.status != Good || len(r.in) != 28 {
			t.Errorf("%05x, % x", r.code(), r.in)
		}
	})
}
