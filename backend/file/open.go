// Package file is a block store in a regular file: sparse or preallocated, through the page
// cache or around it. How its operations are done is package fdio's.
package file

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"

	"oneshot/backend"
	"oneshot/backend/fdio"
	"oneshot/internal/mounted"
)

// Store is a store in a file. See package fdio for its methods.
type Store struct {
	*fdio.Store
	fd       int
	sparse   bool
	readOnly bool
	resize   sync.Mutex   // held while the size changes
	created  *unix.Stat_t // the file as Open has made it; nil: it was there before
}

var _ backend.Batcher = (*Store)(nil)

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
	// Path of a regular file. It is created when missing, unless Existing or ReadOnly; its directory is not.
	Path string
	// Existing refuses to create the file.
	Existing bool
	// ReadOnly opens the file for reading only. It is neither created nor grown, and changes fail.
	ReadOnly bool
	// Size of the store in bytes, a multiple of BlockSize. A smaller file grows to it, a
	// larger one is refused; 0 takes the size of the file.
	Size int64
	// Sparse leaves space unallocated until it is written, and gives it back on Discard.
	// Otherwise all of it is allocated when the store is opened, and kept.
	Sparse bool
	Cache  Cache
	// Direct goes around the page cache (O_DIRECT).
	Direct bool
	// IO says how reads and writes reach the kernel.
	IO fdio.IO
	// BlockSize is the unit of operations in bytes, a power of two from 512; 0 means the
	// least possible: 512, or what the file system asks for with Direct.
	BlockSize int
	// Log is told why operations fail; nil means slog.Default().
	Log *slog.Logger

	faults fdio.Faults // nil, but in tests
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
	s, err := open(cfg, fd, created)
	if err != nil {
		if created {
			_ = os.Remove(cfg.Path) // nobody else can have used it: we hold the lock
		}
		_ = unix.Close(fd)
		return nil, fmt.Errorf("file store %s: %w", cfg.Path, err)
	}
	made := &Store{Store: s, fd: fd, sparse: cfg.Sparse, readOnly: cfg.ReadOnly}
	if created {
		log := cfg.Log
		if log == nil {
			log = slog.Default()
		}
		log.Info("file created", "path", cfg.Path, "bytes", s.Info().Size)
		var st unix.Stat_t
		if unix.Fstat(fd, &st) == nil {
			made.created = &st
		}
	}
	return made, nil
}

// Created reports whether Open has created the file.
func (s *Store) Created() bool { return s.created != nil }

// Replaced reports whether another file, or none, is at the path by now: what the store holds is gone when it is closed.
func (s *Store) Replaced() bool { return !isAt(s.Path(), s.fd) }

// Undo removes the file if Open has created it and nobody has written to it since. It is for stores that
// nobody gets to see, and comes before Close, for until then nobody else has the file's lock.
func (s *Store) Undo() error {
	if s.created == nil {
		return nil
	}
	var st unix.Stat_t
	if err := unix.Lstat(s.Path(), &st); err != nil || st.Dev != s.created.Dev || st.Ino != s.created.Ino ||
		st.Mtim != s.created.Mtim || st.Size != s.created.Size || st.Blocks != s.created.Blocks {
		return nil // it is another file, or somebody's by now
	}
	return os.Remove(s.Path())
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

// errReadOnly is the answer to a size that a read-only store does not have.
var errReadOnly = errors.New("a read-only store does not grow")

// openFile opens the file and locks it, creating it if need be. If the file is removed or replaced before it is locked, whoever had the
// lock may have done that, and what is there then is opened.
func openFile(cfg Config) (fd int, created bool, err error) {
	for range maxOpens {
		fd, created, err = openLocked(cfg)
		if err != nil || isAt(cfg.Path, fd) {
			return fd, created, err
		}
		_ = unix.Close(fd)
	}
	return -1, false, errors.New("whenever it is opened another file takes its place: end what does that")
}

// maxOpens is how many files openFile opens.
const maxOpens = 100

// isAt reports whether path still names the open file, as far as can be told.
func isAt(path string, fd int) bool {
	var now, opened unix.Stat_t
	if err := unix.Fstat(fd, &opened); err != nil {
		return true
	}
	err := unix.Stat(path, &now)
	return err == nil && now.Dev == opened.Dev && now.Ino == opened.Ino || err != nil && err != unix.ENOENT
}

func openLocked(cfg Config) (fd int, created bool, err error) {
	flags := unix.O_RDWR | unix.O_CLOEXEC
	if cfg.ReadOnly {
		flags = unix.O_RDONLY | unix.O_CLOEXEC
	}
	if cfg.Direct {
		flags |= unix.O_DIRECT
	}
	fd, err = unix.Open(cfg.Path, flags, 0)
	if err == unix.ENOENT && cfg.Size > 0 && !cfg.Existing && !cfg.ReadOnly {
		if err := mounted.Check(filepath.Dir(cfg.Path)); err != nil { // an empty disk would be served in the place of the real one
			return -1, false, fmt.Errorf("the file does not exist, and %w", err)
		}
		created = true
		fd, err = unix.Open(cfg.Path, flags|unix.O_CREAT|unix.O_EXCL, 0o600)
	}
	if err != nil {
		return -1, false, openError(cfg, err)
	}
	if err := fdio.Lock(fd, "file"); err != nil {
		_ = unix.Close(fd)
		return -1, false, err
	}
	return fd, created, nil
}

func openError(cfg Config, err error) error {
	switch {
	case err == unix.EINVAL && cfg.Direct:
		return fdio.ErrNoDirect
	case err == unix.ENOENT && cfg.ReadOnly:
		return errors.New("the file does not exist, and a read-only store is not created; correct the path")
	case err == unix.ENOENT && cfg.Existing:
		return errors.New("the file does not exist, and create is false; correct the path, or set create to true and give a size")
	case err == unix.ENOENT && cfg.Size == 0:
		return errors.New("the file does not exist; give a size to have it created")
	case err == unix.ENOENT:
		return fmt.Errorf("the directory %s does not exist; create it first", filepath.Dir(cfg.Path))
	case err == unix.EISDIR:
		return errors.New("is a directory; name a regular file")
	case errors.Is(err, fs.ErrPermission) && cfg.ReadOnly:
		return fmt.Errorf("%w: the user of this process (uid %d) needs to read the file", err, os.Geteuid())
	case errors.Is(err, fs.ErrPermission), err == unix.EROFS:
		return fmt.Errorf("%w: the user of this process (uid %d) needs to read and write the file; if it is only to be read set readonly to true", err, os.Geteuid())
	}
	return err
}

// open makes a store of an open, locked file, which was created just now or was there before.
func open(cfg Config, fd int, created bool) (*fdio.Store, error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return nil, errors.New("not a regular file, which a file store needs; for a block device set type to device")
	}
	info, direct, err := shape(cfg, fd, &st)
	if err != nil {
		return nil, err
	}
	if cfg.ReadOnly && info.Size > st.Size {
		return nil, fmt.Errorf("the file has %d bytes and the size is set to %d: %w", st.Size, info.Size, errReadOnly)
	}
	changed, err := allocate(cfg.Sparse || cfg.ReadOnly, fd, st.Size, info.Size)
	if err != nil {
		return nil, err
	}
	s, err := fdio.New(fdio.Config{
		FD: fd, Kind: "file store", Path: cfg.Path, Info: info, Through: cfg.Cache == Writethrough,
		Direct: direct, IO: cfg.IO, Medium: &medium{fd, info.BlockSize}, Log: cfg.Log, Faults: cfg.faults,
		Resident: isResident(fd),
	})
	if err != nil || !changed {
		return s, err
	}
	if err := settle(cfg, s, fd, created); err != nil {
		s.Abandon()
		return nil, err
	}
	return s, nil
}

