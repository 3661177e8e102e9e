package file

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"oneshot/backend"
	"oneshot/mem"
)

// Cache says when a write is complete.
type Cache uint8

const (
	// Writeback: when the page cache, or with Direct the drive, has it.
	Writeback Cache = iota
	// Writethrough: when it is durable.
	Writethrough
)

// Config says which file to serve, and how.
type Config struct {
	// Path of a regular file. It is created when missing; its directory is not.
	Path string
	// Size of the store in bytes, a multiple of BlockSize. A smaller file grows to it, a
	// larger one is refused; 0 takes the size of the file.
	Size int64
	// Sparse leaves space unallocated until it is written, and gives it back on Discard.
	// Otherwise all of it is allocated when the store is opened, and kept.
	Sparse bool
	Cache  Cache
	// Direct goes around the page cache (O_DIRECT).
	Direct bool
	// BlockSize is the unit of operations in bytes, a power of two from 512; 0 means the
	// least possible: 512, or what the file system asks for with Direct.
	BlockSize int
	// Log is told why operations fail; nil means slog.Default().
	Log *slog.Logger
}

// Open opens the store, which is then locked against every other process that asks.
func Open(cfg Config) (*Store, error) {
	if err := cfg.check(); err != nil {
		return nil, fmt.Errorf("file store %s: %w", cfg.Path, err)
	}
	fd, created, err := openFile(cfg)
	if err != nil {
		return nil, fmt.Errorf("file store %s: %w", cfg.Path, err)
	}
	s, err := open(cfg, fd)
	if err != nil {
		if created {
			_ = os.Remove(cfg.Path) // nobody else can have used it: we hold the lock
		}
		_ = unix.Close(fd)
		return nil, fmt.Errorf("file store %s: %w", cfg.Path, err)
	}
	return s, nil
}

func (cfg *Config) check() error {
	b := cfg.BlockSize
	switch {
	case b != 0 && (b < 512 || b&(b-1) != 0):
		return fmt.Errorf("the block size is %d, and has to be a power of two from 512", b)
	case cfg.Size < 0:
		return fmt.Errorf("the size is %d bytes, and has to be positive", cfg.Size)
	case cfg.Cache > Writethrough:
		return fmt.Errorf("unknown cache mode %d", cfg.Cache)
	}
	return nil
}

// openFile opens the file and locks it, creating it if need be.
func openFile(cfg Config) (fd int, created bool, err error) {
	flags := unix.O_RDWR | unix.O_CLOEXEC
	if cfg.Direct {
		flags |= unix.O_DIRECT
	}
	fd, err = unix.Open(cfg.Path, flags, 0)
	if err == unix.ENOENT && cfg.Size > 0 {
		created = true
		fd, err = unix.Open(cfg.Path, flags|unix.O_CREAT|unix.O_EXCL, 0o600)
	}
	if err != nil {
		return -1, false, openError(cfg, err)
	}
	if err := lock(fd); err != nil {
		_ = unix.Close(fd)
		return -1, false, err
	}
	return fd, created, nil
}

func openError(cfg Config, err error) error {
	switch {
	case err == unix.EINVAL && cfg.Direct:
		return errNoDirect
	case err == unix.ENOENT && cfg.Size == 0:
		return errors.New("the file does not exist; give a size to have it created")
	case err == unix.ENOENT:
		return fmt.Errorf("the directory %s does not exist; create it first", filepath.Dir(cfg.Path))
	case err == unix.EISDIR:
		return errors.New("is a directory; a file store needs a regular file")
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("%w: the user of this process (uid %d) needs to read and write the file", err, os.Geteuid())
	}
	return err
}

