package quorum

import (
	"context"
	"errors"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// TestForce: of three nodes two are lost. The third one is forced to go on: it leads, has all records, those of which it did not
// know whether they were agreed on among them, and takes others in, under numbers that nobody had. The two come
// back: each is refused as soon as it meets the one, and agrees on nothing more; until it has given its state up.
func TestForce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t)
		defer l.close()
		l.three()
		l.put("a", "disk", 0, "one")
		l.get("b", "disk", "one")
		for _, n := range l.nodes {
			if err := n.Close(); err != nil {
				t.Error(err)
			}
		}
		clear(l.nodes)

		e, err := Examine(l.disks["b"])
		if err != nil {
			t.Fatal(err)
		}
		number := e.Identity().Number
		if _, err := e.Force([]*Record{{Key: Key{KindUnit, "other"}, Version: 7, Value: []byte("put")}}, 2); err != nil {
			t.Fatal(err)
		}
		if e, err = Examine(l.disks["b"]); err != nil {
			t.Fatal(err)
		}
		if _, err := e.Force(nil, 0); err == nil || !strings.Contains(err.Error(), "only member") {
			t.Errorf("a node that is alone is forced: %v", err)
		}

		l.open("b")
		l.until("b", "it leads", func(s *Status) bool {
			return s.Leader == s.Number && s.Number > number && len(s.Members) == 1 && len(s.Voters) == 1
		})
		l.get("b", "disk", "one")
		l.get("b", "other", "put")
		l.put("b", "disk", 1, "two")

		// Two of three voters of old: together they are a majority, until they meet the one that was forced.
		for _, name := range []string{"a", "w"} {
			l.open(name)
			l.inTrouble(name, "target ha rejoin --discard-mine")
			if e, ok := errors.AsType[*OutdatedError](l.nodes[name].Status().Trouble); !ok || !e.Former {
				t.Errorf("%s: %v", name, l.nodes[name].Status().Trouble)
			}
		}
		ctx, cancel := context.WithTimeout(l.ctx(), 10*time.Second)
		defer cancel()
		if _, err := l.nodes["a"].Put(ctx, Key{KindUnit, "disk"}, 1, []byte("other")); err == nil {
			t.Error("nodes of a former generation agree on something")
		}
		for _, name := range []string{"a", "w"} {
			if err := errors.Join(l.nodes[name].Close(), Discard(l.disks[name])); err != nil {
				t.Fatal(err)
			}
			delete(l.nodes, name)
			if err := Join(l.ctx(), l.disks[name], l.dial("b"), l.token("b"), name, name == "w"); err != nil {
				t.Fatal(err)
			}
			l.open(name)
		}
		l.voters("b", 3)
		for _, m := range l.nodes["b"].Status().Members {
			if m.Number <= number || m.Number <= 3 {
				t.Errorf("number %d of %s was used before", m.Number, m.Name)
			}
		}
		l.get("a", "disk", "two")
	})
}

// TestForceTakesAll: what is in the log behind what is known to be agreed on may have been agreed on.
func TestForceTakesAll(t *testing.T) {
	d := newDisk()
	logOfThree(t, d)
	e, err := Examine(d)
	if err != nil {
		t.Fatal(err)
	}
	if r := e.Get(Key{KindUnit, "late"}); r == nil || string(r.Value) != "value" {
		t.Errorf("%+v", r)
	}
}

// logOfThree makes the log of a node of three, with an entry of which it does not know whether it was agreed on.
func logOfThree(t *testing.T, d *disk) {
	t.Helper()
	if _, err := Init(d, "lab", "a", false, 0); err != nil {
		t.Fatal(err)
	}
	l, err := OpenLog(d, counter())
	if err != nil {
		t.Fatal(err)
	}
	add := func(index uint64, c *command) {
		rd := *batches[1]
		rd.Entries = nil
		e := entry(index, 1, string(c.encode()))
		rd.HardState, rd.Entries = hard(1, 0, 1), append(rd.Entries, e)
		if err := l.Save(&rd); err != nil {
			t.Fatal(err)
		}
	}
	token := []byte("token")
	add(2, &command{op: opToken, hash: HashToken(token)})
	add(3, &command{op: opJoin, name: "b", publicKey: [32]byte{1}, hash: HashToken(token)})
	add(4, &command{op: opPut, key: Key{KindUnit, "late"}, value: []byte("value")})
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestForceCrash: a power cut at any step of it leaves the former log or the new one, and after it was answered the new one.
func TestForceCrash(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	for step, whole := 0, false; !whole; step++ {
		for _, chance := range []float64{0, 0.5, 0.5, 1} {
			d := newDisk()
			logOfThree(t, d)
			d.steps = step
			done := force(t, d)
			whole = d.steps >= 0
			d = d.cut(r, chance)
			e, err := Examine(d)
			if err != nil {
				t.Fatalf("step %d: %v", step, err)
			}
			switch id := e.Identity(); {
			case id.Number == 1 && len(e.Others()) == 1 && len(id.Former) == 0 && !done:
			case id.Number == 3 && len(e.Others()) == 0 && len(id.Former) == 1 && id.Former[0].Number == 1:
			default:
				t.Fatalf("step %d, answered %t: %+v, %+v", step, done, id, e.Members())
			}
			if r := e.Get(Key{KindUnit, "late"}); r == nil || string(r.Value) != "value" {
				t.Fatalf("step %d: %+v", step, r)
			}
			if _, err := OpenLog(d, counter()); err != nil {
				t.Fatalf("step %d: %v", step, err)
			}
		}
	}
}

// force forces the node of a disk, and reports whether that was answered.
func force(t *testing.T, d *disk) (done bool) {
	t.Helper()
	defer func() {
		if e := recover(); e != nil {
			if _, ok := e.(powerCut); !ok {
				panic(e)
			}
		}
	}()
	e, err := Examine(d)
	if err == nil {
		_, err = e.Force(nil, 1)
	}
	if err != nil {
		t.Fatal(err)
	}
	return true
}
