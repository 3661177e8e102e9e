// Package fabric connects nodes that know each other by queue pairs: messages are Sends, and what belongs into the other node's
// memory is written there by RDMA, to the address that it has here.
//
//	dialing node                                      accepting node
//	Connect(Invitation) ◄── over TLS, by the caller ── Offer
//	   │ secret, name of the arena ──── MPA Request ──────► Accept
//	   │ ◄─── MPA Reply ──── proof
//	  Link ◄──── Writes into arenas, Reads, Sends ──────► Link
//
//	fabric.go   who may connect
//	arena.go    memory, and who may write to it
//	key.go      the same over devices that choose the names of memory themselves
//	link.go     a connection: what it is made of, what comes, how it ends
//	send.go     what leaves
//
// Who connects names a secret that is good once, which it has got over a connection with proof of identity, and hears another one
// from there. A stranger has no queue pair before that: his request is refused. What follows is neither encrypted nor authenticated
// octet by octet.
package fabric

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"

	"oneshot/internal/loglimit"
	"oneshot/transport/rdma"
)

// Config says what a Fabric is made of.
type Config struct {
	Device   rdma.Device   // the Fabric owns it
	Listener rdma.Listener // of the device; the Fabric owns it
	Address  string        // at which other nodes reach the listener
	Logger   *slog.Logger  // nil: silence
	// Again, if set, opens the device and listens as before, when the device was lost. It is called until it succeeds.
	Again func() (rdma.Device, rdma.Listener, error)
}

// Fabric is this node's end of all connections. Its methods may be called from any goroutine.
type Fabric struct {
	cfg     Config
	log     *slog.Logger
	tells   bool          // the device chooses the STags of memory, so peers are told: see key.go
	guards  bool          // a peer could do harm with the STag of a Read's sink
	device  string        // its name
	over    chan struct{} // closed by Close
	serving sync.WaitGroup
	strange loglimit.Gate

	mu     sync.Mutex // a leaf
	offers map[secret]*Offer
	arenas map[uint32]bool // indexes in use
	card   *card           // nil: it is lost
	closed bool
}

// card is a device that is open.
type card struct {
	rdma.Device
	listener rdma.Listener
	links    sync.WaitGroup // those made of it, which are added while Fabric.mu is held, and it is the Fabric's
}

type secret [32]byte

// New makes a Fabric, which takes connections that were offered until Close. After an error device and listener are the caller's.
func New(c Config) (*Fabric, error) {
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	d, err := c.Device.NewDomain()
	if err != nil {
		return nil, err
	}
	_, grants := d.(rdma.Granter)
	if err := d.Close(); err != nil {
		return nil, err
	}
	l := c.Device.Limits()
	f := &Fabric{cfg: c, log: c.Logger, tells: !grants, guards: l.ReadSinkWrite || l.UnguardedRead, device: l.Name, over: make(chan struct{}), card: &card{Device: c.Device, listener: c.Listener}, offers: make(map[secret]*Offer), arenas: make(map[uint32]bool)}
	f.serving.Go(func() { f.serveAll(f.card) })
	return f, nil
}

// Close ends the Fabric, which has neither links nor arenas any more.
func (f *Fabric) Close() (err error) {
	f.mu.Lock()
	f.closed = true
	close(f.over)
	if f.card != nil {
		err = f.card.listener.Close()
	}
	f.mu.Unlock()
	f.serving.Wait()
	if f.card != nil {
		err = errors.Join(err, f.card.Close())
	}
	return err
}

var errLost = errors.New("the RDMA device is lost")

// use returns the device for a link, which says links.Done when nothing of it is left.
func (f *Fabric) use() (*card, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.card == nil {
		return nil, errLost
	}
	f.card.links.Add(1)
	return f.card, nil
}

