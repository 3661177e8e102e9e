package scsi

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"math/bits"
	"sync"
	"sync/atomic"

	"oneshot/backend"
	"oneshot/internal/invariant"
	"oneshot/volume"
)

// LUConfig says what a logical unit is made of.
type LUConfig struct {
	// Volume is what is shown. Several logical units may show one.
	Volume    *volume.Volume
	BlockSize int // bytes, a power of two, 512 to 4096; 0: 512 or the store's, whichever is larger
	// PhysicalBlockSize is what is reported as the size of physical blocks, for initiators
	// that align by it: bytes, a power of two, BlockSize to 64 KiB; 0: that of the store.
	PhysicalBlockSize int
	ReadOnly          bool
	// Removable: initiators can eject the medium and load it again.
	Removable bool
	// TPGS says how the access states of target port groups change (ALUA). Zero: there are none.
	TPGS TPGS

	Vendor   string // at most 8 printable ASCII characters; empty: "ONESHOT"
	Product  string // at most 16; empty: "BLOCK STORE"
	Revision string // at most 4; empty: "1"
	Serial   string // unit serial number, 1 to 64 printable ASCII characters

	// NAA is the name of the logical unit, an NAA 6h designator (SPC-4 §7.8.6.6.6). Zero:
	// LocalNAA of the serial number.
	NAA [16]byte

	Logger *slog.Logger // nil: slog.Default()
}

// LocalNAA makes a name of the NAA IEEE Registered Extended format out of any text that is
// unique to a logical unit. Its company id is a locally administered one.
func LocalNAA(unique string) (naa [16]byte) {
	sum := sha256.Sum256([]byte(unique))
	copy(naa[:], sum[:])
	naa[0] = 0x60               // NAA 6h, then the company id 02-xx-xx:
	naa[1] = 0x20 | naa[1]&0x0f // its U/L bit set
	return naa
}

// Limits of what one command may ask for, in bytes or pieces; in blocks they are reported
// in the Block Limits page. A transfer is limited by what one lease can hold (Nexus.BoundMemory).
const (
	maxCompareBytes     = 128 << 10 // COMPARE AND WRITE: compared under an exclusive lock
	maxWriteSameBytes   = 16 << 20
	maxUnmapBlocks      = 1 << 20
	maxUnmapDescriptors = 256
)

// LogicalUnit is a direct access block device: a view of a volume. It may belong to several
// targets. Its methods may be called from any goroutine.
type LogicalUnit struct {
	v          *volume.Volume
	info       backend.Info
	blockShift uint
	blockSize  int64
	capacity   atomic.Uint64 // blocks
	physShift  uint          // logical blocks per physical block, as a power of two
	grain      int64         // blocks; what the store likes transfers to be a multiple of
	readOnly   bool          // by configuration

	vendor, product, revision, serial string
	naa                               [16]byte

	log limitedLog

	mode   modeState
	medium removableMedium
	alua   alua

	// gate counts the tasks that make the order of others matter: ORDERED and HEAD OF QUEUE
	// ones, and those that are dormant because of them. Zero lets SIMPLE tasks pass.
	gate atomic.Int32

	closed atomic.Bool

	mu    sync.Mutex // taken after Target.mu, before itl.mu; not held over store calls
	itls  []*itl     // guarded by mu
	order taskOrder  // guarded by mu

	drained []func() // called when the tasks that run have ended; guarded by mu
	exempt  int64    // of these, tasks that wait for the end of a sanitize operation; guarded by mu
}

// NewLogicalUnit returns the logical unit that cfg describes, or an error that says which
// part of cfg cannot be.
func NewLogicalUnit(cfg LUConfig) (*LogicalUnit, error) {
	lu := &LogicalUnit{v: cfg.Volume, info: cfg.Volume.Info(), readOnly: cfg.ReadOnly, naa: cfg.NAA}
	lu.info.Size = lu.v.Size()
	if err := lu.setGeometry(cfg.BlockSize, cfg.PhysicalBlockSize); err != nil {
		return nil, err
	}
	if err := lu.setNames(cfg); err != nil {
		return nil, err
	}
	lu.log.init(cfg.Logger)
	lu.mode.reset()
	lu.medium.removable = cfg.Removable
	lu.alua.tpgs = cfg.TPGS
	lu.v.Attach(lu)
	lu.SizeChanged() // it may have, before
	return lu, nil
}

