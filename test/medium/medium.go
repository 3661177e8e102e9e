// Package medium serves files from memory over /dev/fuse (the kernel's Documentation/filesystems/fuse.rst), for
// tests of a daemon whose disk loses its power, fails, is slow or hangs, while the daemon lives.
package medium

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Medium is a file system with one file, disk.img. Its power can be cut: then each page that was written and not
// synced holds either its old or its new content. A sync can be made to fail: then some pages lose
// their new content, as in Linux after an error of the medium. It may be used concurrently.
//
// The file is opened past the page cache (FOPEN_DIRECT_IO), so that every write comes here at once.
type Medium struct {
	dir     string
	fd      int
	wg      sync.WaitGroup
	request int
	cached  bool

	mu      sync.Mutex
	rng     *rand.Rand            // guarded by mu
	bytes   []byte                // guarded by mu; the current content
	stable  []byte                // guarded by mu; the durable content
	dirty   map[int]struct{}      // guarded by mu; pages in which the two may differ
	faults  int                   // guarded by mu; one sync of this many fails; 0: none
	syncs   int                   // guarded by mu
	refuses int                   // guarded by mu; one write of this many fails and changes nothing; 0: none
	spoiled map[int]chan struct{} // guarded by mu; pages that cannot be read until they are written; closed then
	ruined  map[int]bool          // guarded by mu; pages that cannot be read; true: nor written
	slow    *slowness             // guarded by mu; nil: a disk that is as fast as it can
	held    *holding              // guarded by mu; nil: no page is
	lost    func()                // guarded by mu
}

// Options of NewWith.
type Options struct {
	// Request is the longest write that Linux sends at once, in bytes: a multiple of 4096, at most the default. 0: 1 MiB.
	Request int
	// Cached: the file is opened for the page cache, which O_DIRECT bypasses.
	Cached bool
	// Lost is called when a sync has failed and bytes are lost, before anybody can read, write or sync again. nil: nothing.
	Lost func()
}

// slowness is how long a disk takes for a request, until it is well again.
type slowness struct {
	reads, writes time.Duration // writes: syncs as well
	over          chan struct{} // closed when the disk is well again
}

// holding is a page to which no write ends.
type holding struct {
	page int
	come chan struct{} // closed when the first write has come
	once sync.Once
	over chan struct{} // closed when the page is as others
}

const (
	mediumPage = 4096
	fileName   = "disk.img"
)

// New mounts a medium on a directory that it makes, until the test ends. Its file has that size in bytes, a multiple of 4096, and is zero.
// What is lost at a power cut comes from the seed.
func New(tb testing.TB, dir string, size int, seed uint64) *Medium {
	tb.Helper()
	return NewWith(tb, dir, size, seed, Options{})
}

// NewWith is New with options.
func NewWith(tb testing.TB, dir string, size int, seed uint64, o Options) *Medium {
	tb.Helper()
	m := &Medium{
		request: o.Request, cached: o.Cached, lost: o.Lost, dir: dir, rng: rand.New(rand.NewPCG(seed, 3)),
		bytes: make([]byte, size), stable: make([]byte, size), dirty: map[int]struct{}{}, spoiled: map[int]chan struct{}{}, ruined: map[int]bool{},
	}
	if m.request == 0 {
		m.request = fuseMaxWrite
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		tb.Fatal(err)
	}
	m.mount(tb)
	tb.Cleanup(func() { m.unmount(tb) })
	context.AfterFunc(tb.Context(), m.Heal) // before processes are killed: they end only when their requests have
	return m
}

// File is the path of the file.
func (m *Medium) File() string { return filepath.Join(m.dir, fileName) }

func (m *Medium) mount(tb testing.TB) {
	tb.Helper()
	fd, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		tb.Fatalf("/dev/fuse: %v", err)
	}
	options := fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0,default_permissions", fd)
	if err := unix.Mount("oneshot-test", m.dir, "fuse", unix.MS_NOSUID|unix.MS_NODEV, options); err != nil {
		tb.Fatalf("mount: %v", err)
	}
	m.fd = fd
	// Two servers, because an operation may wait for the answer of another one.
	for range 2 {
		m.wg.Go(m.serve)
	}
	m.unpolled(tb)
}

// unpolled has Linux learn that nobody can wait for the file, which it asks once. Go's runtime would ask when this process opens the file,
// in a system call for which it does not let others run: they could not answer.
func (m *Medium) unpolled(tb testing.TB) {
	tb.Helper()
	fd, err := unix.Open(m.File(), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		tb.Fatal(err)
	}
	defer unix.Close(fd)
	if _, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0); err != nil {
		tb.Fatal(err)
	}
}

