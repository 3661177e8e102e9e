package vm

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"oneshot/endpoint"
	"oneshot/endpoint/wal"
	"oneshot/mgmt"
	"oneshot/test/targettest"
	"oneshot/test/vm/machine"
)

// TestPowerCut: a machine serves partitions of a file to programs on another one, which append to a log in one partition
// and write blocks in another. The machine loses its power under that load, once or as often as ONESHOT_CUTS says, and once
// more at rest. The programs see a pause; every record whose append has returned is there afterwards, and every block that
// was flushed.
func TestPowerCut(t *testing.T) {
	outside := freeAddress(t)
	a := newAppliance(t, "user,id=lan,hostfwd=tcp:"+outside+"-:3262", `
log: {format: json}
stores: {disk: {type: file, path: disk.img, partitioned: true}}
targets: [{iqn: "`+iqn+`"}]
portals: [{transport: iwarp, listen: 0.0.0.0:3262, serve: partitions}]
state: state
`, dividedFile(t))
	a.replace("-append", func(string) string {
		return machine.KernelArguments("oneshot.ip=10.0.2.15/24", "oneshot.rxe=no", "oneshot.config=/dev/vda:/target.yaml")
	})
	a.boot(1)
	open := func(partition string, sole bool) *endpoint.Endpoint {
		t.Helper()
		// A boot takes longer than the minute that the library tries by default.
		e, err := endpoint.Open(t.Context(), "oneshot+iwarp://"+outside+"/disk/"+partition, endpoint.Options{Sole: sole, Durable: true, Retry: machine.BootTime})
		if err != nil {
			t.Fatal(err)
		}
		return e
	}

	cuts := 1
	if text := os.Getenv("ONESHOT_CUTS"); text != "" {
		var err error
		if cuts, err = strconv.Atoi(text); err != nil {
			t.Fatal(err)
		}
	}
	const each, appenders = 50, 4
	count := newCounter()
	blocks := &cutBlocks{e: open("blocks", false), count: count, rng: rand.New(rand.NewPCG(1, 2))}
	records := &cutLog{e: open("log", true), count: count, acked: make(map[uint64]string)}
	records.open(t)
	var all sync.WaitGroup
	for i := range appenders {
		all.Go(func() { count.fail(records.append(i, (cuts+1)*each)) })
	}
	all.Go(func() { count.fail(blocks.work((cuts+1)*each, t)) })
	for k := range cuts {
		if !count.await((k + 1) * each) {
			break
		}
		a.cut()
		a.boot(1)
	}
	all.Wait()
	if err := count.failure(); err != nil {
		t.Fatal(err)
	}
	if err := records.log.Close(); err != nil {
		t.Fatal(err)
	}
	a.cut() // at rest: everything is acknowledged
	a.boot(1)
	if err := blocks.check(t); err != nil {
		t.Error(err)
	}
	records.open(t)
	if err := records.check(t); err != nil {
		t.Error(err)
	}
	t.Logf("%d records and %d flushes over %d power cuts, after %d of which a flush could not promise what had been written",
		len(records.acked), blocks.flushes, cuts+1, blocks.restarts)
	if err := errors.Join(records.log.Close(), records.e.Close(), blocks.e.Close()); err != nil {
		t.Error(err)
	}
	a.pressPower()
}

// dividedFile makes disk.img, a file with the partitions log and blocks, and returns its path.
func dividedFile(t *testing.T) string {
	t.Helper()
	tg := targettest.Start(t, `
stores: {disk: {type: file, path: $DIR/disk.img, size: 32MiB, partitioned: true}}
targets: [{iqn: "`+iqn+`"}]
portals: [{listen: $PORTAL}]
management: {socket: $DIR/socket}
`)
	tg.WaitLog(t.Context(), "service open")
	admin := mgmt.NewClient(filepath.Join(tg.Dir, "socket"))
	defer admin.Close()
	now, err := admin.InitPartitions(t.Context(), "disk", "none", false)
	for _, name := range []string{"log", "blocks"} {
		if err == nil {
			access := []mgmt.PartitionAccess{{Who: "any", Rights: "rwf"}}
			now, err = admin.CreatePartitions(t.Context(), "disk", now.Tag, mgmt.NewPartition{Name: name, Size: 8 << 20, Access: access})
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	tg.Stop()
	return filepath.Join(tg.Dir, "disk.img")
}

// counter counts what was acknowledged, and keeps the errors of those who work.
type counter struct {
	mu   sync.Mutex
	more sync.Cond
	n    int
	err  error
}

func newCounter() *counter {
	c := new(counter)
	c.more.L = &c.mu
	return c
}

// add counts one more, and returns how many there are. Once there is an error there are enough.
func (c *counter) add() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.n++
	if c.err != nil {
		c.n += 1 << 30
	}
	c.more.Broadcast()
	return c.n
}

func (c *counter) fail(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.err = errors.Join(c.err, err)
	c.more.Broadcast()
}

// await waits until there are n. False: there was an error.
func (c *counter) await(n int) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.n < n && c.err == nil {
		c.more.Wait()
	}
	return c.err == nil
}

