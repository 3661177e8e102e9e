package main

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"oneshot/mgmt"
	"oneshot/test/targettest"
)

// site is a cluster of daemons on this machine. Each node has a directory with the same file, in which all paths are
// relative.
type site struct {
	t       *testing.T
	dir     string
	text    string
	at      []string // addresses, in the order of the text
	daemons map[string]*exec.Cmd
	program string // what commands and daemons run; "" is this program
	trouble string // of the node that until has asked last

	interval time.Duration // in which until asks; 0: 20ms
	follow   bool          // until does as users do: it follows target ha status --watch

	within func(name string, f func()) // calls f where the node's processes run; nil: anywhere
}

// labText is what all clusters of these tests are made of.
const labText = `
cluster:
  name: lab
  state: consensus
  nodes:
    a: {address: "AT0"}
    b: {address: "AT1"}
    w: {address: "AT2", witness: true}
management: {socket: s.sock}
`

const siteText = `
stores:
  disk-a: {node: a, type: memory, size: 1MiB}
  disk-b: {node: b, type: memory, size: 1MiB}
targets:
  - {node: a, iqn: "iqn.2026-11.example.oneshot:a", luns: {0: disk-a}}
  - {node: b, iqn: "iqn.2026-11.example.oneshot:b", luns: {0: disk-b}}
portals:
  - {node: a, listen: "AT3"}
  - {node: b, listen: "AT4"}
`

func newSite(t *testing.T) *site { return newSiteOf(t, siteText) }

// newSiteOf makes one of labText and text, with addresses in the place of AT0 and so on.
func newSiteOf(t *testing.T, text string) *site {
	return newSiteAt(t, text, freePorts(t, 5))
}

// freePorts returns n different addresses as freePort does.
func freePorts(t *testing.T, n int) (at []string) {
	t.Helper()
	for range n {
		at = append(at, freePort(t))
	}
	return at
}

