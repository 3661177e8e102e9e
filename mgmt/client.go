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
	"net/url"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"oneshot/internal/peercred"
)

// patience is how long a daemon that works takes at most to say how it is.
const patience = 5 * time.Second

// Client asks a daemon. Its methods may be called from any goroutine.
type Client struct {
	socket string
	node   string // that is asked, of a client for another node
	http   http.Client
	// patient returns a context that ends with errSilent when the daemon has had time to answer.
	patient func(context.Context) (context.Context, context.CancelFunc)
	pid     atomic.Int32 // of the daemon, when it is known
}

// NewClient returns a client for the daemon behind a unix socket.
func NewClient(socket string) *Client {
	c := &Client{socket: socket, patient: func(ctx context.Context) (context.Context, context.CancelFunc) {
		return context.WithTimeoutCause(ctx, patience, errSilent)
	}}
	c.http.Transport = &http.Transport{DialContext: c.dial, MaxIdleConns: 1}
	return c
}

func (c *Client) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	conn, err := new(net.Dialer).DialContext(ctx, "unix", c.socket)
	if err != nil {
		return nil, err
	}
	if peer, err := peercred.Of(conn.(*net.UnixConn)); err == nil {
		c.pid.Store(peer.Pid)
	}
	return conn, nil
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

// DropController ends a controller.
func (c *Client) DropController(ctx context.Context, id uint64) error {
	return c.do(ctx, http.MethodDelete, fmt.Sprintf("/v1/controllers/%d", id), nil, nil)
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

// Stores asks for the stores of the configuration.
func (c *Client) Stores(ctx context.Context) (*Stores, error) {
	s := new(Stores)
	return s, c.do(ctx, http.MethodGet, "/v1/stores", nil, s)
}

// The changes of partitions below are for the table with the tag match, or "*" for whatever there is. Their errors
// are as of Partitioner.

func tablePath(store string, more ...string) string {
	path := "/v1/stores/" + url.PathEscape(store) + "/partitions"
	for _, m := range more {
		path += "/" + url.PathEscape(m)
	}
	return path
}

func switches(on map[string]bool) string {
	q := make(url.Values)
	for name, is := range on {
		if is {
			q.Set(name, "true")
		}
	}
	if len(q) == 0 {
		return ""
	}
	return "?" + q.Encode()
}

// Partitions asks for the table of a store.
func (c *Client) Partitions(ctx context.Context, store string) (*Partitions, error) {
	p := new(Partitions)
	return p, c.do(ctx, http.MethodGet, tablePath(store), nil, p)
}

// InitPartitions makes an empty table, with force also over what there is.
func (c *Client) InitPartitions(ctx context.Context, store, match string, force bool) (*Partitions, error) {
	p := new(Partitions)
	return p, c.change(ctx, match, http.MethodPost, tablePath(store)+switches(map[string]bool{"init": true, "force": force}), nil, p)
}

// CreatePartitions makes all of news or none.
func (c *Client) CreatePartitions(ctx context.Context, store, match string, news ...NewPartition) (*Partitions, error) {
	p := new(Partitions)
	return p, c.change(ctx, match, http.MethodPost, tablePath(store), news, p)
}

// AlterPartition changes a partition. With force endpoints that stand in the way are ended.
func (c *Client) AlterPartition(ctx context.Context, store, name, match string, change PartitionChange, force bool) (*Partitions, error) {
	p := new(Partitions)
	return p, c.change(ctx, match, http.MethodPatch, tablePath(store, name)+switches(map[string]bool{"force": force}), change, p)
}

// DeletePartition takes a partition out of the table, and with erase its octets.
func (c *Client) DeletePartition(ctx context.Context, store, name, match string, erase, force bool) (*Partitions, error) {
	p := new(Partitions)
	return p, c.change(ctx, match, http.MethodDelete, tablePath(store, name)+switches(map[string]bool{"erase": erase, "force": force}), nil, p)
}

// Endpoints asks for the open endpoints.
func (c *Client) Endpoints(ctx context.Context) (*Endpoints, error) {
	e := new(Endpoints)
	return e, c.do(ctx, http.MethodGet, "/v1/endpoints", nil, e)
}

// DropEndpoint ends an endpoint.
func (c *Client) DropEndpoint(ctx context.Context, id uint64) error {
	return c.do(ctx, http.MethodDelete, fmt.Sprintf("/v1/endpoints/%d", id), nil, nil)
}

// maxAnswer bounds an answer, in bytes: thousands of LUNs fit.
const maxAnswer = 64 << 20

// errSilent ends the wait for an answer.
var errSilent = errors.New("no answer")

// do asks. A daemon that hangs is not waited for: a change may take its time, so the daemon is asked for its
// health first.
func (c *Client) do(ctx context.Context, method, path string, body, into any) error {
	return c.send(ctx, "", method, path, body, into)
}

// change is do of a request that is for the table with the tag match, or for any with "*".
func (c *Client) change(ctx context.Context, match, method, path string, body, into any) error {
	if match != "*" {
		match = `"` + match + `"`
	}
	return c.send(ctx, match, method, path, body, into)
}

func (c *Client) send(ctx context.Context, match, method, path string, body, into any) error {
	asked, cancel := c.patient(ctx)
	defer cancel()
	if method == http.MethodGet || c.node != "" {
		return c.ask(asked, "", method, path, body, into)
	}
	if err := c.ask(asked, "", http.MethodGet, "/v1/status", nil, new(Status)); err != nil {
		return err
	}
	return c.ask(ctx, match, method, path, body, into)
}

// ask asks once. match, unless empty, is what If-Match says. body, unless nil, goes with the question; the answer goes into into, unless that is nil.
func (c *Client) ask(ctx context.Context, match, method, path string, body, into any) error {
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
	if match != "" {
		req.Header.Set("If-Match", match)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		if context.Cause(ctx) == errSilent {
			return c.silent()
		}
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
		return errOf(resp.StatusCode, p.Error)
	case into == nil:
		return nil
	}
	has := into
	err = answer.Decode(&has)
	if err == nil && has == nil { // null leaves an object as it is, and empties what holds it
		err = errors.New("it is null")
	}
	if err != nil {
		if context.Cause(ctx) == errSilent {
			return c.silent()
		}
		return fmt.Errorf("the daemon at %s gave an answer that this version of the program does not understand: %w", c.socket, err)
	}
	return nil
}

// silent says what is wrong with a daemon that does not answer.
func (c *Client) silent() error {
	pid := c.pid.Load()
	if pid == 0 {
		return fmt.Errorf("the daemon at %s takes no connections: it hangs or is stopped; find its process with: ss -xlp src %s", c.socket, c.socket)
	}
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	// proc_pid_stat(5): "PID (NAME) STATE …", where NAME may have brackets and blanks.
	if _, state, ok := strings.Cut(string(text[bytes.LastIndexByte(text, ')')+1:]), " "); ok && (state[0] == 'T' || state[0] == 't') {
		return fmt.Errorf("the daemon at %s, process %d, is stopped (SIGSTOP, or a debugger): kill -CONT %d has it go on", c.socket, pid, pid)
	}
	return fmt.Errorf("the daemon at %s, process %d, takes connections and does not answer: it hangs; its log may say in what", c.socket, pid)
}

// unreachable says what to do when there is no answer.
func (c *Client) unreachable(err error) error {
	switch {
	case c.node != "":
		return c.unheard(err)
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("no daemon listens at %s: start the daemon with management: {socket: %s} in its configuration, or name its socket with --socket", c.socket, c.socket)
	case errors.Is(err, syscall.EPROTOTYPE), errors.Is(err, syscall.ECONNREFUSED) && !isSocket(c.socket):
		return fmt.Errorf("%s is no management socket: name the one that management: {socket: …} in the daemon's configuration names, with --socket", c.socket)
	case errors.Is(err, syscall.ECONNREFUSED):
		return fmt.Errorf("the daemon of %s has died, or has not started yet: look at its log, and start it again", c.socket)
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("only root and the user of the daemon may use %s", c.socket)
	}
	return fmt.Errorf("no answer from the daemon at %s: %w", c.socket, err)
}

func isSocket(path string) bool {
	st, err := os.Stat(path)
	return err == nil && st.Mode()&fs.ModeSocket != 0
}
