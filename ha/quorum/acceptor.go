package quorum

import (
	"bufio"
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"time"
)

// incoming is a connection of a member that was admitted.
type incoming struct {
	conn  net.Conn
	nonce uint64
	heard time.Time
}

// hears says whether another life of a member is connected and was heard a moment ago. Owner only.
func (n *Node) hears(h Hello) bool {
	in := n.incoming[h.Number]
	return in != nil && in.nonce != h.Nonce && n.isHeard(in)
}

// isHeard says whether something came a moment ago. Owner only.
func (n *Node) isHeard(in *incoming) bool {
	return time.Since(in.heard) < 2*electionTicks*time.Duration(n.core.pace)*tickTime
}

// acceptor takes connections of members and of those who join.
type acceptor struct {
	n       *Node
	config  *tls.Config
	streams *tls.Config // of who dials a stream

	mu        sync.Mutex
	listeners map[string]*StreamListener // by name of their streams; guarded by mu

	conns map[net.Conn]bool // guarded by mu; true: of a member that was admitted
	guest []net.Conn        // guarded by mu; those of others, oldest first
	ended bool              // guarded by mu
}

func newAcceptor(n *Node, id *Identity) (*acceptor, error) {
	config, err := id.tlsConfig()
	if err != nil {
		return nil, err
	}
	streams := config.Clone()
	streams.DynamicRecordSizingDisabled = true
	former := map[string]*tls.Config{}
	for _, g := range id.Former {
		if former[generationName(g.Authority)], err = (&Identity{Key: g.Key, Cert: g.Cert, Authority: g.Authority}).tlsConfig(); err != nil {
			return nil, err
		}
	}
	config.GetConfigForClient = func(h *tls.ClientHelloInfo) (*tls.Config, error) { return former[h.ServerName], nil }
	return &acceptor{n: n, config: config, streams: streams, conns: map[net.Conn]bool{}, listeners: map[string]*StreamListener{}}, nil
}

func (a *acceptor) accept() {
	for {
		conn, err := a.n.opts.Listener.Accept()
		if err != nil {
			if a.n.ctx.Err() != nil {
				return
			}
			a.n.opts.Log.Error("connections of other nodes cannot be accepted", "reason", err)
			select {
			case <-a.n.ctx.Done():
				return
			case <-time.After(lastPause):
			}
			continue
		}
		if !a.add(conn) {
			_ = conn.Close()
			continue
		}
		a.n.wg.Go(func() {
			defer a.drop(conn)
			if err := a.serve(conn); err != nil && a.n.ctx.Err() == nil {
				a.n.opts.Log.Debug("a connection of another node has ended", "address", conn.RemoteAddr(), "reason", err)
			}
		})
	}
}

// add takes a connection. When all places are in use the oldest of those who have proved nothing gives way.
func (a *acceptor) add(c net.Conn) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.ended || len(a.conns) >= maxConns && len(a.guest) == 0 {
		return false
	}
	if len(a.conns) >= maxConns {
		a.remove(a.guest[0])
	}
	a.conns[c], a.guest = false, append(a.guest, c)
	return true
}

// admit keeps the place of a connection.
func (a *acceptor) admit(c net.Conn) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if _, ok := a.conns[c]; ok {
		a.conns[c] = true
		a.guest = slices.DeleteFunc(a.guest, func(g net.Conn) bool { return g == c })
	}
}

func (a *acceptor) drop(c net.Conn) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.remove(c)
}

// remove closes a connection. mu is held.
func (a *acceptor) remove(c net.Conn) {
	_ = c.Close()
	a.forget(c)
}

// forget lets another connection have its place. mu is held.
func (a *acceptor) forget(c net.Conn) {
	delete(a.conns, c)
	a.guest = slices.DeleteFunc(a.guest, func(g net.Conn) bool { return g == c })
}

func (a *acceptor) closeAll() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.ended = true
	for c := range a.conns {
		_ = c.Close()
	}
}

