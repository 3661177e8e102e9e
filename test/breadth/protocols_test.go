package breadth

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"

	"oneshot/backend/faulty"
	"oneshot/initiator"
	nvmehost "oneshot/initiator/host"
	"oneshot/nvme"
	"oneshot/test/targettest"
)

// kind is what a command does, whatever protocol says it.
type kind int

const (
	reads kind = iota
	writes
	writesThrough // FUA
	compares
	comparesAndWrites
	zeroes
	deallocates
	flushes
	kinds
)

// command is about blocks of 512 bytes. data are what is written; old, what is compared.
type command struct {
	kind      kind
	lba       uint64
	blocks    int
	old, data []byte
}

// outcome is how a command ends.
type outcome string

const (
	good       outcome = "good"
	miscompare outcome = "other bytes"
	outOfRange outcome = "out of range"
)

// way is a protocol by which the disk is reached. It returns what was read.
type way func(ctx context.Context, c command) ([]byte, outcome, error)

// throughSCSI is the way through a session of iSCSI, iSER or one-shot RDMA.
func throughSCSI(s *initiator.Session) way {
	return func(ctx context.Context, c command) ([]byte, outcome, error) {
		x := &initiator.Command{CDB: make([]byte, 16), Out: c.data}
		binary.BigEndian.PutUint64(x.CDB[2:], c.lba)
		binary.BigEndian.PutUint32(x.CDB[10:], uint32(c.blocks))
		switch c.kind {
		case reads:
			x.CDB[0], x.In = 0x88, make([]byte, c.blocks*512)
		case writes:
			x.CDB[0] = 0x8a
		case writesThrough:
			x.CDB[0], x.CDB[1] = 0x8a, 0x08
		case compares:
			x.CDB[0], x.CDB[1], x.Out = 0x8f, 0x02, c.old
		case comparesAndWrites:
			x.CDB[0], x.Out = 0x89, append(bytes.Clone(c.old), c.data...)
			copy(x.CDB[10:], []byte{0, 0, 0, byte(c.blocks)})
		case zeroes:
			x.CDB[0], x.CDB[1] = 0x93, 0x01 // NDOB
		case deallocates:
			x.CDB, x.Out = []byte{0x42, 0, 0, 0, 0, 0, 0, 0, 24, 0}, make([]byte, 24)
			x.Out[1], x.Out[3] = 22, 16
			binary.BigEndian.PutUint64(x.Out[8:], c.lba)
			binary.BigEndian.PutUint32(x.Out[16:], uint32(c.blocks))
		case flushes:
			x.CDB = make([]byte, 16)
			x.CDB[0] = 0x91
		}
		err := s.Do(ctx, x)
		if e, failed := errors.AsType[*initiator.StatusError](err); failed {
			switch {
			case e.Key == 0xe && e.ASC == 0x1d:
				return nil, miscompare, nil
			case e.Key == 5 && e.ASC == 0x21:
				return nil, outOfRange, nil
			}
		}
		return x.In, good, err
	}
}

// throughNVMe is the way through the first I/O queue of a controller.
func throughNVMe(c *nvmehost.Controller) way {
	return func(ctx context.Context, k command) ([]byte, outcome, error) {
		x := &nvmehost.Command{NSID: 1, DWords: [6]uint32{uint32(k.lba), uint32(k.lba >> 32), uint32(k.blocks - 1)}, Out: k.data}
		list := []*nvmehost.Command{x}
		switch k.kind {
		case reads:
			x.Opcode, x.In = nvme.Read, make([]byte, k.blocks*512)
		case writes:
			x.Opcode = nvme.Write
		case writesThrough:
			x.Opcode = nvme.Write
			x.DWords[2] |= 1 << 30
		case compares:
			x.Opcode, x.Out = nvme.Compare, k.old
		case comparesAndWrites:
			x.Opcode, x.Fuse = nvme.Write, nvme.FusedSecond
			list = []*nvmehost.Command{{Opcode: nvme.Compare, Fuse: nvme.FusedFirst, NSID: 1, DWords: x.DWords, Out: k.old}, x}
		case zeroes:
			x.Opcode = nvme.WriteZeroes
		case deallocates:
			x.Opcode, x.DWords, x.Out = nvme.DSM, [6]uint32{0, 4}, make([]byte, 16)
			binary.LittleEndian.PutUint32(x.Out[4:], uint32(k.blocks))
			binary.LittleEndian.PutUint64(x.Out[8:], k.lba)
		case flushes:
			x.Opcode, x.DWords = nvme.Flush, [6]uint32{}
		}
		err := c.Do(ctx, 0, list...)
		if list[0].Err == nil {
			switch list[0].CQE.Status.Code() {
			case nvme.CompareFailure:
				return nil, miscompare, nil
			case nvme.LBAOutOfRange:
				return nil, outOfRange, nil
			}
		}
		return x.In, good, err
	}
}

// disk is what the bytes have to be.
type disk []byte

