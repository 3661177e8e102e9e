package mgmt

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"time"
)

// Clusterer is the part of a Target that is about the cluster to which it belongs. Without one its methods return a
// *NotFoundError.
type Clusterer interface {
	// NewToken makes a token with which one machine can join.
	NewToken(ctx context.Context) (string, error)
	// RemoveNode takes a member out of the cluster.
	RemoveNode(ctx context.Context, name string, how Removal) error
	// DrainNode has a node serve nothing from now on, or, without on, lets it serve again. Status tells which mirrors it
	// serves still.
	DrainNode(ctx context.Context, name string, on bool) error
	// ForgetMirror has the cluster forget a mirror that no node's configuration has. A mirror that is not known is a *NotFoundError.
	ForgetMirror(ctx context.Context, name string) error
}

// Removal says how a member is to leave, and what may be lost by that.
type Removal struct {
	Replace bool     // it votes, on paper, until another one does in its place; false: it has no vote any more at once
	Up      bool     // it may be replaced while it is up
	Lose    []string // mirrors of which it may have the only copy in sync
}

// Cluster is what a node knows of its cluster.
type Cluster struct {
	Name    string   `json:"name"`
	Node    string   `json:"node"`              // that answers
	Term    uint64   `json:"term"`              // of consensus; it grows with each election
	Trouble string   `json:"trouble,omitempty"` // why the node takes no part in consensus
	Device  string   `json:"device,omitempty"`  // of RDMA, for the data of mirrors; empty: they go over TLS
	Keeper  *Keeper  `json:"keeper,omitempty"`  // nil: none is configured
	Members []Member `json:"members"`
	Mirrors []Mirror `json:"mirrors,omitempty"`
}

// Keeper is the process that holds the addresses that go with mirrors on the machine of the node that answers.
type Keeper struct {
	Socket   string `json:"socket"`
	Watchdog string `json:"watchdog,omitempty"` // the device that it pets; empty: none
	Trouble  string `json:"trouble,omitempty"`  // why it cannot be asked
}

// Mirror is a mirrored store, as the node that answers knows it.
type Mirror struct {
	Name      string `json:"name"`
	Size      int64  `json:"size"`              // bytes
	Role      string `json:"role"`              // of the node that answers: primary, cut off, follower, taking over, waiting: nothing is known yet, no copy, or not configured
	Primary   string `json:"primary,omitempty"` // the node that serves the store; empty: it is not known
	Term      uint64 `json:"term"`              // grows with each primary
	Trouble   string `json:"trouble,omitempty"` // why the node takes no part in the mirror
	Copies    []Copy `json:"copies"`
	LogBytes  int64  `json:"log_bytes"` // of the node's memory for writes, in use
	LogSize   int64  `json:"log_size"`  // bytes of that memory
	Records   int    `json:"records"`   // writes that the node keeps, because not all copies in sync have them durably
	Unapplied uint64 `json:"unapplied"` // of a primary: writes that its disk does not have yet
	Unflushed uint64 `json:"unflushed"` // of a primary: writes that a power cut of its own would take from it
	Waiting   int    `json:"waiting"`   // operations of initiators under way
	// MinCopies is how many copies in sync it takes that something is written; 0: the answering node has no copy, and does not know.
	MinCopies int `json:"min_copies,omitempty"`

	Addresses []string  `json:"addresses,omitempty"`    // those that go with the mirror, if the machine that answers has them
	Guests    int       `json:"guests"`                 // connections with these: on the primary, or, elsewhere, as it has told
	Until     time.Time `json:"primary_until,omitzero"` // of a node that is cut off: when it was the primary for sure

	Resync    *Resync       `json:"resync,omitempty"` // of a primary
	Verify    *Verification `json:"verify,omitempty"` // of a primary: the comparison under way, or the last one; without its ranges
	Takeover  *Takeover     `json:"takeover,omitempty"`
	Takeovers uint64        `json:"takeovers"` // that have made the answering node the primary since its process began
	Copied    int64         `json:"copied"`    // bytes that the answering node, as the primary, has sent to copies that are brought level
	Lost      int64         `json:"lost"`      // bytes that they go without, because no copy could read them
}

// Resync is how fast a primary brings copies level, and compares them.
type Resync struct {
	Rate   int64 `json:"rate"`   // bytes a second, at most; 0: as fast as can be
	Min    int64 `json:"min"`    // bytes a second, at least
	Yields bool  `json:"yields"` // hosts are busy, so it is the least now
}

// Takeover says how the answering node became the primary last, and how long each step took.
type Takeover struct {
	At       time.Time `json:"at"`
	Term     uint64    `json:"term"`
	Planned  bool      `json:"planned"`
	Silence  int64     `json:"silence_ns"`  // since the last sign of the primary before, until this node stood; 0 if planned
	Promises int64     `json:"promises_ns"` // until others had promised, and all had the same log; 0 if planned
	Agreed   int64     `json:"agreed_ns"`   // until consensus had agreed; 0 if planned
	Took     int64     `json:"took_ns"`     // all of it
}

// Copy is the copy of a mirror on one node.
type Copy struct {
	Node      string    `json:"node"`
	State     CopyState `json:"state"`
	Lacks     int64     `json:"lacks"`   // bytes, at most, of a copy that is not in sync
	Missing   int64     `json:"missing"` // bytes that the copy of the answering node goes without, because no copy could read them; of others it does not know
	Lag       int64     `json:"lag_ns"`  // how long the oldest write waits that the disk of a copy in sync does not have, as the primary knows
	Connected bool      `json:"connected"`
	Reason    string    `json:"reason,omitempty"` // as its node says: why all of it has to be brought level, or what its disk fails with, and what to do
}

