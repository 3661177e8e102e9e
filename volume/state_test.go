package volume

import (
	"fmt"
	"strings"
	"testing"

	"oneshot/volume/access"
)

const former = `{"Format":1,"Generation":3,"Type":5,"Holder":1,"Registrants":[` +
	`{"Initiator":"iqn.c:a,i,0x400000000001","Target":"iqn.t:x,t,0x0001","Port":1,"Key":7},` +
	`{"Initiator":"iqn.c:b","Target":"iqn.t:x,t,0x0007","Port":7,"Key":8}],` +
	`"Access":[{"Group":7,"State":2,"Preferred":true},{"Group":1,"State":1}]}`

// A state that an earlier version has kept for a logical unit is the volume's from now on: in its own
// file, and not in the former one.
func TestTakeOver(t *testing.T) {
	own, first := new(keeper), keeps(former)
	second := keeps(`{"Format":1,"Generation":9,"Type":1,"Holder":0,"Registrants":[{"Initiator":"iqn.c:z,i,0x400000000009","Target":"iqn.t:y,t,0x0001","Port":1,"Key":9}],` +
		`"Access":[{"Group":7,"State":3}],"Sanitize":{"Action":1,"Pattern":"YQ==","Count":2,"Failed":true}}`)
	old := []Former{{State: first, Block: 512}, {State: second, Block: 4096}, {State: new(keeper)}, {}}
	var want string
	for restart := range 3 {
		v := open(t, Config{Store: newSliceStore(1 << 20), Keeper: own, Former: old})
		s := v.Access().State()
		got := fmt.Sprintf("%+v %+v", s, *v.kept.Sanitize)
		switch {
		case restart > 0 && got != want:
			t.Errorf("restart %d:\n%s\nwant\n%s", restart, got, want)
		case restart == 0:
			want = got
			a := access.Registration{Holder: access.Holder{Initiator: access.Initiator{Protocol: access.ISCSI, Name: "iqn.c:a", Port: "400000000001"}, Port: access.Port{Target: "iqn.t:x", Group: 1}}, Relative: 1, Key: 7}
			if len(s.Registrations) != 3 || s.Registrations[0] != a || s.Registrations[1].Initiator.Port != "" || s.Kind != access.WriteExclusiveRegistrants || s.Holder != 1 || s.Generation != 9 || !s.Persist {
				t.Errorf("%+v", s)
			}
			if g := v.Access().Group(7); g.State != access.Standby || !g.Preferred {
				t.Errorf("group 7: %+v", g)
			}
			if d := denied(v); d != access.SanitizeFailed|access.Writes {
				t.Errorf("%x is denied", d)
			}
		}
		for _, k := range []*keeper{first, second} {
			if state, _ := k.Load(); len(state) != 0 {
				t.Errorf("the former file still has %s", state)
			}
		}
		if err := v.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// What makes no sense is refused: to go on without it would let in those whom it keeps out.
func TestStatesThatMakeNoSense(t *testing.T) {
	for _, state := range []string{
		"{", `{"Format":2}`, `{"Format":1,"Type":4}`, `{"Format":1,"Type":1,"Holder":0}`, `{"Format":1,"Type":1,"Holder":-1}`,
		`{"Format":1,"Access":[{"State":9}]}`, strings.Replace(former, ",t,0x0007", "", 1), strings.Replace(former, ",t,0x0007", ",t,0x", 1),
		`{"Format":1,"Sanitize":{"Action":1}}`,
	} {
		if _, err := New(Config{Store: newSliceStore(4096), Keeper: new(keeper), Former: []Former{{State: keeps(state), Block: 512}}}); err == nil {
			t.Errorf("%s is taken over", state)
		}
	}
	for _, state := range []string{
		"{", `{"Format":1}`, `{"Format":2,"Access":{"Kind":4}}`, `{"Format":2,"Access":{"Kind":1,"Holder":-1}}`, `{"Format":2,"Access":{"Holder":-1,"Groups":[{"State":9}]}}`,
		`{"Format":2,"Access":{"Holder":-1},"Sanitize":{"Action":1,"Count":1,"Pattern":"YQ=="}}`,
	} {
		if _, err := New(Config{Store: newSliceStore(4096), Keeper: keeps(state)}); err == nil {
			t.Errorf("%s is taken", state)
		}
	}
}

// FuzzFormer reads any state of an earlier version: it is refused, or what comes of it is what a
// restart makes of what is then kept.
func FuzzFormer(f *testing.F) {
	f.Add([]byte(former))
	f.Add([]byte(`{"Format":1,"Holder":-1,"Volatile":true,"Access":[{"Group":1,"State":2,"Preferred":true}]}`))
	f.Add([]byte(`{"Format":1,"Holder":-1,"Volatile":true,"Sanitize":{"Action":2,"Failed":true}}`))
	f.Add([]byte(`{"Format":1,"Type":7,"Holder":-1}`))
	f.Fuzz(func(t *testing.T, state []byte) {
		own := new(keeper)
		first, err := New(Config{Store: newSliceStore(4096), Keeper: own, Former: []Former{{State: keeps(string(state)), Block: 512}}, Logger: quiet})
		if err != nil {
			return
		}
		<-first.Sanitized()
		before := first.Access().State()
		if err := first.Close(); err != nil {
			t.Fatal(err)
		}
		again := open(t, Config{Store: newSliceStore(4096), Keeper: own})
		<-again.Sanitized()
		kept := before.Kept()
		if got, want := fmt.Sprint(again.Access().State()), fmt.Sprint(kept); got != want {
			t.Errorf("%s becomes %s", want, got)
		}
		if err := again.Close(); err != nil {
			t.Fatal(err)
		}
	})
}

// Numbers of writes have another generation whenever the store is opened, as far as somebody uses them.
func TestGeneration(t *testing.T) {
	k := new(keeper)
	var last uint64
	for restart, want := range []uint64{1, 1, 2, 3} {
		v := open(t, Config{Store: newSliceStore(4096), Keeper: k})
		if restart != 1 { // that time nobody opens a handle
			h := v.Open(nil)
			v.Open(nil).Close()
			last = h.Sequence().Written()
			if d := h.Sequence().Durable(); last != want<<48+1 || d != want<<48 {
				t.Errorf("restart %d: the first number is %#x, the watermark %#x", restart, last, d)
			}
			h.Close()
		}
		if err := v.Close(); err != nil {
			t.Fatal(err)
		}
	}
	v := open(t, Config{Store: newSliceStore(4096), Keeper: keeps(`{"Format":2,"Access":{"Holder":-1},"Generation":65535}`)})
	h := v.Open(nil)
	if n := h.Sequence().Count(); n != 1<<48 {
		t.Errorf("after the last generation comes %#x", n)
	}
	h.Close()
	if err := v.Close(); err != nil {
		t.Error(err)
	}
}

// Generations that cannot be kept are not the same after each restart: whoever relies on numbers would take the new ones for the old.
func TestGenerationNotKept(t *testing.T) {
	k := new(trialKeeper)
	k.save = func([]byte) error { return errTest }
	seen := make(map[uint64]bool)
	for range 8 {
		v := open(t, Config{Store: newSliceStore(4096), Keeper: k})
		h := v.Open(nil)
		seen[h.Sequence().Count()] = true
		h.Close()
		if err := v.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if len(seen) < 3 {
		t.Errorf("the generations of 8 restarts are %v", seen)
	}
}
