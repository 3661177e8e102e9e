package mgmt

import (
	"context"
	"errors"
	"net/http"
	"net/url"
)

// Clusterer is the part of a Target that is about the cluster to which it belongs. Without one its methods return a
// *NotFoundError.
type Clusterer interface {
	// NewToken makes a token with which one machine can join.
	NewToken(ctx context.Context) (string, error)
	// RemoveNode takes a member out of the cluster: at once, or, with replace, when another of its name votes in its
	// place.
	RemoveNode(ctx context.Context, name string, replace bool) error
}

// Cluster is what a node knows of its cluster.
type Cluster struct {
	Name    string   `json:"name"`
	Node    string   `json:"node"`              // that answers
	Term    uint64   `json:"term"`              // of consensus; it grows with each election
	Trouble string   `json:"trouble,omitempty"` // why the node takes no part in consensus
	Members []Member `json:"members"`
}

// Member is a node of the cluster, as the one that answers knows it.
type Member struct {
	Name    string   `json:"name"`
	Number  uint64   `json:"number"` // never used again; 0: it has not joined
	Address string   `json:"address,omitempty"`
	Witness bool     `json:"witness"`
	Votes   bool     `json:"votes"`
	Leads   bool     `json:"leads"`
	Up      bool     `json:"up"`               // it is heard
	Leaving bool     `json:"leaving"`          // it is replaced or removed
	Reason  string   `json:"reason,omitempty"` // why it cannot be reached
	Version string   `json:"version,omitempty"`
	Differs []string `json:"differs,omitempty"` // parts of the configuration that are not those of the node that answers
}

// Token is the answer to POST /v1/cluster/tokens.
type Token struct {
	Token string `json:"token"`
}

func (a *api) clusterer(mux *http.ServeMux) {
	mux.HandleFunc("POST /v1/cluster/tokens", a.newToken)
	mux.HandleFunc("DELETE /v1/cluster/nodes/{name}", a.removeNode)
}

func (a *api) newToken(w http.ResponseWriter, r *http.Request) {
	if !noBody(w, r) {
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
	q, ok := queryOf(w, r, "replace")
	if !ok || !noBody(w, r) {
		return
	}
	if err := a.target.RemoveNode(r.Context(), r.PathValue("name"), q["replace"]); err != nil {
		failCluster(w, err)
		return
	}
	w.WriteHeader(http.StatusNoContent)
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
func (c *Client) RemoveNode(ctx context.Context, name string, replace bool) error {
	return c.do(ctx, http.MethodDelete, "/v1/cluster/nodes/"+url.PathEscape(name)+switches(map[string]bool{"replace": replace}), nil, nil)
}
