package mgmt

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fake is a target of made-up figures.
type fake struct {
	guests int // that KnowGuests was told of
	partitioner
	dropped []uint16
	changes []AccessChange
	removed []string
	reload  error
	sick    error
}

func (f *fake) Status() Status {
	return Status{
		Version: "v1", PID: 7, Started: time.Unix(100, 0).UTC(), Loaded: time.Unix(200, 0).UTC(), Config: "/etc/x.yaml",
		BoundsNS: []int64{1000, 1500, 2000}, Connected: 2,
		Counters: Counters{
			Connections: 11, Refused: 12, Logins: 3, LoginFailures: 4, Redirects: 13, ProtocolErrors: 14, Rejects: 15, IgnoredCommands: 16, DigestErrors: 17,
			Moderation: Moderation{Censuses: 18, Pauses: 19, PausedNS: 20},
		},
		Buffers: Buffers{Limit: 1 << 30, InUse: 4096},
		Portals: []Portal{{"tcp", "127.0.0.1:3260"}},
		Cluster: &Cluster{
			Node: "own", Trouble: "its disk is full",
			Members: []Member{{Name: "n", Leaving: true}, {Name: "n", Up: true, Drained: true, Stuck: true}, {Name: "own"}}, // the second one takes the place of the first
			Mirrors: []Mirror{{
				Name: "m", Role: RolePrimary, Term: 17, LogBytes: 5, LogSize: 64, Records: 3, MinCopies: 2, Waiting: 2, Copied: 9, Lost: 34, Takeovers: 4,
				Takeover: &Takeover{Silence: 35e7, Promises: 2e7, Agreed: 1e7},
				Verify:   &Verification{Ended: time.Unix(77, 0), Differ: 6, Repaired: 4, Unknown: 1, Unreadable: 3},
				Copies:   []Copy{{Node: "n", State: CopyResync, Lacks: 11, Missing: 33, Lag: 25e7}},
			}, {Name: "elsewhere", Role: RoleNoCopy}},
		},
		NVMe: &NVMe{
			Counters: NVMeCounters{Connections: 21, Refused: 22, Connects: 8, ConnectFailures: 23, AuthFailures: 24, ProtocolErrors: 25, DigestErrors: 2}, Connected: 3,
			Subsystems: []Subsystem{{NQN: "nqn.s", Controllers: 2, Namespaces: []Namespace{{
				NSID: 4, Store: "d", Bytes: 1 << 21, IO: IO{Write: Class{Bytes: 512, SumNS: 500, Latency: []uint64{1, 0, 0, 0}}, Failed: map[string]uint64{"miscompare": 1}},
			}}}},
		},
		Devices: []Device{{"verbs", "rxe0", map[string]uint64{"sleeps": 7}}},
		Objects: []Objects{
			{Store: "h", Served: true, Objects: 3, Bytes: 77, Memory: 1024, Free: 512, Connections: 2, Requests: []ObjectRequests{{"insert", "too long", 6}}},
			{Store: "i", Connections: 1},
		},
		Programs: []Programs{{
			Portal: "/p", Connected: 31, Refused: 32, Silent: 33, MemoryRefused: 34, Connections: 35, ConnectionsRefused: 36,
			Users: []ProgramUser{{UID: 998, Programs: 37, QueuePairs: 38, Shared: 39, IO: IO{
				Write: Class{Bytes: 40, SumNS: 500, Latency: []uint64{41, 0, 0, 0}}, InFlight: 42, Failed: map[string]uint64{"denied": 43},
			}}},
		}},
		Targets: []Node{{Name: "iqn.t:t", Sessions: 1, LUNs: []LUN{{
			Number: 5, Store: "d", Bytes: 1 << 20, BlockSize: 512,
			IO: IO{
				Read:     Class{Bytes: 4096, SumNS: 3000, Latency: []uint64{1, 0, 2, 1}},
				Write:    Class{Latency: []uint64{0, 0, 0, 0}},
				InFlight: 2, Failed: map[string]uint64{"medium_error": 9},
			},
		}, {Number: 6, Store: "e"}}}},
	}
}

func (f *fake) NewToken(context.Context) (string, error) { return "the-token", f.sick }

func (f *fake) RemoveNode(_ context.Context, name string, how Removal) error {
	switch name {
	case "b":
		f.removed = append(f.removed, fmt.Sprint(name, how))
		return nil
	case "a":
		return errors.New("a is the only member")
	}
	return &NotFoundError{"no cluster"}
}

func (f *fake) DrainNode(_ context.Context, name string, on bool) error {
	f.removed = append(f.removed, fmt.Sprint(name, on))
	return f.sick
}

func (f *fake) ForgetMirror(_ context.Context, name string) error {
	if name != "a/b" {
		return &NotFoundError{"no mirror"}
	}
	f.removed = append(f.removed, "forget "+name)
	return f.sick
}

