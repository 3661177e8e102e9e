package storm

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"oneshot/initiator"
	"oneshot/test/medium"
	"oneshot/test/targettest"
)

// TestReloads attacks a daemon whose configuration changes: while its medium loses bytes, while a disk is being erased, and
// while two targets show one store. Each attack costs the daemon at most as much memory as its bound says, and the witness, whose LUNs do not
// change, is not disturbed.
func TestReloads(t *testing.T) {
	atLength(t)
	dir := t.TempDir()
	m := medium.New(t, dir+"/m", 4<<20, 1)
	d := watched(t, targettest.Start(t, strings.ReplaceAll(`
stores:
  a: {type: memory, size: 16MiB}
  b: {type: file, path: $DIR/b.img, size: 16MiB}
  m: {type: file, path: MEDIUM, size: 4MiB}
  c: {type: memory, size: 1MiB}
targets:
  - {iqn: `+iqn+`t, luns: {0: a, 1: b, 6: {store: m, product: A}, 7: c}}
  - {iqn: `+iqn+`u, luns: {7: c}}
portals: [{listen: $PORTAL}]
state: $DIR/state
management: {socket: $DIR/socket}
limits: {memory: 64MiB, memory_per_connection: 4MiB}
`, "MEDIUM", m.File())))
	r := &reloads{commander{greedy{d, t, d.watch()}, initiator.TCP}, m}
	r.suffer([]assault{
		{"one store through two targets", 40, r.twoTargets},
		{"reloads while a disk is erased and reserved", 40, r.erased},
		{"a store that grows while its medium loses bytes", 40, r.grown},
	})
}

// reloads is an attacker of a daemon whose configuration changes.
type reloads struct {
	commander
	medium *medium.Medium
}

// change is a reload, after which the next one goes on from the new text.
func (r *reloads) change(old, new string) error {
	r.t.Helper()
	err := r.reload(old, new)
	r.text = strings.Replace(r.text, old, new, 1)
	return err
}

func (r *reloads) mustChange(old, new string) {
	r.t.Helper()
	if err := r.change(old, new); err != nil {
		r.t.Fatal(err)
	}
}

// enter logs in to a target as an initiator of its own.
func (r *reloads) enter(target, name string) *initiator.Session {
	r.t.Helper()
	u := initiator.URL{Address: r.Portal(), Target: iqn + target, LUN: -1}
	s, err := initiator.Dial(r.t.Context(), u, initiator.Options{InitiatorName: rawName + name})
	if err != nil {
		r.t.Fatal(err)
	}
	return s
}

// persist does PERSISTENT RESERVE OUT, for exclusive access.
func (r *reloads) persist(s *initiator.Session, lun int, action byte, key, next uint64) error {
	list := binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(nil, key), next)
	return r.do(s, &initiator.Command{LUN: lun, CDB: []byte{0x5f, action, 3, 8: 24, 9: 0}, Out: append(list, make([]byte, 8)...)})
}

const (
	prRegister, prReserve, prRelease = 0, 1, 2
	conflict                         = 0x18
)

// twoTargets counts in one block by COMPARE AND WRITE through two targets at once, and no count is lost. Then the reservation of an
// initiator of one of them holds through the other.
func (r *reloads) twoTargets() {
	const lun, block, sides, counts = 7, 512, 4, 60
	sessions := make([]*initiator.Session, sides)
	for i := range sessions {
		sessions[i] = r.enter([]string{"t", "u"}[i%2], fmt.Sprint("side", i))
	}
	var all sync.WaitGroup
	for _, s := range sessions {
		all.Go(func() {
			was, next := make([]byte, block), make([]byte, block)
			for n := 0; n < counts; {
				if err := r.do(s, &initiator.Command{LUN: lun, CDB: []byte{0: 0x28, 8: 1, 9: 0}, In: was}); err != nil {
					r.t.Errorf("READ: %v", err)
					return
				}
				binary.BigEndian.PutUint64(next, binary.BigEndian.Uint64(was)+1)
				const miscompare = 0xe
				err := r.compareAndWrite(s, lun, 0, was, next)
				if e, ok := errors.AsType[*initiator.StatusError](err); err != nil && (!ok || e.Key != miscompare) {
					r.t.Errorf("COMPARE AND WRITE: %v", err)
					return
				}
				if err == nil {
					n++
				}
			}
		})
	}
	all.Wait()
	now := make([]byte, block)
	if err := r.do(sessions[0], &initiator.Command{LUN: lun, CDB: []byte{0: 0x28, 8: 1, 9: 0}, In: now}); err != nil {
		r.t.Error(err)
	}
	if got := binary.BigEndian.Uint64(now); got != sides*counts {
		r.t.Errorf("%d COMPARE AND WRITEs said GOOD, and the counter says %d", sides*counts, got)
	}
	err := errors.Join(r.persist(sessions[0], lun, prRegister, 0, 1), r.persist(sessions[0], lun, prReserve, 1, 0))
	if err != nil {
		r.t.Errorf("a reservation: %v", err)
	}
	for _, s := range sessions[1:] {
		err := r.do(s, &initiator.Command{LUN: lun, CDB: []byte{0: 0x2a, 8: 1, 9: 0}, Out: now})
		if e, ok := errors.AsType[*initiator.StatusError](err); !ok || e.Status != conflict {
			r.t.Errorf("a WRITE in spite of the reservation: %v", err)
		}
	}
	for _, s := range sessions {
		_ = s.Close()
	}
}