// freePort returns an address that nobody listens at, until the test ends.
func freePort(t *testing.T) string {
	t.Helper()
	at, release, err := targettest.Reserve(netip.MustParseAddr("127.0.0.1"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(release)
	return at.String()
}

// newSiteAt makes one with those addresses.
func newSiteAt(t *testing.T, text string, at []string) *site {
	s := &site{t: t, dir: t.TempDir(), text: labText + text, at: at, daemons: map[string]*exec.Cmd{}}
	for i, a := range at {
		s.text = strings.Replace(s.text, fmt.Sprint("AT", i), a, 1)
	}
	for _, name := range []string{"a", "b", "w"} {
		s.write(name, s.text)
	}
	t.Cleanup(func() {
		if t.Failed() {
			s.showLogs()
		}
	})
	return s
}

// showLogs shows what the daemons have logged.
func (s *site) showLogs() {
	logs, _ := filepath.Glob(filepath.Join(s.dir, "*.log")) // the pattern is a good one
	for _, path := range logs {
		b, err := os.ReadFile(path)
		s.t.Logf("%s: %s %v", filepath.Base(path), b, err)
	}
}

// startAll makes the cluster, and starts its nodes.
func (s *site) startAll() {
	s.t.Helper()
	said := s.must(s.on("a", "ha", "init")...)
	s.start("a")
	for _, m := range regexp.MustCompile(`--node (\w) --token (\w+)\n`).FindAllStringSubmatch(said, -1) {
		s.there(m[1], func() error {
			out, err := s.run(s.on(m[1], "ha", "join", "--token", m[2])...)
			if err != nil {
				err = fmt.Errorf("%w: %s", err, out)
			}
			return err
		})
		s.start(m[1])
	}
	s.until("a", "all vote", allUp)
}

// there does something where the processes of a node run, which has to succeed.
func (s *site) there(name string, f func() error) {
	s.t.Helper()
	var err error
	if s.within == nil {
		err = f()
	} else {
		s.within(name, func() { err = f() })
	}
	if err != nil {
		s.t.Fatalf("%s: %v", name, err)
	}
}

func (s *site) path(name, file string) string { return filepath.Join(s.dir, name, file) }

func (s *site) write(name, text string) {
	s.t.Helper()
	if err := os.MkdirAll(s.path(name, ""), 0o700); err != nil {
		s.t.Fatal(err)
	}
	if err := os.WriteFile(s.path(name, "t.yaml"), []byte(text), 0o600); err != nil {
		s.t.Fatal(err)
	}
}

// command is this program as target, or another one, if the site says so.
func (s *site) command(args ...string) *exec.Cmd {
	cmd := exec.Command(cmp.Or(s.program, os.Args[0]), args...)
	cmd.Args[0] = "target"
	return cmd
}

// run runs a command to its end, and returns what it says.
func (s *site) run(args ...string) (string, error) {
	out, err := s.command(args...).CombinedOutput()
	return string(out), err
}

func (s *site) must(args ...string) string {
	s.t.Helper()
	out, err := s.run(args...)
	if err != nil {
		s.t.Fatalf("%v: %v: %s", args, err, out)
	}
	return out
}

// fails runs a command that has to fail with a text.
func (s *site) fails(text string, args ...string) {
	s.t.Helper()
	if out, err := s.run(args...); err == nil || !strings.Contains(out, text) {
		s.t.Errorf("%v: %v: %s\nand it should say %q", args, err, out, text)
	}
}

// on are the flags of a command that works on the directory of a node.
func (s *site) on(name string, args ...string) []string {
	return append(args, "--config", s.path(name, "t.yaml"), "--node", name)
}

// asked are the flags of a command that asks a node.
func (s *site) asked(name string, args ...string) []string {
	return append(args, "--socket", s.path(name, "s.sock"))
}

// start starts a daemon, and waits until it serves. It returns what it says then.
func (s *site) start(name string) string {
	s.t.Helper()
	return s.startAs(name, name)
}

// startAs starts the daemon of a directory as a node.
func (s *site) startAs(name, node string) string {
	s.t.Helper()
	verb := "serve"
	if name == "w" {
		verb = "witness"
	}
	return s.launch(name, name, verb, "--config", s.path(name, "t.yaml"), "--node", node)
}

// launch starts a process of a node, which has a name of its own, and returns the first line that it says.
func (s *site) launch(at, name string, args ...string) string {
	s.t.Helper()
	cmd := s.command(args...)
	log, err := os.OpenFile(filepath.Join(s.dir, name+".log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		s.t.Fatal(err)
	}
	defer log.Close()
	cmd.Stderr = log
	out, err := cmd.StdoutPipe()
	if err != nil {
		s.t.Fatal(err)
	}
	s.there(at, cmd.Start)
	s.daemons[name] = cmd
	s.t.Cleanup(func() { s.kill(name) })
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		s.t.Fatalf("%s: %v", name, err)
	}
	return line
}

// told returns what the daemon of a directory has logged.
func (s *site) told(name string) string {
	s.t.Helper()
	b, err := os.ReadFile(filepath.Join(s.dir, name+".log"))
	if err != nil {
		s.t.Fatal(err)
	}
	return string(b)
}

// kill ends a daemon as SIGKILL does, if it runs.
func (s *site) kill(name string) {
	if cmd := s.daemons[name]; cmd != nil {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // it was killed
		delete(s.daemons, name)
	}
}

func (s *site) signal(name string, sig syscall.Signal) {
	s.t.Helper()
	if err := s.daemons[name].Process.Signal(sig); err != nil {
		s.t.Fatal(err)
	}
}

// stop ends a daemon in good order.
func (s *site) stop(name string) {
	s.t.Helper()
	cmd := s.daemons[name]
	delete(s.daemons, name)
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		s.t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		s.t.Errorf("%s ends with %v", name, err)
	}
}

// until asks a node about the cluster until its answer is what is wanted.
func (s *site) until(name, what string, holds func(map[string]*mgmt.Member) bool) {
	s.t.Helper()
	s.untilCluster(name, what, func(c *mgmt.Cluster) bool {
		members := map[string]*mgmt.Member{}
		for i := range c.Members {
			members[c.Members[i].Name] = &c.Members[i]
		}
		return holds(members)
	})
}

func (s *site) untilCluster(name, what string, holds func(*mgmt.Cluster) bool) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), time.Minute)
	defer cancel()
	next := s.asks
	if s.follow {
		next = s.follows
	}
	var last *mgmt.Cluster
	for ask := next(ctx, name); ; {
		c, err := ask()
		if err != nil {
			s.t.Fatalf("%s: not yet: %s: %v: %+v", name, what, err, last)
		}
		s.trouble = c.Trouble
		if holds(c) {
			return
		}
		last = c
	}
}

// asks returns a function that asks a node, as target ha status does, again and again until ctx ends. A process for each question that
// a test waits for would cost more than all that it waits for.
func (s *site) asks(ctx context.Context, name string) func() (*mgmt.Cluster, error) {
	client := mgmt.NewClient(s.path(name, "s.sock"))
	context.AfterFunc(ctx, client.Close)
	again := false
	return func() (*mgmt.Cluster, error) {
		if again {
			pauseFor(ctx, cmp.Or(s.interval, 20*time.Millisecond))
		}
		again = true
		return askCluster(client, ctx)
	}
}