// random draws a command about blocks from first to behind: a few go beyond the end.
func (d disk) random(r *rand.Rand, first, behind int) command {
	c := command{kind: kind(r.IntN(int(kinds))), blocks: 1 + r.IntN(64)}
	c.lba = uint64(first + r.IntN(behind-first-c.blocks+1))
	if behind*512 == len(d) && r.IntN(20) == 0 {
		c.lba = uint64(behind - r.IntN(c.blocks))
	}
	if at := int(c.lba) * 512; c.kind == compares || c.kind == comparesAndWrites {
		c.old = make([]byte, c.blocks*512)
		copy(c.old, d[min(at, len(d)):])
		if r.IntN(3) == 0 {
			c.old[r.IntN(len(c.old))] ^= 1
		}
	}
	if c.kind == writes || c.kind == writesThrough || c.kind == comparesAndWrites {
		c.data = make([]byte, c.blocks*512)
		v := byte(r.Uint32())
		for i := range c.data {
			c.data[i] = v + byte(i>>9)
		}
	}
	return c
}

// does changes the disk as c does, and returns what c reads and how it ends.
func (d disk) does(c command) ([]byte, outcome) {
	if c.kind == flushes {
		return nil, good
	}
	from, to := int(c.lba)*512, (int(c.lba)+c.blocks)*512
	if to > len(d) {
		return nil, outOfRange
	}
	at := d[from:to]
	if c.old != nil && !bytes.Equal(c.old, at) {
		return nil, miscompare
	}
	switch c.kind {
	case reads:
		return bytes.Clone(at), good
	case writes, writesThrough, comparesAndWrites:
		copy(at, c.data)
	case zeroes, deallocates:
		clear(at)
	}
	return nil, good
}

// check has a random command go by w, and compares its outcome.
func (d disk) check(ctx context.Context, w way, c command) error {
	want, end := d.does(c)
	got, ended, err := w(ctx, c)
	switch {
	case err != nil:
		return fmt.Errorf("command %d about %d blocks at %d: %w", c.kind, c.blocks, c.lba, err)
	case ended != end, ended == good && !bytes.Equal(got, want):
		return fmt.Errorf("command %d about %d blocks at %d ends with %q, want %q, or with other bytes", c.kind, c.blocks, c.lba, ended, end)
	}
	return nil
}

// One disk is a LUN over TCP, over iSER and over one-shot RDMA, and a namespace over NVMe/TCP, at once. Random commands, whichever way each
// goes, have the same outcomes, and leave the same bytes: one after the other anywhere, and side by side, each way at a place of its own.
func TestOneDiskByEveryProtocol(t *testing.T) {
	t.Run("memory", func(t *testing.T) { oneDisk(t, "type: memory", 600) })
	t.Run("file", func(t *testing.T) { oneDisk(t, "type: file, path: $DIR/a.img", 100) }) // each flush takes its time
}

// oneDisk does so with a disk of a store, and that many commands.
func oneDisk(t *testing.T, store string, commands int) {
	const blocks, nqn = 4096, "nqn.2026-11.example.oneshot:t"
	tg := targettest.Start(t, `
stores: {a: {`+store+`, size: 2MiB}}
targets: [{iqn: `+iqn+`t, luns: {0: a}}]
subsystems: [{nqn: "`+nqn+`", namespaces: {1: a}}]
portals: [{listen: $PORTAL}, {transport: iwarp, listen: $PORTAL2}, {transport: nvme-tcp, listen: $PORTAL3}]
`)
	var ways []way
	for i, scheme := range []string{"iscsi", "iser+iwarp", "oneshot+iwarp"} {
		u, err := initiator.ParseURL(scheme + "://" + tg.Portals[min(i, 1)] + "/" + iqn + "t")
		if err != nil {
			t.Fatal(err)
		}
		s, err := initiator.Dial(t.Context(), u, initiator.Options{InitiatorName: fmt.Sprint(iqn, "host", i)})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		_ = s.Do(t.Context(), &initiator.Command{CDB: make([]byte, 6)}) // takes the unit attention
		ways = append(ways, throughSCSI(s))
	}
	c, err := nvmehost.Dial(t.Context(), nvmehost.URL{Address: tg.Portals[2], Subsystem: nqn}, nvmehost.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	ways = append(ways, throughNVMe(c))

	seed := faulty.Seed(t)
	r, d := rand.New(rand.NewPCG(seed, 1)), make(disk, blocks*512)
	for range commands {
		k := d.random(r, 0, blocks)
		i := r.IntN(len(ways))
		if err := d.check(t.Context(), ways[i], k); err != nil {
			t.Fatalf("way %d: %v", i, err)
		}
	}
	var wg sync.WaitGroup
	for i, w := range ways {
		r := rand.New(rand.NewPCG(seed, uint64(2+i)))
		first := i * blocks / len(ways)
		wg.Go(func() {
			for range commands / len(ways) {
				if err := d.check(t.Context(), w, d.random(r, first, first+blocks/len(ways))); err != nil {
					t.Errorf("way %d, beside the others: %v", i, err)
					return
				}
			}
		})
	}
	wg.Wait()
	for i, w := range ways {
		for lba := uint64(0); lba < blocks; lba += 64 {
			if err := d.check(t.Context(), w, command{kind: reads, lba: lba, blocks: 64}); err != nil {
				t.Fatalf("way %d in the end: %v", i, err)
			}
		}
	}
}
