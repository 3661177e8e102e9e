package sim

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"oneshot/ha/replica"
)

// Moments is the number of all faults together that end a node right after it has done something of weight. Others have numbers from 1 on, in the order in
// which they happen.
const Moments = 0

// Fault is one that has happened.
type Fault struct {
	No          int
	At          time.Duration
	kind        int
	node, other replica.ID
	length      time.Duration
}

func (f Fault) String() string {
	return fmt.Sprintf("%d: %s at node %d from %.3f s on for %v", f.No, faultNames[f.kind], f.node, f.At.Seconds(), f.length)
}

// planned returns what a fault is that was drawn: in a world without some of its faults the others are what they were.
func (r *run) planned(f Fault) Fault {
	if r.plan != nil {
		f = r.plan[f.No-1]
	}
	r.Happened = append(r.Happened, f)
	return f
}

// until returns how long it takes until a fault, if it is drawn to be d.
func (r *run) until(no int, d time.Duration) time.Duration {
	if no <= len(r.plan) {
		return r.plan[no-1].At - r.now
	}
	return d
}

// isLeftOut says whether a fault does not happen.
func (r *run) isLeftOut(no int) bool { return slices.Contains(r.Without, no) }

// Shrunk is a world that fails as another one does, with fewer faults.
type Shrunk struct {
	Without   []int   // of the faults of the other one
	Left      []Fault // those that are left, until it fails
	Moments   bool    // nodes end right after something of weight, too
	Violation *Violation
	Runs      int
}

// Shrink drops faults of a world that fails with v as long as it still fails with the same invariant: half of them, a quarter, and so on, and in the
// end each one, until the time is over.
func Shrink(o Options, v *Violation, limit time.Duration) Shrunk {
	began := time.Now()
	o.Without, o.Log = nil, nil
	whole := Run(o)
	s := Shrunk{Violation: v, Moments: true, Runs: 1}
	// What was to come after the violation does not happen. What is left is one list, in which Moments is the first.
	left := []int{Moments}
	for i := range whole.Happened {
		left = append(left, whole.Happened[i].No)
	}
	o.plan = append([]Fault{}, whole.Happened...)
	try := func(without []int) bool {
		o.Without = slices.Sorted(slices.Values(append(slices.Clone(s.Without), without...)))
		s.Runs++
		x := Run(o).Violation
		if x == nil || x.Invariant != v.Invariant {
			return false
		}
		s.Without, s.Violation = o.Without, x
		return true
	}
	for size := (len(left) + 1) / 2; size > 0; {
		dropped := false
		for at := 0; at < len(left) && time.Since(began) < limit; {
			part := left[at:min(at+size, len(left))]
			if try(part) {
				left = slices.Delete(left, at, at+len(part))
				dropped = true
			} else {
				at += size
			}
		}
		if time.Since(began) >= limit || size == 1 && !dropped {
			break
		}
		size = max(1, size/2)
	}
	s.Moments = slices.Contains(left, Moments)
	for _, f := range whole.Happened {
		if slices.Contains(left, f.No) && f.At <= s.Violation.At {
			s.Left = append(s.Left, f)
		}
	}
	return s
}

// String says what is left, and how to have it again.
func (s *Shrunk) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "ONESHOT_SIM_WITHOUT=%s", ListOf(s.Without))
	fmt.Fprintf(&b, " fails, too, with %d faults, ends of nodes at moments of weight: %v (%d worlds were tried): %v", len(s.Left), s.Moments, s.Runs, s.Violation)
	for _, f := range s.Left {
		fmt.Fprintf(&b, "\n\t%v", f)
	}
	return b.String()
}

// ListOf writes numbers as ParseList reads them: 0,3-7.
func ListOf(list []int) string {
	var parts []string
	for i := 0; i < len(list); {
		k := i
		for k+1 < len(list) && list[k+1] == list[k]+1 {
			k++
		}
		if k == i {
			parts = append(parts, fmt.Sprint(list[i]))
		} else {
			parts = append(parts, fmt.Sprintf("%d-%d", list[i], list[k]))
		}
		i = k + 1
	}
	return strings.Join(parts, ",")
}

// ParseList reads numbers, and ranges of them.
func ParseList(s string) (list []int, err error) {
	for part := range strings.SplitSeq(s, ",") {
		var from, to int
		if n, _ := fmt.Sscanf(part, "%d-%d", &from, &to); n == 1 {
			to = from
		} else if n != 2 || to < from || to-from > 10000 {
			return nil, fmt.Errorf("%q is no number and no range of them", part)
		}
		for i := from; i <= to; i++ {
			list = append(list, i)
		}
	}
	return list, nil
}
