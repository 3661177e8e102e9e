package mirror

import (
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"oneshot/backend"
	"oneshot/backend/backendtest"
	"oneshot/backend/faulty"
	"oneshot/ha/replica"
	"oneshot/internal/rounds"
)

// forcedTune makes regions small, so that a copy that is brought level in part has others.
func forcedTune(c *replica.Config) { c.Region, c.Granule = 128<<10, 16<<10 }

// TestForcedAside: one of two copies is forced to go on by a view in which it was in sync, though the other one has gone on since.
// That one gives up what it wrote alone, be it in its regions or, when those are cleared, in its bitmap.
func TestForcedAside(t *testing.T) {
	for _, wait := range []time.Duration{time.Second, 30 * time.Second} {
		synctest.Test(t, func(t *testing.T) {
			l := newLab(t, 2)
			l.tune = forcedTune
			l.begin()
			a, b := l.nodes[0], l.nodes[1]
			l.write(a, 0, bytesOf(64<<10, 1))
			time.Sleep(30 * time.Second) // all is durable on both, and known to be
			v := b.mirror.State().View
			b.kill()
			l.alone(a)
			for range 3 { // the other one knows views of higher versions than that with which the lineage begins
				a.kill()
				a.start()
				l.serves(a)
			}
			l.write(a, 1<<20, bytesOf(64<<10, 2))
			time.Sleep(wait)
			a.kill()

			cfg := Usual(testSize)
			forcedTune(&cfg)
			v.Version, v.Term, v.Primary, v.InSync = v.Version+1, v.Term+1, b.id, replica.NodesOf(b.id)
			if err := Force(b.files, v, true, string(backend.IdentityOf(b.disk)), cfg); err != nil {
				t.Fatal(err)
			}
			partly, err := GiveUp(a.files, a.id, false, cfg)
			if err != nil || !partly {
				t.Fatal(partly, err)
			}
			l.register.view = v
			b.start()
			l.serves(b)
			l.write(b, 2<<20, bytesOf(64<<10, 3))
			a.start()
			l.level(b)
			if copied := b.mirror.copied; copied > 1<<20 {
				t.Errorf("%d bytes were copied, and 192 KiB differed, in regions of 128 KiB", copied)
			}
			a.kill()
			b.kill()
			if string(a.disk.Crash(nil, 1)) != string(b.disk.Crash(nil, 1)) {
				t.Error("the copies differ")
			}
		})
	}
}

// TestForcedStale: a copy that was not in sync is forced to go on. What others lack it does not know, so all of theirs is compared with it, and what differs
// is copied; and such a copy gives up all that it has.
func TestForcedStale(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, 2)
		l.tune = forcedTune
		l.begin()
		a, b := l.nodes[0], l.nodes[1]
		time.Sleep(30 * time.Second) // no region is set any more
		b.kill()
		l.alone(a)
		l.write(a, 1<<20, bytesOf(64<<10, 2))
		time.Sleep(time.Second) // until its disk has it
		a.kill()
		b.start()
		time.Sleep(30 * time.Second) // until it has saved what it knows
		b.kill()
		kept, err := Inspect(b.files)
		if err != nil || kept.View.InSync.Has(b.id) {
			t.Fatalf("%+v, %v", kept, err)
		}
		cfg := Usual(testSize)
		forcedTune(&cfg)
		v := kept.View
		v.Version, v.Term, v.Primary, v.InSync = v.Version+1, v.Term+1, b.id, replica.NodesOf(b.id)
		if err := Force(b.files, v, false, string(backend.IdentityOf(b.disk)), cfg); err != nil {
			t.Fatal(err)
		}
		if _, err := GiveUp(a.files, a.id, false, cfg); err != nil {
			t.Fatal(err)
		}
		l.register.view = v
		b.start()
		a.start()
		l.level(b)
		if copied := b.mirror.copied; copied != 64<<10 {
			t.Errorf("%d bytes were copied, and 64 KiB differed", copied)
		}
		a.kill()
		l.alone(b)
		b.kill()
		if string(a.disk.Crash(nil, 1)) != string(b.disk.Crash(nil, 1)) {
			t.Error("the copies differ")
		}
		a.start()
		time.Sleep(30 * time.Second)
		a.kill()
		if partly, err := GiveUp(a.files, a.id, false, cfg); partly || err != nil {
			t.Errorf("a copy that was not in sync gives up a part: %t, %v", partly, err)
		}
		if _, err := a.files.ReadFile(MetadataFile); err == nil {
			t.Error("its metadata are there")
		}
	})
}

