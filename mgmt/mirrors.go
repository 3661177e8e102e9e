package mgmt

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"time"
)

// Mirrorer is the part of a Target that changes mirrors. A mirror that is not known is a *NotFoundError.
type Mirrorer interface {
	// SwitchMirror has another node serve a mirror: that of the name, or, without one, any that can. It returns when
	// that one says that it serves.
	SwitchMirror(ctx context.Context, mirror, to string) (*Switched, error)
	// GrowMirror makes a mirror size bytes large, all of its copies first. It returns when hosts see that.
	GrowMirror(ctx context.Context, mirror string, size int64) error
	// VerifyMirror begins to compare the copies of a mirror.
	VerifyMirror(ctx context.Context, mirror string, how Verify) error
	// StopVerify ends a comparison that is under way.
	StopVerify(ctx context.Context, mirror string) error
	// Verified returns the comparison that is under way, or the last one of this primary: a *NotFoundError if there was none.
	Verified(ctx context.Context, mirror string) (*Verification, error)
}

// Peer is what other nodes of the cluster ask of one.
type Peer interface {
	Mirrorer
	// KnowGuests takes who is connected with the addresses that go with a mirror, at its primary, in case that this node gets them.
	KnowGuests(mirror string, guests []Guest) error
	// KnowTrouble takes what another node says of its own copy.
	KnowTrouble(mirror, node string, what CopyTrouble) error
	// AddressesTaken says that the node that serves a mirror now has the addresses that go with it, and has announced them.
	AddressesTaken(mirror string) error
	// HasCarrier returns nil if the interfaces of this node for the addresses that go with a mirror have a link.
	HasCarrier(mirror string) error
	// MakeRoom gives the copy of this node room for size bytes, durably. What is new reads as zeroes; the mirror stays as large as it is.
	MakeRoom(mirror string, size int64) error
}

// Guest is a connection of an initiator with an address that moves.
type Guest struct {
	Local  netip.AddrPort `json:"local"` // of the portal
	Remote netip.AddrPort `json:"remote"`
	// Initiator and ISID, 12 hexadecimal digits, are the initiator port of a session; empty: there is none yet.
	Initiator string `json:"initiator,omitempty"`
	ISID      string `json:"isid,omitempty"`
}

// CopyTrouble is what a node tells others of its own copy of a mirror, as in Copy. Without a reason nothing is wrong.
type CopyTrouble struct {
	State  CopyState `json:"state"`
	Reason string    `json:"reason"`
}

// MaxGuests is how many of them a node tells others of.
const MaxGuests = 1024

// maxGuestBytes is what one of them takes at most in a request: two addresses of IPv6 with their ports, a name of 223 bytes, and the keys.
const maxGuestBytes = 512

// maxTrouble bounds what a node says of its copy, in bytes.
const maxTrouble = 16 << 10

// Verify says how copies are compared.
type Verify struct {
	Repair bool   `json:"repair,omitempty"` // what differs, where it is known who is right
	From   string `json:"from,omitempty"`   // the node whose copy is right; empty: most copies are, or the only one that can be read
}

// Verification is a comparison of copies. Numbers without a unit count ranges.
type Verification struct {
	Verify
	Primary     string       `json:"primary"` // that compares
	Began       time.Time    `json:"began"`
	Ended       time.Time    `json:"ended,omitzero"`    // missing: it goes on
	Stopped     bool         `json:"stopped,omitempty"` // by the administrator
	Error       string       `json:"error,omitempty"`   // why it was given up
	Done        int64        `json:"done"`              // bytes compared
	Total       int64        `json:"total"`             // bytes
	Differ      int          `json:"differ"`            // or cannot be read on all disks
	Bytes       int64        `json:"bytes"`             // in these ranges
	Repaired    int          `json:"repaired"`
	Unknown     int          `json:"unknown"`               // nobody knows which copy is right
	Unreadable  int          `json:"unreadable"`            // a disk refuses to read it
	Failed      int          `json:"failed"`                // could not be repaired
	Differences []Difference `json:"differences,omitempty"` // the first ones
}

// Difference is a part of a mirror that differs.
type Difference struct {
	Offset     int64    `json:"offset"` // bytes
	Length     int64    `json:"length"`
	Odd        []string `json:"odd"`                  // nodes whose copies are not right; all, if it is not known which are
	Unreadable []string `json:"unreadable,omitempty"` // nodes whose disks refuse to read it
	Known      bool     `json:"known"`                // which are right
}