// settle makes the size of the file durable. If that fails for a file that was there before, the
// store is open all the same, and promises nothing: what the kernel has told us may be about
// bytes that were written by an earlier opening, and which initiators believe to be safe; it does
// not tell the next one who opens the file.
func settle(cfg Config, s *fdio.Store, fd int, created bool) error {
	err := s.Durably(func() error { return fsync(fd) })
	switch {
	case err == nil && created:
		return syncDir(filepath.Dir(cfg.Path))
	case created:
		return fmt.Errorf("make the size of the file durable: %w", err)
	case err != nil:
		log := cfg.Log
		if log == nil {
			log = slog.Default()
		}
		log.Error("file store: the size of the file could not be made durable", slog.String("path", cfg.Path), slog.Any("reason", err))
	}
	return nil
}

// shape returns what the store looks like, and what the file asks for with O_DIRECT.
func shape(cfg Config, fd int, st *unix.Stat_t) (info backend.Info, direct *fdio.Alignment, err error) {
	info.BlockSize = max(cfg.BlockSize, 512)
	if cfg.Direct {
		if direct, err = fdio.AlignmentOf(fd); err != nil {
			return info, nil, err
		}
		if cfg.BlockSize == 0 {
			info.BlockSize = max(info.BlockSize, direct.Offset)
		} else if info.BlockSize < direct.Offset {
			return info, nil, fmt.Errorf("the file system takes direct I/O in units of %d bytes and the block size is %d: set the block size to %d, or direct to false", direct.Offset, info.BlockSize, direct.Offset)
		}
	}
	if info.Size, err = sizeOf(cfg, st.Size, int64(info.BlockSize)); err != nil {
		return info, nil, err
	}
	if cfg.Sparse && canPunch(fd, max(info.Size, st.Size)) {
		info.DiscardGranularity = max(st.Blksize, int64(info.BlockSize))
	}
	return info, direct, nil
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
// space. changed says that this is to be made durable.
func allocate(sparse bool, fd int, have, size int64) (changed bool, err error) {
	if sparse && have == size {
		return false, nil
	}
	if !sparse {
		if err := fallocate(fd, 0, 0, size); err == unix.EOPNOTSUPP {
			return false, errors.New("the file system cannot allocate space ahead: set sparse to true")
		} else if err != nil {
			if have < size {
				_ = unix.Ftruncate(fd, have) // the kernel keeps what it has allocated by then, which is all that others had left
			}
			return false, fmt.Errorf("allocate %d bytes (free space, make the store smaller, or set sparse to true): %w", size, err)
		}
	} else if err := unix.Ftruncate(fd, size); err != nil {
		return false, fmt.Errorf("grow the file from %d to %d bytes: %w", have, size, err)
	}
	return true, nil
}

func fsync(fd int) error {
	for {
		if err := unix.Fsync(fd); err != unix.EINTR {
			return err
		}
	}
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
