package server

import (
	"encoding/hex"
	"net"
	"net/netip"
	"sync"

	"oneshot/iscsi"
	"oneshot/iscsi/pdu"
	"oneshot/mgmt"
)

// guestbook has the connections with the addresses that go with a mirror, so that the node that gets these next can tell the
// initiators.
type guestbook struct {
	mu      sync.Mutex
	here    map[mgmt.Guest]bool // guarded by mu, as all of these
	readers []chan struct{}     // have room for one: something has changed
	known   []mgmt.Guest        // what the primary has told of
}

// guestbooks are those of all mirrors, by name. They stay as long as the process, as connections may that are not ours any more.
type guestbooks struct {
	mu    sync.Mutex
	books map[string]*guestbook // guarded by mu
}

func (g *guestbooks) of(mirror string) *guestbook {
	g.mu.Lock()
	defer g.mu.Unlock()
	b := g.books[mirror]
	if b == nil {
		if g.books == nil {
			g.books = make(map[string]*guestbook)
		}
		b = &guestbook{here: make(map[mgmt.Guest]bool)}
		g.books[mirror] = b
	}
	return b
}

// visitor is somebody who is connected, or asks to be.
type visitor interface {
	LocalAddr() net.Addr
	RemoteAddr() net.Addr
}

// enter notes a connection until leave is called. b may be nil.
func (b *guestbook) enter(c visitor) (leave func()) {
	local, err := netip.ParseAddrPort(c.LocalAddr().String())
	remote, err2 := netip.ParseAddrPort(c.RemoteAddr().String())
	if b == nil || err != nil || err2 != nil {
		return func() {}
	}
	g := mgmt.Guest{Local: local, Remote: remote}
	b.set(g, true)
	return func() { b.set(g, false) }
}

func (b *guestbook) set(g mgmt.Guest, is bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if is {
		b.here[g] = true
	} else {
		delete(b.here, g)
	}
	b.change()
}

// arrived says that a connection has a session now.
func (b *guestbook) arrived() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.change()
}

// returns says, once, whether an initiator port had a session at an address of another node's.
func (b *guestbook) returns(local, initiator string, isid pdu.ISID) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	id := hex.EncodeToString(isid[:])
	for i, g := range b.known {
		if g.Initiator == initiator && g.ISID == id && g.Local.String() == local {
			b.known[i].Initiator = ""
			return true
		}
	}
	return false
}

// named puts the names of initiator ports into a list of connections.
func named(list []mgmt.Guest, sessions []iscsi.SessionInfo) []mgmt.Guest {
	at := make(map[[2]string]*iscsi.SessionInfo)
	for i := range sessions {
		for _, c := range sessions[i].Connections {
			at[[2]string{c.Local, c.Peer}] = &sessions[i]
		}
	}
	for i := range list {
		if s := at[[2]string{list[i].Local.String(), list[i].Remote.String()}]; s != nil && s.Target != "" {
			list[i].Initiator, list[i].ISID = s.Initiator, hex.EncodeToString(s.ISID[:])
		}
	}
	return list
}

// change tells the readers. mu is held.
func (b *guestbook) change() {
	for _, r := range b.readers {
		select {
		case r <- struct{}{}:
		default:
		}
	}
}

// read returns a channel that says when the book has changed, until closed.
func (b *guestbook) read() (changed chan struct{}, closed func()) {
	changed = make(chan struct{}, 1)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.readers = append(b.readers, changed)
	return changed, func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		for i, r := range b.readers {
			if r == changed {
				b.readers = append(b.readers[:i:i], b.readers[i+1:]...)
				break
			}
		}
	}
}

// list returns who is connected here, MaxGuests at most.
func (b *guestbook) list() (all []mgmt.Guest) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for g := range b.here {
		if len(all) < mgmt.MaxGuests {
			all = append(all, g)
		}
	}
	return all
}

// know takes what the primary has told of.
func (b *guestbook) know(guests []mgmt.Guest) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.known = guests
}

// count returns how many are connected here, or, as the primary has told, there.
func (b *guestbook) count(here bool) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	if here {
		return len(b.here)
	}
	return len(b.known)
}

// strangers returns those who were connected with an address at another node, as this one knows.
func (b *guestbook) strangers(ip netip.Addr) (all []mgmt.Guest) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, g := range b.known {
		if g.Local.Addr() == ip && g.Remote.Addr().Is4() == ip.Is4() && !b.here[mgmt.Guest{Local: g.Local, Remote: g.Remote}] {
			all = append(all, g)
		}
	}
	return all
}