func (lu *LogicalUnit) setGeometry(blockSize, physical int) error {
	if blockSize == 0 {
		blockSize = max(512, lu.info.BlockSize)
	}
	if physical == 0 {
		physical = max(blockSize, min(lu.info.PhysicalBlockSize, 64<<10))
	}
	switch {
	case blockSize < 512 || blockSize > 4096 || blockSize&(blockSize-1) != 0:
		return fmt.Errorf("scsi: block size %d is not a power of two from 512 to 4096", blockSize)
	case blockSize < lu.info.BlockSize:
		return fmt.Errorf("scsi: block size %d is smaller than the %d bytes that the store can address", blockSize, lu.info.BlockSize)
	case physical < blockSize || physical > 64<<10 || physical&(physical-1) != 0:
		return fmt.Errorf("scsi: physical block size %d is not a power of two from %d to 65536", physical, blockSize)
	case lu.info.Size < int64(blockSize):
		return fmt.Errorf("scsi: a store of %d bytes does not hold one block of %d", lu.info.Size, blockSize)
	}
	lu.blockSize = int64(blockSize)
	lu.blockShift = uint(bits.TrailingZeros(uint(blockSize)))
	lu.capacity.Store(uint64(lu.info.Size) >> lu.blockShift)
	lu.physShift = uint(bits.TrailingZeros(uint(physical / blockSize)))
	// Pages of memory or of a file, up to 4 KiB. Left to itself they are reported as the
	// granularity of good transfers, not as physical blocks: every block is written by itself.
	lu.grain = max(1<<lu.physShift, min(max(lu.info.DiscardGranularity, lu.info.OptimalIO), 4096)>>lu.blockShift)
	return nil
}

func (lu *LogicalUnit) setNames(cfg LUConfig) error {
	field := func(name, s, otherwise string, most int) (string, error) {
		if s == "" {
			s = otherwise
		}
		if len(s) > most || s == "" {
			return "", fmt.Errorf("scsi: %s %q must have 1 to %d characters", name, s, most)
		}
		for _, c := range []byte(s) {
			if c < 0x20 || c > 0x7e {
				return "", fmt.Errorf("scsi: %s %q holds a character that is not printable ASCII", name, s)
			}
		}
		return s, nil
	}
	var errs [4]error
	lu.vendor, errs[0] = field("vendor", cfg.Vendor, "ONESHOT", 8)
	lu.product, errs[1] = field("product", cfg.Product, "BLOCK STORE", 16)
	lu.revision, errs[2] = field("revision", cfg.Revision, "1", 4)
	lu.serial, errs[3] = field("serial number", cfg.Serial, "", 64)
	if lu.naa == ([16]byte{}) {
		lu.naa = LocalNAA(cfg.Serial)
	}
	if lu.naa[0]>>4 != 6 {
		return fmt.Errorf("scsi: NAA %x is not of the format 6h", lu.naa)
	}
	return errors.Join(errs[:]...)
}

// Close ends the view; the volume stays open. No task may be using the logical unit any more: a task
// that runs still is a mistake of the caller and panics.
func (lu *LogicalUnit) Close() error {
	lu.mu.Lock()
	if _, all := lu.tasks(); all != 0 {
		panic(fmt.Sprintf("scsi: logical unit %s closed with %d tasks in it", lu.serial, all))
	}
	invariant.Check(lu.order.first == nil, "scsi: a task waits for its turn in a logical unit without tasks")
	lu.mu.Unlock()
	lu.v.Detach(lu)
	lu.closed.Store(true)
	return nil
}

// addITL adds the I_T_L nexus i.
func (lu *LogicalUnit) addITL(i *itl) {
	lu.mu.Lock()
	lu.itls = append(lu.itls, i)
	i.deny(denyNoMedium, lu.medium.denies())
	lu.mu.Unlock()
	lu.v.Access().Subscribe(i)
}

// dropITL takes i away. Its tasks have ended; of those that ended within Start the answers may still be
// on their way to an initiator that has gone.
func (lu *LogicalUnit) dropITL(i *itl) {
	if invariant.Enabled {
		i.mu.Lock()
		invariant.Check(i.first == nil, "scsi: a nexus goes while tasks of it are under way")
		i.mu.Unlock()
	}
	lu.v.Access().Unsubscribe(i)
	lu.mu.Lock()
	defer lu.mu.Unlock()
	for k, other := range lu.itls {
		if other == i {
			lu.itls[k] = lu.itls[len(lu.itls)-1]
			lu.itls[len(lu.itls)-1] = nil
			lu.itls = lu.itls[:len(lu.itls)-1]
			return
		}
	}
}

// tasks returns how many tasks run, and how many there are between start and release. mu is held.
func (lu *LogicalUnit) tasks() (running, all int64) {
	for _, i := range lu.itls {
		r, n := i.tasks.Count()
		running += r
		all += n
	}
	return running, all
}

// running is the number of tasks that run. mu is held.
func (lu *LogicalUnit) running() int64 {
	running, _ := lu.tasks()
	return running
}

// attention raises unit attention ua for every nexus except one, which may be nil.
func (lu *LogicalUnit) attention(ua uint32, except *Nexus) {
	lu.mu.Lock()
	defer lu.mu.Unlock()
	for _, i := range lu.itls {
		if i.nexus != except {
			i.ua.Or(ua)
		}
	}
}
