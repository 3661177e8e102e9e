package mgmt

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"syscall"
)

// Client asks a daemon. Its methods may be called from any goroutine.
type Client struct {
	socket string
	http   http.Client
}

// NewClient returns a client for the daemon behind a unix socket.
func NewClient(socket string) *Client {
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", socket)
	}
	return &Client{socket, http.Client{Transport: &http.Transport{DialContext: dial, MaxIdleConns: 1}}}
}

// Close gives up the connection.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// Status asks how the daemon is.
func (c *Client) Status(ctx context.Context) (*Status, error) {
	s := new(Status)
	return s, c.do(ctx, http.MethodGet, "/v1/status", nil, s)
}

// Sessions asks for the sessions.
func (c *Client) Sessions(ctx context.Context) (*Sessions, error) {
	s := new(Sessions)
	return s, c.do(ctx, http.MethodGet, "/v1/sessions", nil, s)
}

// DropSession ends a session.
func (c *Client) DropSession(ctx context.Context, id uint16) error {
	return c.do(ctx, http.MethodDelete, fmt.Sprintf("/v1/sessions/%d", id), nil, nil)
}

// Access asks for the access states.
func (c *Client) Access(ctx context.Context) (*AccessStates, error) {
	a := new(AccessStates)
	return a, c.do(ctx, http.MethodGet, "/v1/access", nil, a)
}

// SetAccess changes access states, and returns those of all groups of the LUNs concerned.
func (c *Client) SetAccess(ctx context.Context, change AccessChange) (*AccessStates, error) {
	a := new(AccessStates)
	return a, c.do(ctx, http.MethodPatch, "/v1/access", change, a)
}

// Reload has the daemon read its configuration again.
func (c *Client) Reload(ctx context.Context) (*Reload, error) {
	r := new(Reload)
	return r, c.do(ctx, http.MethodPost, "/v1/reload", nil, r)
}

// maxAnswer bounds what is read of an answer: some thousand LUNs.
const maxAnswer = 64 << 20

// do asks. body, unless nil, goes with the question; the answer goes into into, unless that is nil.
func (c *Client) do(ctx context.Context, method, path string, body, into any) error {
	var text io.Reader
	if body != nil {
		b, err := json.Marshal(body)
		if err != nil {
			return err
		}
		text = bytes.NewReader(b)
	}
	req, err := http.NewRequestWithContext(ctx, method, "http://target"+path, text)
	if err != nil {
		return err
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return c.unreachable(err)
	}
	defer func() { _ = resp.Body.Close() }()
	answer := json.NewDecoder(io.LimitReader(resp.Body, maxAnswer))
	switch {
	case resp.StatusCode >= 300:
		var p Problem
		if answer.Decode(&p) != nil || p.Error == "" {
			return fmt.Errorf("the daemon at %s answers %s to %s %s", c.socket, resp.Status, method, path)
		}
		return errors.New(p.Error)
	case into == nil:
		return nil
	}
	if err := answer.Decode(into); err != nil {
		return fmt.Errorf("the daemon at %s gives an answer that is none of this version of the API: %w", c.socket, err)
	}
	return nil
}

// unreachable says what to do when there is no answer.
func (c *Client) unreachable(err error) error {
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("nobody serves at %s: start the daemon with management: {socket: %s} in its configuration, or name its socket with --socket", c.socket, c.socket)
	case errors.Is(err, syscall.ECONNREFUSED):
		return fmt.Errorf("the daemon of %s has died: start it again", c.socket)
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("only root and the user of the daemon may use %s", c.socket)
	}
	return fmt.Errorf("no answer from the daemon at %s: %w", c.socket, err)
}