// TestForced: hosts write while nodes are killed, lose their power and links are cut, and nothing is mended. Then all end, and
// one of them is forced to go on by itself, by the view that it knows. The others give their bytes up. In the end all copies
// have the bytes of that one, and what was written since.
func TestForced(t *testing.T) {
	seed := faulty.Seed(t)
	partly := 0
	for i := range rounds.Of(6, 2) {
		synctest.Test(t, func(t *testing.T) { partly += runForced(t, 2+i%2, rand.New(rand.NewPCG(seed, uint64(i)))) })
	}
	if partly == 0 && !testing.Short() { // in some worlds there is none
		t.Error("no copy was brought level in part")
	}
}

func runForced(t *testing.T, nodes int, r *rand.Rand) (partly int) {
	l := newLab(t, nodes)
	l.tune = forcedTune
	l.begin()
	stop := make(chan struct{})
	var hosts sync.WaitGroup
	write := func(n *node, r *rand.Rand) {
		if m := n.current(); m != nil {
			b := bytesOf(workBlock, byte(r.IntN(256)))
			op := backend.Op{Kind: backend.Write, Off: r.Int64N(testSize/workBlock) * workBlock, Len: workBlock, Segs: [][]byte{b}}
			if r.IntN(8) == 0 {
				op = backend.Op{Kind: backend.Flush}
			}
			_ = backendtest.Do(m, &op) // its node may go, or serve nothing
		}
	}
	for range 3 {
		rnd := rand.New(rand.NewPCG(r.Uint64(), 0))
		hosts.Go(func() {
			for {
				select {
				case <-stop:
					return
				case <-time.After(time.Duration(rnd.IntN(rounds.Of(4000, 20000))) * time.Microsecond):
				}
				write(l.nodes[rnd.IntN(nodes)], rnd)
			}
		})
	}
	views := make([]replica.View, nodes) // that a node knew when it ended
	kill := func(n *node) {
		views[n.id] = n.mirror.State().View
		if r.IntN(2) == 0 {
			n.kill()
		} else {
			n.cutPower(r, r.Float64())
		}
	}
	for range 6 {
		n := l.nodes[r.IntN(nodes)]
		switch r.IntN(5) {
		case 0, 1:
			if n.current() == nil {
				n.start()
			} else {
				kill(n)
			}
		case 2:
			l.setCut(n.id, (n.id+1)%replica.ID(nodes), r.IntN(2) == 0)
		}
		time.Sleep(time.Duration(r.IntN(6000)) * time.Millisecond)
	}
	close(stop)
	for _, n := range l.nodes {
		if n.current() != nil {
			kill(n)
		}
	}
	hosts.Wait()
	for _, a := range l.nodes {
		for _, b := range l.nodes {
			l.setCut(a.id, b.id, false)
		}
	}

	cfg := Usual(testSize)
	forcedTune(&cfg)
	x := l.nodes[r.IntN(nodes)]
	v := views[x.id]
	kept, err := Inspect(x.files)
	if err != nil || kept == nil {
		t.Fatal(kept, err)
	}
	inSync := v.InSync.Has(x.id) && (kept.View.Version <= v.Version || kept.View.InSync.Has(x.id)) && !kept.Unknown
	v = replica.View{Version: max(v.Version, kept.View.Version) + 1, Term: max(v.Term, kept.View.Term) + 1, First: v.First, Primary: x.id, InSync: replica.NodesOf(x.id)}
	must := func(err error) {
		if err != nil {
			t.Fatal(err)
		}
	}
	must(Force(x.files, v, inSync, string(backend.IdentityOf(x.disk)), cfg))
	for _, n := range l.nodes {
		if n != x {
			is, err := GiveUp(n.files, n.id, false, cfg)
			must(err)
			if is {
				partly++
			}
		}
	}
	want := x.disk.Crash(nil, 1)
	l.register.view = v
	x.start()
	l.serves(x)
	rnd := rand.New(rand.NewPCG(r.Uint64(), 0))
	for _, i := range r.Perm(nodes) {
		got := make([]byte, testSize)
		must(l.do(x, backend.Op{Kind: backend.Read, Len: testSize, Segs: [][]byte{got}}))
		if string(got) != string(want) {
			t.Fatal("the node that was forced does not show the bytes that it had")
		}
		b := bytesOf(workBlock, byte(rnd.IntN(256)))
		off := rnd.Int64N(testSize/workBlock) * workBlock
		l.write(x, off, b)
		copy(want[off:], b)
		if n := l.nodes[i]; n != x {
			n.start()
		}
	}
	l.level(x)
	for _, n := range l.nodes {
		n.kill()
	}
	for _, n := range l.nodes {
		got := n.disk.Crash(nil, 1)
		for i := 0; i < testSize; i += workBlock {
			if string(got[i:i+workBlock]) != string(want[i:i+workBlock]) {
				t.Fatalf("node %d differs from node %d, which was forced (in sync: %t), at %d; it knew %+v, and the other %+v", n.id, x.id, inSync, i, views[n.id], views[x.id])
			}
		}
	}
	return partly
}