// Switched says how a planned switch has gone.
type Switched struct {
	From string `json:"from"`
	To   string `json:"to"`      // the primary now
	Took int64  `json:"took_ns"` // from the order until consensus had agreed; 0: it was the primary already
}

// NewPeerAPI returns the handler of what other nodes of the cluster ask of this one's mirrors.
func NewPeerAPI(p Peer) http.Handler {
	mux := http.NewServeMux()
	mirrorer(mux, p)
	mux.HandleFunc("PUT /v1/mirrors/{name}/guests", func(w http.ResponseWriter, r *http.Request) {
		var guests []Guest
		if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, MaxGuests*maxGuestBytes)).Decode(&guests); err != nil || len(guests) > MaxGuests {
			fail(w, http.StatusBadRequest, fmt.Sprintf("this is no list of at most %d connections: %v", MaxGuests, err))
			return
		}
		done(w, p.KnowGuests(r.PathValue("name"), guests))
	})
	mux.HandleFunc("PUT /v1/mirrors/{name}/trouble/{node}", func(w http.ResponseWriter, r *http.Request) {
		var what CopyTrouble
		if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxTrouble)).Decode(&what); err != nil {
			fail(w, http.StatusBadRequest, fmt.Sprintf("this does not say how a copy is: %v", err))
			return
		}
		done(w, p.KnowTrouble(r.PathValue("name"), r.PathValue("node"), what))
	})
	mux.HandleFunc("POST /v1/mirrors/{name}/taken", func(w http.ResponseWriter, r *http.Request) {
		if bare(w, r) {
			done(w, p.AddressesTaken(r.PathValue("name")))
		}
	})
	mux.HandleFunc("GET /v1/mirrors/{name}/carrier", func(w http.ResponseWriter, r *http.Request) {
		if bare(w, r) {
			done(w, p.HasCarrier(r.PathValue("name")))
		}
	})
	mux.HandleFunc("POST /v1/mirrors/{name}/room", sized(func(r *http.Request, size int64) error { return p.MakeRoom(r.PathValue("name"), size) }))
	return mux
}

// sized is a request with a size in bytes.
func sized(f func(r *http.Request, size int64) error) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		text, ok := valueOf(w, r, "size")
		if !ok || !noBody(w, r) {
			return
		}
		size, err := strconv.ParseInt(text, 10, 64)
		if err != nil || size <= 0 {
			fail(w, http.StatusBadRequest, "size is to be a number of bytes")
			return
		}
		done(w, f(r, size))
	}
}