func (f *fake) SwitchMirror(_ context.Context, mirror, to string) (*Switched, error) {
	if mirror != "a/b" {
		return nil, &NotFoundError{"no mirror"}
	}
	return &Switched{From: "a", To: to, Took: 5}, f.sick
}

func (f *fake) VerifyMirror(_ context.Context, mirror string, how Verify) error {
	f.removed = append(f.removed, fmt.Sprint(mirror, how))
	return f.sick
}

func (f *fake) StopVerify(_ context.Context, mirror string) error {
	f.removed = append(f.removed, "stop "+mirror)
	return f.sick
}

func (f *fake) Verified(_ context.Context, mirror string) (*Verification, error) {
	if mirror != "a/b" {
		return nil, &NotFoundError{"never"}
	}
	return &Verification{Verify: Verify{Repair: true}, Differ: 2, Differences: []Difference{{Offset: 7, Odd: []string{"b"}}}}, f.sick
}

func (f *fake) Sessions() []Session {
	return []Session{{ID: 3, Initiator: "iqn.c:1", Target: "iqn.t:t", IO: IO{Write: Class{Bytes: 7}}}}
}

func (f *fake) DropSession(id uint16) bool {
	f.dropped = append(f.dropped, id)
	return id == 3
}

func (f *fake) Controllers() []Controller {
	return []Controller{{ID: 5, CNTLID: 1, Host: "nqn.h", Subsystem: "nqn.s", Queues: []Queue{{QID: 0}, {QID: 1, Entries: 128}}, IO: IO{Read: Class{Bytes: 9}}}}
}

func (f *fake) DropController(id uint64) bool { return id == 5 }

func (f *fake) Access() []Access {
	return []Access{{Target: "iqn.t:t", LUN: 5, Group: 1, Portals: f.Status().Portals, State: "standby", Preferred: true, ALUA: "implicit"}}
}

func (f *fake) SetAccess(_ context.Context, c AccessChange) ([]Access, error) {
	f.changes = append(f.changes, c)
	switch c.Group {
	case 1:
		return f.Access(), nil
	case 2:
		return nil, errors.New("not here")
	case 4:
		return nil, &RequestError{"no such state"}
	}
	return nil, fmt.Errorf("target: %w", &NotFoundError{"no group"})
}

func (f *fake) Reload(context.Context) (Reload, error) { return Reload{Done: []string{"x"}}, f.reload }
func (f *fake) Health() error                          { return f.sick }

// serve serves the API of f at a socket.
func serve(t *testing.T, f *fake) *Client {
	t.Helper()
	path := filepath.Join(t.TempDir(), "s")
	l, err := Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	s := &http.Server{Handler: NewAPI(f)}
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(l) }()
	c := NewClient(path)
	t.Cleanup(func() {
		c.Close()
		_ = s.Close()
		<-ended
	})
	return c
}

func TestAPI(t *testing.T) {
	f := new(fake)
	c := serve(t, f)
	ctx := t.Context()
	s, err := c.Status(ctx)
	if err != nil {
		t.Fatal(err)
	}
	want := f.Status()
	if diff := cmp.Diff(&want, s); diff != "" {
		t.Errorf("status (-want +got)\n%s", diff)
	}
	list, err := c.Sessions(ctx)
	if err != nil || len(list.Sessions) != 1 || list.Sessions[0].IO.Write.Bytes != 7 || len(list.BoundsNS) != 3 {
		t.Errorf("sessions %+v, %v", list, err)
	}
	if err := c.DropSession(ctx, 3); err != nil {
		t.Error(err)
	}
	if len(list.Controllers) != 1 || list.Controllers[0].IO.Read.Bytes != 9 || len(list.Controllers[0].Queues) != 2 {
		t.Errorf("%+v", list.Controllers)
	}
	if err := c.DropController(ctx, 5); err != nil {
		t.Error(err)
	}
	if err := c.DropController(ctx, 6); err == nil || err.Error() != "there is no controller 6" {
		t.Error(err)
	}
	if err := c.DropSession(ctx, 4); err == nil || err.Error() != "there is no session 4" {
		t.Error(err)
	}
	if diff := cmp.Diff([]uint16{3, 4}, f.dropped); diff != "" {
		t.Error(diff)
	}
	access, err := c.Access(ctx)
	if err != nil || access.Time.IsZero() {
		t.Fatalf("%+v, %v", access, err)
	}
	if diff := cmp.Diff(f.Access(), access.Access); diff != "" {
		t.Errorf("access states (-want +got)\n%s", diff)
	}
	no := false
	changes := []AccessChange{{Target: "iqn.t:t", Group: 1, State: "standby"}, {Group: 2, LUNs: []uint16{0, 5}, Preferred: &no}, {Group: 3, State: "x"}}
	for i, want := range []string{"", "not here", "target: no group"} {
		access, err := c.SetAccess(ctx, changes[i])
		if err != nil && err.Error() != want || err == nil && (want != "" || len(access.Access) != 1) {
			t.Errorf("change %d: %+v, %v", i, access, err)
		}
	}
	if diff := cmp.Diff(changes, f.changes); diff != "" {
		t.Error(diff)
	}
	r, err := c.Reload(ctx)
	if err != nil || len(r.Done) != 1 || r.Pending == nil {
		t.Errorf("%+v, %v", r, err)
	}
	f.reload = errors.New("two\nlines")
	if _, err := c.Reload(ctx); err == nil || err.Error() != "two\nlines" {
		t.Error(err)
	}
}

