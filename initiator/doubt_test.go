package initiator_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"
	"syscall"
	"testing"

	"oneshot/initiator"
	"oneshot/iscsi/pdu"
	"oneshot/test/targettest"
)

// withOther is the configuration with a store that a reload can put in the place of another one.
var withOther = strings.Replace(config, "stores:\n", "stores:\n  other: {type: memory, size: 64MiB}\n", 1)

// reload has the target show other LUNs.
func reload(t *testing.T, tg *targettest.Target, luns string) {
	t.Helper()
	tg.Edit("{0: disk, 300: {store: large, block_size: 4096}}", luns)
	check(t, syscall.Kill(tg.PID(), syscall.SIGHUP))
	tg.WaitLog(t.Context(), "configuration read again")
}

// A reload can put another store in the place of a disk that is being copied to. Who writes is told, and not that all is there.
func TestOtherDisk(t *testing.T) {
	for _, w := range ways {
		if w.opt.Depth != 0 || w.opt.Flow != initiator.FlowDefault {
			continue
		}
		for name, luns := range map[string]string{"another store": "{0: other}", "other blocks": "{0: {store: disk, block_size: 4096}}"} {
			t.Run(w.name+"/"+name, func(t *testing.T) {
				noLeaks(t)
				tg := targettest.Start(t, withOther)
				s := w.dial(t, tg)
				l, err := s.LU(t.Context(), 0)
				check(t, err)
				const size = 8 << 20
				// The data end, and go on when the target has another disk.
				data := io.MultiReader(bytes.NewReader(pattern(size, 1)), &then{func() { reload(t, tg, luns) }, bytes.NewReader(pattern(size, 2))})
				_, err = l.CopyFrom(t.Context(), data, 0, nil)
				if err == nil {
					err = l.Flush(t.Context())
				}
				if err == nil || !strings.Contains(err.Error(), "another disk") {
					t.Errorf("it is told %v", err)
				}
				if err := s.Close(); err == nil || !strings.Contains(err.Error(), "another disk") {
					t.Errorf("the session ends with %v", err)
				}
			})
		}
	}
}

// Whoever takes the unit attention, what was prepared for one disk does not come to another.
func TestOtherDiskToldToOthers(t *testing.T) {
	for _, w := range ways {
		if w.opt.Depth != 0 || w.opt.Flow != initiator.FlowDefault {
			continue
		}
		for name, ask := range map[string]func(s *initiator.Session) error{
			"TEST UNIT READY": func(s *initiator.Session) error {
				return refused(s.Do(t.Context(), &initiator.Command{CDB: make([]byte, 6), Attentions: 8}))
			},
			"TEST UNIT READY, until it has no unit attention": func(s *initiator.Session) error {
				for {
					err := s.Do(t.Context(), &initiator.Command{CDB: make([]byte, 6)})
					if e, ok := errors.AsType[*initiator.StatusError](err); !ok || e.Key != 6 {
						return refused(err)
					}
				}
			},
			"another user": func(s *initiator.Session) error {
				u, err := s.LU(t.Context(), 0)
				check(t, err)
				_, err = u.WriteAt(pattern(512, 2), 512) // he knows what he has
				return err
			},
		} {
			t.Run(w.name+"/"+name, func(t *testing.T) {
				noLeaks(t)
				tg := targettest.Start(t, withOther)
				s := w.dial(t, tg)
				l, err := s.LU(t.Context(), 0)
				check(t, err)
				reload(t, tg, "{0: other}")
				check(t, ask(s))
				if _, err = l.WriteAt(pattern(512, 1), 0); err == nil || !strings.Contains(err.Error(), "another disk") {
					t.Errorf("a write ends with %v", err)
				}
				_ = s.Close()
				s = w.dial(t, tg)
				if l, err = s.LU(t.Context(), 0); err != nil {
					t.Fatal(err)
				}
				got := make([]byte, 512)
				_, err = l.ReadAt(got, 0)
				check(t, err)
				if !bytes.Equal(got, make([]byte, 512)) {
					t.Error("the other disk was written to")
				}
				check(t, s.Close())
			})
		}
	}
}

// refused expects that err is what the target says to who has known another disk at the LUN.
func refused(err error) error {
	if e, ok := errors.AsType[*initiator.StatusError](err); !ok || e.ASC != 0x25 {
		return fmt.Errorf("the command is not refused: %w", err)
	}
	return nil
}

