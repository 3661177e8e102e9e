package server

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"oneshot/config"
	"oneshot/ha/front"
	"oneshot/ha/keeper"
	"oneshot/ha/replica"
	"oneshot/internal/loglimit"
	"oneshot/mgmt"
)

// moving keeps the addresses that go with a mirror on this machine as long as its node is the primary, and no longer.
//
//	           leads, by Mirror.Leads
//	not here ───────────────────────────► here: added for 2 s, again each second, announced; former guests are tickled
//	   ▲                                    │
//	   ├── the lease has run out ───────────┤ at once
//	   └── another node was given the office┘ when that one says that it has them, or after Linger; initiators are
//	                                          told before
//
// A daemon that is killed or stopped prolongs nothing, so the keeper removes the addresses, or, without one, its kernel drops them by itself.
type moving struct {
	s      *mirrored
	by     holder
	wake   chan struct{} // has room for one
	taken  atomic.Bool   // another node says that it has them
	quiet  loglimit.Gate
	cut    loglimit.Gate  // of interfaces without a link
	tenure replica.Tenure // guarded by the goroutine of run

	mu   sync.Mutex
	held map[front.Address]*holding // guarded by mu, for status
}

// holding is an address that is here. Times are those of front.Now.
type holding struct {
	term    uint64 // in which it was added; in between another node may have had it, unnoticed here
	since   time.Duration
	renewed time.Duration
	told    int // announcements that were made
}

const (
	// farewellTime is how long initiators are waited for that are told to come back elsewhere.
	farewellTime = 20 * time.Millisecond
	// tickles is how many of the first announcements go with tickles.
	tickles = 3
	// retryTime is the time between two attempts after an error.
	retryTime = time.Second
	peerTime  = 2 * time.Second
	againTime = 10 * time.Second // guests are told of anew
)

// holder is who has the kernel hold addresses: the keeper, or this process itself.
type holder interface {
	// stay is for how long an address is held as of the time of a request, and the time between two requests.
	stay() (lifetime, renewal time.Duration)
	// hold adds an address, or prolongs its stay, as of a time of front.Now at which this node was the primary. It reports whether the address is
	// known to be new here.
	hold(a front.Address, asOf time.Duration) (isNew bool, err error)
	remove(a front.Address) error
	announce(a front.Address) error
	// tickle is front.Tickle with an address that is held.
	tickle(a front.Address, local, remote netip.AddrPort) error
	// listen returns the socket of a portal with such an address. The ones in old will be closed for it.
	listen(p *config.Portal, old ...*net.TCPListener) (*net.TCPListener, error)
}

// alone is the holder without a keeper.
type alone struct{}

func (alone) stay() (lifetime, renewal time.Duration) { return front.Lifetime, front.Lifetime / 2 }

func (alone) hold(a front.Address, _ time.Duration) (bool, error) { return false, a.Add() }
func (alone) remove(a front.Address) error                        { return a.Remove() }
func (alone) announce(a front.Address) error                      { return a.Announce() }

func (alone) tickle(_ front.Address, local, remote netip.AddrPort) error {
	return front.Tickle(local, remote)
}

func (alone) listen(p *config.Portal, old ...*net.TCPListener) (*net.TCPListener, error) {
	if missing := front.Missing(); missing != nil {
		return nil, fmt.Errorf("the address goes with the mirror %s, and this process may not add it to %s: it lacks %s; run target keeper and name it in the cluster (keeper), or give the unit AmbientCapabilities= and CapabilityBoundingSet= of these (systemctl edit)", p.Mirror, p.Interface, strings.Join(missing, " and "))
	}
	return listenAnywhere(p.Network(), p.Address(), old...)
}

// kept is the holder that is a keeper.
type kept struct{ *keeper.Client }

func (kept) stay() (lifetime, renewal time.Duration) { return keeper.Patience, keeper.Renewal }

func (k kept) hold(a front.Address, asOf time.Duration) (bool, error) { return k.Hold(a, asOf) }
func (k kept) remove(a front.Address) error                           { return k.Remove(a) }
func (k kept) announce(a front.Address) error                         { return k.Announce(a) }

func (k kept) tickle(a front.Address, local, remote netip.AddrPort) error {
	return k.Tickle(keeper.Portal{Address: a, Port: local.Port()}, remote)
}

func (k kept) listen(p *config.Portal, old ...*net.TCPListener) (*net.TCPListener, error) {
	return k.Listen(socketOf(p), func() (*net.TCPListener, error) { return listenAnywhere(p.Network(), p.Address(), old...) })
}

// socketOf is what the keeper calls a portal whose address moves.
func socketOf(p *config.Portal) keeper.Portal {
	return keeper.Portal{Address: addressOf(p), Port: p.Listen.Port()}
}