// serve hears a member, or lets somebody join. Who has no certificate gets nothing but the answer to that.
func (a *acceptor) serve(raw net.Conn) error {
	var before map[uint64]Seen // a member makes its hello after the handshake
	if !a.n.do(func() { before = a.n.core.Seen() }) {
		return context.Canceled
	}
	g := newGathered(raw)
	conn := tls.Server(g, a.config)
	defer func() { _ = conn.Close() }()
	_ = conn.SetDeadline(time.Now().Add(handshakeIn))
	if err := conn.Handshake(); err != nil {
		return err
	}
	state := conn.ConnectionState()
	if state.NegotiatedProtocol != protocolName {
		return errors.New("it does not speak this protocol")
	}
	r := bufio.NewReader(conn)
	kind, b, err := readFrame(r, maxGreeting)
	if err != nil {
		return err
	}
	number, name, isMember := memberOf(&state)
	switch {
	case state.ServerName != "" && state.ServerName != a.config.ServerName:
		err := formerError(a.n.core.log.id.Name)
		_, _ = conn.Write(refusal(err)) // it asks again
		a.n.opts.Log.Warn("a node of a former generation of the cluster was refused", "node", name)
		return err
	case kind == frameJoin && !isMember:
		return a.join(conn, b)
	case kind == frameHello && isMember:
		return a.hear(raw, conn, r, number, name, before[number], b)
	case kind == frameStream && isMember:
		return a.stream(raw, g, conn, r, number, b)
	}
	return fmt.Errorf("a frame of type %d came first", kind)
}

// hear takes messages of a member to their end.
func (a *acceptor) hear(raw, conn net.Conn, r *bufio.Reader, number uint64, name string, before Seen, b []byte) error {
	h, err := decodeHello(b)
	if err != nil {
		return err
	}
	if h.Number != number {
		return fmt.Errorf("node %d says that it is number %d", number, h.Number)
	}
	n := a.n
	in := &incoming{conn: conn, nonce: h.Nonce, heard: time.Now()}
	var own Hello
	var back *peer
	isUnmet, refused := false, context.Canceled
	n.do(func() {
		own = n.core.Hello()
		refused = n.core.Admit(h, before, n.hears(h), false)
		if _, isUnmet = errors.AsType[*UnmetError](refused); !isUnmet && refused != nil {
			return
		}
		n.meet(number, name)
		if back = n.peers[number]; back == nil {
			isUnmet, refused = false, context.Canceled // this node ends
		}
		if refused != nil {
			return
		}
		if old := n.incoming[number]; old != nil {
			_ = old.conn.Close()
		}
		n.incoming[number] = in
		back.isNew()
	})
	if isUnmet {
		_, err := conn.Write(unmet(own, refused))
		back.dialNow()
		return cmp.Or(err, refused)
	}
	if refused != nil {
		_, err := conn.Write(refusal(refused))
		n.opts.Log.Warn("a node was refused", "node", name, "reason", refused)
		return err
	}
	defer n.do(func() {
		if n.incoming[number] == in {
			delete(n.incoming, number)
		}
	})
	a.admit(raw)
	if _, err := conn.Write(frame(frameHello, own.encode())); err != nil {
		return err
	}
	back.dialNow() // it knows this life now
	_ = conn.SetWriteDeadline(time.Time{})
	r = bufio.NewReader(io.MultiReader(io.LimitReader(r, int64(r.Buffered())), patient{conn}))
	var whole parts
	for {
		kind, b, err := readFrame(r, maxFrame)
		if err == nil && kind == framePart {
			kind, b, err = whole.take(b)
		}
		if err != nil {
			return err
		}
		var m Message
		var said *beat
		rtt := time.Duration(-1)
		switch kind {
		case 0: // a part, and not the last one
		case frameIdle:
			if said, err = decodeBeat(b); err != nil {
				said = &beat{} // it is of another version, and says nothing that this one knows
			}
			rtt = back.beats(said)
		case frameMessage:
			if m, err = decodeMessage(b, number); err != nil {
				return err
			}
		default:
			return fmt.Errorf("a frame of type %d came", kind)
		}
		take := n.post
		if len(b) > partSize { // no more than one that is long waits for the owner
			take = n.do
		}
		if !take(func() {
			in.heard = time.Now()
			switch {
			case n.incoming[number] != in:
			case said != nil:
				if n.core.Reported(number, said.Report, rtt) {
					n.stuckTurned()
				}
			case m.Raft != nil:
				n.core.Receive(m)
			}
		}) {
			return nil
		}
	}
}