// serveAll serves the device, and the ones that take its place when it is lost.
func (f *Fabric) serveAll(c *card) {
	for c != nil {
		err := f.serve(c.listener)
		if errors.Is(err, net.ErrClosed) || f.cfg.Again == nil {
			if !errors.Is(err, net.ErrClosed) {
				f.log.Error("nodes cannot connect any more", "reason", err)
			}
			return
		}
		f.log.Error("the device for the data of mirrors is lost, and tried again each second", "device", f.device, "reason", err)
		f.lose(c)
		c = f.again()
	}
}

// lose closes a device that is lost, as soon as its links are gone: until then the kernel may not let go of it.
func (f *Fabric) lose(c *card) {
	f.mu.Lock()
	f.card = nil
	f.mu.Unlock()
	_ = c.listener.Close() // it has failed
	c.links.Wait()
	if err := c.Close(); err != nil {
		f.log.Warn("a device that is lost cannot be closed", "device", f.device, "reason", err)
	}
}

// again opens the device again. nil: the Fabric is closed.
func (f *Fabric) again() *card {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-f.over:
			return nil
		case <-tick.C:
		}
		d, l, err := f.cfg.Again()
		if err != nil {
			continue
		}
		c := &card{Device: d, listener: l}
		f.mu.Lock()
		closed := f.closed
		if !closed {
			f.card = c
		}
		f.mu.Unlock()
		if closed {
			_, _ = l.Close(), d.Close() // nobody has used them
			return nil
		}
		f.log.Info("the device for the data of mirrors is there again", "device", f.device)
		return c
	}
}

// Address is where other nodes connect.
func (f *Fabric) Address() string { return f.cfg.Address }

// Device is the name of the device, for people.
func (f *Fabric) Device() string { return f.device }

// Name is how peers name an arena: the same on all nodes, unless two arenas of a node would have it. Where the device chooses STags, it
// has a size alone.
type Name struct {
	Index uint32 // of its STags; their key is that of a grant
	Base  uint64 // tagged offset of the first octet
	Size  uint64
}

// stag is the name under a grant.
func (n Name) stag(grant uint64) rdma.STag { return rdma.STag(n.Index<<8 | uint32(byte(grant))) }

// Invitation lets one node connect, once. It is as secret as the connection is.
type Invitation struct {
	Address string
	Secret  [32]byte // to be shown
	Proof   [32]byte // to be expected
	Arena   Name     // of who invites
}

// Private data of the Request: magic, secret, name. Where peers are told of STags there is no name: the connection manager of InfiniBand and RoCE
// carries 56 octets. Of the Reply: the proof.
const (
	magic      = "oneshot fabric 1"
	magicTells = "oneshot fabric 2"
	nameLen    = 4 + 8 + 8
)

func (n Name) append(b []byte) []byte {
	b = binary.BigEndian.AppendUint32(b, n.Index)
	b = binary.BigEndian.AppendUint64(b, n.Base)
	return binary.BigEndian.AppendUint64(b, n.Size)
}

// request is what who connects shows.
func (f *Fabric) request(s secret, n Name) []byte {
	if f.tells {
		return append([]byte(magicTells), s[:]...)
	}
	return n.append(append([]byte(magic), s[:]...))
}

// parseRequest reads the private data of a Request. Other octets may follow: a provider may have padded them.
func (f *Fabric) parseRequest(b []byte) (s secret, n Name, ok bool) {
	want, length := magic, len(magic)+len(s)+nameLen
	if f.tells {
		want, length = magicTells, len(magicTells)+len(s)
	}
	if len(b) < length || string(b[:len(want)]) != want {
		return s, n, false
	}
	b = b[len(want):]
	copy(s[:], b)
	if b = b[len(s):]; !f.tells {
		n = Name{binary.BigEndian.Uint32(b), binary.BigEndian.Uint64(b[4:]), binary.BigEndian.Uint64(b[12:])}
	}
	return s, n, true
}