// Requests that make no sense have answers in JSON that say so.
func TestAPIMistakes(t *testing.T) {
	f := &fake{sick: errors.New("ill")}
	h := NewAPI(f)
	for _, c := range []struct {
		method, path, body string
		status             int
		want               string
	}{
		{"GET", "/v2/status", "", 404, "no GET /v2/status"},
		{"POST", "/v1/status", "", 404, "no POST /v1/status"},
		{"DELETE", "/v1/sessions/x", "", 400, "no such session"},
		{"DELETE", "/v1/sessions/65536", "", 400, "no such session"},
		{"GET", "/v1/health", "", 503, "ill"},
		{"PATCH", "/v1/access", "", 400, "not a change of access states"},
		{"PATCH", "/v1/access", `{"target": "t", "group": 1, "luns": [-1], "state": "standby"}`, 400, "not a change of access states"},
		{"PATCH", "/v1/access", `{"target": "t", "group": 1, "lun": 1, "state": "standby"}`, 400, `unknown field \"lun\"`},
		{"PATCH", "/v1/access", `{"target": "t", "group": 1}`, 400, "give state or preferred"},
		{"PATCH", "/v1/access", `{"target": "t", "group": 1, "state": "standby"} {"preferred": true}`, 400, "something follows"},
		{"PATCH", "/v1/access", `{"target": "t", "group": 1, "state": "standby"}]`, 400, "something follows"},
		{"PATCH", "/v1/access", `{"target": "t", "group": 3, "state": "standby"}`, 404, "no group"},
		{"PATCH", "/v1/access", `{"target": "t", "group": 2, "state": "standby"}`, 422, "not here"},
		{"PATCH", "/v1/access", `{"target": "t", "group": 4, "state": "standbye"}`, 400, "no such state"},
		{"POST", "/v1/mirrors/a%2Fb/verify", "", 400, "it is empty"},
		// What is asked for beside what there is would be something else.
		{"PATCH", "/v1/access?dry_run", `{"target": "t", "group": 1, "state": "standby"}`, 400, `no switch \"dry_run\" here`},
		{"POST", "/v1/reload?dry_run", "", 400, `no switch \"dry_run\" here`},
		{"POST", "/v1/reload", `{"dry_run": true}`, 400, "has a body"},
		{"DELETE", "/v1/sessions/3?dry_run", "", 400, `no switch \"dry_run\" here`},
		{"DELETE", "/v1/controllers/5?dry_run", "", 400, `no switch \"dry_run\" here`},
		{"DELETE", "/v1/endpoints/4?dry_run", "", 400, `no switch \"dry_run\" here`},
		{"POST", "/v1/cluster/tokens?count=3", "", 400, `no switch \"count\" here`},
		{"DELETE", "/v1/cluster/nodes/b?up", "", 400, "up is for ?replace"},
		{"DELETE", "/v1/cluster/nodes/b?up&replace=false", "", 400, "up is for ?replace"},
		{"PUT", "/v1/cluster/drained/b?wait", "", 400, `no switch \"wait\" here`},
		{"DELETE", "/v1/cluster/drained/b?wait", "", 400, `no switch \"wait\" here`},
		{"DELETE", "/v1/cluster/mirrors/a%2Fb?force", "", 400, `no switch \"force\" here`},
		{"POST", "/v1/mirrors/a%2Fb/switch?node=b", "", 400, `no switch \"node\" here: known are to`},
		{"POST", "/v1/mirrors/a%2Fb/switch?to=b&to=c", "", 400, "write it once"},
		{"POST", "/v1/mirrors/a%2Fb/switch?to=%zz", "", 400, "invalid URL escape"},
		{"POST", "/v1/mirrors/a%2Fb/grow?size=4096&unit=MiB", "", 400, `no switch \"unit\" here: known are size`},
		{"POST", "/v1/mirrors/a%2Fb/verify?repair", "{}", 400, `no switch \"repair\" here`},
		{"DELETE", "/v1/mirrors/a%2Fb/verify?repair", "", 400, `no switch \"repair\" here`},
		{"PATCH", "/v1/access", `{"target": "` + strings.Repeat("t", maxRequest) + `"}`, 400, "too large"},
	} {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(c.method, c.path, strings.NewReader(c.body)))
		if w.Code != c.status || !strings.Contains(w.Body.String(), c.want) || w.Header().Get("Content-Type") != "application/json" {
			t.Errorf("%s %s: %d %s", c.method, c.path, w.Code, w.Body)
		}
	}
	if len(f.dropped)+len(f.removed)+len(f.asked) > 0 {
		t.Errorf("done all the same: %v, %v, %v", f.dropped, f.removed, f.asked)
	}
}

