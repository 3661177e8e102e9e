// Package gotgt is a block store on a backing-store plugin of github.com/gostor/gotgt: any
// that registers itself with that project's package scsi, as its file and null plugins do.
//
//	Submit ──► sequencer ──► queue ──► at most maxCalls goroutines ──► plugin
//
// A plugin is somebody else's code. When it panics, the operation has failed; when it hangs,
// the operation hangs, and with maxCalls of them this store does. Others do not notice.
//
// A plugin that could not make bytes durable may say so once and forget them, as the file plugin
// does, for it calls fsync. So after the first failure of its DataSync the store promises nothing
// more until it is opened again.
//
// Plugins can read, write and sync. Discard and WriteZeroes write zeroes: what a plugin does
// when it is asked to unmap is its own affair, the file plugin does nothing.
package gotgt

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"runtime/debug"
	"sync"
	"time"

	"github.com/gostor/gotgt/pkg/api"
	"github.com/gostor/gotgt/pkg/scsi"
	_ "github.com/gostor/gotgt/pkg/scsi/backingstore" // registers the plugins file and null
	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"

	"oneshot/backend"
	"oneshot/backend/durable"
	"oneshot/backend/fdio"
	"oneshot/internal/loglimit"
)

const (
	blockSize = 512
	// maxCalls bounds the calls of one plugin that are under way.
	maxCalls = 16
	// maxZeroes is how many zeroes are written with one call.
	maxZeroes = 1 << 20
)

// Config says which plugin to use, and for what.
type Config struct {
	Plugin string // the name under which it is registered
	Path   string // handed to the plugin: of a file, of a volume, whatever it opens
	// Size of the store in bytes, a multiple of 512, at most what the plugin says; 0 takes all
	// of that. A plugin that says 0, as null does, has any size.
	Size int64
	Log  *slog.Logger // told of panics and errors; nil means slog.Default()
}

// Store is a store on a plugin.
type Store struct {
	plugin api.BackingStore
	unit   *api.SCSILu // what plugins want to be given; they may write to it
	path   string
	file   *os.File // which is locked; nil: the plugin is not that of files
	size   int64
	log    *slog.Logger
	seq    *backend.Sequencer
	door   *durable.Door
	gate   loglimit.Gate // of failures

	mu      sync.Mutex // not held over calls of the plugin
	queue   backend.Queue
	running int
	wg      sync.WaitGroup
}

var _ backend.Store = (*Store)(nil)

// tame keeps gotgt's plugins from writing to standard error: they log each failed operation
// through the logger that logrus shares with everybody, and which nobody else here uses.
// What they say comes back as errors too.
var tame = sync.OnceFunc(func() { logrus.SetOutput(io.Discard) })

// Open opens the store.
func Open(cfg Config) (*Store, error) {
	tame()
	s, err := open(cfg)
	if err != nil {
		return nil, fmt.Errorf("gotgt store %s: plugin %q: %w", cfg.Path, cfg.Plugin, err)
	}
	return s, nil
}

func open(cfg Config) (*Store, error) {
	if cfg.Size < 0 || cfg.Size%blockSize != 0 {
		return nil, fmt.Errorf("the size is %d bytes, and has to be a multiple of %d", cfg.Size, blockSize)
	}
	log := cfg.Log
	if log == nil {
		log = slog.Default()
	}
	s := &Store{
		unit: &api.SCSILu{Path: cfg.Path, BlockShift: 9}, path: cfg.Path,
		log: log.With(slog.String("plugin", cfg.Plugin), slog.String("path", cfg.Path)),
	}
	if err := s.hold(cfg.Plugin); err != nil {
		return nil, err
	}
	if err := s.open(cfg); err != nil {
		return nil, errors.Join(err, s.release())
	}
	return s, nil
}

// hold takes the lock of the file, as all stores on files do: nobody else is to write to it, be it a store that is being closed and has
// operations still. Of other plugins nobody knows what they open.
func (s *Store) hold(plugin string) (err error) {
	if plugin != "file" {
		return nil
	}
	if s.file, err = os.OpenFile(s.path, os.O_RDONLY|unix.O_NONBLOCK, 0); err != nil { // a FIFO is the plugin's to refuse
		return err
	}
	if err := fdio.Lock(int(s.file.Fd()), "file"); err != nil {
		return errors.Join(err, s.release())
	}
	return nil
}

// checkHeld looks whether the file that the plugin has opened is the one that is locked: whoever had the lock before may have put another
// one in its place meanwhile.
func (s *Store) checkHeld() error {
	if s.file == nil {
		return nil
	}
	held, err := s.file.Stat()
	now, err2 := os.Stat(s.path)
	if err := errors.Join(err, err2); err != nil {
		return err
	}
	if !os.SameFile(held, now) {
		return errors.New("another file has taken its place while it was being opened: try again")
	}
	return nil
}