func (m *Medium) unmount(tb testing.TB) {
	tb.Helper()
	m.Heal()
	if err := unix.Unmount(m.dir, unix.MNT_DETACH); err != nil {
		tb.Errorf("unmount: %v", err)
	}
	m.wg.Wait()
	_ = unix.Close(m.fd)
}

// Cut cuts the power. Nobody may have the file open.
func (m *Medium) Cut() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for page := range m.dirty {
		at := page * mediumPage
		if m.rng.IntN(2) == 0 {
			copy(m.bytes[at:at+mediumPage], m.stable[at:])
		} else {
			copy(m.stable[at:at+mediumPage], m.bytes[at:])
		}
	}
	clear(m.dirty)
}

// FailSyncs makes one of n syncs fail from now on; 0: none.
func (m *Medium) FailSyncs(n int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.faults = n
}

// RefuseWrites makes one of n writes fail from now on, without loss; 0: none.
func (m *Medium) RefuseWrites(n int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.refuses = n
}

// Syncs returns how many syncs there were.
func (m *Medium) Syncs() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.syncs
}

// Slow has each read, and each write and sync, take so long, until Heal or another call.
func (m *Medium) Slow(reads, writes time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.heal()
	m.slow = &slowness{reads: reads, writes: writes, over: make(chan struct{})}
}

// Hang has no request end, until Heal. A process that has one under way cannot be killed.
func (m *Medium) Hang() { m.Slow(math.MaxInt64, math.MaxInt64) }

// Heal ends what Slow, Hang, Hold, Spoil or Ruin has begun; requests that wait end at once.
func (m *Medium) Heal() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.heal()
	for page := range m.spoiled {
		m.written(page)
	}
	clear(m.ruined)
}

// heal needs mu.
func (m *Medium) heal() {
	if m.slow != nil {
		close(m.slow.over)
		m.slow = nil
	}
	if m.held != nil {
		close(m.held.over)
		m.held = nil
	}
}

// Hold has no write to a page of 4096 bytes, counted from 0, end, until Heal or another call. The channel is closed when the first one has come. Linux lets
// other writes and syncs of the file wait behind it; reads go on. A process that has one under way cannot be killed.
func (m *Medium) Hold(page int) (come <-chan struct{}) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.heal()
	m.held = &holding{page: page, come: make(chan struct{}), over: make(chan struct{})}
	return m.held.come
}

// Spoil has a page of 4096 bytes, counted from 0, which is good, be unreadable until it is written, or until Heal; the channel is closed then.
func (m *Medium) Spoil(page int) <-chan struct{} {
	m.mu.Lock()
	defer m.mu.Unlock()
	c := make(chan struct{})
	m.spoiled[page] = c
	return c
}

// written ends Spoil of a page. mu is held.
func (m *Medium) written(page int) {
	if c := m.spoiled[page]; c != nil {
		close(c)
		delete(m.spoiled, page)
	}
}

// Ruin has a page of 4096 bytes, counted from 0, be unreadable whatever is written there, until Heal; with writes, what is written there
// is refused, and changes nothing.
func (m *Medium) Ruin(page int, writes bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.ruined[page] = writes
}

// Opcodes and layouts of include/uapi/linux/fuse.h, of version 7.31.
const (
	fuseLookup, fuseForget, fuseGetattr, fuseSetattr     = 1, 2, 3, 4
	fuseOpen, fuseRead, fuseWrite, fuseStatfs            = 14, 15, 16, 17
	fuseRelease, fuseFsync, fuseFlush, fuseInit          = 18, 20, 25, 26
	fuseOpendir, fuseReaddir, fuseReleasedir, fuseAccess = 27, 28, 29, 34
	fuseInterrupt, fuseDestroy, fuseBatchForget          = 36, 38, 42
	fuseFallocate                                        = 43

	fuseInHeader, fuseOutHeader = 40, 16
	// fuseMaxWrite is the longest write of the load, so that each write is one request. If Linux cuts a
	// write in pieces, it does not report the error of a later piece, but a short count.
	fuseMaxWrite       = 1 << 20
	fuseDirectIO       = 1 << 0
	rootNode, fileNode = 1, 2
)

func (m *Medium) serve() {
	b := make([]byte, fuseMaxWrite+4096)
	for {
		n, err := unix.Read(m.fd, b)
		if errors.Is(err, unix.EINTR) || errors.Is(err, unix.ENOENT) {
			continue // a request was interrupted before it was read
		}
		if err != nil || n < fuseInHeader {
			return // unmounted
		}
		op, unique, node := le32(b[4:]), binary.LittleEndian.Uint64(b[8:]), binary.LittleEndian.Uint64(b[16:])
		switch op {
		case fuseForget, fuseBatchForget, fuseInterrupt:
			continue // have no answer
		}
		if wait := m.takes(op, b[fuseInHeader:n]); wait != nil {
			in := bytes.Clone(b[fuseInHeader:n])
			m.wg.Go(func() {
				wait()
				m.do(op, unique, node, in)
			})
			continue
		}
		m.do(op, unique, node, b[fuseInHeader:n])
	}
}

