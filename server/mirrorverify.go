package server

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"oneshot/ha/mirror"
	"oneshot/ha/replica"
	"oneshot/mgmt"
)

// VerifyMirror implements mgmt.Mirrorer.
func (s *Server) VerifyMirror(ctx context.Context, name string, how mgmt.Verify) error {
	return s.atPrimary(name, func(m *mirrored, peer *mgmt.Client) error {
		if peer != nil {
			return peer.VerifyMirror(ctx, name, how)
		}
		return m.verify(how)
	})
}

// StopVerify implements mgmt.Mirrorer.
func (s *Server) StopVerify(ctx context.Context, name string) error {
	return s.atPrimary(name, func(m *mirrored, peer *mgmt.Client) error {
		if peer != nil {
			return peer.StopVerify(ctx, name)
		}
		m.StopVerify()
		return nil
	})
}

// Verified implements mgmt.Mirrorer.
func (s *Server) Verified(ctx context.Context, name string) (v *mgmt.Verification, err error) {
	err = s.atPrimary(name, func(m *mirrored, peer *mgmt.Client) (err error) {
		if peer != nil {
			v, err = peer.Verified(ctx, name)
		} else {
			v, err = m.verified()
		}
		return err
	})
	return v, err
}

// VerifyMirror implements mgmt.Mirrorer.
func (h here) VerifyMirror(_ context.Context, name string, how mgmt.Verify) error {
	m, err := h.localPrimary(name)
	if err != nil {
		return err
	}
	return m.verify(how)
}

// StopVerify implements mgmt.Mirrorer.
func (h here) StopVerify(_ context.Context, name string) error {
	m, err := h.localPrimary(name)
	if err == nil {
		m.StopVerify()
	}
	return err
}

// Verified implements mgmt.Mirrorer.
func (h here) Verified(_ context.Context, name string) (*mgmt.Verification, error) {
	m, err := h.localPrimary(name)
	if err != nil {
		return nil, err
	}
	return m.verified()
}

// verify begins to compare the copies, and has the result in the log.
func (s *mirrored) verify(how mgmt.Verify) error {
	st, ok := s.Status()
	if !ok {
		return fmt.Errorf("the mirror %s is being closed on this node", s.name)
	}
	var trust replica.Nodes
	if how.From != "" {
		id := s.idOf(how.From)
		switch {
		case id == 0:
			return &mgmt.NotFoundError{What: fmt.Sprintf("node %s has no copy of %s: nodes %s have", how.From, s.name, strings.Join(s.record.Copies, ", "))}
		case !st.View.InSync.Has(id):
			c := s.copyStatus(&st, id, how.From)
			return fmt.Errorf("the copy of %s cannot be the right one: it is %s", how.From, copyText(&c))
		}
		trust = trust.With(id)
	}
	if st.View.InSync.Len() < 2 {
		return fmt.Errorf("there is nothing to compare: %s; wait until target ha status shows another copy in sync", s.copiesText(&st))
	}
	err := s.StartVerify(how.Repair, trust, s.tellVerified)
	if errors.Is(err, mirror.ErrVerifying) {
		return fmt.Errorf("the copies of %s are being compared already: target ha verify %[1]s --progress shows how far that is, and --stop ends it", s.name)
	}
	return err
}

// tellVerified puts the result of a comparison into the log.
func (s *mirrored) tellVerified(v *mirror.Verification) {
	log := s.log.With("mirror", s.name, "bytes", v.Done, "of", v.Total, "took", v.Ended.Sub(v.Began))
	for i := range v.Found {
		f := &v.Found[i]
		s.log.Warn("copies of a mirror differ", "mirror", s.name, "offset", f.Off, "length", f.Len, "odd", s.names(f.Odd), "unreadable", s.names(f.Unreadable), "known", f.Known, "repaired", f.Repair)
	}
	switch {
	case v.Err != nil:
		log.Warn("the copies of a mirror were not compared to the end", "reason", v.Err)
	case v.Differ > 0:
		log.Error("the copies of a mirror differ", "ranges", v.Differ, "repaired", v.Repaired, "unknown", v.Unknown, "unreadable", v.Unreadable, "failed", v.Failed)
	case v.Stopped && v.Done < v.Total:
		log.Info("the comparison of the copies of a mirror was stopped; what was compared is equal")
	default:
		log.Info("the copies of a mirror are equal")
	}
}

func (s *mirrored) verified() (*mgmt.Verification, error) {
	v := s.Verification()
	if v == nil {
		return nil, &mgmt.NotFoundError{What: fmt.Sprintf("node %s has not compared the copies of %s since it began", s.nodeName(s.self), s.name)}
	}
	return s.verification(v), nil
}

// verification says it in the administrator's terms.
func (s *mirrored) verification(v *mirror.Verification) *mgmt.Verification {
	m := &mgmt.Verification{
		Primary: s.nodeName(s.self), Began: v.Began, Ended: v.Ended, Stopped: v.Stopped, Done: v.Done, Total: v.Total, Differ: v.Differ, Bytes: v.Bytes,
		Repaired: v.Repaired, Unknown: v.Unknown, Unreadable: v.Unreadable, Failed: v.Failed,
		Verify: mgmt.Verify{Repair: v.Repair, From: strings.Join(s.names(v.Trust), ",")},
	}
	if left, ok := errors.AsType[*mirror.LeftError](v.Err); ok {
		m.Error = fmt.Sprintf("the copy of %s is not in sync any more", strings.Join(s.names(left.Nodes), ", "))
	} else if v.Err != nil {
		m.Error = v.Err.Error()
	}
	for _, f := range v.Found {
		m.Differences = append(m.Differences, mgmt.Difference{Offset: f.Off, Length: f.Len, Odd: s.names(f.Odd), Unreadable: s.names(f.Unreadable), Known: f.Known})
	}
	return m
}

// names returns the names of nodes.
func (s *mirrored) names(n replica.Nodes) (names []string) {
	for id := range n.All() {
		names = append(names, s.nodeName(id))
	}
	return names
}