// release gives the lock back.
func (s *Store) release() error {
	if s.file == nil {
		return nil
	}
	return s.file.Close()
}

// open has the plugin open what it opens.
func (s *Store) open(cfg Config) error {
	s.seq = backend.NewSequencer(s.put)
	s.door = durable.NewDoor(func() error { return s.plugin.DataSync(0, s.size) })
	err := s.guard(func() (err error) {
		if s.plugin, err = scsi.NewBackingStore(cfg.Plugin); err != nil {
			return err
		}
		if s.plugin == nil {
			return errors.New("no plugin is named; those that come with gotgt are file and null")
		}
		return s.plugin.Open(s.unit, cfg.Path)
	})
	if err != nil {
		return err
	}
	if err := s.guard(func() error { return s.begin(cfg.Size) }); err != nil {
		return errors.Join(err, s.guard(func() error { return s.plugin.Close(s.unit) }))
	}
	return nil
}

// begin finishes what the plugin's Open has begun. size is what was asked for.
func (s *Store) begin(size int64) (err error) {
	if err := s.checkHeld(); err != nil {
		return err
	}
	if s.size, err = sizeOf(size, int64(s.plugin.Size(s.unit))); err != nil {
		return err
	}
	s.unit.Size = uint64(s.size)
	return s.plugin.Init(s.unit, "")
}

// sizeOf reconciles the size that was asked for with that of the plugin; bytes.
func sizeOf(want, has int64) (int64, error) {
	whole := has / blockSize * blockSize
	switch {
	case want == 0 && whole <= 0:
		return 0, errors.New("the plugin does not say how large it is; give a size")
	case want == 0:
		return whole, nil
	case has > 0 && want > whole:
		return 0, fmt.Errorf("it has %d bytes and the size is set to %d: leave it out to serve all", has, want)
	}
	return want, nil
}

// Info describes the store. Plugins do not tell whether a write is durable before they are
// told to sync.
func (s *Store) Info() backend.Info {
	return backend.Info{Size: s.size, BlockSize: blockSize, VolatileCache: true}
}

// Submit starts op; see backend.Store. The plugin allocates memory for what it reads.
func (s *Store) Submit(op *backend.Op) bool {
	if op.Err = op.Check(s.size); op.Err != nil {
		return true
	}
	if s.seq.Enter(op) {
		s.put(op)
	}
	return false
}

// put hands op to a goroutine.
func (s *Store) put(op *backend.Op) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.queue.Push(op)
	if s.running < maxCalls {
		s.running++
		s.wg.Go(s.work)
	}
}

// work does operations until there are none.
func (s *Store) work() {
	for op := s.next(); op != nil; op = s.next() {
		err := s.guard(func() error { return s.do(op) })
		s.note(op, err)
		token := op.Private
		op.Done.OpDone(op) // op is the caller's again
		s.seq.Leave(token)
	}
}

func (s *Store) next() *backend.Op {
	s.mu.Lock()
	defer s.mu.Unlock()
	op := s.queue.Pop()
	if op == nil {
		s.running--
	}
	return op
}

// quiet is how long after a line about a failure further ones are only counted.
const quiet = 10 * time.Second

// note makes err the answer to op, and logs it.
func (s *Store) note(op *backend.Op, err error) {
	if op.Err = nil; err == nil {
		return
	}
	op.Err = &backend.MediumError{Kind: op.Kind, Off: op.Off, Err: err}
	if dropped, ok := s.gate.Pass(quiet); ok {
		s.log.LogAttrs(context.Background(), slog.LevelError, "gotgt store: operation failed", append(dropped,
			slog.String("operation", op.Kind.String()), slog.Int64("offset", op.Off), slog.Int64("length", op.Len), slog.Any("reason", err))...)
	}
}

// panicError is a panic of a plugin.
type panicError struct{ value any }

func (e *panicError) Error() string {
	return fmt.Sprintf("the plugin panicked (report it to its author; restart the target to be sure of it): %v", e.value)
}

// guard calls f, and makes an error of its panic.
func (s *Store) guard(f func() error) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = &panicError{v}
			s.log.Error("gotgt store: the plugin panicked", "panic", fmt.Sprint(v), "stack", string(debug.Stack()))
		}
	}()
	return f()
}

// Close makes durable what was written and closes the plugin, whichever of it panics.
func (s *Store) Close() error {
	s.wg.Wait()
	var errs []error
	for _, step := range []func() error{
		s.door.Sync,
		func() error { return s.plugin.Exit(s.unit) },
		func() error { return s.plugin.Close(s.unit) },
		s.release,
	} {
		errs = append(errs, s.guard(step))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("close gotgt store %s: %w", s.path, err)
	}
	return nil
}
