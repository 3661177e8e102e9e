package storm

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"sync"

	"oneshot/initiator"
)

// cutWrites ends connections in the middle of the data of WRITEs, which others write to as well. Each block is whole then: it is
// of one WRITE, or what it was; and nothing is on a disk that was in the daemon's memory before.
func (g *commander) cutWrites() {
	const size, writes, rounds, block = 64 << 10, 4, 32, 512
	cdb := func(op byte, k int) []byte {
		return append(binary.BigEndian.AppendUint64([]byte{op, 0}, uint64(k*size/block)), 0, 0, size/block>>8, size/block&0xff, 0, 0)
	}
	before := g.admit("before", initiator.Options{Immediate: -1})
	var all sync.WaitGroup
	for k := range 16 {
		all.Go(func() {
			if err := g.do(before, &initiator.Command{LUN: 5, CDB: cdb(0x8a, 16+k), Out: bytes.Repeat([]byte{0xee}, size)}); err != nil {
				g.t.Errorf("WRITE of what is in the daemon's memory then: %v", err)
			}
		})
	}
	all.Wait()
	if err := before.Close(); err != nil {
		g.t.Error(err)
	}
	target := g.Portals[0]
	if g.way != initiator.TCP {
		target = g.Portals[1]
	}
	for i := range rounds {
		v := newValve(g.t, target)
		u := initiator.URL{Transport: g.way, Address: v.Addr().String(), Target: iqn + "t", LUN: -1}
		s, err := initiator.Dial(g.t.Context(), u, initiator.Options{InitiatorName: rawName + fmt.Sprint("cut", i), Immediate: -1})
		if err != nil {
			g.t.Fatal(err)
		}
		for lun := 4; lun < 6; lun++ {
			if err := g.do(s, &initiator.Command{LUN: lun, CDB: make([]byte, 6)}); err != nil {
				g.t.Fatal(err)
			}
		}
		ends := make(chan *initiator.Command, writes)
		var window []*initiator.Command
		for k := range writes {
			window = append(window, &initiator.Command{
				LUN: 4 + i%2, CDB: cdb(0x8a, k), Out: bytes.Repeat([]byte{byte(1 + i)}, size), Done: func(c *initiator.Command) { ends <- c },
			})
		}
		n := 1 + i*7919%size
		if g.way == initiator.TCP { // sends its data unasked
			n += i % 3 * size
			v.keep()
		} else {
			v.arm()
		}
		s.Start(window...)
		<-v.shut
		v.await(g.t, n)
		v.end(g.t, n, i%4 < 2)
		good := 0
		for range writes {
			if c := <-ends; c.Failure() == nil {
				good++
			}
		}
		if good == writes {
			g.t.Errorf("round %d: all WRITEs of a connection end well, of which %d octets have come", i, n)
		}
		_ = s.Close()
		v.close()
	}
	after := g.admit("after", initiator.Options{})
	defer func() { _ = after.Close() }()
	for lun := 4; lun < 6; lun++ {
		for k := range writes {
			now := make([]byte, size)
			if err := g.do(after, &initiator.Command{LUN: lun, CDB: cdb(0x88, k), In: now}); err != nil {
				g.t.Errorf("READ: %v", err)
				return
			}
			for at := 0; at < size; at += block {
				b := now[at : at+block]
				if b[0] > rounds || bytes.Count(b, b[:1]) != block {
					g.t.Errorf("LUN %d, block %d: % x … % x", lun, (k*size+at)/block, b[:4], b[block-4:])
					return
				}
			}
		}
	}
}