// Roles of a node in a mirror that others decide by.
const (
	RolePrimary = "primary"
	RoleCutOff  = "cut off" // it was the primary, and hears too few others to know that it still is
	RoleNoCopy  = "no copy"
	RoleGivenUp = "not configured" // no node's configuration has the mirror, as far as the answering node knows: nobody serves it
)

// CopyState says how a copy is.
type CopyState string

// States of copies.
const (
	CopyInSync  CopyState = "in sync"      // it has all that was acknowledged
	CopyResync  CopyState = "resync"       // it is brought level
	CopyAway    CopyState = "away"         // the primary does not reach it
	CopyStale   CopyState = "not in sync"  // the primary knows more
	CopyDoubted CopyState = "unknown disk" // as its node says: another disk than before, or set back; nothing on it counts
	CopyUnknown CopyState = "unknown"
)

// Member is a node of the cluster, as the one that answers knows it.
type Member struct {
	Name        string   `json:"name"`
	Number      uint64   `json:"number"` // never used again; 0: it has not joined
	Address     string   `json:"address,omitempty"`
	Witness     bool     `json:"witness"`
	Votes       bool     `json:"votes"`
	Leads       bool     `json:"leads"`
	Up          bool     `json:"up"`                     // it is heard
	Stuck       bool     `json:"stuck,omitempty"`        // it is heard, and says that the disk of its consensus log takes nothing, so that it takes no part
	Leaving     bool     `json:"leaving"`                // it is replaced or removed
	Drained     bool     `json:"drained"`                // it is to serve nothing
	Reason      string   `json:"reason,omitempty"`       // why it cannot be reached
	ClockFaster float64  `json:"clock_faster,omitempty"` // percent by which its clock is faster than that of the node that answers, where that is much; less than 0: slower
	Version     string   `json:"version,omitempty"`
	Differs     []string `json:"differs,omitempty"` // parts of the configuration that are not those of the node that answers
}

// Token is the answer to POST /v1/cluster/tokens.
type Token struct {
	Token string `json:"token"`
}

func (a *api) clusterer(mux *http.ServeMux) {
	mux.HandleFunc("POST /v1/cluster/tokens", a.newToken)
	mux.HandleFunc("DELETE /v1/cluster/nodes/{name}", a.removeNode)
	mux.HandleFunc("PUT /v1/cluster/drained/{name}", a.drainNode)
	mux.HandleFunc("DELETE /v1/cluster/drained/{name}", a.drainNode)
	mux.HandleFunc("DELETE /v1/cluster/mirrors/{name}", a.forgetMirror)
}

func (a *api) newToken(w http.ResponseWriter, r *http.Request) {
	if !bare(w, r) {
		return
	}
	t, err := a.target.NewToken(r.Context())
	if err != nil {
		failCluster(w, err)
		return
	}
	answer(w, Token{t})
}

func (a *api) removeNode(w http.ResponseWriter, r *http.Request) {
	values, ok := parseQuery(w, r)
	if !ok {
		return
	}
	lose := values["lose"]
	delete(values, "lose")
	q, ok := switchesOf(w, values, "replace", "up")
	if !ok || !noBody(w, r) {
		return
	}
	if q["up"] && !q["replace"] { // to remove the node is not what was meant
		fail(w, http.StatusBadRequest, "up is for ?replace: a node that is removed may be up")
		return
	}
	if err := a.target.RemoveNode(r.Context(), r.PathValue("name"), Removal{q["replace"], q["up"], lose}); err != nil {
		failCluster(w, err)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

func (a *api) drainNode(w http.ResponseWriter, r *http.Request) {
	if !bare(w, r) {
		return
	}
	if err := a.target.DrainNode(r.Context(), r.PathValue("name"), r.Method == http.MethodPut); err != nil {
		failCluster(w, err)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

func (a *api) forgetMirror(w http.ResponseWriter, r *http.Request) {
	if bare(w, r) {
		done(w, a.target.ForgetMirror(r.Context(), r.PathValue("name")))
	}
}

func failCluster(w http.ResponseWriter, err error) {
	status := http.StatusUnprocessableEntity
	if _, missing := errors.AsType[*NotFoundError](err); missing {
		status = http.StatusNotFound
	}
	fail(w, status, err.Error())
}

// NewToken makes a token with which one machine can join the cluster.
func (c *Client) NewToken(ctx context.Context) (string, error) {
	var t Token
	err := c.do(ctx, http.MethodPost, "/v1/cluster/tokens", nil, &t)
	return t.Token, err
}

// RemoveNode takes a member out of the cluster, as Clusterer has it.
func (c *Client) RemoveNode(ctx context.Context, name string, how Removal) error {
	q := url.Values{}
	if how.Replace {
		q.Set("replace", "true")
	}
	if how.Up {
		q.Set("up", "true")
	}
	for _, mirror := range how.Lose {
		q.Add("lose", mirror)
	}
	path := "/v1/cluster/nodes/" + url.PathEscape(name)
	if len(q) > 0 {
		path += "?" + q.Encode()
	}
	return c.do(ctx, http.MethodDelete, path, nil, nil)
}

// DrainNode has a node serve nothing, or again, as Clusterer has it.
func (c *Client) DrainNode(ctx context.Context, name string, on bool) error {
	method := http.MethodDelete
	if on {
		method = http.MethodPut
	}
	return c.do(ctx, method, "/v1/cluster/drained/"+url.PathEscape(name), nil, nil)
}

// ForgetMirror has the cluster forget a mirror, as Clusterer has it.
func (c *Client) ForgetMirror(ctx context.Context, name string) error {
	return c.do(ctx, http.MethodDelete, "/v1/cluster/mirrors/"+url.PathEscape(name), nil, nil)
}