// FuzzAPI sends any request: the answer is JSON, and nothing is changed that was not asked for.
func FuzzAPI(f *testing.F) {
	f.Add("GET", "/v1/status", "")
	f.Add("DELETE", "/v1/sessions/3", "")
	f.Add("PATCH", "/v1/access", `{"target": "iqn.t:t", "group": 1, "luns": [0, 5], "state": "standby", "preferred": true}`)
	f.Add("PATCH", "/v1/access", `{"target": "t", "group": 2, "preferred": null}`)
	f.Add("POST", "/v1/reload", "{}")
	f.Add("GET", "/v1/stores", "")
	f.Add("PATCH", "/v1/stores/d/partitions/log?force", `{"size": 4096, "access": [{"who": "any", "rights": "r"}]}`)
	f.Add("POST", "/v1/stores/d/partitions", `[{"name": "a", "size": 4096}, {"name": "b"}]`)
	f.Add("DELETE", "/v1/endpoints/4", "")
	f.Fuzz(func(t *testing.T, method, path, body string) {
		target := new(fake)
		u, err := url.ParseRequestURI(path)
		if err != nil || u.Host != "" {
			return
		}
		r := &http.Request{Method: method, URL: u, Body: io.NopCloser(strings.NewReader(body)), Host: "x", Header: http.Header{"If-Match": {"*"}}}
		w := httptest.NewRecorder()
		NewAPI(target).ServeHTTP(w, r)
		switch {
		case w.Code >= 300 && w.Code < 400: // a path that is to be cleaned
			return
		case w.Code != http.StatusNoContent && !json.Valid(w.Body.Bytes()) || w.Code != http.StatusNoContent && w.Header().Get("Content-Type") != "application/json":
			t.Fatalf("%s %s: %d %q", method, path, w.Code, w.Body)
		case len(target.changes) > 0 && (method != "PATCH" || target.changes[0].State == "" && target.changes[0].Preferred == nil):
			t.Fatalf("%s %s changes %+v", method, path, target.changes)
		case len(target.asked) > 0 && method != "POST" && method != "PATCH" && method != "DELETE":
			t.Fatalf("%s %s changes %v", method, path, target.asked)
		case len(target.dropped) > 0 && method != "DELETE":
			t.Fatalf("%s %s drops %v", method, path, target.dropped)
		}
	})
}

func TestListen(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	l, err := Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	info, err := os.Lstat(path)
	if err != nil || info.Mode().Perm() != 0o600 || l.Addr().String() != path {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	if _, err := Listen(path); err == nil || !strings.Contains(err.Error(), "another daemon") {
		t.Errorf("a second daemon: %v", err)
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	if left, _ := os.ReadDir(filepath.Dir(path)); len(left) != 0 {
		t.Errorf("left: %v", left)
	}
	// What a daemon that was killed left behind gives way, and another's socket is not removed.
	dead, err := net.ListenUnix("unix", &net.UnixAddr{Name: path})
	if err != nil {
		t.Fatal(err)
	}
	dead.SetUnlinkOnClose(false)
	_ = dead.Close()
	first, err := Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	second, err := Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	_ = first.Close()
	if _, err := os.Lstat(path); err != nil {
		t.Error("the first has removed the second's socket")
	}
	_ = second.Close()

	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Listen(path); err == nil || !strings.Contains(err.Error(), "not a socket") {
		t.Errorf("a file: %v", err)
	}
	if _, err := Listen(filepath.Join(t.TempDir(), "none", "s")); err == nil || !strings.Contains(err.Error(), "create it") {
		t.Errorf("no directory: %v", err)
	}
}

func TestUnreachable(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	if _, err := NewClient(path).Status(context.Background()); err == nil || !strings.Contains(err.Error(), "no daemon listens") {
		t.Error(err)
	}
	dead, err := net.ListenUnix("unix", &net.UnixAddr{Name: path})
	if err != nil {
		t.Fatal(err)
	}
	dead.SetUnlinkOnClose(false)
	_ = dead.Close()
	if _, err := NewClient(path).Status(context.Background()); err == nil || !strings.Contains(err.Error(), "has died") {
		t.Error(err)
	}
	other := filepath.Join(t.TempDir(), "card") // what a portal with transport local is
	card, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: other, Net: "unixpacket"})
	if err != nil {
		t.Fatal(err)
	}
	defer card.Close()
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{other, file, t.TempDir()} {
		if _, err := NewClient(path).Status(context.Background()); err == nil || !strings.Contains(err.Error(), path+" is no management socket") {
			t.Error(err)
		}
	}
	c := NewClient(path)
	if got := c.unreachable(&net.OpError{Err: fs.ErrPermission}); !strings.Contains(got.Error(), "only root") {
		t.Error(got)
	}
}

