package quorum

import (
	"math"
	"slices"
	"time"
)

// rate compares the clock of another machine with that of this one, by the beats that come. Leases of mirrors bear a difference of 16 %, so people are told long before.
//
// A beat is late by an unknown time, so of each minute the one counts that was late least, and its distance to that of the minute before. A clock that is
// wrong is so in each minute, by the same; a machine that was stopped, with or without its clocks, is in one.
type rate struct {
	ends  uint64 // the minute, by the clock of this machine, ns; 0: no beat has come
	least moment // of this minute
	last  moment // of the minute before; zero: there was none
	found []float64
}

// moment is when a beat was sent, by the clock of who has sent it, and when it came, by that of this machine; ns.
type moment struct{ sent, came uint64 }

const (
	rateMinute = uint64(time.Minute)
	ratesKept  = 5     // minutes that have to agree
	rateWrong  = 0.005 // what people are told of: ten times what NTP corrects a clock by for long
)

// add takes a beat. After a minute without one it begins anew.
func (r *rate) add(m moment) {
	switch {
	case r.ends == 0 || m.came >= r.ends+rateMinute:
		*r = rate{ends: m.came + rateMinute, least: m}
	case m.came >= r.ends:
		if r.last != (moment{}) {
			r.found = append(r.found, float64(r.least.sent-r.last.sent)/float64(r.least.came-r.last.came)-1)
			r.found = r.found[max(len(r.found)-ratesKept, 0):]
		}
		r.last, r.least = r.least, m
		r.ends += rateMinute
	case int64(m.sent-r.least.sent) > int64(m.came-r.least.came):
		r.least = m
	}
}

// wrong returns by how much the other clock is faster than this one, as a part of 1, less than 0 if it is slower; 0 if that is nothing to tell people.
func (r *rate) wrong() float64 {
	if len(r.found) < ratesKept {
		return 0
	}
	least, most := slices.Min(r.found), slices.Max(r.found)
	// The minutes agree if they differ by half of what is wrong: at 0.5 %, by 150 ms of what the quickest beats of two minutes are late.
	if mean := (least + most) / 2; math.Abs(mean) >= rateWrong && most-least <= math.Abs(mean)/2 {
		return mean
	}
	return 0
}