// A reload that has nothing to do with the disk, but with another LUN, is heard of, and a copy goes on, whatever carries it.
func TestOtherLUNs(t *testing.T) {
	for _, w := range ways {
		t.Run(w.name, func(t *testing.T) {
			noLeaks(t)
			tg := targettest.Start(t, config)
			s := w.dial(t, tg)
			l, err := s.LU(t.Context(), 0)
			check(t, err)
			const size = 4 << 20
			want := pattern(2*size, 1)
			data := io.MultiReader(bytes.NewReader(want[:size]), &then{func() { reload(t, tg, "{0: disk}") }, bytes.NewReader(want[size:])})
			_, err = l.CopyFrom(t.Context(), data, 0, nil)
			check(t, err)
			check(t, l.Flush(t.Context()))
			check(t, l.Check(t.Context()))
			var got bytes.Buffer
			check(t, l.CopyTo(t.Context(), &got, 0, 2*size, nil))
			if !bytes.Equal(got.Bytes(), want) {
				t.Error("other bytes")
			}
			check(t, s.Close())
		})
	}
}

// then does something before the first byte of r.
type then struct {
	do func()
	r  io.Reader
}

func (d *then) Read(b []byte) (int, error) {
	if d.do != nil {
		d.do()
		d.do = nil
	}
	return d.r.Read(b)
}

// A unit that was reset, and is the same still, is used on; one that nobody can ask is not.
func TestDoubt(t *testing.T) {
	for name, c := range map[string]struct {
		asc, ascq byte
		look      byte // what READ CAPACITY(16) ends with then
		says      string
	}{
		"reset":                 {0x29, 0x03, 0, ""},
		"other LUNs":            {0x3f, 0x0e, 0, ""},
		"another size":          {0x2a, 0x09, 0, ""},
		"another medium":        {0x28, 0x00, 0, "the medium may have changed"},
		"reset, and not to ask": {0x29, 0x03, initiator.StatusBusy, "BUSY"},
	} {
		t.Run(name, func(t *testing.T) {
			noLeaks(t)
			s := dialFake(t, func(g *target) {
				told := false
				g.disk(func(itt uint32, read bool) {
					if f := (pdu.SCSIResponseFields{ITT: itt, Sequence: g.sequence()}); !told {
						told, g.capacity = true, c.look
						sense := []byte{0, 18, 0x70, 0, 6, 9: 10, 14: c.asc, 15: c.ascq, 19: 0}
						f.Status, f.DataSegmentLength = initiator.StatusCheckCondition, len(sense)
						g.write(&f, sense)
					} else {
						g.write(&f, nil)
					}
				})
			})
			u, err := s.LU(t.Context(), 0)
			check(t, err)
			_, err = u.WriteAt(make([]byte, 512), 0)
			if c.says == "" && err != nil || c.says != "" && (err == nil || !strings.Contains(err.Error(), c.says)) {
				t.Errorf("%v", err)
			}
			check(t, s.Close())
		})
	}
}

// A command that is withdrawn ends with a unit attention that comes before its abort: it is not sent again, which would leave it to a
// target that was not asked to abort that.
func TestAttentionOfAborted(t *testing.T) {
	noLeaks(t)
	ctx, cancel := newContext(t)
	var of uint32
	s := dialFake(t, func(g *target) {
		first := true
		g.aborts = func() {
			sense := []byte{0, 18, 0x70, 0, 6, 9: 10, 14: 0x2a, 15: 1, 19: 0}
			g.write(&pdu.SCSIResponseFields{ITT: of, Status: initiator.StatusCheckCondition, DataSegmentLength: len(sense), Sequence: g.sequence()}, sense)
		}
		g.disk(func(itt uint32, _ bool) {
			if first {
				first, of = false, itt
				cancel()
			}
		})
	})
	u, err := s.LU(t.Context(), 0)
	check(t, err)
	c := &initiator.Command{In: make([]byte, 512)}
	check(t, u.Prepare(c, 0))
	if err := s.Do(ctx, c); !errors.Is(err, ctx.Err()) {
		t.Errorf("%v", err)
	}
	check(t, s.Close())
}