// TestNoDaemon: who answers null is not taken for a daemon, of which nothing is known, nor is a change asked for there.
func TestNoDaemon(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet {
			t.Errorf("%s %s was asked for", r.Method, r.URL)
		}
		_, _ = io.WriteString(w, "null")
	})}
	go func() { _ = s.Serve(l) }()
	defer s.Close()
	c := NewClient(path)
	defer c.Close()
	now, err := c.Status(t.Context())
	if err == nil || !strings.Contains(err.Error(), "does not understand: it is null") {
		t.Errorf("%+v, %v", now, err)
	}
	if err := c.DropSession(t.Context(), 1); err == nil {
		t.Error("a session was ended")
	}
}

func TestMetrics(t *testing.T) {
	f := new(fake)
	h := NewMetrics(f, false)
	get := func(path string) (int, string) {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
		body, _ := io.ReadAll(w.Body)
		return w.Code, string(body)
	}
	_, text := get("/metrics")
	problems, err := promlint.New(strings.NewReader(text)).Lint() // names, units and types as Prometheus wants them
	if err != nil {
		t.Error(err)
	}
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
	for _, line := range []string{
		`oneshot_lun_command_duration_seconds_bucket{lun="5",op="read",target="iqn.t:t",le="1e-06"} 1`,
		`oneshot_lun_command_duration_seconds_bucket{lun="5",op="read",target="iqn.t:t",le="2e-06"} 3`,
		`oneshot_lun_command_duration_seconds_bucket{lun="5",op="read",target="iqn.t:t",le="+Inf"} 4`,
		`oneshot_lun_command_duration_seconds_sum{lun="5",op="read",target="iqn.t:t"} 3e-06`,
		`oneshot_lun_bytes_total{lun="5",op="read",target="iqn.t:t"} 4096`,
		`oneshot_lun_failures_total{kind="medium_error",lun="5",target="iqn.t:t"} 9`,
		`oneshot_lun_size_bytes{lun="5",store="d",target="iqn.t:t"} 1.048576e+06`,
		`oneshot_lun_commands_in_flight{lun="5",target="iqn.t:t"} 2`,
		`oneshot_sessions{target="iqn.t:t"} 1`,
		`oneshot_sessions{target=""} 1`,
		`oneshot_connections_total 11`,
		`oneshot_connections_refused_total 12`,
		`oneshot_logins_total 3`,
		`oneshot_login_redirects_total 13`,
		`oneshot_protocol_errors_total 14`,
		`oneshot_rejects_total 15`,
		`oneshot_ignored_commands_total 16`,
		`oneshot_digest_errors_total 17`,
		`oneshot_moderation_censuses_total 18`,
		`oneshot_moderation_pauses_total 19`,
		`oneshot_moderation_paused_seconds_total 2e-08`,
		`oneshot_nvme_connections_total 21`,
		`oneshot_nvme_connections_refused_total 22`,
		`oneshot_nvme_connects_total 8`,
		`oneshot_nvme_connect_failures_total 23`,
		`oneshot_nvme_authentication_failures_total 24`,
		`oneshot_nvme_protocol_errors_total 25`,
		`oneshot_cluster_node_up{node="n"} 1`,
		`oneshot_cluster_node_drained{node="n"} 1`,
		`oneshot_cluster_node_stuck{node="n"} 1`,
		`oneshot_cluster_node_stuck{node="own"} 1`,
		`oneshot_cluster_node_leads{node="n"} 0`,
		`oneshot_mirror_primary{mirror="m"} 1`,
		`oneshot_mirror_term{mirror="m"} 17`,
		`oneshot_mirror_log_used_bytes{mirror="m"} 5`,
		`oneshot_mirror_log_size_bytes{mirror="m"} 64`,
		`oneshot_mirror_log_records{mirror="m"} 3`,
		`oneshot_mirror_min_copies{mirror="m"} 2`,
		`oneshot_mirror_operations_waiting{mirror="m"} 2`,
		`oneshot_mirror_resync_bytes_total{mirror="m"} 9`,
		`oneshot_mirror_missing_bytes{mirror="m"} 33`,
		`oneshot_mirror_lost_bytes_total{mirror="m"} 34`,
		`oneshot_mirror_takeovers_total{mirror="m"} 4`,
		`oneshot_mirror_takeover_duration_seconds{mirror="m",step="silence"} 0.35`,
		`oneshot_mirror_takeover_duration_seconds{mirror="m",step="promises"} 0.02`,
		`oneshot_mirror_takeover_duration_seconds{mirror="m",step="consensus"} 0.01`,
		`oneshot_mirror_verify_end_time_seconds{mirror="m"} 77`,
		`oneshot_mirror_verify_ranges{kind="left",mirror="m"} 2`,
		`oneshot_mirror_verify_ranges{kind="repaired",mirror="m"} 4`,
		`oneshot_mirror_verify_ranges{kind="unknown",mirror="m"} 1`,
		`oneshot_mirror_verify_ranges{kind="unreadable",mirror="m"} 3`,
		`oneshot_mirror_copy_state{mirror="m",node="n",state="resync"} 1`,
		`oneshot_mirror_copy_state{mirror="m",node="n",state="in sync"} 0`,
		`oneshot_mirror_copy_lacks_bytes{mirror="m",node="n"} 11`,
		`oneshot_mirror_copy_lag_seconds{mirror="m",node="n"} 0.25`,
		`oneshot_objects_served{store="h"} 1`,
		`oneshot_objects{store="h"} 3`,
		`oneshot_objects_bytes{store="h"} 77`,
		`oneshot_objects_memory_bytes{store="h"} 1024`,
		`oneshot_objects_free_bytes{store="h"} 512`,
		`oneshot_objects_connections{store="h"} 2`,
		`oneshot_objects_requests_total{end="too long",op="insert",store="h"} 6`,
		`oneshot_objects_served{store="i"} 0`,
		`oneshot_objects_connections{store="i"} 1`,
		`oneshot_programs{portal="/p",uid="998"} 37`,
		`oneshot_programs_refused_total{portal="/p"} 32`,
		`oneshot_programs_silent_total{portal="/p"} 33`,
		`oneshot_program_memory_refused_total{portal="/p"} 34`,
		`oneshot_program_connections{portal="/p"} 35`,
		`oneshot_program_connections_refused_total{portal="/p"} 36`,
		`oneshot_program_queue_pairs{portal="/p",uid="998"} 38`,
		`oneshot_program_shared_bytes{portal="/p",uid="998"} 39`,
		`oneshot_program_bytes_total{op="write",portal="/p",uid="998"} 40`,
		`oneshot_program_operation_duration_seconds_count{op="write",portal="/p",uid="998"} 41`,
		`oneshot_program_operations_in_flight{portal="/p",uid="998"} 42`,
		`oneshot_program_failures_total{kind="denied",portal="/p",uid="998"} 43`,
		`oneshot_nvme_digest_errors_total 2`,
		`oneshot_controllers{subsystem="nqn.s"} 2`,
		`oneshot_controllers{subsystem=""} 1`,
		`oneshot_namespace_size_bytes{nsid="4",store="d",subsystem="nqn.s"} 2.097152e+06`,
		`oneshot_namespace_bytes_total{nsid="4",op="write",subsystem="nqn.s"} 512`,
		`oneshot_namespace_command_duration_seconds_bucket{nsid="4",op="write",subsystem="nqn.s",le="1e-06"} 1`,
		`oneshot_namespace_failures_total{kind="miscompare",nsid="4",subsystem="nqn.s"} 1`,
		`oneshot_login_failures_total 4`,
		`oneshot_buffer_limit_bytes 1.073741824e+09`,
		`oneshot_rdma_total{device="rxe0",kind="sleeps",transport="verbs"} 7`,
		`oneshot_info{version="v1"} 1`,
		`oneshot_start_time_seconds 100`,
	} {
		if !strings.Contains(text, line+"\n") {
			t.Errorf("there is no %s", line)
		}
	}
	if n := len(counters) + len(nvmeCounters); n != 18 {
		t.Errorf("there are %d counters without labels, and this test looks at 18", n)
	}
	if strings.Contains(text, `oneshot_objects{store="i"}`) {
		t.Error("a node that does not serve objects says how many there are")
	}
	if strings.Contains(text, `lun="5",op="write"`) {
		t.Error("commands that never came have series")
	}
	if code, text := get("/healthz"); code != 200 || text != "ok\n" {
		t.Errorf("health: %d %s", code, text)
	}
	f.sick = errors.New("ill")
	if code, text := get("/healthz"); code != 503 || text != "ill\n" {
		t.Errorf("health: %d %s", code, text)
	}
	if code, _ := get("/debug/pprof/"); code != 404 {
		t.Errorf("profiles without being asked for: %d", code)
	}
	h = NewMetrics(f, true)
	if code, _ := get("/debug/pprof/"); code != 200 {
		t.Errorf("profiles: %d", code)
	}
}

