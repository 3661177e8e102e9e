package integrity

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"oneshot/initiator"
	"oneshot/iscsi/pdu"
)

// host is an initiator port. It makes a new session when the old one is lost, with the same name and
// ISID, so that the target ends the commands of the old session before the new login succeeds.
type host struct {
	run  *run
	name string
	url  initiator.URL
	opt  initiator.Options

	mu      sync.Mutex
	session *initiator.Session // guarded by mu; nil: not logged in
	lost    []func()           // guarded by mu; called when the commands of lost sessions have ended
	down    bool               // guarded by mu; no login before up is called
	changed sync.Cond          // of mu: down is false again, or the session is there
	dialing bool               // guarded by mu; one worker logs in, the others wait
}

func newHost(r *run, number int, url string, opt initiator.Options) (*host, error) {
	u, err := initiator.ParseURL(url)
	if err != nil {
		return nil, err
	}
	h := &host{run: r, url: u, opt: opt, name: fmt.Sprintf("iqn.2026-11.example.oneshot:host%d", number)}
	h.opt.InitiatorName = h.name
	h.opt.ISID = pdu.ISID{0x80, 0, 0, 0, 0, byte(number)}
	h.changed.L = &h.mu
	return h, nil
}

// use returns the session, and makes it if there is none.
func (h *host) use(ctx context.Context) (*initiator.Session, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for h.session == nil {
		switch {
		case ctx.Err() != nil:
			return nil, ctx.Err()
		case h.down || h.dialing:
			h.changed.Wait()
		default:
			if err := h.login(ctx); err != nil {
				return nil, err
			}
		}
	}
	return h.session, nil
}

// login tries once. It returns an error if trying again is useless. mu is held, but not while it waits
// for the target.
func (h *host) login(ctx context.Context) error {
	h.dialing = true
	before := h.lost
	h.lost = nil
	h.mu.Unlock()
	s, err := initiator.Dial(ctx, h.url, h.opt)
	h.mu.Lock()
	h.dialing = false
	h.changed.Broadcast()
	if err != nil {
		h.lost = append(before, h.lost...)
		if e, refused := errors.AsType[*initiator.LoginError](err); refused && e.Status.Class() == 2 {
			return err
		}
		return nil // the link cuts logins, too
	}
	h.session = s
	h.run.logins.Add(1)
	for _, over := range before {
		over()
	}
	return nil
}

// drop notes that s is lost. It calls over when the commands of s have ended, too.
func (h *host) drop(s *initiator.Session, over func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.session == s {
		h.session = nil
	}
	if over != nil {
		h.lost = append(h.lost, over)
	}
}

// rest keeps the host from logging in, and up lets it again. The target has ended in between, so
// the commands of lost sessions are over.
func (h *host) rest() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.down = true
}

func (h *host) up() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.down = false
	h.changed.Broadcast()
}

// close logs out.
func (h *host) close() {
	h.mu.Lock()
	s := h.session
	h.session = nil
	h.mu.Unlock()
	if s != nil {
		_ = s.Close() // the link may have cut it
	}
}

// wake wakes the goroutines that wait.
func (h *host) wake() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.changed.Broadcast()
}
