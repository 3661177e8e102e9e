package quorum

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"oneshot/internal/mutants"
)

// The tests of this file run each node as a process of its own, with a directory and sockets of the system.

// order is what a test asks a process to do; answer is what it says.
type order struct {
	Op      string // put, get, token, leave, await
	Key     string
	Version uint64
	Value   string
	Await   condition
}

// condition of a Status; what is zero is not asked for.
type condition struct {
	Voters  string // as fmt prints them, and no change of them is under way
	Heard   int
	Members int
	Leader  uint64 // another one than this
	Trouble string // a part of it; "none": there is none
	Broken  string // a part of what is said of node 3
}

type answer struct {
	Err     string
	Version uint64
	Value   string
	Token   string
	Status  Status
	Trouble string
}

// child is the configuration of a process, in a variable.
type child struct {
	Name, Dir, Listen string
	Nodes             map[string]string // addresses
}

const childVariable = "ONESHOT_QUORUM_CHILD"

// TestMain belongs to two programs: that of the tests, and the node that they start.
func TestMain(m *testing.M) {
	if text := os.Getenv(childVariable); text != "" {
		if err := runChild(text); err != nil {
			_ = json.NewEncoder(os.Stdout).Encode(answer{Err: err.Error()})
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func runChild(text string) error {
	var c child
	if err := json.Unmarshal([]byte(text), &c); err != nil {
		return err
	}
	dir, err := OpenDir(c.Dir)
	if err != nil {
		return err
	}
	l, err := net.Listen("tcp", c.Listen)
	if err != nil {
		return err
	}
	logger := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug})).With("node", c.Name)
	n, err := Open(Options{Name: c.Name, FS: dir, Listener: l, Log: logger, Dial: DialTCP(func(name string) (string, error) {
		if at := c.Nodes[name]; at != "" {
			return at, nil
		}
		return "", errors.New("it has no address")
	})})
	if err != nil {
		return err
	}
	out := json.NewEncoder(os.Stdout)
	if err := out.Encode(answer{Status: n.Status()}); err != nil {
		return err
	}
	in := json.NewDecoder(os.Stdin)
	for {
		var o order
		if err := in.Decode(&o); err == io.EOF {
			return errors.Join(n.Close(), dir.Close())
		} else if err != nil {
			return err
		}
		if err := out.Encode(o.do(n)); err != nil {
			return err
		}
	}
}

func (o *order) do(n *Node) (a answer) {
	patience := time.Minute
	if os.Getenv(mutants.Variable) != "" {
		patience = 15 * time.Second // what a mistake has broken does not come
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	var r *Record
	var err error
	switch o.Op {
	case "put":
		r, err = n.Put(ctx, Key{KindUnit, o.Key}, o.Version, []byte(o.Value))
	case "get":
		r, err = n.Get(ctx, Key{KindUnit, o.Key})
	case "token":
		var t Token
		t, err = n.NewToken(ctx)
		a.Token = t.String()
	case "leave":
		err = n.Leave(ctx, o.Key, Replaced)
	case "await":
		a.Status, err = n.Await(ctx, o.Await.holds)
		if err := a.Status.Trouble; err != nil {
			a.Status.Trouble, a.Trouble = nil, err.Error()
		}
	}
	if r != nil {
		a.Version, a.Value = r.Version, string(r.Value)
	}
	if err != nil {
		a.Err = err.Error()
	}
	return a
}

func (c *condition) holds(s *Status) bool {
	trouble := "none"
	if s.Trouble != nil {
		trouble = s.Trouble.Error()
	}
	return (c.Voters == "" || fmt.Sprint(s.Voters) == c.Voters && len(s.Former) == 0) && (c.Heard == 0 || len(s.Heard) == c.Heard) &&
		(c.Members == 0 || len(s.Members) == c.Members) && (c.Leader == 0 || s.Leader != 0 && s.Leader != c.Leader) &&
		strings.Contains(trouble, c.Trouble) && strings.Contains(s.Broken[3], c.Broken)
}

// machine is a process, as a test sees it.
type machine struct {
	t   *testing.T
	cmd *exec.Cmd
	in  io.WriteCloser
	out *json.Decoder
}

func start(t *testing.T, c child) (*machine, answer) {
	t.Helper()
	text, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	m := &machine{t: t, cmd: exec.Command(os.Args[0])}
	m.cmd.Env = append(os.Environ(), childVariable+"="+string(text))
	if os.Getenv("ONESHOT_SIM_LOG") != "" {
		m.cmd.Stderr = t.Output()
	}
	if m.in, err = m.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := m.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	m.out = json.NewDecoder(bufio.NewReader(out))
	if err := m.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.kill)
	var a answer
	if err := m.out.Decode(&a); err != nil {
		t.Fatal(err)
	}
	if a.Err != "" {
		_ = m.cmd.Wait() // it ends with status 1, and holds the lock of its directory until then
	}
	return m, a
}

