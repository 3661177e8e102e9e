package sim

import (
	"math/rand/v2"
	"time"

	"oneshot/ha/replica"
)

// corrupting has bytes change on their way between nodes. Frames have checksums, and the data of records theirs, so the receiver finds
// out, and ends the connection: what was on its way is lost. Data that are placed in its memory are there as they came. It draws from a source of
// its own, so a world without it is as it was.
type corrupting struct {
	*run
	dice world
}

// corruptOdds: of so many messages one is changed.
const corruptOdds = 1500

// drawCorrupting returns nil in ten worlds of eleven.
func (r *run) drawCorrupting() *corrupting {
	if r.Seed%11 != 3 {
		return nil
	}
	return &corrupting{run: r, dice: world{r: rand.New(rand.NewPCG(r.Seed, 17))}}
}

// hits says whether the bytes of a message have changed.
func (c *corrupting) hits() bool {
	if c == nil || c.now >= c.Length || !c.dice.oneIn(corruptOdds) {
		return false
	}
	c.Corrupted++
	return true
}

// garbage changes one of some cells.
func (c *corrupting) garbage(cells []cell) {
	cells[c.dice.r.IntN(len(cells))] = cell{val: 1<<62 | c.dice.r.Uint64()>>8}
}

// post: the data of a Post have changed. They are placed, and the receiver does not take the records.
func (c *corrupting) post(f *flight) {
	to := c.nodes[f.to]
	for i := range f.recs {
		if len(f.data[i]) == 0 {
			continue
		}
		at := to.heap[f.recs[i].Addr/blockSize:][:len(f.data[i])]
		copy(at, f.data[i])
		c.garbage(at)
	}
}

// ends ends the connection on which something has changed.
func (c *corrupting) ends(from, to replica.ID) {
	c.logf("bytes from %d to %d have changed on their way", from, to)
	c.breakLink(from, to, time.Millisecond)
}
