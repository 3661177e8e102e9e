package storm

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"oneshot/initiator"
	"oneshot/iscsi/pdu"
	"oneshot/test/targettest"
)

// TestCommands attacks a daemon with commands and names that are within the protocol, and that once did harm: they hung,
// took another's place, or left half of what must be whole. They come over each transport, for each mover brings data
// and asks for memory in its own way. Each attack costs the daemon at most as much memory as its bound says, and the
// witness, which uses the same transport, is not disturbed.
func TestCommands(t *testing.T) {
	atLength(t)
	raiseDescriptors(t, 4000)
	for _, way := range []initiator.Transport{initiator.TCP, initiator.ISER, initiator.OneShot} {
		t.Run(way.String(), func(t *testing.T) { attackByCommands(t, way) })
	}
}

func attackByCommands(t *testing.T, way initiator.Transport) {
	g := targettest.New(t, `
stores:
  a: {type: memory, size: 16MiB}
  b: {type: file, path: $DIR/b.img, size: 16MiB}
  c: {type: memory, size: 1MiB}
  full: {type: file, path: $DIR/full/full.img, size: 64MiB}
  e: {type: memory, size: 1MiB}
  f: {type: file, path: $DIR/f.img, size: 2MiB}
targets: [{iqn: `+iqn+`t, luns: {0: a, 1: b, 2: c, 3: full, 4: e, 5: f}}]
portals: [{listen: $PORTAL}, {transport: iwarp, listen: $PORTAL2}]
state: $DIR/state
management: {socket: $DIR/socket}
limits: {connections: 1024, memory: 64MiB, memory_per_connection: 4MiB, read_timeout: 1h}
`)
	full := filepath.Join(g.Dir, "full")
	err := os.Mkdir(full, 0o700)
	if err == nil {
		err = unix.Mount("tmpfs", full, "tmpfs", 0, "size=7680k")
	}
	if err != nil {
		t.Fatalf("mount a tmpfs, for which tests run as root: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(full, unix.MNT_DETACH); err != nil { // a ring lets go of its files some time after it is closed
			t.Error(err)
		}
	})
	g.Start()
	d := watched(t, g)
	c := &commander{greedy: greedy{daemon: d, t: t}, way: way}
	c.Witness = d.witness(c.admit("witness", initiator.Options{}))
	list := []assault{
		{"data for commands that take none, in the way of COMPARE AND WRITE", 60, c.dataForNobody},
		{"names that contain another's ISID", 40, c.compoundNames},
		{"READs of more than a connection may ever have", 60, c.longReads},
		{"atomic writes to a full disk", 60, c.atomicWrites},
		{"connections that end in the middle of WRITEs", 40, c.cutWrites},
		{"WRITEs whose data do not come", 100, c.silentWrites},
	}
	if way != initiator.TCP {
		list = append(list, assault{"peers that break the rules of one-shot RDMA and iSER", 40, c.offences})
	}
	if way == initiator.ISER { // TestGreedy does so over TCP
		list = append(list, assault{"READs whose answers nobody takes", 100, c.deafReads})
	}
	c.suffer(list)
}

// commander is an attacker that sends commands.
type commander struct {
	greedy
	way initiator.Transport
}

// dial logs in to the target as an initiator of its own.
func (g *commander) dial(name string, o initiator.Options) (*initiator.Session, error) {
	ctx, cancel := context.WithTimeout(g.t.Context(), patience)
	defer cancel()
	u := initiator.URL{Transport: g.way, Address: g.Portals[0], Target: iqn + "t", LUN: -1}
	if g.way != initiator.TCP {
		u.Address = g.Portals[1]
	}
	o.InitiatorName = rawName + name
	return initiator.Dial(ctx, u, o)
}

func (g *commander) admit(name string, o initiator.Options) *initiator.Session {
	g.t.Helper()
	s, err := g.dial(name, o)
	if err != nil {
		g.t.Fatal(err)
	}
	return s
}

// do does a command. One that hangs fails the test.
func (g *commander) do(s *initiator.Session, c *initiator.Command) error {
	ctx, cancel := context.WithTimeout(g.t.Context(), patience)
	defer cancel()
	c.Attentions = 3
	err := s.Do(ctx, c)
	if errors.Is(err, context.DeadlineExceeded) {
		g.t.Errorf("% x hangs", c.CDB)
	}
	return err
}