// kill ends a process as SIGKILL does.
func (m *machine) kill() {
	_ = m.cmd.Process.Kill()
	_ = m.cmd.Wait() // it was killed
}

// stop ends a process in good order.
func (m *machine) stop() {
	m.t.Helper()
	_ = m.in.Close()
	if err := m.cmd.Wait(); err != nil {
		m.t.Errorf("at its end: %v", err)
	}
}

// ask returns the answer, with whatever error.
func (m *machine) ask(o order) (a answer) {
	m.t.Helper()
	if err := json.NewEncoder(m.in).Encode(o); err != nil {
		m.t.Fatal(err)
	}
	if err := m.out.Decode(&a); err != nil {
		m.t.Fatal(err)
	}
	return a
}

func (m *machine) must(o order) answer {
	m.t.Helper()
	a := m.ask(o)
	if a.Err != "" {
		m.t.Fatalf("%+v: %+v", o, a)
	}
	return a
}

func (m *machine) await(c condition) Status {
	m.t.Helper()
	return m.must(order{Op: "await", Await: c}).Status
}

func (m *machine) put(key string, version uint64, value string) {
	m.t.Helper()
	m.must(order{Op: "put", Key: key, Version: version, Value: value})
}

func (m *machine) get(key, want string) {
	m.t.Helper()
	if a := m.must(order{Op: "get", Key: key}); a.Value != want {
		m.t.Fatalf("%s is %q, and should be %q", key, a.Value, want)
	}
}

// site is a cluster of processes.
type site struct {
	t     *testing.T
	dir   string
	at    map[string]string
	nodes map[string]*machine
}

// newSite makes a cluster of a, b and w, which vote.
func newSite(t *testing.T) *site {
	t.Helper()
	s := &site{t, t.TempDir(), map[string]string{}, map[string]*machine{}}
	for _, name := range []string{"a", "b", "w", "other"} {
		s.at[name] = freeAddress(t)
	}
	var tokens []Token
	s.with("a", func(d *Dir) (err error) {
		tokens, err = Init(d, "lab", "a", false, 2)
		return err
	})
	s.start("a")
	for i, name := range []string{"b", "w"} {
		s.join(name, "a", tokens[i].String())
	}
	for _, m := range s.nodes { // see three
		m.await(condition{Voters: "[1 2 3]", Heard: 3})
	}
	return s
}

// freeAddress returns one of the loopback interface where nobody listens.
func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

func (s *site) path(name string) string { return filepath.Join(s.dir, name) }

func (s *site) with(name string, f func(d *Dir) error) {
	s.t.Helper()
	d, err := OpenDir(s.path(name))
	if err != nil {
		s.t.Fatal(err)
	}
	defer d.Close()
	if err := f(d); err != nil {
		s.t.Fatal(err)
	}
}

func (s *site) start(name string) *machine {
	s.t.Helper()
	m, a := start(s.t, child{name, s.path(name), s.at[name], s.at})
	if a.Err != "" {
		s.t.Fatalf("%s: %s", name, a.Err)
	}
	s.nodes[name] = m
	return m
}