// erased changes the product name of a LUN again and again while its disk, which hangs meanwhile, is being erased. Nobody reads from it
// before it is erased, and the reservation, which is kept nowhere, stays.
func (r *reloads) erased() {
	const lun, n = 6, 64 << 10
	owner, other := r.enter("t", "owner"), r.enter("t", "other")
	defer func() { _, _ = owner.Close(), other.Close() }()
	read := func(s *initiator.Session, lba uint64) ([]byte, error) {
		b := make([]byte, n)
		cdb := binary.BigEndian.AppendUint64([]byte{0x88, 0}, lba)
		return b, r.do(s, &initiator.Command{LUN: lun, CDB: append(cdb, 0, 0, n/512>>8, n/512&0xff, 0, 0), In: b})
	}
	old := bytes.Repeat([]byte("old data"), n/8)
	err := errors.Join(
		r.persist(owner, lun, prRegister, 0, 1), r.persist(owner, lun, prReserve, 1, 0),
		r.do(owner, &initiator.Command{LUN: lun, CDB: []byte{0: 0x2a, 7: n / 512 >> 8, 8: n / 512 & 0xff, 9: 0}, Out: old}),
	)
	if err != nil {
		r.t.Fatal(err)
	}
	r.medium.Slow(0, time.Hour) // writes hang
	const overwrite, immed = 0x01, 0x80
	list := append([]byte{1, 0, 0, 4}, 0, 0, 0, 0)
	if err := r.do(owner, &initiator.Command{LUN: lun, CDB: []byte{0x48, immed | overwrite, 8: byte(len(list)), 9: 0}, Out: list}); err != nil {
		r.t.Fatalf("SANITIZE: %v", err)
	}
	names := []string{"product: A", "product: B"}
	for i := range 20 {
		r.mustChange(names[i%2], names[(i+1)%2])
		const notReady, sanitizing = 2, 0x1b
		b, err := read(owner, 0)
		if e, ok := errors.AsType[*initiator.StatusError](err); !ok || e.Key != notReady || e.ASC != 4 || e.ASCQ != sanitizing {
			r.t.Errorf("a READ while the disk is erased: %v, %q", err, b[:8])
		}
	}
	r.medium.Heal()
	r.until("the disk is erased", func() bool { return r.do(owner, &initiator.Command{LUN: lun, CDB: make([]byte, 6)}) == nil })
	if b, err := read(owner, 0); err != nil || !bytes.Equal(b, make([]byte, n)) {
		r.t.Errorf("after the disk is erased: %v, %q", err, b[:8])
	}
	_, err = read(other, 0)
	if e, ok := errors.AsType[*initiator.StatusError](err); !ok || e.Status != conflict {
		r.t.Errorf("a READ in spite of the reservation: %v", err)
	}
	if err := r.persist(owner, lun, prRelease, 1, 0); err != nil {
		r.t.Errorf("the end of the reservation: %v", err)
	}
}

// grown writes to a store whose medium loses bytes when it is told to keep them; the first who tells it to is a reload that makes the
// store larger. From then on nobody is told that the bytes are safe, until the store is opened again.
func (r *reloads) grown() {
	const lun, n = 6, 256 << 10
	sync := func(s *initiator.Session) error {
		return r.do(s, &initiator.Command{LUN: lun, CDB: []byte{0: 0x91, 15: 0}})
	}
	for size := 4; size < 8; size++ {
		s := r.enter("t", fmt.Sprint("grows", size))
		for k := range 4 {
			cdb := binary.BigEndian.AppendUint64([]byte{0x8a, 0}, uint64(k*n/512))
			if err := r.do(s, &initiator.Command{LUN: lun, CDB: append(cdb, 0, 0, n/512>>8, n/512&0xff, 0, 0), Out: bytes.Repeat([]byte{byte(size)}, n)}); err != nil {
				r.t.Fatalf("WRITE: %v", err)
			}
		}
		r.medium.FailSyncs(1)
		text := func(size int) string { return fmt.Sprintf("disk.img, size: %dMiB", size) }
		if err := r.change(text(size), text(size+1)); err == nil {
			r.t.Error("a store grows whose medium has lost bytes, and nobody is told")
		}
		r.medium.FailSyncs(0)
		for range 3 {
			if err := sync(s); err == nil {
				r.t.Errorf("SYNCHRONIZE CACHE says GOOD, and bytes are lost")
			}
		}
		_ = s.Close()
		shown := ", 6: {store: m, product: A}"
		r.mustChange(shown, "")
		r.mustChange("1: b", "1: b"+shown) // opens it
		s = r.enter("t", fmt.Sprint("again", size))
		if err := sync(s); err != nil {
			r.t.Errorf("SYNCHRONIZE CACHE after the store was opened again: %v", err)
		}
		_ = s.Close()
	}
}