// compareAndWrite changes a block.
func (g *commander) compareAndWrite(s *initiator.Session, lun int, lba uint64, from, to []byte) error {
	cdb := binary.BigEndian.AppendUint64([]byte{0x89, 0}, lba)
	return g.do(s, &initiator.Command{LUN: lun, CDB: append(cdb, 0, 0, 0, 1, 0, 0), Out: append(bytes.Clone(from), to...)})
}

// dataForNobody sends commands with the W bit and data, whose CDBs take no data, between COMPARE AND WRITEs of the same
// place, so that they wait for it when their data come: with the command, or when the target asks for it. Reading is
// enough for the first of them. Others count by COMPARE AND WRITE meanwhile, and no count is lost.
func (g *commander) dataForNobody() {
	const block, counters, counts = 512, 4, 40
	stop := make(chan struct{})
	var hostile, honest sync.WaitGroup
	for i := range 4 {
		hostile.Go(func() {
			for n := 0; ; n++ {
				select {
				case <-stop:
					if n > 1 {
						return
					}
				default:
				}
				o := initiator.Options{Immediate: -(n % 2)} // 0: data come with the command
				if err := g.window(fmt.Sprintf("nobody%d.%d", i, n), o, i%2, block); err != nil {
					g.t.Errorf("a window of commands: %v", err)
					return
				}
			}
		})
	}
	sessions := make([]*initiator.Session, counters)
	for i := range sessions {
		sessions[i] = g.admit(fmt.Sprint("counter", i), initiator.Options{})
	}
	for i, s := range sessions {
		honest.Go(func() {
			was, next := make([]byte, block), make([]byte, block)
			for n := range uint64(counts) {
				binary.BigEndian.PutUint64(next, n+1)
				if err := g.compareAndWrite(s, i%2, uint64(8+i), was, next); err != nil {
					g.t.Errorf("count %d of an honest initiator: %v", n+1, err)
					return
				}
				was, next = next, was
			}
		})
	}
	honest.Wait()
	close(stop)
	hostile.Wait()
	for _, s := range sessions {
		_ = s.Close()
	}
}

// window logs in, sends a window of commands at once and waits for their ends. Each has to be GOOD.
func (g *commander) window(name string, o initiator.Options, lun, block int) error {
	s, err := g.dial(name, o)
	if err != nil {
		return err
	}
	defer func() { _ = s.Close() }()
	const n = 96
	var window []*initiator.Command
	ends := make(chan error, n)
	for k := range n {
		c := &initiator.Command{
			LUN: lun, Out: make([]byte, block), Attentions: 3, Done: func(c *initiator.Command) { ends <- c.Failure() },
		}
		switch k % 3 {
		case 0:
			c.CDB = []byte{0: 0x2f, 5: 64, 8: 1, 9: 0} // VERIFY(10) of block 64, BYTCHK 0
		case 1:
			c.CDB = []byte{0: 0x93, 1: 0x01, 9: 65, 13: 1, 15: 0} // WRITE SAME(16) of block 65, NDOB
		case 2:
			c.CDB, c.Out = []byte{0: 0x89, 9: 66, 13: 1, 15: 0}, make([]byte, 2*block) // COMPARE AND WRITE of block 66
		}
		window = append(window, c)
	}
	s.Start(window...)
	hang := time.After(patience)
	for k := range n {
		select {
		case e := <-ends:
			err = errors.Join(err, e)
		case <-hang:
			return fmt.Errorf("%d of %d commands hang", n-k, n)
		}
	}
	return err
}

