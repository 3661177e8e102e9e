package scsi

import (
	"errors"
	"testing"

	"oneshot/backend"
)

func TestSendDiagnostic(t *testing.T) {
	eachStore(t, func(t *testing.T, b *bench, noLend bool) {
		for _, c := range []struct {
			cdb  []byte
			want int
		}{
			{[]byte{0x1d, 0, 0, 0, 0, 0}, 0},
			{[]byte{0x1d, 0x04, 0, 0, 0, 0}, 0},
			{[]byte{0x1d, 0x17, 0, 0, 0, 0}, 0},
			{[]byte{0x1d, 0x20, 0, 0, 0, 0}, 0x52400}, // background short self-test
			{[]byte{0x1d, 0x10, 0, 0, 4, 0}, 0x52400}, // a diagnostic page
		} {
			if v := verdict(b.do(c.cdb, nil, 0)); v != c.want {
				t.Errorf("% x: %05x, want %05x", c.cdb, v, c.want)
			}
		}
	})
	b := newBench(t, false, func(c *benchConfig, _ *fakeStore) { c.Logger = quiet })
	b.store.fail = func(*backend.Op) error { return errors.New("broken") }
	if v := verdict(b.do([]byte{0x1d, 0x04, 0, 0, 0, 0}, nil, 0)); v == 0 {
		t.Error("a store that is broken passes its self-test")
	}
	b.nexus.lookup(0).denied.Store(denyStandby)
	if v := verdict(b.do([]byte{0x1d, 0x04, 0, 0, 0, 0}, nil, 0)); v != 0 {
		t.Errorf("the self-test in standby: %05x", v)
	}
	if v := verdict(b.do([]byte{0x1d, 0x20, 0, 0, 0, 0}, nil, 0)); v != 0x52400 {
		t.Errorf("another one in standby: %05x", v)
	}
}
