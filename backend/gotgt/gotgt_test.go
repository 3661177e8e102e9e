package gotgt

import (
	"bytes"
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/gostor/gotgt/pkg/api"
	"github.com/gostor/gotgt/pkg/scsi"
	"github.com/sirupsen/logrus"
	"go.uber.org/goleak"

	"oneshot/backend"
	"oneshot/backend/backendtest"
	"oneshot/backend/file"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func mustOpen(t *testing.T, cfg Config) *Store {
	t.Helper()
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	s, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func mustClose(t *testing.T, s *Store) {
	t.Helper()
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

// newFile makes a file of size bytes.
func newFile(t *testing.T, size int64) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "disk.img")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(path, size); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestFilePlugin(t *testing.T) {
	backendtest.Run(t, func(t *testing.T) backend.Store {
		return mustOpen(t, Config{Plugin: "file", Path: newFile(t, backendtest.MinSize+1000)})
	}, "NoAllocation")
}

func TestNullPlugin(t *testing.T) {
	s := mustOpen(t, Config{Plugin: "null", Size: 1 << 20})
	b := bytes.Repeat([]byte{1}, 4096)
	if err := backendtest.Do(s, &backend.Op{Kind: backend.Write, Len: 4096, Segs: [][]byte{b}}); err != nil {
		t.Error(err)
	}
	if err := backendtest.Do(s, &backend.Op{Kind: backend.Read, Len: 4096, Segs: [][]byte{b[:7], b[7:]}}); err != nil || !bytes.Equal(b, make([]byte, 4096)) {
		t.Errorf("read: %v", err)
	}
	mustClose(t, s)
}

func TestOpenRefuses(t *testing.T) {
	path := newFile(t, 4096)
	for _, c := range []struct {
		cfg  Config
		want string // what the message says
	}{
		{Config{Plugin: "tape", Path: path}, "not found"},
		{Config{Path: path}, "file and null"},
		{Config{Plugin: "file", Path: path + "x"}, "no such file"},
		{Config{Plugin: "file", Path: path, Size: 8192}, "4096 bytes and the size is set to 8192"},
		{Config{Plugin: "file", Path: path, Size: 100}, "multiple of 512"},
		{Config{Plugin: "null"}, "give a size"},
		{Config{Plugin: "file", Path: newFile(t, 511)}, "give a size"},
		{Config{Plugin: brokenName, Path: "open"}, "panicked"},
	} {
		c.cfg.Log = slog.New(slog.DiscardHandler)
		s, err := Open(c.cfg)
		if err == nil {
			mustClose(t, s)
			t.Errorf("%+v: no error", c.cfg)
			continue
		}
		if msg := err.Error(); !strings.Contains(msg, c.want) || !strings.Contains(msg, c.cfg.Plugin) {
			t.Errorf("%+v: %q, want %q", c.cfg, msg, c.want)
		}
	}
}

// broken is a plugin that misbehaves at some offsets.
const brokenName = "oneshot-test-broken"

type broken struct {
	api.BackingStore // the rest is null's
	gate             chan struct{}
	path             string
}

var gate = make(chan struct{})

// closed is told the path of each broken plugin that is closed.
var closed = make(chan string, 100)

func init() {
	null, err := scsi.NewBackingStore("null")
	if err != nil {
		panic(err)
	}
	scsi.RegisterBackingStore(brokenName, func() (api.BackingStore, error) { return &broken{null, gate, ""}, nil })
}

func (b *broken) Open(_ *api.SCSILu, path string) error {
	b.path = path
	if path == "open" {
		panic("no")
	}
	return nil
}

func (b *broken) Init(*api.SCSILu, string) error {
	if b.path == "init" {
		panic("no")
	}
	return nil
}

// syncFails is the error that the next DataSync ends with, once.
var syncFails atomic.Pointer[error]

func (b *broken) DataSync(int64, int64) error {
	if b.path == "sync" {
		panic("no")
	}
	if err := syncFails.Swap(nil); err != nil {
		return *err
	}
	return nil
}

func (b *broken) Close(*api.SCSILu) error {
	if b.path != "" {
		closed <- b.path
	}
	return nil
}

// The offsets at which it misbehaves.
const (
	offPanics = 512 * (iota + 1)
	offHangs
	offLong
	offNilMap
)

func (b *broken) Read(off, n int64) ([]byte, error) {
	switch off {
	case offPanics:
		panic(errors.New("out of cheese"))
	case offHangs:
		<-b.gate
	case offLong:
		return make([]byte, n+1), nil
	case offNilMap:
		var m map[string]int
		m["x"]++ //nolint:staticcheck // that is what it is to do
	}
	return nil, nil
}

func (b *broken) Write(p []byte, off int64) error {
	if off == offPanics {
		logrus.Error("gotgt's plugins shout")
		panic(io.ErrUnexpectedEOF)
	}
	return nil
}

func read(off int64) *backend.Op {
	return &backend.Op{Kind: backend.Read, Off: off, Len: 512, Segs: [][]byte{make([]byte, 512)}}
}

// A plugin that panics has failed the operation, not the process, and works on.
func TestPluginPanics(t *testing.T) {
	var log strings.Builder
	s := mustOpen(t, Config{Plugin: brokenName, Size: 1 << 20, Log: slog.New(slog.NewTextHandler(&log, nil))})
	for _, off := range []int64{offPanics, offLong, offNilMap} {
		err := backendtest.Do(s, read(off))
		if e, ok := errors.AsType[*backend.MediumError](err); !ok || e.Off != off || e.Kind != backend.Read {
			t.Errorf("read at %d: %v", off, err)
		}
	}
	op := &backend.Op{Kind: backend.Write, Off: offPanics, Len: 512, Segs: [][]byte{make([]byte, 512)}}
	if err := backendtest.Do(s, op); err == nil || !strings.Contains(err.Error(), "panicked") {
		t.Errorf("write: %v", err)
	}
	if err := backendtest.Do(s, read(0)); err != nil {
		t.Errorf("a good read: %v", err)
	}
	mustClose(t, s)
	if text := log.String(); !strings.Contains(text, "out of cheese") || !strings.Contains(text, "stack=") || strings.Count(text, "operation failed") != 1 {
		t.Errorf("the log says %s", text)
	}
}

// A plugin that panics while it is opened or closed is closed all the same.
func TestPluginPanicsAtTheEnds(t *testing.T) {
	quiet := slog.New(slog.DiscardHandler)
	if _, err := Open(Config{Plugin: brokenName, Path: "init", Size: 1 << 20, Log: quiet}); err == nil || !strings.Contains(err.Error(), "panicked") {
		t.Errorf("Init: %v", err)
	}
	s := mustOpen(t, Config{Plugin: brokenName, Path: "sync", Size: 1 << 20, Log: quiet})
	if err := s.Close(); err == nil || !strings.Contains(err.Error(), "panicked") {
		t.Errorf("DataSync: %v", err)
	}
	for _, want := range []string{"init", "sync"} {
		select {
		case got := <-closed:
			if got != want {
				t.Errorf("%q was closed", got)
			}
		default:
			t.Errorf("%q was not closed", want)
		}
	}
}

// A plugin tells once that it could not make bytes durable: the store promises nothing more,
// whichever operation was told.
func TestLossIsKept(t *testing.T) {
	lost := errors.New("the bytes are gone")
	block := func() [][]byte { return [][]byte{make([]byte, 512)} }
	promises := []backend.Op{
		{Kind: backend.Flush},
		{Kind: backend.Write, Len: 512, Segs: block(), Flags: backend.FUA},
		{Kind: backend.Write, Len: 512, Segs: block(), Flags: backend.Barrier},
		{Kind: backend.Read, Len: 512, Segs: block(), Flags: backend.FUA},
		{Kind: backend.WriteZeroes, Len: 512, Flags: backend.FUA},
		{Kind: backend.Discard, Len: 512, Flags: backend.FUA},
	}
	for _, first := range promises {
		s := mustOpen(t, Config{Plugin: brokenName, Size: 1 << 20})
		syncFails.Store(&lost)
		if err := backendtest.Do(s, &first); !errors.Is(err, lost) {
			t.Errorf("%v: %v", first.Kind, err)
		}
		for _, op := range promises {
			if err := backendtest.Do(s, &op); !errors.Is(err, lost) {
				t.Errorf("%v after %v: %v", op.Kind, first.Kind, err)
			}
		}
		for _, op := range []backend.Op{{Kind: backend.Write, Len: 512, Segs: block()}, {Kind: backend.Read, Len: 512, Segs: block()}} {
			if err := backendtest.Do(s, &op); err != nil {
				t.Errorf("plain %v after %v: %v", op.Kind, first.Kind, err)
			}
		}
		if err := s.Close(); !errors.Is(err, lost) {
			t.Errorf("close after %v: %v", first.Kind, err)
		}
	}
}

// A plugin that hangs holds what it was asked, and nothing else as long as it has calls left;
// other stores do not notice.
func TestPluginHangs(t *testing.T) {
	gate = make(chan struct{})
	s, other := mustOpen(t, Config{Plugin: brokenName, Size: 1 << 20}), mustOpen(t, Config{Plugin: "null", Size: 1 << 20})
	hung := make(completions, 2*maxCalls)
	hang := func(n int) {
		for range n {
			op := read(offHangs)
			op.Done = hung
			s.Submit(op)
		}
	}
	hang(maxCalls - 1)
	if err := backendtest.Do(s, read(0)); err != nil {
		t.Errorf("beside calls that hang: %v", err)
	}
	hang(maxCalls + 1)
	if err := backendtest.Do(other, read(0)); err != nil {
		t.Errorf("another store: %v", err)
	}
	s.mu.Lock()
	running := s.running
	s.mu.Unlock()
	if running != maxCalls || len(hung) != 0 {
		t.Errorf("%d calls under way, %d have ended", running, len(hung))
	}
	close(gate)
	for range 2 * maxCalls {
		if op := <-hung; op.Err != nil {
			t.Error(op.Err)
		}
	}
	mustClose(t, s)
	mustClose(t, other)
}

type completions chan *backend.Op

func (c completions) OpDone(op *backend.Op) { c <- op }

// A file cut short is an error, not zeroes.
func TestShortFile(t *testing.T) {
	s := mustOpen(t, Config{Plugin: "file", Path: newFile(t, 1<<20)})
	if err := os.Truncate(s.path, 4096); err != nil {
		t.Fatal(err)
	}
	if err := backendtest.Do(s, read(8192)); !errors.Is(err, io.EOF) {
		t.Errorf("beyond the end: %v", err)
	}
	if err := backendtest.Do(s, read(0)); err != nil {
		t.Errorf("before the end: %v", err)
	}
	mustClose(t, s)
}

// A file has one store, of whatever type: what an old one writes still would come over what a new one has written.
func TestFileIsLocked(t *testing.T) {
	path := newFile(t, 1<<20)
	s := mustOpen(t, Config{Plugin: "file", Path: path})
	if _, err := Open(Config{Plugin: "file", Path: path}); err == nil || !strings.Contains(err.Error(), "in use by another store") {
		t.Errorf("a second store on it: %v", err)
	}
	if _, err := file.Open(file.Config{Path: path, Sparse: true}); err == nil {
		t.Error("a store of another type on it")
	}
	mustClose(t, s)
	mustClose(t, mustOpen(t, Config{Plugin: "file", Path: path}))
}

// A file that is replaced between its lock and the plugin is not served: nobody would know of it.
func TestReplacedBehindLock(t *testing.T) {
	path := newFile(t, 1<<20)
	s := &Store{unit: &api.SCSILu{Path: path, BlockShift: 9}, path: path, log: slog.New(slog.DiscardHandler)}
	if err := s.hold("file"); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(newFile(t, 1<<20), path); err != nil {
		t.Fatal(err)
	}
	if err := s.open(Config{Plugin: "file", Path: path}); err == nil || !strings.Contains(err.Error(), "taken its place") {
		t.Errorf("%v", err)
	}
	if err := s.release(); err != nil {
		t.Error(err)
	}
}
