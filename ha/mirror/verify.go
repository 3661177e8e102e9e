package mirror

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"oneshot/ha/replica"
)

// Verification is how the copies compare, or have compared: where there are several numbers, they count ranges.
type Verification struct {
	Began   time.Time
	Ended   time.Time // zero: it goes on
	Stopped bool      // before everything was compared
	Err     error     // why it was given up
	Repair  bool
	Trust   replica.Nodes
	Done    int64 // bytes that were looked at
	Total   int64

	Differ     int // or cannot be read by all
	Bytes      int64
	Repaired   int
	Unknown    int             // nobody knows who is right
	Unreadable int             // that a disk refuses to read
	Failed     int             // could not be repaired: who was right went away, or cannot read them any more
	Found      []replica.Found // the first ones
}

// maxFound bounds the ranges that a Verification names.
const maxFound = 100

// LeftError ends a comparison: these nodes were in sync when it began, and have left. What is left of it would be compared without their copies.
type LeftError struct{ Nodes replica.Nodes }

func (e *LeftError) Error() string {
	return fmt.Sprintf("copies of nodes %v are not in sync any more", slices.Collect(e.Nodes.All()))
}

// ErrVerifying: the copies are being compared already.
var ErrVerifying = errors.New("the copies are being compared already")

type verification struct {
	Verification
	id      uint64
	over    chan struct{} // closed at the end; the rest stays as it is then
	tell    func(*Verification)
	members replica.Nodes // that are compared
	left    error         // of those, when some have left
}

// hasLeft notes whether a copy has left that was to be compared, and returns that.
func (v *verification) hasLeft(inSync replica.Nodes) error {
	if left := v.members &^ inSync; left != 0 && v.left == nil {
		v.left = &LeftError{left}
	}
	return v.left
}

// lookAtVerified ends the comparison under way if a copy has left that was to be compared.
func (m *Mirror) lookAtVerified() {
	if v := m.verifying; v != nil && m.core != nil && v.left == nil && v.hasLeft(m.core.State().View.InSync) != nil {
		m.step(replica.StopVerify{})
	}
}

// add takes a range that differs. One that could not be repaired comes twice.
func (v *verification) add(f *replica.Found) {
	if v.Repair && f.Known && !f.Repair {
		v.Repaired--
		v.Failed++
		return
	}
	v.Differ++
	v.Bytes += f.Len
	switch {
	case f.Repair:
		v.Repaired++
	case !f.Known:
		v.Unknown++
	}
	if f.Unreadable != 0 {
		v.Unreadable++
	}
	if len(v.Found) < maxFound {
		v.Found = append(v.Found, *f)
	}
}

// beginVerify compares the copies in sync while hosts go on, and with repair mends what differs where it is known who is right:
// those that trust names, otherwise the majority, or the only ones that can be read. Only the primary does it, once at a
// time.
func (m *Mirror) beginVerify(repair bool, trust replica.Nodes, over func(*Verification)) (v *verification, err error) {
	done := make(chan struct{})
	asked := m.push(item{call: func() {
		defer close(done)
		switch {
		case m.core == nil || m.closing || m.core.State().Role != replica.Primary:
			err = m.moved()
		case m.verifying != nil:
			err = ErrVerifying
		default:
			v = &verification{id: m.orderID(), over: make(chan struct{}), tell: over, members: m.core.State().View.InSync, Verification: Verification{Began: time.Now(), Repair: repair, Trust: trust}}
			m.verifying = v
			m.step(replica.Verify{ID: v.id, Repair: repair, Trust: trust})
		}
	}})
	if !asked {
		return nil, m.moved()
	}
	<-done
	return v, err
}

// Verify compares the copies, as beginVerify says, and returns the result. With the end of ctx it goes on, and returns.
func (m *Mirror) Verify(ctx context.Context, repair bool, trust replica.Nodes) (*Verification, error) {
	v, err := m.beginVerify(repair, trust, nil)
	if err != nil {
		return nil, err
	}
	select {
	case <-v.over:
		return &v.Verification, v.Err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// StartVerify begins to compare the copies, and calls over with the result, in the goroutine that owns the core.
func (m *Mirror) StartVerify(repair bool, trust replica.Nodes, over func(*Verification)) error {
	_, err := m.beginVerify(repair, trust, over)
	return err
}

// StopVerify ends a comparison under way, when what it has begun is done.
func (m *Mirror) StopVerify() {
	m.push(item{call: func() {
		if v := m.verifying; v != nil {
			v.Stopped = true
			m.step(replica.StopVerify{})
		}
	}})
}

// SetPace says how fast copies are brought level and compared from now on, while this node is the primary.
func (m *Mirror) SetPace(p replica.Pace) { m.push(item{event: p}) }

// Verification returns the comparison under way, or the last one of this node's life; nil: there was none.
func (m *Mirror) Verification() (v *Verification) {
	done := make(chan struct{})
	if !m.push(item{call: func() {
		defer close(done)
		if m.verifying == nil {
			v = m.verified
			return
		}
		now := m.verifying.Verification
		now.Found = append([]replica.Found(nil), now.Found...)
		now.Done, now.Total = m.core.Verified()
		v = &now
	}}) {
		return nil
	}
	<-done
	return v
}

// endVerify ends the comparison under way.
func (m *Mirror) endVerify(err error) {
	v := m.verifying
	if v == nil {
		return
	}
	m.verifying = nil
	if m.core != nil {
		v.Done, v.Total = m.core.Verified()
	}
	v.Ended, v.Err = time.Now(), err
	m.verified = &v.Verification
	close(v.over)
	if v.tell != nil {
		v.tell(m.verified)
	}
}
