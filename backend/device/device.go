// Package device is a block store on a block device, a disk, partition or logical volume, with
// O_DIRECT or through the page cache. How its operations are done is package fdio's; here is
// what block devices have of their own: how they are opened, measured and cleared.
//
// The device is the store's alone while it is open (O_EXCL): it cannot be mounted, and what
// is mounted, or part of a RAID, cannot be opened. Its size may change at any time. The store
// looks from time to time, and tells.
package device

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"oneshot/backend"
	"oneshot/backend/fdio"
)

// Config says which device to serve, and how.
type Config struct {
	Path string // of a block device
	// Size of the store in bytes; 0 takes all of the device, as it is now and as it will be.
	Size int64
	// Through makes every write durable before it completes.
	Through bool
	// Buffered goes through the page cache; otherwise around it (O_DIRECT).
	Buffered bool
	// ReadOnly opens the device for reading only. Changes fail.
	ReadOnly bool
	// IO says how reads and writes reach the kernel.
	IO fdio.IO
	// Watch is how often the size of the device is looked at; 0: only by Resize.
	Watch time.Duration
	// Resized is called after Watch has found another size, which Info then tells. It may
	// call into the store, but not Close.
	Resized func()
	Log     *slog.Logger // told why operations fail, and of sizes; nil means slog.Default()
}

// Store is a store on a block device. See package fdio for most of its methods.
type Store struct {
	*fdio.Store
	fd      int
	log     *slog.Logger
	limit   int64 // bytes, as configured; 0: none
	block   int64 // bytes
	resized func()

	identity backend.Identity

	mu   sync.Mutex // held while the size changes
	stop chan struct{}
	wg   sync.WaitGroup
}

var (
	_ backend.Batcher = (*Store)(nil)
	_ backend.Resizer = (*Store)(nil)
)

// Open opens the store, and the device for itself alone.
func Open(cfg Config) (*Store, error) {
	s, err := open(cfg)
	if err != nil {
		return nil, fmt.Errorf("device store %s: %w", cfg.Path, err)
	}
	return s, nil
}

func open(cfg Config) (*Store, error) {
	fd, err := openDevice(cfg)
	if err != nil {
		return nil, err
	}
	s, err := newStore(cfg, fd)
	if err != nil {
		_ = unix.Close(fd)
		return nil, err
	}
	if cfg.Watch > 0 {
		s.wg.Go(func() { s.watch(cfg.Watch) })
	}
	return s, nil
}

func newStore(cfg Config, fd int) (*Store, error) {
	if err := fdio.Lock(fd, "device"); err != nil {
		return nil, err
	}
	g, err := geometryOf(fd)
	if err != nil {
		return nil, err
	}
	if readOnly, err := unix.IoctlGetInt(fd, unix.BLKROGET); err != nil {
		return nil, err
	} else if readOnly&0xffffffff != 0 && !cfg.ReadOnly {
		return nil, errors.New("the device is read-only: set readonly to true, or make it writable (blockdev --setrw)")
	}
	info, direct := g.info(cfg.Buffered)
	if info.Size, err = sizeOf(cfg.Size, g.size, int64(info.BlockSize)); err != nil {
		return nil, err
	}
	log := cfg.Log
	if log == nil {
		log = slog.Default()
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, err
	}
	inner, err := fdio.New(fdio.Config{
		FD: fd, Kind: "device store", Path: cfg.Path, Info: info, Through: cfg.Through,
		Direct: direct, IO: cfg.IO, Medium: medium(fd), Log: log,
	})
	if err != nil {
		return nil, err
	}
	return &Store{
		identity: identityOf(st.Rdev, "/sys"),
		Store:    inner, fd: fd, log: log.With(slog.String("path", cfg.Path)), limit: cfg.Size,
		block: int64(info.BlockSize), resized: cfg.Resized, stop: make(chan struct{}),
	}, nil
}

// A device that was closed a moment ago may be busy for another one: the kernel is taking a
// ring apart, or udev looks at what has changed.
const (
	busyTries = 20
	busyPause = 10 * time.Millisecond
)

func openDevice(cfg Config) (int, error) {
	flags := unix.O_RDWR | unix.O_CLOEXEC | unix.O_EXCL
	if cfg.ReadOnly {
		flags = unix.O_RDONLY | unix.O_CLOEXEC | unix.O_EXCL
	}
	if !cfg.Buffered {
		flags |= unix.O_DIRECT
	}
	var st unix.Stat_t
	if err := unix.Stat(cfg.Path, &st); err != nil {
		return -1, openError(cfg, err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFBLK {
		return -1, errors.New("not a block device; for a regular file set type to file")
	}
	for try := 1; ; try++ {
		fd, err := unix.Open(cfg.Path, flags, 0)
		switch {
		case err == nil:
			return fd, nil
		case err == unix.EINTR:
		case err != unix.EBUSY || try == busyTries:
			return -1, openError(cfg, err)
		default:
			time.Sleep(busyPause)
		}
	}
}

func openError(cfg Config, err error) error {
	switch {
	case err == unix.ENOENT:
		return errors.New("the device does not exist: is it plugged in, and its volume active? Names below /dev/disk/by-id stay the same")
	case err == unix.EBUSY:
		return fmt.Errorf("is in use%s: unmount it, take it out of the RAID or volume group, or stop the other target", mountOf(cfg.Path))
	case err == unix.ENXIO || err == unix.ENOMEDIUM:
		return errors.New("there is no medium behind the device: insert one, or attach it")
	case err == unix.EROFS || err == unix.EACCES && !cfg.ReadOnly:
		return fmt.Errorf("%w: the user of this process (uid %d) needs to write to the device; is it read-only? Then set readonly to true", err, os.Geteuid())
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("%w: the user of this process (uid %d) needs to read the device", err, os.Geteuid())
	}
	return err
}

// Close ends the watch, waits for the workers, makes durable what was written and gives the
// device free. An error means that bytes which were written are not safe.
func (s *Store) Close() error {
	close(s.stop)
	s.wg.Wait()
	return s.Store.Close()
}
