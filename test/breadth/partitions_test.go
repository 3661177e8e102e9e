package breadth

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"testing"

	"oneshot/initiator"
	"oneshot/mgmt"
	"oneshot/test/targettest"
)

const mib = 1 << 20

// names are what a table has, in the order of their places: NAME@OFFSET+SIZE.
func names(p *mgmt.Partitions) (list []string) {
	for i := range p.Partitions {
		q := &p.Partitions[i]
		list = append(list, fmt.Sprintf("%s@%d+%d", q.Name, q.Offset/mib, q.Size/mib))
	}
	return list
}

// A daemon that is killed while partitions come, go, grow and shrink finds the table that it answered with last, or
// the one that it was making, and nothing in between. A LUN beside all that keeps its octets, and stays the disk that
// it was.
func TestPartitionsOutliveKills(t *testing.T) {
	tg := targettest.Start(t, `
stores: {disk: {type: file, path: $DIR/disk.img, size: 64MiB, partitioned: true}}
targets: [{iqn: `+iqn+`t}]
portals: [{listen: $PORTAL}]
management: {socket: $DIR/m}
`)
	c := management(t, tg)
	must := func(p *mgmt.Partitions, err error) *mgmt.Partitions {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	now := must(c.InitPartitions(t.Context(), "disk", "none", false))
	now = must(c.CreatePartitions(t.Context(), "disk", now.Tag, mgmt.NewPartition{Name: "kept", Size: 4 * mib}))
	tg.Edit("iqn: "+iqn+"t}", "iqn: "+iqn+"t, luns: {0: disk/kept}}")
	if _, err := c.Reload(t.Context()); err != nil {
		t.Fatal(err)
	}
	h := login(t, tg.Portal(), "t")
	mark := bytes.Repeat([]byte("kept through kills, "), 4*mib/20+1)[:4*mib]
	disk := func(h *host) *initiator.LU {
		lu, err := h.LU(t.Context(), 0)
		if err != nil {
			t.Fatal(err)
		}
		return lu
	}
	if _, err := disk(h).WriteAt(mark, 0); err != nil {
		t.Fatal(err)
	}
	serial := h.expect("INQUIRY", 0, h.do(0, []byte{0x12, 1, 0x80, 0, 255, 0}, nil, 255))
	_ = h.Close()

	seed := rand.Uint64()
	random := rand.New(rand.NewPCG(seed, 0))
	for round := range 3 {
		killed := make(chan struct{})
		acknowledged := make(chan struct{}, 1<<10)
		after := 1 + random.IntN(8) // changes
		go func() {
			defer close(killed)
			for range after {
				<-acknowledged
			}
			tg.Kill()
		}()
		var trying []string
		for err := error(nil); ; {
			var next *mgmt.Partitions
			trying, next, err = changeAtRandom(t, c, now, random)
			if err != nil {
				break
			}
			now = next
			acknowledged <- struct{}{}
		}
		<-killed
		tg.Start()
		c = management(t, tg)
		found := must(c.Partitions(t.Context(), "disk"))
		if got := names(found); !slices.Equal(got, names(now)) && !slices.Equal(got, trying) {
			t.Errorf("seed %#x, round %d: the table has %s; answered was %s, under way %s", seed, round, got, names(now), trying)
		}
		now = found
		h := login(t, tg.Portal(), "t")
		got := make([]byte, len(mark))
		if _, err := disk(h).ReadAt(got, 0); err != nil || !bytes.Equal(got, mark) {
			t.Errorf("seed %#x, round %d: the LUN has other octets: %v", seed, round, err)
		}
		if again := h.expect("INQUIRY", 0, h.do(0, []byte{0x12, 1, 0x80, 0, 255, 0}, nil, 255)); !bytes.Equal(again, serial) {
			t.Errorf("round %d: the LUN is another disk, %q", round, again)
		}
		_ = h.Close()
	}
}

// changeAtRandom makes a change of now, and returns what the table has if it succeeds, and the answer.
func changeAtRandom(t *testing.T, c *mgmt.Client, now *mgmt.Partitions, random *rand.Rand) (trying []string, next *mgmt.Partitions, err error) {
	trying = names(now)
	others := now.Partitions[1:]
	if len(others) == 0 || len(others) < 6 && random.IntN(2) == 0 {
		// A place of its own for each, so that what is tried can be told.
		slot := int64(random.IntN(12))
		offset := (8 + 4*slot) * mib
		if slices.ContainsFunc(others, func(p mgmt.Partition) bool { return p.Offset == offset }) {
			return changeAtRandom(t, c, now, random)
		}
		name := fmt.Sprint("p", slot)
		trying = append(trying, fmt.Sprintf("%s@%d+1", name, offset/mib))
		slices.SortFunc(trying[1:], func(a, b string) int { return place(a) - place(b) })
		next, err = c.CreatePartitions(t.Context(), "disk", now.Tag, mgmt.NewPartition{Name: name, Size: mib, Offset: offset})
		return trying, next, err
	}
	i := random.IntN(len(others))
	p := &others[i]
	if random.IntN(2) == 0 {
		trying = slices.Delete(trying, i+1, i+2)
		next, err = c.DeletePartition(t.Context(), "disk", p.Name, now.Tag, random.IntN(2) == 0, false)
		return trying, next, err
	}
	size := int64(1+random.IntN(4)) * mib
	trying[i+1] = fmt.Sprintf("%s@%d+%d", p.Name, p.Offset/mib, size/mib)
	next, err = c.AlterPartition(t.Context(), "disk", p.Name, now.Tag, mgmt.PartitionChange{Size: &size}, false)
	return trying, next, err
}

// place is where a name as of names says that a partition begins, in MiB.
func place(text string) (n int) {
	if _, err := fmt.Sscanf(text[1:], "%d@%d", new(int), &n); err != nil {
		panic(err)
	}
	return n
}

// management returns a client of the daemon's management socket, m in its directory, once the daemon answers there.
func management(t *testing.T, tg *targettest.Target) *mgmt.Client {
	t.Helper()
	c := mgmt.NewClient(filepath.Join(tg.Dir, "m"))
	t.Cleanup(c.Close)
	for { // its socket opens after the portals
		if _, err := c.Status(t.Context()); err == nil {
			return c
		} else if tg.PID() == 0 || t.Context().Err() != nil {
			t.Fatal(err)
		}
	}
}