// compoundNames logs in with names that contain the ISID of one that holds a reservation, as the names of initiator
// ports do in the parameter lists of SPC-4. Each is refused, and the reservation holds.
func (g *commander) compoundNames() {
	const lun = 2
	holder, other := g.admit("holder", initiator.Options{}), g.admit("other", initiator.Options{})
	defer func() { _, _ = holder.Close(), other.Close() }()
	out := func(action byte, key, next uint64) error {
		list := binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(nil, key), next)
		return g.do(holder, &initiator.Command{LUN: lun, CDB: []byte{0x5f, action, 3, 8: 24, 9: 0}, Out: append(list, make([]byte, 8)...)}) // exclusive access
	}
	for action, keys := range [][2]uint64{{0, 1}, {1, 0}} { // REGISTER, RESERVE
		if err := out(byte(action), keys[0], keys[1]); err != nil {
			g.t.Fatal(err)
		}
	}
	for i := range 500 {
		name := fmt.Sprintf("holder,i,0x%012x", 0x800000000000+i)
		s, err := g.dial(name, initiator.Options{})
		if e, ok := errors.AsType[*initiator.LoginError](err); !ok || e.Status != pdu.LoginInitiatorError {
			g.t.Errorf("a login as %s: %v", name, err)
			if s != nil {
				_ = s.Close()
			}
			return
		}
	}
	write := &initiator.Command{LUN: lun, CDB: []byte{0: 0x2a, 8: 1, 9: 0}, Out: make([]byte, 512)}
	if e, ok := errors.AsType[*initiator.StatusError](g.do(other, write)); !ok || e.Status != conflict {
		g.t.Errorf("a WRITE in spite of the reservation: %v", e)
	}
	if err := g.do(holder, write); err != nil {
		g.t.Errorf("the holder's WRITE: %v", err)
	}
}

// longReads asks for more in one command than the connection's memory, or all there is. Each is answered, by an error.
func (g *commander) longReads() {
	var all sync.WaitGroup
	for i := range 8 {
		s := g.admit(fmt.Sprint("long", i), initiator.Options{})
		all.Go(func() {
			defer func() { _ = s.Close() }()
			for lun := range 4 {
				for _, n := range []int{2<<20 + 512, 4 << 20, 8 << 20, 16 << 20} { // half of memory_per_connection is the most
					if lun == 2 && n > 1<<20 {
						continue // has no more
					}
					cdb := binary.BigEndian.AppendUint32([]byte{0: 0x88, 9: 0}, uint32(n/512))
					err := g.do(s, &initiator.Command{LUN: lun, CDB: append(cdb, 0, 0), In: make([]byte, n)})
					const illegalRequest, invalidField = 5, 0x24
					if e, ok := errors.AsType[*initiator.StatusError](err); !ok || e.Key != illegalRequest || e.ASC != invalidField {
						g.t.Errorf("a READ of %d octets from LUN %d: %v", n, lun, err)
					}
				}
			}
		})
	}
	all.Wait()
}

// atomicWrites writes as much at once as WRITE ATOMIC may, to a file for which there is no more room. Each write leaves
// all of its blocks or none.
func (g *commander) atomicWrites() {
	const lun, n, writers, each = 3, 1 << 20, 8, 8 // 64 MiB for 8
	var all sync.WaitGroup
	var mu sync.Mutex
	good, refused := 0, 0 // guarded by mu
	for i := range writers {
		s := g.admit(fmt.Sprint("atomic", i), initiator.Options{Immediate: -(i % 2)})
		all.Go(func() {
			defer func() { _ = s.Close() }()
			for k := range each {
				lba := uint64(i*each+k) * n / 512
				data := bytes.Repeat([]byte{byte(1 + i)}, n)
				cdb := binary.BigEndian.AppendUint64([]byte{0x9c, 0}, lba)
				err := g.do(s, &initiator.Command{LUN: lun, CDB: append(cdb, 0, 0, n/512>>8, n/512&0xff, 0, 0), Out: data})
				now := make([]byte, n)
				cdb = binary.BigEndian.AppendUint64([]byte{0x88, 0}, lba)
				if err := g.do(s, &initiator.Command{LUN: lun, CDB: append(cdb, 0, 0, n/512>>8, n/512&0xff, 0, 0), In: now}); err != nil {
					g.t.Errorf("READ: %v", err)
					return
				}
				want := data
				mu.Lock()
				if err == nil {
					good++
				} else {
					refused++
					want = make([]byte, n)
				}
				mu.Unlock()
				if !bytes.Equal(now, want) {
					g.t.Errorf("an atomic write of %d octets at block %d (%v) has left %d of them", n, lba, err, bytes.Count(now, []byte{byte(1 + i)}))
				}
			}
		})
	}
	all.Wait()
	if good == 0 || refused == 0 {
		g.t.Errorf("%d atomic writes went well and %d did not", good, refused)
	}
}