func addressOf(p *config.Portal) front.Address {
	return front.Address{IP: p.Listen.Addr(), Interface: p.Interface}
}

// listen returns the socket of a portal over TCP, whose address may go with a mirror. m may be nil if it does not.
func (m *member) listen(p *config.Portal, replaces []portal) (*net.TCPListener, error) {
	if p.Mirror == "" {
		return listenTCP(p.Network(), p.Address(), listeners(replaces)...)
	}
	if err := addressOf(p).Check(); err != nil {
		return nil, err
	}
	return m.holder.listen(p, listeners(replaces)...)
}

// guests returns the book of the connections through a portal; nil: its address does not move.
func (m *member) guests(p *config.Portal) *guestbook {
	if p.Mirror == "" {
		return nil
	}
	return m.books.of(p.Mirror)
}

func newMoving(s *mirrored) *moving {
	return &moving{s: s, by: s.member.holder, wake: make(chan struct{}, 1), held: make(map[front.Address]*holding)}
}

// look has the goroutine look at what has changed.
func (m *moving) look() {
	select {
	case m.wake <- struct{}{}:
	default:
	}
}

// addresses are those of the configuration.
func (m *moving) addresses() (list []front.Address) {
	for _, p := range *m.s.member.moving.Load() {
		if p.Mirror == m.s.name {
			list = append(list, addressOf(&p))
		}
	}
	return list
}

// begin removes what a former process may have left, and keeps the addresses until the mirror's ctx ends.
func (m *moving) begin() {
	for _, a := range m.addresses() {
		m.complain(m.by.remove(a))
	}
	m.s.wg.Go(func() {
		leads := m.s.Leads() > 0
		for m.s.Await(m.s.ctx, func(replica.State) bool { return m.s.Leads() > 0 != leads }) == nil {
			leads = !leads
			m.look()
		}
	})
	m.s.wg.Go(m.run)
	m.s.wg.Go(m.watchCarrier)
	for _, name := range m.s.record.Copies {
		if name != m.s.node {
			m.s.wg.Go(func() { m.tellGuests(name) })
		}
	}
}

func (m *moving) run() {
	for {
		t := time.NewTimer(m.do())
		select {
		case <-m.s.ctx.Done():
			t.Stop()
			return
		case <-m.wake:
		case <-t.C:
		}
		t.Stop()
	}
}

// do does what is due, and returns when to look again.
func (m *moving) do() time.Duration {
	leads, now := m.s.Leads(), front.Now()
	st := m.s.State()
	stay, again := m.tenure.Look(now, leads, &st, m.taken.Load())
	switch {
	case stay == replica.Here:
		m.taken.Store(false) // who says so says it late: it was before this node has led
		return min(m.keep(now), again)
	case len(m.here()) == 0:
		return retryTime
	case stay == replica.Lingers:
		return again
	case stay == replica.Hand:
		m.farewell()
	}
	m.drop()
	return retryTime
}

// here lists the addresses that this machine has.
func (m *moving) here() (list []front.Address) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for a := range m.held {
		list = append(list, a)
	}
	slices.SortFunc(list, func(a, b front.Address) int { return a.IP.Compare(b.IP) })
	return list
}

// keep adds, prolongs and announces the addresses of a primary, and returns when it is to be called again. It looks again before each of
// these whether this node leads: the process may have been stopped since, and another node have the addresses.
func (m *moving) keep(now time.Duration) time.Duration {
	lifetime, renewal := m.by.stay()
	list, next, term := m.addresses(), renewal, m.s.Term()
	for _, a := range m.here() {
		if !slices.Contains(list, a) {
			m.remove(a)
		}
	}
	isNew := false
	for _, a := range list {
		m.mu.Lock()
		h := m.held[a]
		m.mu.Unlock()
		if h == nil || h.term != term || now-h.renewed >= lifetime { // it is not here any more, or hosts may look for it elsewhere
			h = &holding{term: term, since: now, renewed: -lifetime}
		}
		if now-h.renewed >= renewal {
			if m.s.Leads() == 0 {
				return 0
			}
			added, err := m.by.hold(a, now)
			if err != nil {
				m.complain(err)
				m.forget(a, now)
				continue
			}
			if added {
				h.since, h.told = now, 0
			}
			isNew = isNew || added || h.renewed < 0
			h.renewed = now
			m.mu.Lock()
			m.held[a] = h
			m.mu.Unlock()
		}
		for h.told < len(front.Announcements) && now >= h.since+front.Announcements[h.told] {
			if m.s.Leads() == 0 {
				return 0
			}
			m.announce(a, h)
		}
		if h.told < len(front.Announcements) {
			next = min(next, h.since+front.Announcements[h.told]-now)
		}
		next = min(next, h.renewed+renewal-now)
	}
	if isNew {
		m.s.log.Info("this machine has the addresses of the mirror", "addresses", m.words())
		m.tellTaken()
	}
	return max(next, 0)
}