func TestClass(t *testing.T) {
	bounds := []int64{10, 20, 40}
	c := Class{Bytes: 100, SumNS: 1000, Latency: []uint64{50, 40, 9, 1}}
	for q, want := range map[float64]time.Duration{0: 10, 0.5: 10, 0.51: 20, 0.9: 20, 0.99: 40, 1: 40} {
		if got := c.Quantile(q, bounds); got != want {
			t.Errorf("quantile %v is %d, want %d", q, got, want)
		}
	}
	if c.Commands() != 100 || c.Mean() != 10 {
		t.Errorf("%d commands, mean %d", c.Commands(), c.Mean())
	}
	d := c.Since(&Class{Bytes: 40, SumNS: 900, Latency: []uint64{50, 30, 0, 0}})
	if d.Bytes != 60 || d.Commands() != 20 || d.Mean() != 5 {
		t.Errorf("%+v", d)
	}
	// The daemon has been started again.
	if d := c.Since(&Class{Bytes: 1 << 40, SumNS: 1 << 40, Latency: []uint64{1 << 40, 0, 0, 0}}); d.Bytes != 100 || d.Commands() != 100 {
		t.Errorf("%+v", d)
	}
	var none Class
	if none.Mean() != 0 || none.Quantile(0.5, bounds) != 0 {
		t.Error("no commands have a latency")
	}
}

