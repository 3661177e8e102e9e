package volume

import (
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"oneshot/backend"
	"oneshot/backend/aging"
	"oneshot/backend/backendtest"
)

// The watermark follows flushes that the store makes by itself, and stays where it is when one fails.
func TestAgeing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := backendtest.NewDisk(4096, 512)
		fail := false
		d.Fault = func(op *backend.Op) error {
			if fail && op.Kind == backend.Flush {
				return errors.New("the medium does not answer")
			}
			return nil
		}
		quiet := slog.New(slog.DiscardHandler)
		v := open(t, Config{Store: aging.New(d, aging.Config{Window: time.Second, Logger: quiet}), Logger: quiet})
		h := v.Open(nil)
		s := h.Sequence()
		write := func() uint64 {
			op := &backend.Op{Kind: backend.Write, Len: 512, Segs: [][]byte{make([]byte, 512)}}
			if err := backendtest.Do(v.Store(), op); err != nil {
				t.Fatal(err)
			}
			return s.Written()
		}
		n := write()
		if s.Durable() >= n {
			t.Error("a write is durable by itself")
		}
		time.Sleep(time.Second / 2)
		synctest.Wait()
		if s.Durable() != n {
			t.Errorf("the watermark is %#x, want %#x", s.Durable(), n)
		}
		fail = true
		write()
		time.Sleep(time.Second / 2)
		synctest.Wait()
		if s.Durable() != n || !s.Lost() {
			t.Errorf("after a failed flush the watermark is %#x, want %#x", s.Durable(), n)
		}
		h.Close()
		if err := v.Close(); err == nil {
			t.Error("Close says nothing of the loss")
		}
	})
}
