package iser

import (
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"testing"
	"time"
	"unsafe"

	"oneshot/initiator"
	"oneshot/internal/rounds"
	"oneshot/iscsi/pdu"
	"oneshot/transport/rdma/iwarp"
)

// cutter forwards connections to a target, each until so many octets have gone one way, and then
// ends it in some way.
type cutter struct {
	l      net.Listener
	target string
	wg     sync.WaitGroup

	mu  sync.Mutex
	rnd *rand.Rand
	cut int // connections that were ended here; guarded by mu
}

func newCutter(t *testing.T, target string, seed uint64) *cutter {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	check(t, err)
	c := &cutter{l: l, target: target, rnd: rand.New(rand.NewPCG(seed, 1))}
	c.wg.Go(func() {
		for {
			from, err := l.Accept()
			if err != nil {
				return
			}
			to, err := net.Dial("tcp", target)
			if err != nil {
				_ = from.Close()
				continue
			}
			c.forward(from.(*net.TCPConn), to.(*net.TCPConn))
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		c.wg.Wait()
	})
	return c
}

// forward carries octets both ways until as many have gone as chance wants.
func (c *cutter) forward(initiator, target *net.TCPConn) {
	c.mu.Lock()
	most := int64(64) << c.rnd.IntN(14) // from within the login to some hundred commands
	out, in := c.rnd.Int64N(most), int64(1<<62)
	if c.rnd.IntN(2) == 0 {
		out, in = in, out
	}
	how := c.rnd.IntN(3)
	c.mu.Unlock()
	end := func() {
		switch how {
		case 0: // RST
			_ = target.SetLinger(0)
			_ = initiator.SetLinger(0)
		case 1: // the target hears of the end of the stream, and may send
			_ = target.CloseWrite()
			_, _ = io.Copy(io.Discard, target)
		}
		_ = target.Close()
		_ = initiator.Close()
	}
	var once sync.Once
	carry := func(to, from *net.TCPConn, n int64) {
		k, _ := io.CopyN(to, from, n)
		once.Do(func() {
			if k == n {
				c.mu.Lock()
				c.cut++
				c.mu.Unlock()
			}
			end()
		})
	}
	c.wg.Go(func() { carry(target, initiator, out) })
	c.wg.Go(func() { carry(initiator, target, in) })
}

// stamped is what block lba holds after a worker's write number n.
func stamped(b []byte, worker, n uint64, lba int64) {
	words := unsafe.Slice((*uint64)(unsafe.Pointer(&b[0])), len(b)/8) // the race detector looks at each octet of encoding/binary
	for i := 0; i < len(words); i += 4 {
		words[i], words[i+1], words[i+2], words[i+3] = worker, n, uint64(lba), uint64(i)^n*0x9e3779b97f4a7c15
	}
}

// owner writes to blocks of its own, over connections that are killed, and knows what each block
// may hold.
type owner struct {
	t      *testing.T
	id     uint64
	scheme string
	first  int64 // block
	writes uint64
	may    [ownBlocks][]uint64 // numbers of the writes that a block may hold; 0: of none
	rnd    *rand.Rand
}

const (
	ownBlocks  = 512
	blockSize  = 512
	killDepth  = 6
	killBlocks = 48 // of one write at most
)

func (o *owner) dial(address string) (*initiator.Session, error) {
	u, err := initiator.ParseURL(fmt.Sprintf("%s://%s/%s", o.scheme, address, iqn))
	check(o.t, err)
	return initiator.Dial(o.t.Context(), u, initiator.Options{
		ISID: pdu.ISID{0x80, 2, 0, 0, 0, byte(o.id)}, Depth: killDepth, Immediate: 1024,
		InitiatorName: fmt.Sprintf("iqn.2026-11.example:owner%d", o.id),
	})
}

// abuse writes through a connection until that is killed.
func (o *owner) abuse(address string) {
	s, err := o.dial(address)
	if err != nil {
		return // killed in its login
	}
	defer s.Close()
	cs := make([]initiator.Command, killDepth)
	for {
		var done sync.WaitGroup
		var busy [ownBlocks]bool
		at := make([][3]int, len(cs)) // first block, blocks, write
		for i := range cs {
			n := 1 + o.rnd.IntN(killBlocks)
			from := o.rnd.IntN(ownBlocks - n)
			free := true
			for b := from; b < from+n; b++ {
				free = free && !busy[b]
			}
			if !free {
				continue
			}
			o.writes++
			at[i] = [3]int{from, n, int(o.writes)}
			data := make([]byte, n*blockSize)
			for b := from; b < from+n; b++ {
				busy[b] = true
				lba := o.first + int64(b)
				stamped(data[(b-from)*blockSize:][:blockSize], o.id, o.writes, lba)
				o.may[b] = append(o.may[b], o.writes)
			}
			done.Add(1)
			cs[i] = initiator.Command{
				CDB: rw16(0x8a, uint64(o.first+int64(from)), uint32(n)), Out: data, Done: func(*initiator.Command) { done.Done() },
			}
			s.Start(&cs[i])
		}
		done.Wait()
		over := false
		for i := range cs {
			if at[i][1] == 0 {
				continue
			}
			if cs[i].Err != nil {
				over = true
				continue
			}
			if cs[i].Failure() != nil {
				continue // a unit attention: not written, which the blocks may show
			}
			for b := at[i][0]; b < at[i][0]+at[i][1]; b++ {
				o.may[b] = o.may[b][len(o.may[b])-1:]
			}
		}
		if over {
			return
		}
	}
}

// verify reads all blocks: each holds what was last written to it for sure, or one of the writes
// behind that whose fate is not known.
func (o *owner) verify(address string) {
	s, err := o.dial(address)
	if err != nil {
		o.t.Errorf("owner %d cannot log in to look: %v", o.id, err)
		return
	}
	defer s.Close()
	lu, err := s.LU(o.t.Context(), 0)
	if err != nil {
		o.t.Errorf("owner %d: %v", o.id, err)
		return
	}
	got, want := make([]byte, ownBlocks*blockSize), make([]byte, blockSize)
	if _, err := lu.ReadAt(got, o.first*blockSize); err != nil {
		o.t.Errorf("owner %d: %v", o.id, err)
		return
	}
	for b := range o.may {
		block := got[b*blockSize:][:blockSize]
		found := false
		for _, n := range o.may[b] {
			if clear(want); n > 0 {
				stamped(want, o.id, n, o.first+int64(b))
			}
			if string(block) == string(want) {
				o.may[b] = append(o.may[b][:0], n)
				found = true
				break
			}
		}
		if !found {
			o.t.Errorf("owner %d, block %d holds % x..., which is none of its writes %v", o.id, b, block[:32], o.may[b])
			return
		}
	}
}

// Connections are killed at random points under load. Whatever was acknowledged is there, and no
// block ever holds what was not written to it.
func TestKilledConnections(t *testing.T) {
	const owners = 4
	kills := rounds.Of(1200, 60)
	b := newBenchOf(t, 24<<20, iwarp.Config{LingerTime: 10 * time.Millisecond})
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	c := newCutter(t, b.l.Addr().String(), seed)
	var wg sync.WaitGroup
	for id := range uint64(owners) {
		o := &owner{
			t: t, id: id + 1, scheme: []string{"iser+iwarp", "oneshot+iwarp"}[id%2], first: int64(id) * ownBlocks,
			rnd: rand.New(rand.NewPCG(seed, id+2)),
		}
		for i := range o.may {
			o.may[i] = append(o.may[i], 0)
		}
		wg.Go(func() {
			for i := range kills / owners {
				o.abuse(c.l.Addr().String())
				if i%4 == 3 {
					o.verify(b.l.Addr().String())
				}
				if t.Failed() {
					return
				}
			}
			o.verify(b.l.Addr().String())
		})
	}
	wg.Wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.cut < kills*9/10 && !t.Failed() {
		t.Errorf("%d connections were cut, want about %d", c.cut, kills)
	}
}