// A daemon that takes connections and never answers is not waited for without end: neither for its state, nor
// with a change, which is not made.
func TestClientDoesNotWaitForWhatHangs(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	for name, ask := range map[string]func(*Client) error{
		"status":   func(c *Client) error { _, err := c.Status(t.Context()); return err },
		"sessions": func(c *Client) error { _, err := c.Sessions(t.Context()); return err },
		"reload":   func(c *Client) error { _, err := c.Reload(t.Context()); return err },
		"drop":     func(c *Client) error { return c.DropSession(t.Context(), 1) },
	} {
		c := NewClient(path)
		c.patient = func(ctx context.Context) (context.Context, context.CancelFunc) {
			ctx, cancel := context.WithCancelCause(ctx)
			over := make(chan struct{})
			go func() { // takes the connection and what is asked, and then time is up
				defer close(over)
				if conn, err := l.Accept(); err == nil {
					_, _ = conn.Read(make([]byte, 1))
					cancel(errSilent)
					_ = conn.Close()
				}
			}()
			return ctx, func() { <-over }
		}
		if err := ask(c); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("process %d, takes connections and does not answer", os.Getpid())) {
			t.Errorf("%s: %v", name, err)
		}
		c.Close()
	}
	c := NewClient(path)
	defer c.Close()
	c.patient = func(ctx context.Context) (context.Context, context.CancelFunc) {
		ctx, cancel := context.WithCancelCause(ctx)
		cancel(errSilent) // before there is a connection
		return ctx, func() {}
	}
	if _, err := c.Status(t.Context()); err == nil || !strings.Contains(err.Error(), "takes no connections") {
		t.Errorf("without a connection: %v", err)
	}
}

