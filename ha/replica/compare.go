package replica

import "slices"

// A copy that comes back may have more than is known: what it had not told to be durable, and what it suspects because a region is suspect as a whole
// for one record. So a granule is compared before it is copied. A record (KindCheck) has this primary and the copy hash it at the same place in the
// order, as in a comparison of members (verify.go):
//
//	equal there      ──► KindClean, as for a granule that was copied with that record
//	else             ──► it is copied
//	they differ more often than they do not ──► the rest is copied at once: much was written while the copy was away, or it is a new one
//
// That both are equal does not say that the other members have the same. The copy may have it from a time when it was one of them, so that no record in its
// log writes it; the primary may have written it through before it was committed, and another member may have it in memory only. The next primary may lack
// it, and not know that the copy was compared. So what was compared is suspect, as if it had been copied, as long as the record is in the copy's log: until
// all of S have it durable (marks.suspect).

// suspectsEqual is a bit of a stream's number. Whoever has given that number suspects what was compared. Others get all that may differ.
const suspectsEqual = 1 << 60

// CompareFirst has granules compared before they are copied, as long as fewer than patience more have differed than have not, of those of a copy since it
// has come back. Without it none is.
func (c *Core) CompareFirst(patience int) { c.patience = patience }

type comparing struct {
	checks      []*check // hashes are awaited
	differ      Bits     // granules that were compared: they are copied
	equal, odds int      // how many were
}

// isWorthComparing says whether a granule is compared before it is copied. What a larger copy has behind this node's end is not.
func (c *Core) isWorthComparing(p *peer, granule int, n int64) bool {
	return p.stream&suspectsEqual != 0 && p.odds < p.equal+c.patience && !p.differ.Has(granule) && n == c.granuleLen(int64(granule)*c.cfg.Granule)
}

// isUnderWay says whether a granule is being compared.
func (m *comparing) isUnderWay(off int64) bool {
	return slices.ContainsFunc(m.checks, func(k *check) bool { return k.off == off })
}

// compareFirst begins.
func (c *Core) compareFirst(p *peer, off, n int64) {
	c.moves(n)
	k := &check{seq: c.log.last() + 1, off: off, n: n}
	p.checks = append(p.checks, k)
	c.append(Record{Term: c.view.Term, Seq: k.seq, Kind: KindCheck, Off: off, Len: n})
}

// comparedOn goes on with what was compared with a copy.
func (c *Core) comparedOn(id ID, p *peer) {
	both := Nodes(0).With(c.cfg.Self).With(id)
	p.checks = slices.DeleteFunc(p.checks, func(k *check) bool {
		if both&^k.got != 0 {
			return false
		}
		g := c.granule(k.off)
		if k.failed&both != 0 || k.digest[c.cfg.Self] != k.digest[id] {
			p.differ.Set(g)
			p.odds++
			return true
		}
		p.equal++
		p.todo.Clear(g)
		c.levelGranule(g, p, k.seq)
		return true
	})
}