// open makes a store of an open, locked file.
func open(cfg Config, fd int) (*Store, error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return nil, errors.New("not a regular file, which a file store needs")
	}
	s := &Store{fd: fd, path: cfg.Path, sparse: cfg.Sparse, through: cfg.Cache == Writethrough, sync: newSyncer(fd)}
	if err := s.shape(cfg, &st); err != nil {
		return nil, err
	}
	if err := s.allocate(st.Size, s.size.Load()); err != nil {
		return nil, err
	}
	if s.direct != nil {
		if err := s.direct.probe(fd, s.info.BlockSize); err != nil {
			return nil, err
		}
		s.bounce = mem.NewPool(maxWorkers * bounceSize)
	}
	log := cfg.Log
	if log == nil {
		log = slog.Default()
	}
	s.log = newReporter(log, cfg.Path)
	s.workers.init(s.finish, s.workerEnded)
	s.seq = backend.NewSequencer(s.workers.put)
	return s, nil
}

// shape fills in what the store looks like.
func (s *Store) shape(cfg Config, st *unix.Stat_t) (err error) {
	block := max(cfg.BlockSize, 512)
	if cfg.Direct {
		if s.direct, err = alignmentOf(s.fd); err != nil {
			return err
		}
		if cfg.BlockSize == 0 {
			block = max(block, s.direct.offset)
		} else if block < s.direct.offset {
			return fmt.Errorf("the file system takes direct I/O in units of %d bytes and the block size is %d: set the block size to %d, or direct to false", s.direct.offset, block, s.direct.offset)
		}
	}
	size, err := sizeOf(cfg, st.Size, int64(block))
	if err != nil {
		return err
	}
	s.size.Store(size)
	s.info = backend.Info{
		BlockSize:     block,
		OptimalIO:     0,
		VolatileCache: !s.through,
	}
	if s.sparse && canPunch(s.fd, max(size, st.Size)) {
		s.info.DiscardGranularity = max(st.Blksize, int64(block))
	}
	return nil
}

// sizeOf reconciles the size that was asked for with that of the file.
func sizeOf(cfg Config, file, block int64) (int64, error) {
	size := cfg.Size
	switch {
	case size == 0 && file == 0:
		return 0, errors.New("the file is empty; give a size for it to grow to")
	case size == 0:
		size = file
	case size < file:
		return 0, fmt.Errorf("the file has %d bytes and the size is set to %d: set it to %d or leave it out to serve all of the file; to make the disk smaller, shrink what is on it and then run truncate --size=%d %s",
			file, size, file, size, cfg.Path)
	}
	if size%block != 0 {
		return 0, fmt.Errorf("a size of %d bytes is not a multiple of the block size %d; %d would be", size, block, (size/block+1)*block)
	}
	return size, nil
}

// canPunch says whether the file system makes holes, by asking for one beyond the end.
func canPunch(fd int, end int64) bool {
	return fallocate(fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, end, 4096) == nil
}

// allocate makes the file of have bytes size bytes long and, unless it is sparse, gives it its
// space, durably.
func (s *Store) allocate(have, size int64) error {
	if s.sparse && have == size {
		return nil
	}
	if !s.sparse {
		if err := fallocate(s.fd, 0, 0, size); err == unix.EOPNOTSUPP {
			return errors.New("the file system cannot allocate space ahead: set sparse to true")
		} else if err != nil {
			return fmt.Errorf("allocate %d bytes (free space, make the store smaller, or set sparse to true): %w", size, err)
		}
	} else if err := unix.Ftruncate(s.fd, size); err != nil {
		return fmt.Errorf("grow the file from %d to %d bytes: %w", have, size, err)
	}
	if err := unix.Fsync(s.fd); err != nil {
		return fmt.Errorf("make the size of the file durable: %w", err)
	}
	return syncDir(filepath.Dir(s.path))
}

// syncDir makes the name of a new file durable.
func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	if err := d.Sync(); err != nil && !errors.Is(err, unix.EINVAL) { // EINVAL: nothing to sync there
		return fmt.Errorf("make the directory durable: %w", err)
	}
	return nil
}