// TestCluster: tokens and members through the client and the API.
func TestCluster(t *testing.T) {
	f := new(fake)
	c := serve(t, f)
	if token, err := c.NewToken(t.Context()); err != nil || token != "the-token" {
		t.Errorf("%q %v", token, err)
	}
	f.sick = errors.New("no majority")
	if _, err := c.NewToken(t.Context()); err == nil || !strings.Contains(err.Error(), "no majority") {
		t.Error(err)
	}
	for _, how := range []Removal{{}, {Lose: []string{"d&e", "replace=false"}}, {Replace: true}, {Replace: true, Up: true, Lose: []string{"d"}}} {
		if err := c.RemoveNode(t.Context(), "b", how); err != nil {
			t.Error(err)
		}
	}
	if diff := cmp.Diff([]string{"b{false false []}", "b{false false [d&e replace=false]}", "b{true false []}", "b{true true [d]}"}, f.removed); diff != "" {
		t.Error(diff)
	}
	for name, want := range map[string]string{"a": "the only member", "c/d": "no cluster"} {
		if err := c.RemoveNode(t.Context(), name, Removal{}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestMirrors: drains and switches through the client and the API, and what other nodes ask.
func TestMirrors(t *testing.T) {
	f := new(fake)
	c := serve(t, f)
	for _, on := range []bool{true, false} {
		if err := c.DrainNode(t.Context(), "b/c", on); err != nil {
			t.Error(err)
		}
	}
	if err := c.ForgetMirror(t.Context(), "a/b"); err != nil {
		t.Error(err)
	}
	if diff := cmp.Diff([]string{"b/ctrue", "b/cfalse", "forget a/b"}, f.removed); diff != "" {
		t.Error(diff)
	}
	if err := c.ForgetMirror(t.Context(), "c"); err == nil || err.Error() != "no mirror" {
		t.Error(err)
	} else if _, ok := errors.AsType[*NotFoundError](err); !ok {
		t.Error(err)
	}
	peer := NewPeerClient("n", func(context.Context) (net.Conn, error) {
		here, there := net.Pipe()
		l := &once{conns: make(chan net.Conn, 1), ended: make(chan struct{})}
		l.conns <- there
		s := &http.Server{Handler: NewPeerAPI(f)}
		go func() { _ = s.Serve(l) }()
		t.Cleanup(func() { _ = s.Close() })
		return here, nil
	})
	for _, c := range []*Client{c, peer} {
		f.removed = nil
		if err := errors.Join(c.VerifyMirror(t.Context(), "a/b", Verify{true, "n"}), c.StopVerify(t.Context(), "a/b")); err != nil {
			t.Error(err)
		}
		if diff := cmp.Diff([]string{"a/b{true n}", "stop a/b"}, f.removed); diff != "" {
			t.Error(diff)
		}
		f.removed = nil
		if err := c.GrowMirror(t.Context(), "a/b", 1<<40); err != nil || len(f.removed) != 1 || f.removed[0] != "grow a/b1099511627776" {
			t.Errorf("%v, %v", err, f.removed)
		}
		if err := c.GrowMirror(t.Context(), "a/b", -1); err == nil || len(f.removed) != 1 {
			t.Errorf("a size below zero: %v", err)
		}
		if v, err := c.Verified(t.Context(), "a/b"); err != nil || !v.Repair || v.Differ != 2 || v.Differences[0].Odd[0] != "b" || !v.Ended.IsZero() {
			t.Errorf("%+v, %v", v, err)
		}
		if _, err := c.Verified(t.Context(), "c"); err == nil || err.Error() != "never" {
			t.Error(err)
		}
		if s, err := c.SwitchMirror(t.Context(), "a/b", "c&d"); err != nil || *s != (Switched{"a", "c&d", 5}) {
			t.Errorf("%+v, %v", s, err)
		}
		_, err := c.SwitchMirror(t.Context(), "c", "")
		if _, ok := errors.AsType[*NotFoundError](err); !ok {
			t.Error(err)
		}
	}
	if err := peer.MakeRoom(t.Context(), "a/b", 7); err != nil || f.removed[len(f.removed)-1] != "room a/b7" {
		t.Errorf("%v, %v", err, f.removed)
	}
	if err := peer.TellTrouble(t.Context(), "a/b", "c/d", CopyTrouble{CopyStale, "full"}); err != nil || f.removed[len(f.removed)-1] != "trouble a/b c/d{not in sync full}" {
		t.Errorf("%v, %v", err, f.removed)
	}
	if err := peer.HasCarrier(t.Context(), "a/b"); err != nil {
		t.Error(err)
	}
	if err := peer.HasCarrier(t.Context(), "c"); err == nil || err.Error() != "eth0 has no link" {
		t.Error(err)
	}
	longest := Guest{
		Local:  netip.MustParseAddrPort("[2001:db8:1111:2222:3333:4444:5555:6666]:65535"),
		Remote: netip.MustParseAddrPort("[2001:db8:1111:2222:3333:4444:5555:7777]:65535"), Initiator: "iqn.2026-11." + strings.Repeat("a", 211), ISID: "00023d000001",
	}
	if err := peer.KnowGuests(t.Context(), "a/b", slices.Repeat([]Guest{longest}, MaxGuests)); err != nil || f.guests != MaxGuests {
		t.Errorf("as many guests as there may be, with the longest names: %v; %d are known", err, f.guests)
	}
	f.removed = nil
	if err := c.MakeRoom(t.Context(), "a/b", 7); err == nil || len(f.removed) > 0 {
		t.Errorf("an administrator may do what only nodes may: %v", err)
	}
	if err := peer.ForgetMirror(t.Context(), "a/b"); err == nil || len(f.removed) > 0 {
		t.Errorf("another node may have it forgotten: %v", err)
	}
	if err := peer.DrainNode(t.Context(), "b", true); err == nil || len(f.removed) > 0 {
		t.Errorf("another node may ask for more than it should: %v", err)
	}
	deaf := NewPeerClient("n", func(context.Context) (net.Conn, error) { return nil, errors.New("no route") })
	if _, err := deaf.SwitchMirror(t.Context(), "a/b", "c"); err == nil || !strings.Contains(err.Error(), "node n does not answer: ") || !strings.Contains(err.Error(), "no route") {
		t.Error(err)
	}
}

// once is a listener with the connections that it is given.
type once struct {
	conns chan net.Conn
	ended chan struct{}
	over  sync.Once
}

func (o *once) Accept() (net.Conn, error) {
	select {
	case c := <-o.conns:
		return c, nil
	case <-o.ended:
		return nil, net.ErrClosed
	}
}

func (o *once) Close() error   { o.over.Do(func() { close(o.ended) }); return nil }
func (o *once) Addr() net.Addr { return &net.UnixAddr{} }

func (f *fake) KnowGuests(_ string, guests []Guest) error { f.guests = len(guests); return nil }
func (f *fake) AddressesTaken(string) error               { return nil }
func (f *fake) HasCarrier(mirror string) error {
	if mirror != "a/b" {
		return errors.New("eth0 has no link")
	}
	return nil
}

func (f *fake) KnowTrouble(mirror, node string, what CopyTrouble) error {
	f.removed = append(f.removed, fmt.Sprint("trouble ", mirror, " ", node, what))
	return nil
}

func (f *fake) MakeRoom(mirror string, size int64) error {
	f.removed = append(f.removed, fmt.Sprint("room ", mirror, size))
	return nil
}

func (f *fake) GrowMirror(_ context.Context, mirror string, size int64) error {
	f.removed = append(f.removed, fmt.Sprint("grow ", mirror, size))
	return nil
}
