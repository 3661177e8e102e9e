package stag

import (
	"testing"

	"pgregory.net/rapid"
)

// TestPeerErrors: A1 to A3 of one-shot.md §6.
func TestPeerErrors(t *testing.T) {
	p := NewPeer(2)
	if err := p.Advertise(0); lecOf(err) != 0x0100 {
		t.Errorf("A1: %v", err)
	}
	p.Advertise(7)
	var at At
	for _, step := range []func(STag) (At, error){p.PostRead, p.PostWrite} { // HELD, BUSY
		if err := p.Advertise(7); lecOf(err) != 0x0207 {
			t.Errorf("A2, %v: %v", p.State(7), err)
		}
		var err error
		if at, err = step(7); err != nil {
			t.Error(err)
		}
	}
	p.ReadDone(at, 7)
	p.PostClose(7)
	if err := p.Advertise(7); lecOf(err) != 0x0207 {
		t.Errorf("A2, %v: %v", p.State(7), err)
	}
	if err := p.Advertise(8); err != nil {
		t.Error(err)
	}
	if err := p.Advertise(9); lecOf(err) != 0x0207 {
		t.Errorf("A3: %v", err)
	}
	p.Closed(at, 7)
	if err := p.Advertise(9); err != nil {
		t.Errorf("after a close: %v", err)
	}
	if err := NewPeer(0).Advertise(7); lecOf(err) != 0x0207 {
		t.Errorf("window 0: %v", err)
	}
}

func TestPeerMoreDoneThanPosted(t *testing.T) {
	p := NewPeer(1)
	p.Advertise(7)
	at, _ := p.PostWrite(7)
	defer func() {
		if recover() == nil {
			t.Error("no panic")
		}
	}()
	p.ReadDone(at, 7)
}

// heldModel is the expected state of one STag.
type heldModel struct {
	reads, writes int
	closed, gone  bool
	at            At // if found
	found         bool
}

// stays checks that an STag has kept its index.
func stays(t *rapid.T, m *heldModel, at At) {
	if m.found && m.at != at {
		t.Fatalf("an STag that stood at %d stands at %d", m.at, at)
	}
	m.found, m.at = true, at
}

// TestPeerModel compares the table with a map.
func TestPeerModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		window := rapid.IntRange(1, 40).Draw(t, "window")
		p := NewPeer(window)
		model := map[STag]*heldModel{}
		held := func() (n int) {
			for _, m := range model {
				if !m.gone {
					n++
				}
			}
			return n
		}
		expect := func(what string, err, want error) {
			if err != want {
				t.Fatalf("%s: %v, want %v", what, err, want)
			}
		}
		post := func(m *heldModel) error {
			switch {
			case m == nil || m.gone:
				return ErrNotHeld
			case m.closed:
				return ErrClosePosted
			}
			return nil
		}
		tag := rapid.Custom(func(t *rapid.T) STag { return STag(rapid.IntRange(1, 60).Draw(t, "tag")) })
		t.Repeat(map[string]func(*rapid.T){
			"": func(t *rapid.T) {
				if p.Len() != held() {
					t.Fatalf("Len %d, want %d", p.Len(), held())
				}
				for s := STag(1); s <= 60; s++ {
					m, want := model[s], Unknown
					switch {
					case m == nil || m.gone:
					case m.closed:
						want = ClosePosted
					case m.reads+m.writes > 0:
						want = Busy
					default:
						want = Held
					}
					if got := p.State(s); got != want {
						t.Fatalf("STag %d is %v, want %v", s, got, want)
					}
				}
			},
			"advertise": func(t *rapid.T) {
				s := tag.Draw(t, "STag")
				want := 0xffff
				if model[s] != nil || held() >= window {
					want = 0x0207
				} else {
					model[s] = &heldModel{}
				}
				if err := p.Advertise(s); lecOf(err) != want {
					t.Fatalf("advertise %d: %v", s, err)
				}
			},
			"post": func(t *rapid.T) {
				s := tag.Draw(t, "STag")
				m := model[s]
				want := post(m)
				if rapid.Bool().Draw(t, "read") {
					at, err := p.PostRead(s)
					expect("read", err, want)
					if want == nil {
						stays(t, m, at)
						m.reads++
					}
					return
				}
				at, err := p.PostWrite(s)
				expect("write", err, want)
				if want == nil {
					stays(t, m, at)
					m.writes++
				}
			},
			"done": func(t *rapid.T) {
				s := tag.Draw(t, "STag")
				m := model[s]
				switch {
				case m == nil:
					p.ReadDone(At(rapid.IntRange(-1, 70).Draw(t, "at")), s)
				case m.reads > 0:
					p.ReadDone(m.at, s)
					m.reads--
				case m.writes > 0:
					p.WriteDone(m.at, s)
					m.writes--
				}
				if m != nil && m.gone && m.reads+m.writes == 0 {
					delete(model, s)
				}
			},
			"close": func(t *rapid.T) {
				s := tag.Draw(t, "STag")
				m := model[s]
				want := post(m)
				if want == nil && m.reads > 0 {
					want = ErrReads
				}
				at, err := p.PostClose(s)
				expect("close", err, want)
				if want == nil {
					stays(t, m, at)
					m.closed = true
				}
			},
			"closed": func(t *rapid.T) {
				s := tag.Draw(t, "STag")
				m := model[s]
				if m != nil && m.closed {
					expect("closed", p.Closed(m.at, s), nil)
					delete(model, s)
					return
				}
				expect("closed", p.Closed(At(rapid.IntRange(-1, 70).Draw(t, "at")), s), ErrNotHeld)
			},
			"forget": func(t *rapid.T) {
				s := tag.Draw(t, "STag")
				m := model[s]
				want := post(m)
				expect("forget", p.Forget(s), want)
				if want == nil {
					if m.gone = true; m.reads+m.writes == 0 {
						delete(model, s)
					}
				}
			},
		})
	})
}