// follows is asks by target ha status --watch.
func (s *site) follows(ctx context.Context, name string) func() (*mgmt.Cluster, error) {
	s.t.Helper()
	watch := s.command(s.asked(name, "ha", "status", "--watch", "--interval", "20ms", "-o", "json")...)
	out, err := watch.StdoutPipe()
	if err != nil {
		s.t.Fatal(err)
	}
	if err := watch.Start(); err != nil {
		s.t.Fatal(err)
	}
	ended := make(chan struct{})
	context.AfterFunc(ctx, func() {
		defer close(ended)
		_ = watch.Process.Kill()
		_ = watch.Wait() // it was killed
	})
	s.t.Cleanup(func() { <-ended })
	in := json.NewDecoder(out)
	return func() (*mgmt.Cluster, error) {
		c := new(mgmt.Cluster)
		return c, in.Decode(c)
	}
}

// pauseFor is what a host does between attempts.
func pauseFor(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

// allUp says that three nodes vote and hear each other.
func allUp(m map[string]*mgmt.Member) bool {
	for _, n := range m {
		if !n.Up || !n.Votes || n.Leaving {
			return false
		}
	}
	return len(m) == 3
}

// TestCluster: two nodes and a witness, made, run, killed, reloaded, replaced and removed with the commands that users have.
func TestCluster(t *testing.T) {
	s := newSite(t)
	s.follow = true
	s.fails("run `target ha join` with a token", s.on("a", "serve")...)

	said := s.must(s.on("a", "ha", "init")...)
	tokens := regexp.MustCompile(`ha join --config \S+ --node (\w) --token (\w+)\n`).FindAllStringSubmatch(said, -1)
	if len(tokens) != 2 || tokens[0][1] != "b" || tokens[1][1] != "w" || !strings.Contains(said, "target serve --config") {
		t.Fatalf("init says %s", said)
	}
	s.fails("empty the directory first", s.on("a", "ha", "init")...)
	s.fails("no node of the cluster has taken this one in: a: dial tcp", s.on("b", "ha", "join", "--token", tokens[0][2])...)
	if line := s.start("a"); !strings.Contains(line, "serving 1 target at ") || !strings.Contains(line, "as node a of cluster lab at ") {
		t.Errorf("a says %q", line)
	}
	s.until("a", "the others have not joined", func(m map[string]*mgmt.Member) bool {
		return m["a"].Leads && m["b"].Number == 0 && strings.Contains(m["b"].Reason, "target ha join") && len(m) == 3
	})
	s.fails("another process uses it", s.on("a", "serve")...)

	s.fails("the token is not whole", s.on("b", "ha", "join", "--token", "abc")...)
	s.fails("was used", s.on("b", "ha", "join", "--token", tokens[0][2][:26]+tokens[1][2][:25]+"a")...) // the same cluster, another secret
	for _, m := range tokens {
		said := s.must(s.on(m[1], "ha", "join", "--token", m[2])...)
		if !strings.Contains(said, "Node "+m[1]+" has joined the cluster lab") {
			t.Errorf("join says %q", said)
		}
		s.fails("a member of a cluster already: run it", s.on(m[1], "ha", "join", "--token", m[2])...)
	}
	s.start("b")
	s.fails("is a witness: run target witness", s.on("w", "serve")...)
	s.fails("is no witness: run target serve", s.on("b", "witness")...)
	if line := s.start("w"); !strings.HasPrefix(line, "serving no disks, as witness w of cluster lab at ") {
		t.Errorf("w says %q", line)
	}
	for name := range s.daemons {
		s.until(name, "all vote, with one configuration", func(m map[string]*mgmt.Member) bool {
			for _, n := range m {
				if n.Version == "" || n.Differs != nil {
					return false
				}
			}
			return allUp(m)
		})
	}
	table := s.must(s.asked("w", "ha", "status")...)
	for _, want := range []string{`^cluster lab, as node w knows it: leader \w, term \d+, 3 of 3 voters up\n`, `\nw +3 +127\.\S+ +up\S*( leads)? +yes, witness +this node\n`, `\nb +2 .* the same\n`} {
		if !regexp.MustCompile(want).MatchString(table) {
			t.Errorf("no %s in\n%s", want, table)
		}
	}
	if status := s.must(s.asked("a", "status")...); !regexp.MustCompile(`\ncluster +lab: this is node a; leader \w, term \d+, 3 of 3 voters up\n`).MatchString(status) {
		t.Errorf("target status: %s", status)
	}

	s.kill("b")
	s.until("a", "b is down", func(m map[string]*mgmt.Member) bool { return !m["b"].Up && m["b"].Reason != "" })
	s.start("b")
	s.until("a", "b is back", allUp)

	s.write("b", s.text+"limits: {commands: 64}\n")
	s.must(s.asked("b", "reload")...)
	s.until("a", "b has another configuration", func(m map[string]*mgmt.Member) bool {
		return strings.Join(m["b"].Differs, " ") == "limits" && m["w"].Differs == nil
	})
	s.write("b", strings.Replace(s.text, "lab", "other", 1))
	if said := s.must(s.asked("b", "reload")...); !strings.Contains(said, "cluster will change at the next start only") {
		t.Errorf("reload says %s", said)
	}
	s.stop("b")
	s.fails("the state is that of cluster lab, and this is cluster other", s.on("b", "serve")...)
	s.write("b", s.text)
	s.start("b")
	s.until("a", "b has the same configuration", func(m map[string]*mgmt.Member) bool { return m["b"].Differs == nil && allUp(m) })

	s.kill("b")
	if err := os.RemoveAll(s.path("b", "consensus")); err != nil {
		t.Fatal(err)
	}
	early := strings.TrimSpace(s.must(s.asked("a", "ha", "token")...))
	for range 16 {
		s.fails("there is no member nobody", s.asked("w", "ha", "replace", "nobody")...)
	}
	said = s.must(s.asked("w", "ha", "replace", "b")...)
	token := regexp.MustCompile(`--token (\w+)\n`).FindStringSubmatch(said)
	if token == nil {
		t.Fatalf("replace says %s", said)
	}
	s.must(s.on("b", "ha", "join", "--token", early)...) // what was refused has cost nobody his token
	s.start("b")
	s.until("a", "b is another one", func(m map[string]*mgmt.Member) bool { return allUp(m) && m["b"].Number == 4 })

	if said := s.must(s.asked("a", "ha", "remove", "b")...); !strings.Contains(said, "Node b is removed.") {
		t.Errorf("remove says %q", said)
	}
	s.until("a", "b is gone", func(m map[string]*mgmt.Member) bool { return m["b"].Number == 0 })
	s.until("b", "b knows", func(map[string]*mgmt.Member) bool { return strings.Contains(s.trouble, "was replaced or removed") })
	s.fails("there is no member b", s.asked("a", "ha", "remove", "b")...)
	for name := range s.daemons {
		s.stop(name)
	}
}

// TestNoMajorityAnswers: a node alone says so when it is asked for what needs the others.
func TestNoMajorityAnswers(t *testing.T) {
	s := newSite(t)
	s.startAll()
	s.kill("b")
	s.kill("w")
	s.fails("no majority of the voters has answered", s.asked("a", "ha", "token")...)
	s.until("a", "nobody leads", func(m map[string]*mgmt.Member) bool { return !m["a"].Leads && !m["b"].Up && !m["w"].Up })
	if table := s.must(s.asked("a", "ha", "status")...); !strings.Contains(table, "no leader, term ") || !strings.Contains(table, "1 of 3 voters up") {
		t.Errorf("%s", table)
	}
	s.stop("a")
}

// TestClusterFlags: mistakes on the command line are told.
func TestClusterFlags(t *testing.T) {
	s := newSite(t)
	plain := filepath.Join(s.dir, "plain.yaml")
	if err := os.WriteFile(plain, []byte("stores: {a: {type: memory, size: 1MiB}}\ntargets: [{iqn: iqn.2026-11.example.oneshot:demo, luns: {0: a}}]\nportals: [{listen: \"127.0.0.1:0\"}]\nmanagement: {socket: plain.sock}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	config := s.path("a", "t.yaml")
	for _, c := range []struct {
		says string
		args []string
	}{
		{"t.yaml:3:9: there is no node \"c\" in the cluster lab: known are a, b, w", []string{"serve", "--config", config, "--node", "c"}},
		{"remove --node", []string{"serve", "--config", plain, "--node", "a"}},
		{"there is no node without a cluster", []string{"serve", "--node", "a"}},
		{"no configuration", []string{"witness"}},
		{"no configuration", []string{"ha", "init"}},
		{"no token", []string{"ha", "join", "--config", config}},
		{"has no section cluster", []string{"ha", "init", "--config", plain}},
		{"has no section cluster", []string{"witness", "--config", plain}},
		{"name one node", []string{"ha", "replace"}},
		{"nothing to do", []string{"ha"}},
	} {
		s.fails(c.says, c.args...)
	}
}

// TestReadToken: a token may come from standard input.
func TestReadToken(t *testing.T) {
	for text, good := range map[string]bool{strings.Repeat("a", 51) + "a\n": true, strings.Repeat("a", 52): true, "": false, "short\n": false} {
		if _, err := readToken("-", strings.NewReader(text)); (err == nil) != good {
			t.Errorf("%q: %v", text, err)
		}
	}
}