// join makes a member of a machine without a state.
func (s *site) join(name, through, token string) {
	s.t.Helper()
	s.with(name, func(d *Dir) error {
		t, err := ParseToken(token)
		if err != nil {
			return err
		}
		conn, err := net.Dial("tcp", s.at[through])
		if err != nil {
			return err
		}
		return Join(s.t.Context(), d, conn, t, name, name == "w")
	})
	s.start(name)
}

// copy makes a copy of a state directory, as a snapshot of the machine has it.
func (s *site) copy(from, to string) {
	s.t.Helper()
	if err := errors.Join(os.RemoveAll(s.path(to)), os.CopyFS(s.path(to), os.DirFS(s.path(from)))); err != nil {
		s.t.Fatal(err)
	}
}

// TestKilled: each process in turn is killed while changes are made, and comes back; then all are, at once. What was
// answered is there, and nothing was done twice.
func TestKilled(t *testing.T) {
	s := newSite(t)
	version := uint64(0)
	for _, name := range []string{"a", "b", "w", "a", "b"} {
		others := slices.DeleteFunc([]string{"a", "b", "w"}, func(o string) bool { return o == name })
		for i := range 10 {
			if i == 5 {
				s.nodes[name].kill()
			}
			s.nodes[others[i%2]].put("x", version, fmt.Sprint(version+1))
			version++
		}
		s.nodes[others[0]].await(condition{Heard: 2})
		s.start(name).get("x", fmt.Sprint(version))
		s.nodes[others[1]].await(condition{Heard: 3})
	}
	for _, m := range s.nodes {
		m.kill()
	}
	for name := range s.nodes {
		s.start(name)
	}
	for _, m := range s.nodes {
		if a := m.must(order{Op: "get", Key: "x"}); a.Version != version {
			t.Errorf("version %d, and %d was answered", a.Version, version)
		}
	}
	for _, m := range s.nodes {
		m.stop()
	}
}

// TestLeaderKilled: the others elect another one.
func TestLeaderKilled(t *testing.T) {
	s := newSite(t)
	was := s.nodes["a"].await(condition{}).Leader
	leader := map[uint64]string{1: "a", 2: "b", 3: "w"}[was]
	s.nodes[leader].kill()
	delete(s.nodes, leader)
	for _, m := range s.nodes {
		m.await(condition{Leader: was})
	}
	s.start(leader).put("x", 0, "one")
}

// TestWitnessLeads: the witness takes the lead; while it is away another one does, and then it does again. How long a sync or a round trip takes here
// nobody knows, so changes go on until both were short for a while.
func TestWitnessLeads(t *testing.T) {
	s := newSite(t)
	version := uint64(0)
	for range 2 {
		for s.nodes["a"].await(condition{}).Leader != 3 {
			s.nodes["b"].put("x", version, "one")
			version++
		}
		s.nodes["w"].kill()
		s.nodes["a"].await(condition{Leader: 3})
		s.start("w")
	}
}

// TestLostDirectory: a node whose directory is lost is nobody, and is replaced; when the lost one is found again it is
// refused.
func TestLostDirectory(t *testing.T) {
	s := newSite(t)
	s.nodes["b"].kill()
	s.copy("b", "found")
	if err := os.RemoveAll(s.path("b")); err != nil {
		t.Fatal(err)
	}
	if _, a := start(t, child{"b", s.path("b"), s.at["b"], s.at}); !strings.Contains(a.Err, "target ha replace") {
		t.Fatalf("without its directory: %+v", a)
	}
	s.nodes["w"].must(order{Op: "leave", Key: "b"})
	s.join("b", "w", s.nodes["w"].must(order{Op: "token"}).Token)
	s.nodes["a"].await(condition{Voters: "[1 3 4]", Members: 3, Heard: 3})
	former, a := start(t, child{"b", s.path("found"), s.at["other"], s.at})
	if a.Err != "" {
		t.Fatal(a.Err)
	}
	former.await(condition{Trouble: "was replaced or removed"})
	s.nodes["b"].put("x", 0, "one")
}

