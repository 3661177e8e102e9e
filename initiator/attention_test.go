package initiator_test

import (
	"bytes"
	"context"
	"errors"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"oneshot/initiator"
	"oneshot/initiator/load"
	"oneshot/internal/serial"
	"oneshot/iscsi/pdu"
	"oneshot/test/targettest"
)

// upset changes the format of sense data, which every other session is told of.
func upset(t testing.TB, s *initiator.Session) {
	page := make([]byte, 16)
	check(t, s.Do(t.Context(), &initiator.Command{CDB: []byte{0x1a, 8, 10, 0, 16, 0}, In: page, Attentions: 8}))
	page[0], page[2] = 0, 0
	page[4] &^= 0x80
	page[6] ^= 4 // D_SENSE
	check(t, s.Do(t.Context(), &initiator.Command{CDB: []byte{0x15, 0x10, 0, 0, 16, 0}, Out: page, Attentions: 8}))
}

// Unit attentions are news, and end neither a copy nor a load.
func TestUnitAttentions(t *testing.T) {
	tg := targettest.Start(t, config)
	for _, w := range ways {
		t.Run(w.name, func(t *testing.T) {
			s := w.dial(t, tg)
			defer s.Close()
			other := w.dial(t, tg)
			defer other.Close()
			l, err := s.LU(t.Context(), 0)
			check(t, err)
			want, got := pattern(1<<20, 3), make([]byte, 1<<20)
			for range 5 {
				upset(t, other)
				_, err := l.WriteAt(want, 0)
				check(t, err)
				upset(t, other)
				_, err = l.ReadAt(got, 0)
				check(t, err)
				if !bytes.Equal(got, want) {
					t.Fatal("other bytes")
				}
				upset(t, other)
				check(t, l.Flush(t.Context()))
			}
			upset(t, other)
			err = s.Do(t.Context(), &initiator.Command{CDB: make([]byte, 6)})
			if e, ok := errors.AsType[*initiator.StatusError](err); !ok || e.Key != 6 || !strings.Contains(err.Error(), "TEST UNIT READY: UNIT ATTENTION, mode parameters have changed") {
				t.Errorf("who wants to know is told %v", err)
			}
		})
	}
}

// A load goes on through unit attentions.
func TestLoadSurvivesAttentions(t *testing.T) {
	tg := targettest.Start(t, config)
	for _, w := range ways {
		if w.opt.Depth != 0 || w.opt.Flow != initiator.FlowDefault {
			continue
		}
		t.Run(w.name, func(t *testing.T) {
			other := w.dial(t, tg)
			defer other.Close()
			ctx, cancel := context.WithCancel(t.Context())
			var wg sync.WaitGroup
			wg.Go(func() {
				for range 8 { // which is as many in a row as one command survives
					upset(t, other)
					for i := 0; i < 200 && ctx.Err() == nil; i++ {
						_ = other.Do(ctx, &initiator.Command{CDB: make([]byte, 6)})
					}
				}
			})
			r, err := load.Run(t.Context(), load.Config{
				URL: w.at(t, tg, "/"+iqn+"/0"), Options: w.opt, Depth: 4, Size: 4096, Write: true, Duration: 50e6, Sessions: 2,
			})
			cancel()
			wg.Wait()
			check(t, err)
			if r.IOs == 0 {
				t.Error("nothing was done")
			}
		})
	}
}

// A unit that tells nothing else is given up.
func TestAttentionsWithoutEnd(t *testing.T) {
	times := make(chan int, 1)
	s := dialFake(t, func(g *target) {
		n := 0
		for {
			h, _, err := g.read()
			if err != nil {
				times <- n
				return
			}
			if h.Opcode() != pdu.OpSCSICommand {
				continue
			}
			n++
			sense := []byte{0, 18, 0x70, 0, 6, 9: 10, 14: 0x29, 19: 0}
			g.write(&pdu.SCSIResponseFields{ITT: h.ITT(), Status: 2, DataSegmentLength: len(sense), Sequence: g.sequence()}, sense)
		}
	})
	_, err := s.LU(t.Context(), 0)
	if e, ok := errors.AsType[*initiator.StatusError](err); !ok || e.Key != 6 {
		t.Errorf("%v", err)
	}
	_ = s.Close()
	if n := <-times; n != 1+9 { // INQUIRY has none
		t.Errorf("%d commands", n)
	}
}

// A unit attention that comes before the data of its command has left puts the command back when the data has left, and
// the command is sent again though nothing more comes from the target: whether the socket takes the data at once, or
// becomes full meanwhile.
func TestAttentionBeforeDataLeaves(t *testing.T) {
	const burst = 256 << 10 // MaxBurstLength of nobody who has asked for another one
	for name, bursts := range map[string]int{"at once": 1, "socket full": 32} {
		t.Run(name, func(t *testing.T) {
			noLeaks(t)
			s := dialFake(t, func(g *target) {
				_ = g.c.(*net.TCPConn).SetReadBuffer(128 << 10)
				final := func() (itt uint32) { // of the next sequence
					for {
						h, _, err := g.read()
						if err != nil {
							return 0
						}
						if h.Final() {
							return h.ITT()
						}
					}
				}
				itt := final()
				var all []byte // in one piece, so that the initiator hears of the attention before it sends
				for i := range bursts {
					f := pdu.R2TFields{ITT: itt, TTT: uint32(i), R2TSN: serial.SN(i), BufferOffset: uint32(i * burst), DesiredDataTransferLength: burst}
					all = f.AppendTo(all)
				}
				sense := []byte{0, 18, 0x70, 0, 6, 9: 10, 14: 0x29, 19: 0}
				f := pdu.SCSIResponseFields{ITT: itt, Status: 2, DataSegmentLength: len(sense), Sequence: g.sequence()}
				_, _ = g.c.Write(append(f.AppendTo(all), sense...))
				for range bursts {
					_ = final()
				}
				g.write(&pdu.SCSIResponseFields{ITT: final(), Sequence: g.sequence()}, nil)
				_, _, _ = g.read()
			})
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute) // only a hang reaches it
			defer cancel()
			check(t, s.Do(ctx, &initiator.Command{CDB: make([]byte, 10), Out: make([]byte, bursts*burst), Attentions: 1}))
			_ = s.Close()
		})
	}
}
