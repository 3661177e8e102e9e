package integrity

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"oneshot/endpoint"
	"oneshot/endpoint/wal"
	"oneshot/mgmt"
	"oneshot/test/medium"
)

// records is what the log should hold.
type records struct {
	mu      sync.Mutex
	durable map[uint64]string // by LSN: those that were acknowledged
	floor   uint64            // those below were truncated
	acks    int
	more    sync.Cond // acks has changed, or there is an error
	err     error
}

func (s *records) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.err = errors.Join(s.err, err)
	s.more.Broadcast()
}

// append keeps one record at a time outstanding until enough have been acknowledged.
func (s *records) append(l *wal.Log, rng *rand.Rand, who, enough int) {
	for n := 0; ; n++ {
		p := fmt.Sprintf("appender %d, record %d %s", who, n, strings.Repeat(string(rune('a'+who)), rng.IntN(3000)))
		lsn, w := l.Append([]byte(p))
		if err := w.Wait(); errors.Is(err, wal.ErrFull) {
			s.mu.Lock()
			s.floor = max(s.floor, l.Durable())
			floor := s.floor
			s.mu.Unlock()
			if err := l.Truncate(floor); err != nil {
				s.fail(fmt.Errorf("truncate: %w", err))
				return
			}
			continue
		} else if err != nil {
			s.fail(err)
			return
		}
		s.mu.Lock()
		s.durable[lsn] = p
		s.acks++
		s.more.Broadcast()
		over := s.acks >= enough || s.err != nil
		s.mu.Unlock()
		if over {
			return
		}
	}
}

// await waits until there are n acknowledgements.
func (s *records) await(n int) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.acks < n && s.err == nil {
		s.more.Wait()
	}
	return s.err
}

// TestLogPowerCut: the service of a partition is killed and the power of its medium cut, again and again, while
// programs append to a log there. They see a pause and no error, and every record that was acknowledged is replayed.
func TestLogPowerCut(t *testing.T) {
	r := newRun(t)
	dir := t.TempDir()
	m := medium.New(t, filepath.Join(dir, "medium"), diskSize, r.seed)
	r.start(strings.ReplaceAll(`
log: {level: error}
stores: {disk: {type: file, path: MEDIA, partitioned: true}}
targets: [{iqn: `+iqn+`a}]
portals:
  - {transport: tcp, listen: $PORTAL}
  - {transport: iwarp, listen: $PORTAL2, serve: partitions}
state: $DIR/state
management: {socket: $DIR/socket}
`, "MEDIA", m.File()))
	admin := mgmt.NewClient(filepath.Join(r.target.Dir, "socket"))
	defer admin.Close()
	var now *mgmt.Partitions
	for { // its socket opens after the portals
		var err error
		if now, err = admin.InitPartitions(t.Context(), "disk", "none", false); err == nil {
			break
		} else if r.target.PID() == 0 || t.Context().Err() != nil {
			t.Fatal(err)
		}
	}
	access := []mgmt.PartitionAccess{{Who: "any", Rights: "rwf"}}
	if _, err := admin.CreatePartitions(t.Context(), "disk", now.Tag, mgmt.NewPartition{Name: "log", Size: 2 << 20, Access: access}); err != nil {
		t.Fatal(err)
	}

	url := "oneshot+iwarp://" + r.target.Portals[1] + "/disk/log"
	const cuts, each, appenders = 6, 60, 8
	s := &records{durable: make(map[uint64]string)}
	s.more.L = &s.mu
	replayed := func() (*wal.Log, *endpoint.Endpoint) {
		e, err := endpoint.Open(t.Context(), url, endpoint.Options{Sole: true, Durable: true})
		if err != nil {
			t.Fatal(err)
		}
		l, err := wal.Open(t.Context(), e, wal.Options{Segment: 64 << 10})
		if err != nil {
			t.Fatal(err)
		}
		return l, e
	}
	l, e := replayed()
	var all sync.WaitGroup
	for i := range appenders {
		rng := rand.New(rand.NewPCG(r.seed, uint64(i)))
		all.Go(func() { s.append(l, rng, i, (cuts+1)*each) })
	}
	for k := range cuts {
		if s.await((k+1)*each) != nil {
			break
		}
		r.target.Kill()
		m.Cut()
		r.target.Start()
	}
	all.Wait()
	if s.err != nil {
		t.Fatal(s.err)
	}
	if err := errors.Join(l.Close(), e.Close()); err != nil {
		t.Fatal(err)
	}
	r.target.Kill()
	m.Cut()
	r.target.Start()
	l, e = replayed()
	found := 0
	next := l.First()
	err := l.Replay(t.Context(), 0, func(lsn uint64, p []byte) error {
		if want, ok := s.durable[lsn]; lsn != next || ok && string(p) != want {
			return fmt.Errorf("record %d comes, %d is due: %.40q, want %.40q", lsn, next, p, want)
		}
		if _, ok := s.durable[lsn]; ok && lsn >= s.floor {
			found++
		}
		next++
		return nil
	})
	want := 0
	for lsn := range s.durable {
		if lsn >= s.floor {
			want++
		}
	}
	if err != nil || found != want {
		t.Errorf("%d of %d records that were acknowledged and not truncated are there: %v", found, want, err)
	}
	if err := errors.Join(l.Close(), e.Close()); err != nil {
		t.Error(err)
	}
	t.Logf("%d records in all, %d syncs of the medium", s.acks, m.Syncs())
}