// takes returns what waits as long as a slow disk takes for a request. nil: no time.
func (m *Medium) takes(op uint32, in []byte) (wait func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if h := m.held; h != nil && h.isFor(op, in) {
		h.once.Do(func() { close(h.come) })
		return func() { <-h.over }
	}
	slow, d := m.slow, time.Duration(0)
	switch {
	case slow == nil:
		return nil
	case op == fuseRead:
		d = slow.reads
	case op == fuseWrite || op == fuseFsync || op == fuseFallocate:
		d = slow.writes
	}
	if d == 0 {
		return nil
	}
	return func() {
		select {
		case <-time.After(d):
		case <-slow.over:
		}
	}
}

// isFor says whether a request changes the page.
func (h *holding) isFor(op uint32, in []byte) bool {
	if op != fuseWrite && op != fuseFallocate {
		return false
	}
	off, n := le64(in[8:]), le64(in[16:])
	if op == fuseWrite {
		n = int(le32(in[16:]))
	}
	return off < (h.page+1)*mediumPage && h.page*mediumPage < off+n
}

// do does a request and answers it.
func (m *Medium) do(op uint32, unique, node uint64, in []byte) {
	out, errno := m.handle(op, node, in)
	answer := make([]byte, fuseOutHeader, fuseOutHeader+len(out))
	if errno == 0 {
		answer = append(answer, out...)
	}
	binary.LittleEndian.PutUint32(answer, uint32(len(answer)))
	binary.LittleEndian.PutUint32(answer[4:], uint32(-int32(errno)))
	binary.LittleEndian.PutUint64(answer[8:], unique)
	_, _ = unix.Write(m.fd, answer) // ENOENT: the request was interrupted
}

func le32(b []byte) uint32 { return binary.LittleEndian.Uint32(b) }
func le64(b []byte) int    { return int(binary.LittleEndian.Uint64(b)) }

func (m *Medium) handle(op uint32, node uint64, in []byte) ([]byte, unix.Errno) {
	switch op {
	case fuseInit:
		out := make([]byte, 64)
		binary.LittleEndian.PutUint32(out, 7)
		binary.LittleEndian.PutUint32(out[4:], 31)
		binary.LittleEndian.PutUint32(out[8:], 64<<10) // max_readahead
		const asyncRead, bigWrites, maxPages = 1 << 0, 1 << 5, 1 << 22
		binary.LittleEndian.PutUint32(out[12:], asyncRead|bigWrites|maxPages)
		binary.LittleEndian.PutUint16(out[28:], uint16(m.request/mediumPage))
		binary.LittleEndian.PutUint32(out[20:], uint32(m.request))
		binary.LittleEndian.PutUint32(out[24:], 1)
		return out, 0
	case fuseLookup:
		if string(in[:len(in)-1]) != fileName {
			return nil, unix.ENOENT
		}
		out := make([]byte, 40, 128)
		binary.LittleEndian.PutUint64(out, fileNode)
		return append(out, m.attr(fileNode)...), 0
	case fuseGetattr:
		return append(make([]byte, 16), m.attr(node)...), 0
	case fuseSetattr:
		const size = 1 << 3
		if le32(in)&size != 0 && !m.grow(le64(in[16:])) {
			return nil, unix.EPERM
		}
		return append(make([]byte, 16), m.attr(node)...), 0
	case fuseOpen:
		out := make([]byte, 16)
		if !m.cached {
			binary.LittleEndian.PutUint32(out[8:], fuseDirectIO)
		}
		return out, 0
	case fuseOpendir:
		return make([]byte, 16), 0
	case fuseReaddir, fuseRelease, fuseReleasedir, fuseFlush, fuseAccess, fuseDestroy:
		return nil, 0
	case fuseStatfs:
		out := make([]byte, 80)
		binary.LittleEndian.PutUint64(out, 1<<30)
		binary.LittleEndian.PutUint64(out[8:], 1<<30)
		binary.LittleEndian.PutUint64(out[16:], 1<<30)
		binary.LittleEndian.PutUint32(out[40:], mediumPage)
		binary.LittleEndian.PutUint32(out[44:], 255)
		binary.LittleEndian.PutUint32(out[48:], mediumPage)
		return out, 0
	case fuseRead:
		return m.read(le64(in[8:]), int(le32(in[16:])))
	case fuseWrite:
		const headerLen = 40
		off, n, flags := le64(in[8:]), int(le32(in[16:])), le32(in[32:])
		return m.write(off, in[headerLen:headerLen+n], flags&unix.O_DSYNC != 0)
	case fuseFsync:
		return nil, m.sync()
	case fuseFallocate:
		off, n, mode := le64(in[8:]), le64(in[16:]), le32(in[24:])
		if mode&(unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_ZERO_RANGE) == 0 {
			return nil, 0
		}
		m.mu.Lock()
		defer m.mu.Unlock()
		clear(m.touch(off, n))
		return nil, 0
	}
	return nil, unix.ENOSYS
}