func (c *counter) failure() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// cutLog is a log, and the records that have to be in it.
type cutLog struct {
	e     *endpoint.Endpoint
	log   *wal.Log
	count *counter

	mu    sync.Mutex
	acked map[uint64]string // by LSN
}

func (l *cutLog) open(t *testing.T) {
	t.Helper()
	var err error
	if l.log, err = wal.Open(t.Context(), l.e, wal.Options{}); err != nil {
		t.Fatal(err)
	}
}

// append appends records, one after the other, until enough are acknowledged in all.
func (l *cutLog) append(who, enough int) error {
	for n := 0; ; n++ {
		p := fmt.Sprintf("appender %d, record %d %s", who, n, strings.Repeat("x", n%1000))
		lsn, w := l.log.Append([]byte(p))
		if err := w.Wait(); err != nil {
			return fmt.Errorf("append: %w", err)
		}
		l.mu.Lock()
		l.acked[lsn] = p
		l.mu.Unlock()
		if l.count.add() >= enough {
			return nil
		}
	}
}

// check reports records that are missing, or others than were appended.
func (l *cutLog) check(t *testing.T) error {
	found := make(map[uint64]string)
	err := l.log.Replay(t.Context(), l.log.First(), func(lsn uint64, p []byte) error {
		found[lsn] = string(p)
		return nil
	})
	for lsn, p := range l.acked {
		if found[lsn] != p {
			return fmt.Errorf("record %d is %.40q, want %.40q: %w", lsn, found[lsn], p, err)
		}
	}
	return err
}

const (
	cutUnit  = 4096 // of the partition
	cutPlace = 64   // units that are written
)

// cutBlocks are blocks, and what may be in them: the first value of a place is that of the last flush, others were written since.
type cutBlocks struct {
	e        *endpoint.Endpoint
	count    *counter
	rng      *rand.Rand
	last     uint64
	may      [cutPlace][]uint64
	flushes  int
	restarts int
}

// work writes a few blocks and flushes them, until there are enough acknowledgements in all.
func (b *cutBlocks) work(enough int, t *testing.T) error {
	buf, err := b.e.Alloc(cutUnit)
	if err != nil {
		return err
	}
	for i := range b.may {
		b.may[i] = []uint64{0}
	}
	for {
		places := b.rng.Perm(cutPlace)[:1+b.rng.IntN(8)]
		for again := true; again; {
			for _, at := range places {
				b.last++
				b.may[at] = append(b.may[at], b.last)
				fillUnit(buf, b.last)
				if err := b.e.WriteAt(t.Context(), buf, int64(at)*cutUnit); err != nil {
					return fmt.Errorf("write: %w", err)
				}
			}
			err := b.e.Flush(t.Context())
			var restarted *endpoint.RestartedError
			if again = errors.As(err, &restarted); again {
				b.restarts++ // what was written since the last flush may be gone: it is written again
			} else if err != nil {
				return fmt.Errorf("flush: %w", err)
			}
		}
		for _, at := range places {
			b.may[at] = b.may[at][len(b.may[at])-1:]
		}
		b.flushes++
		if b.count.add() >= enough {
			return b.e.Free(buf)
		}
	}
}

// fillUnit writes v all over a unit.
func fillUnit(b []byte, v uint64) {
	for ; len(b) > 0; b = b[8:] {
		binary.LittleEndian.PutUint64(b, v)
	}
}

// check reads all places. A unit is what was flushed, or what was written since.
func (b *cutBlocks) check(t *testing.T) error {
	buf, err := b.e.Alloc(cutUnit)
	if err != nil {
		return err
	}
	for at, may := range b.may {
		if err := b.e.ReadAt(t.Context(), buf, int64(at)*cutUnit); err != nil {
			return err
		}
		for i := 0; i < len(buf); i += 8 {
			if v := binary.LittleEndian.Uint64(buf[i:]); !slices.Contains(may, v) {
				return fmt.Errorf("unit %d has %d at octet %d, and may have %v", at, v, i, may)
			}
		}
	}
	return b.e.Free(buf)
}
