package initiator

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"oneshot/iscsi/pdu"
	"oneshot/iscsi/text"
)

// Dial connects with the target that u names and logs in. ctx is for that alone.
func Dial(ctx context.Context, u URL, o Options) (*Session, error) {
	if u.Target == "" {
		return nil, fmt.Errorf("%v names no target (%s://host:port/iqn…/lun); list them: initiator ls", u, u.Transport)
	}
	return dial(ctx, u, o, false)
}

const (
	redirections = 4  // the most that are followed
	loginSteps   = 32 // the most requests of a login
)

func dial(ctx context.Context, u URL, o Options, discovery bool) (*Session, error) {
	if err := o.complete(&u); err != nil {
		return nil, err
	}
	for range redirections {
		s, err := attempt(ctx, u, o, discovery)
		moved, ok := errors.AsType[*movedError](err)
		if !ok {
			return s, err
		}
		if u.Address, err = address(moved.to, schemes[u.Transport].port); err != nil {
			return nil, fmt.Errorf("%v: the target has moved to an address that is none: %w", u, err)
		}
	}
	return nil, fmt.Errorf("%v: the target moves on and on", u)
}

// attempt connects and logs in at one address.
func attempt(ctx context.Context, u URL, o Options, discovery bool) (*Session, error) {
	s := &Session{
		url: u, opt: o, log: o.Logger, ended: make(chan struct{}),
		cmdSN: 1, slots: make([]*Command, o.Depth), calls: make(map[uint32]*call), callITT: firstITT,
	}
	for i := range o.Depth {
		s.free = append(s.free, uint16(o.Depth-1-i))
	}
	var err error
	if u.Transport == TCP {
		s.mover, err = dialTCP(ctx, s)
	} else {
		s.mover, err = dialRDMA(ctx, s)
	}
	if err != nil {
		return nil, fmt.Errorf("%v: %w", u, err)
	}
	if err = s.logIn(ctx, discovery); err != nil {
		s.stop(err)
		<-s.ended
		if _, ok := errors.AsType[*movedError](err); !ok {
			err = fmt.Errorf("%v: %w", u, err)
		}
		return nil, err
	}
	return s, nil
}

// logIn drives the login.
func (s *Session) logIn(ctx context.Context, discovery bool) error {
	l := newLogin(&s.url, &s.opt, discovery)
	out, transit := l.first()
	for range loginSteps {
		f := l.request(out, transit, s.cmdSN, s.expStatSN)
		s.mu.Lock()
		s.mover.control(f.AppendTo(nil), out)
		s.mover.flush()
		s.mu.Unlock()
		h, data, err := s.mover.receive(ctx)
		if err != nil {
			return err
		}
		if h.Opcode() != pdu.OpLoginResponse {
			return fmt.Errorf("the target answers a login with a %v", h.Opcode())
		}
		r, err := pdu.ParseLoginResponse(h)
		if err != nil {
			return err
		}
		var done bool
		if out, transit, done, err = l.step(r, data); err != nil {
			return err
		}
		// Later than 1 is what the target wants: its first StatSN is its own choice.
		s.expStatSN = r.StatSN() + 1
		s.maxCmdSN = h.MaxCmdSN()
		if done {
			s.agreed(l)
			return nil
		}
	}
	return errors.New("the login does not come to an end")
}

// agreed begins the full feature phase.
func (s *Session) agreed(l *login) {
	s.p = l.p
	s.immediate = l.immediate()
	s.burst = s.immediate
	if !s.p.InitialR2T {
		s.burst = int(s.p.FirstBurstLength)
	}
	s.p.MaxRecvDataSegmentLength = l.segment // of the target: the most that we send
	s.mover.enable(&s.p)
}

// Target is what discovery finds.
type Target struct {
	Name    string   `json:"name"`
	Portals []Portal `json:"portals"` // none: it is where it was asked for
}

// Portal is where a target can be reached.
type Portal struct {
	Address string `json:"address"` // host:port
	TPGT    string `json:"tpgt"`    // target portal group tag
}

// Discover asks the target at u, or if that names none the node, which targets there are
// (RFC 7143 appendix C).
func Discover(ctx context.Context, u URL, o Options) ([]Target, error) {
	s, err := dial(ctx, u, o, true)
	if err != nil {
		return nil, err
	}
	pairs, err := s.Text(ctx, text.Pair{Key: "SendTargets", Value: "All"})
	if err = errors.Join(err, s.Close()); err != nil {
		return nil, err
	}
	found := []Target{}
	for _, p := range pairs {
		switch p.Key {
		case "TargetName":
			found = append(found, Target{Name: p.Value, Portals: []Portal{}})
		case "TargetAddress":
			if len(found) > 0 {
				t := &found[len(found)-1]
				at, tag, _ := strings.Cut(p.Value, ",")
				t.Portals = append(t.Portals, Portal{at, tag})
			}
		}
	}
	return found, nil
}