// grow makes the file so long, with zeroes, which is durable at once. False: it is longer.
func (m *Medium) grow(size int) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if size < len(m.bytes) {
		return false
	}
	m.bytes = append(m.bytes, make([]byte, size-len(m.bytes))...)
	m.stable = append(m.stable, make([]byte, size-len(m.stable))...)
	return true
}

func (m *Medium) attr(node uint64) []byte {
	a := make([]byte, 88)
	m.mu.Lock()
	defer m.mu.Unlock()
	mode, size := uint32(unix.S_IFREG|0o600), uint64(len(m.bytes))
	if node == rootNode {
		mode, size = unix.S_IFDIR|0o700, 0
	}
	binary.LittleEndian.PutUint64(a, node)
	binary.LittleEndian.PutUint64(a[8:], size)
	binary.LittleEndian.PutUint64(a[16:], size/512)
	binary.LittleEndian.PutUint32(a[60:], mode)
	binary.LittleEndian.PutUint32(a[64:], 1)
	binary.LittleEndian.PutUint32(a[80:], mediumPage)
	return a
}

func (m *Medium) read(off, n int) ([]byte, unix.Errno) {
	m.mu.Lock()
	defer m.mu.Unlock()
	off = min(off, len(m.bytes))
	end := min(off+n, len(m.bytes))
	for page := off / mediumPage; page*mediumPage < end; page++ {
		_, isSpoiled := m.spoiled[page]
		if _, isRuined := m.ruined[page]; isSpoiled || isRuined {
			return nil, unix.EIO
		}
	}
	return bytes.Clone(m.bytes[off:end]), 0
}

// touch marks the pages of a range as not durable, and returns the bytes of the range. mu is held.
func (m *Medium) touch(off, n int) []byte {
	end := min(off+n, len(m.bytes))
	for page := off / mediumPage; page*mediumPage < end; page++ {
		m.dirty[page] = struct{}{}
		m.written(page)
	}
	return m.bytes[off:end]
}

func (m *Medium) write(off int, data []byte, durable bool) ([]byte, unix.Errno) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if off+len(data) > len(m.bytes) {
		return nil, unix.ENOSPC
	}
	if m.refuses != 0 && m.rng.IntN(m.refuses) == 0 {
		return nil, unix.EIO
	}
	for page := off / mediumPage; page*mediumPage < off+len(data); page++ {
		if m.ruined[page] {
			return nil, unix.EIO
		}
	}
	copy(m.touch(off, len(data)), data)
	if durable {
		if m.unlucky() {
			return nil, m.forget()
		}
		m.keep(off/mediumPage, (off+len(data)-1)/mediumPage)
	}
	out := make([]byte, 8)
	binary.LittleEndian.PutUint32(out, uint32(len(data)))
	return out, 0
}

// keep makes pages durable. mu is held.
func (m *Medium) keep(first, last int) {
	for page := first; page <= last; page++ {
		copy(m.stable[page*mediumPage:(page+1)*mediumPage], m.bytes[page*mediumPage:])
		delete(m.dirty, page)
	}
}

// unlucky decides whether a sync fails. mu is held.
func (m *Medium) unlucky() bool {
	m.syncs++
	return m.faults != 0 && m.rng.IntN(m.faults) == 0
}

// forget simulates an error of the medium: half of the dirty pages become clean, with their durable
// content. mu is held.
func (m *Medium) forget() unix.Errno {
	for page := range m.dirty {
		if m.rng.IntN(2) == 0 {
			delete(m.dirty, page)
			copy(m.bytes[page*mediumPage:(page+1)*mediumPage], m.stable[page*mediumPage:])
		}
	}
	if m.lost != nil {
		m.lost()
	}
	return unix.EIO
}

func (m *Medium) sync() unix.Errno {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.unlucky() {
		return m.forget()
	}
	for page := range m.dirty {
		m.keep(page, page)
	}
	return 0
}