// done answers a request that has nothing to tell.
func done(w http.ResponseWriter, err error) {
	if err != nil {
		failCluster(w, err)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

func mirrorer(mux *http.ServeMux, m Mirrorer) {
	mux.HandleFunc("POST /v1/mirrors/{name}/switch", func(w http.ResponseWriter, r *http.Request) {
		to, ok := valueOf(w, r, "to")
		if !ok || !noBody(w, r) {
			return
		}
		done, err := m.SwitchMirror(r.Context(), r.PathValue("name"), to)
		if err != nil {
			failCluster(w, err)
			return
		}
		answer(w, done)
	})
	mux.HandleFunc("POST /v1/mirrors/{name}/grow", sized(func(r *http.Request, size int64) error { return m.GrowMirror(r.Context(), r.PathValue("name"), size) }))
	mux.HandleFunc("POST /v1/mirrors/{name}/verify", func(w http.ResponseWriter, r *http.Request) {
		if !noQuery(w, r) {
			return
		}
		var how Verify
		if err := decodeOne(http.MaxBytesReader(w, r.Body, maxRequest), &how); err != nil {
			fail(w, http.StatusBadRequest, fmt.Sprintf("this does not say how to compare: %v", err))
			return
		}
		if err := m.VerifyMirror(r.Context(), r.PathValue("name"), how); err != nil {
			failCluster(w, err)
			return
		}
		w.WriteHeader(http.StatusNoContent)
	})
	mux.HandleFunc("DELETE /v1/mirrors/{name}/verify", func(w http.ResponseWriter, r *http.Request) {
		if !bare(w, r) {
			return
		}
		if err := m.StopVerify(r.Context(), r.PathValue("name")); err != nil {
			failCluster(w, err)
			return
		}
		w.WriteHeader(http.StatusNoContent)
	})
	mux.HandleFunc("GET /v1/mirrors/{name}/verify", func(w http.ResponseWriter, r *http.Request) {
		v, err := m.Verified(r.Context(), r.PathValue("name"))
		if err != nil {
			failCluster(w, err)
			return
		}
		answer(w, v)
	})
}

// NewPeerClient returns a client of another node's NewPeerAPI.
func NewPeerClient(node string, dial func(context.Context) (net.Conn, error)) *Client {
	c := &Client{node: node, patient: context.WithCancel}
	c.http.Transport = &http.Transport{
		DialContext:       func(ctx context.Context, _, _ string) (net.Conn, error) { return dial(ctx) },
		DisableKeepAlives: true,
	}
	return c
}

func mirrorPath(mirror, what string, q url.Values) string {
	path := "/v1/mirrors/" + url.PathEscape(mirror) + "/" + what
	if len(q) > 0 {
		path += "?" + q.Encode()
	}
	return path
}

// SwitchMirror has another node serve a mirror, as Mirrorer has it.
func (c *Client) SwitchMirror(ctx context.Context, mirror, to string) (*Switched, error) {
	q := make(url.Values)
	if to != "" {
		q.Set("to", to)
	}
	s := new(Switched)
	return s, c.do(ctx, http.MethodPost, mirrorPath(mirror, "switch", q), nil, s)
}

// GrowMirror makes a mirror larger, as Mirrorer has it.
func (c *Client) GrowMirror(ctx context.Context, mirror string, size int64) error {
	return c.do(ctx, http.MethodPost, mirrorPath(mirror, "grow", url.Values{"size": {strconv.FormatInt(size, 10)}}), nil, nil)
}

// MakeRoom gives the copy of a node room, as Peer has it.
func (c *Client) MakeRoom(ctx context.Context, mirror string, size int64) error {
	return c.do(ctx, http.MethodPost, mirrorPath(mirror, "room", url.Values{"size": {strconv.FormatInt(size, 10)}}), nil, nil)
}

// VerifyMirror begins to compare the copies of a mirror.
func (c *Client) VerifyMirror(ctx context.Context, mirror string, how Verify) error {
	return c.do(ctx, http.MethodPost, mirrorPath(mirror, "verify", nil), how, nil)
}

// StopVerify ends a comparison that is under way.
func (c *Client) StopVerify(ctx context.Context, mirror string) error {
	return c.do(ctx, http.MethodDelete, mirrorPath(mirror, "verify", nil), nil, nil)
}

// Verified asks how the copies of a mirror compare.
func (c *Client) Verified(ctx context.Context, mirror string) (*Verification, error) {
	v := new(Verification)
	return v, c.do(ctx, http.MethodGet, mirrorPath(mirror, "verify", nil), nil, v)
}

// KnowGuests tells another node who is connected.
func (c *Client) KnowGuests(ctx context.Context, mirror string, guests []Guest) error {
	return c.do(ctx, http.MethodPut, mirrorPath(mirror, "guests", nil), guests, nil)
}

// TellTrouble tells another node how the copy of node, which asks, is, as Peer has it.
func (c *Client) TellTrouble(ctx context.Context, mirror, node string, what CopyTrouble) error {
	return c.do(ctx, http.MethodPut, mirrorPath(mirror, "trouble/"+url.PathEscape(node), nil), what, nil)
}

// AddressesTaken tells another node that this one has the addresses that go with a mirror.
func (c *Client) AddressesTaken(ctx context.Context, mirror string) error {
	return c.do(ctx, http.MethodPost, mirrorPath(mirror, "taken", nil), nil, nil)
}

// HasCarrier asks another node whether hosts may reach it, as Peer has it. One of a former version does not say.
func (c *Client) HasCarrier(ctx context.Context, mirror string) error {
	return c.do(ctx, http.MethodGet, mirrorPath(mirror, "carrier", nil), nil, nil)
}

// unheard says that another node does not answer.
func (c *Client) unheard(err error) error {
	return fmt.Errorf("node %s does not answer: %w", c.node, err)
}