// announce tells the network, and those who were connected with the address at another node. One that has handed over tells
// them itself, first.
func (m *moving) announce(a front.Address, h *holding) {
	m.complain(m.by.announce(a))
	if h.told < tickles && (h.told > 0 || !m.s.State().View.Planned) {
		for _, g := range m.s.member.books.of(m.s.name).strangers(a.IP) {
			m.complain(m.by.tickle(a, g.Local, g.Remote))
		}
	}
	h.told++
}

// farewell tells the initiators to log in again at once. The successor has the addresses already.
func (m *moving) farewell() {
	book := m.s.member.books.of(m.s.name)
	changed, closed := book.read()
	defer closed()
	m.leave()
	for end := time.After(farewellTime); len(book.list()) > 0; {
		select {
		case <-changed:
		case <-end:
			return
		}
	}
}

// leave ends the connections with the addresses.
func (m *moving) leave() {
	for _, p := range *m.s.member.moving.Load() {
		if p.Mirror == m.s.name {
			m.s.member.leave(p.Listen.String())
		}
	}
}

// drop removes the addresses, and ends what is left of connections with them.
func (m *moving) drop() {
	list := m.here()
	if len(list) == 0 {
		return
	}
	words := m.words()
	for _, a := range list {
		m.remove(a)
	}
	m.leave()
	m.s.log.Info("the addresses of the mirror have left this machine", "addresses", words)
}

// forget notes that an address that could not be prolonged is not here any more, when the kernel has dropped it.
func (m *moving) forget(a front.Address, now time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if h := m.held[a]; h != nil && now-h.renewed >= front.Lifetime {
		delete(m.held, a)
	}
}

func (m *moving) remove(a front.Address) {
	m.complain(m.by.remove(a))
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.held, a)
}

// words lists the addresses that are here, for people.
func (m *moving) words() (list []string) {
	for _, a := range m.here() {
		list = append(list, a.String())
	}
	return list
}

// complain logs an error, at times.
func (m *moving) complain(err error) {
	if err == nil {
		return
	}
	if _, ok := m.quiet.Pass(time.Minute); ok {
		m.s.log.LogAttrs(context.Background(), slog.LevelError, "the addresses of a mirror could not be moved or announced", slog.Any("reason", err))
	}
}

// tellTaken tells the other nodes that this one has the addresses.
func (m *moving) tellTaken() {
	for _, name := range m.s.record.Copies {
		if name == m.s.node {
			continue
		}
		m.s.wg.Go(func() {
			ctx, cancel := context.WithTimeout(m.s.ctx, peerTime)
			defer cancel()
			c := m.s.member.peer(name)
			defer c.Close()
			_ = c.AddressesTaken(ctx, m.s.name) // who does not hear it waits for Linger
		})
	}
}

// tellGuests tells a node who is connected, whenever that changes while this one is the primary.
func (m *moving) tellGuests(name string) {
	book := m.s.member.books.of(m.s.name)
	changed, closed := book.read()
	defer closed()
	again := time.NewTicker(againTime)
	defer again.Stop()
	for told := 0; ; {
		select {
		case <-m.s.ctx.Done():
			return
		case <-changed:
		case <-again.C:
		}
		list := named(book.list(), m.s.member.nexuses())
		if m.s.Term() == 0 || len(list)+told == 0 {
			continue
		}
		ctx, cancel := context.WithTimeout(m.s.ctx, peerTime)
		c := m.s.member.peer(name)
		if c.KnowGuests(ctx, m.s.name, list) == nil { // else it is told again
			told = len(list)
		}
		c.Close()
		cancel()
	}
}

// KnowGuests implements mgmt.Peer.
func (h here) KnowGuests(name string, guests []mgmt.Guest) error {
	if h.local(name) == nil {
		return fmt.Errorf("node %s has no copy of %s open", h.member.name, name)
	}
	h.member.books.of(name).know(guests)
	return nil
}

// AddressesTaken implements mgmt.Peer.
func (h here) AddressesTaken(name string) error {
	if m := h.local(name); m != nil {
		m.front.taken.Store(true)
		m.front.look()
	}
	return nil
}

// handOver has other nodes serve the mirrors that this one serves, before they end, if some can.
func handOver(mirrors []*mirrored) {
	var wg sync.WaitGroup
	for _, m := range mirrors {
		if m.Term() == 0 {
			continue
		}
		wg.Go(func() {
			m.HandOver()
			for end := front.Now() + replica.Linger + farewellTime; m.Term() == 0 && len(m.front.here()) > 0 && front.Now() < end; {
				time.Sleep(time.Millisecond)
			}
		})
	}
	wg.Wait()
}
