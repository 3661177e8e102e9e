package server

import (
	"testing"

	"oneshot/initiator"
)

// TestModerationIsSwitchedOff: a portal that has it switched off does not count what its initiators have outstanding, on which
// pauses depend; another one of the same daemon does.
func TestModerationIsSwitchedOff(t *testing.T) {
	r := serve(t, `
stores: {d: {type: memory, size: 16MiB}}
targets: [{iqn: "iqn.2026-11.example.oneshot:t", luns: {0: d}}]
portals:
  - {listen: "127.0.0.1:0", moderation: false}
  - {listen: "127.0.0.1:0"}
`)
	censuses := func() uint64 { return r.Status().Counters.Moderation.Censuses }
	// Many commands, 32 of them outstanding at a time; the first are counted within some thousand.
	for i, stop := range []func() bool{func() bool { return false }, func() bool { return censuses() > 0 }} {
		s, err := initiator.Dial(t.Context(), initiator.URL{Address: r.Addrs()[i].String(), Target: iqn + "t", LUN: -1}, initiator.Options{})
		if err != nil {
			t.Fatal(err)
		}
		attentions(t, s, 0)
		const depth = 32
		done := make(chan *initiator.Command, depth)
		var all [depth]*initiator.Command
		for k := range all {
			all[k] = &initiator.Command{CDB: []byte{0: 0x28, 8: 1, 9: 0}, In: make([]byte, 512), Done: func(c *initiator.Command) { done <- c }}
		}
		for range 300 {
			if stop() {
				break
			}
			s.Start(all[:]...)
			for range all {
				if c := <-done; c.Failure() != nil {
					t.Fatal(c.Failure())
				}
			}
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		if n := censuses(); (n > 0) != (i > 0) {
			t.Errorf("portal %d: commands were counted %d times", i, n)
		}
	}
}