// Offer is the chance of one node to connect.
type Offer struct {
	f      *Fabric
	arena  *Arena
	secret secret
	proof  secret
	came   chan wanted // has room for one
}

// wanted is a connection that has shown the secret of an offer.
type wanted struct {
	req  rdma.Request
	name Name
}

// Offer makes an offer for links that reach the arena. The caller calls Accept.
func (f *Fabric) Offer(a *Arena) (*Offer, Invitation) {
	o := &Offer{f: f, arena: a, came: make(chan wanted, 1)}
	_, _ = rand.Read(o.secret[:]) // never fails
	_, _ = rand.Read(o.proof[:])
	f.mu.Lock()
	f.offers[o.secret] = o
	f.mu.Unlock()
	return o, Invitation{Address: f.cfg.Address, Secret: o.secret, Proof: o.proof, Arena: a.name}
}

// take returns the offer that a secret is of, which is good no more.
func (f *Fabric) take(s secret) *Offer {
	f.mu.Lock()
	defer f.mu.Unlock()
	o := f.offers[s]
	delete(f.offers, s)
	return o
}

// Withdraw ends an offer that nobody accepts on.
func (o *Offer) Withdraw() {
	if o.f.take(o.secret) == nil {
		w := <-o.came // at this moment
		_ = w.req.Reject(nil)
	}
}

// Accept waits until the other node has come, or ctx is over. The offer is over then.
func (o *Offer) Accept(ctx context.Context) (*Link, error) {
	var w wanted
	select {
	case w = <-o.came:
	case <-ctx.Done():
		if o.f.take(o.secret) != nil {
			return nil, fmt.Errorf("the other node has not come to %s: %w", o.f.cfg.Address, context.Cause(ctx))
		}
		w = <-o.came // at this moment
	}
	l, err := newLink(o.f, o.arena, w.name)
	if err != nil {
		return nil, errors.Join(err, w.req.Reject(nil))
	}
	if err := w.req.Accept(l.qp, rdma.ConnParams{PrivateData: o.proof[:]}); err != nil {
		return nil, errors.Join(err, l.Release())
	}
	return l, nil
}

// Connect takes an invitation up.
func (f *Fabric) Connect(ctx context.Context, a *Arena, i Invitation) (*Link, error) {
	if f.tells != (i.Arena.Index == 0) {
		return nil, fmt.Errorf("the node at %s has another kind of device: let cluster.transport be the same on all nodes", i.Address)
	}
	l, err := newLink(f, a, i.Arena)
	if err != nil {
		return nil, err
	}
	err = l.card.Connect(ctx, l.qp, i.Address, rdma.ConnParams{PrivateData: f.request(i.Secret, a.name)})
	if err == nil {
		if got := l.qp.PeerData(); len(got) < len(i.Proof) || secret(got) != i.Proof {
			err = fmt.Errorf("at %s is somebody else than the node that has invited", i.Address)
		}
	}
	if err != nil {
		return nil, errors.Join(err, l.Release())
	}
	return l, nil
}

// serve hands requests to those who expect them, until the listener ends.
func (f *Fabric) serve(listener rdma.Listener) error {
	for {
		req, err := listener.Accept()
		if err != nil {
			return err
		}
		s, n, ok := f.parseRequest(req.PeerData())
		var o *Offer
		if ok {
			o = f.take(s)
		}
		if o == nil {
			if dropped, pass := f.strange.Pass(logSilence); pass {
				f.log.Warn("a connection for the data of mirrors is of no node that was invited", append([]any{"from", req.RemoteAddr()}, attrs(dropped)...)...)
			}
			_ = req.Reject(nil) // he may have gone
			continue
		}
		o.came <- wanted{req, n}
	}
}

// logSilence is for how long there is no second line of strangers.
const logSilence = 10 * time.Second

func attrs(list []slog.Attr) (all []any) {
	for _, a := range list {
		all = append(all, a)
	}
	return all
}