// TestCloneAndSnapshot: a copy of a node's directory is refused while that node runs, and when it takes its place; one
// directory has one process, of the right name.
func TestCloneAndSnapshot(t *testing.T) {
	s := newSite(t)
	s.nodes["a"].put("x", 0, "one")
	s.nodes["b"].get("x", "one")
	s.copy("b", "clone")
	s.copy("clone", "snapshot")
	s.nodes["b"].put("x", 1, "two")
	s.nodes["b"].await(condition{Heard: 3})
	clone, a := start(t, child{"b", s.path("clone"), s.at["other"], s.at})
	if a.Err != "" {
		t.Fatal(a.Err)
	}
	clone.await(condition{Trouble: "target ha replace b"})
	s.nodes["b"].put("x", 2, "three")
	clone.kill()

	for _, c := range []struct{ name, dir, says string }{
		{"b", "b", "another process uses it"},
		{"a", "snapshot", "that of node b, and this is node a"},
	} {
		if _, a := start(t, child{c.name, s.path(c.dir), s.at["other"], s.at}); !strings.Contains(a.Err, c.says) {
			t.Errorf("%+v: %+v", c, a)
		}
	}

	s.nodes["b"].kill()
	s.copy("snapshot", "b")
	s.start("b").await(condition{Trouble: "set back"})
	s.nodes["a"].put("x", 3, "four")
	s.nodes["w"].get("x", "four")
}

// TestWrongAddress: at the address of a node is nobody of this cluster, or another member; the others go on, and say
// so. When the right one is there it takes part.
func TestWrongAddress(t *testing.T) {
	s := newSite(t)
	s.nodes["b"].stop()
	s.with("stranger", func(d *Dir) error {
		_, err := Init(d, "lab", "b", false, 0) // the same names, another authority
		return err
	})
	stranger, a := start(t, child{"b", s.path("stranger"), s.at["b"], s.at})
	if a.Err != "" {
		t.Fatal(a.Err)
	}
	s.nodes["a"].put("x", 0, "one")
	for range 3 { // all have tried to talk to it
		s.nodes["w"].put("y", s.nodes["w"].must(order{Op: "get", Key: "y"}).Version, "one")
	}
	if st := stranger.await(condition{}); len(st.Members) != 1 || len(st.Heard) != 1 {
		t.Errorf("the stranger: %+v", st)
	}
	if st := s.nodes["a"].await(condition{}); len(st.Heard) != 2 {
		t.Errorf("a hears %v", st.Heard)
	}
	stranger.stop()
	s.start("b").get("x", "one")
	s.nodes["a"].await(condition{Heard: 3})

	s.nodes["w"].stop() // b's address is given as that of w, too
	wrong := map[string]string{"a": s.at["a"], "b": s.at["b"], "w": s.at["b"]}
	s.nodes["a"].stop()
	if s.nodes["a"], a = start(t, child{"a", s.path("a"), s.at["a"], wrong}); a.Err != "" {
		t.Fatal(a.Err)
	}
	s.nodes["a"].put("x", 1, "two")
	if st := s.nodes["a"].await(condition{Heard: 2, Broken: "at the address of node w is node b"}); slices.Contains(st.Heard, 3) {
		t.Errorf("b stands for w: %+v", st)
	}
}

// TestGarbageOnASocket: whatever a stranger sends to the port, it gets nothing, and the members go on.
func TestGarbageOnASocket(t *testing.T) {
	s := newSite(t)
	var conns []net.Conn
	for i := range 2 * maxConns {
		conn, err := net.Dial("tcp", s.at["a"])
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if i%2 == 0 {
			_, _ = conn.Write([]byte(strings.Repeat("GET / HTTP/1.1\r\n", 50))) // it may be closed already
		}
		conns = append(conns, conn)
	}
	for i, conn := range conns {
		if i%2 != 0 {
			continue // it lasts until its time is over
		}
		if b, _ := io.ReadAll(conn); len(b) > 7 { // an alert of TLS
			t.Errorf("connection %d got %q", i, b)
		}
	}
	s.nodes["b"].put("x", 0, "one")
	s.nodes["a"].get("x", "one")
	s.nodes["a"].await(condition{Heard: 3})
}
