package vm

import (
	"bufio"
	"bytes"
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

	"oneshot/mgmt"
	"oneshot/test/targettest"
)

// cluster is three nodes: a and b have the copies of a mirror, and w is a witness.
type cluster struct {
	t       *testing.T
	portals []string // of a and of b
	nodes   map[string]clusterNode
}

// clusterNode is a place in which target runs. Paths are relative to its directory.
type clusterNode interface {
	// path is that of a file, on its machine.
	path(file string) string
	write(file, text string)
	// run runs a command of target to its end.
	run(args ...string) (string, error)
	// serve starts a daemon, and returns when it serves.
	serve(args ...string)
}

const clusterText = `
cluster:
  name: lab
  state: consensus
  nodes: {a: {address: "AT0"}, b: {address: "AT1"}, w: {address: "AT2", witness: true}}
stores:
  disk: {type: mirror, size: SIZE, copies: {a: COPY, b: {type: file, path: disk.img}}}
targets: [{iqn: "IQN", luns: {0: disk}}]
portals:
  - {node: a, listen: "AT3", group: 1}
  - {node: b, listen: "AT4", group: 2}
management: {socket: s.sock}
`

// fileCopy is a copy of a mirror in a file, in the configuration.
const fileCopy = "{type: file, path: disk.img}"

// startCluster makes a cluster whose mirror has that size, and on node a the copy, and returns when both copies are in sync. at are the
// addresses in its configuration.
func startCluster(t *testing.T, size, copyOfA string, at []string, nodes map[string]clusterNode) *cluster {
	t.Helper()
	c := &cluster{t: t, portals: at[3:], nodes: nodes}
	text := strings.NewReplacer("SIZE", size, "COPY", copyOfA, "IQN", iqn).Replace(clusterText)
	for i, address := range at {
		text = strings.Replace(text, fmt.Sprint("AT", i), address, 1)
	}
	for _, n := range nodes {
		n.write("t.yaml", text)
	}
	said := c.must("a", c.on("a", "ha", "init")...)
	c.start("a")
	for _, m := range regexp.MustCompile(`--node (\w) --token (\w+)\n`).FindAllStringSubmatch(said, -1) {
		c.must(m[1], c.on(m[1], "ha", "join", "--token", m[2])...)
		c.start(m[1])
	}
	c.level()
	return c
}

// on are the flags of a command that works on the state of a node.
func (c *cluster) on(name string, args ...string) []string {
	return append(args, "--config", c.nodes[name].path("t.yaml"), "--node", name)
}

// ask runs a command that asks a node.
func (c *cluster) ask(name string, args ...string) (string, error) {
	return c.nodes[name].run(append(args, "--socket", c.nodes[name].path("s.sock"))...)
}

func (c *cluster) must(name string, args ...string) string {
	c.t.Helper()
	out, err := c.nodes[name].run(args...)
	if err != nil {
		c.t.Fatalf("%s: target %s: %v: %s", name, strings.Join(args, " "), err, out)
	}
	return out
}

// start starts the daemon of a node, and waits until it serves.
func (c *cluster) start(name string) {
	c.t.Helper()
	verb := "serve"
	if name == "w" {
		verb = "witness"
	}
	c.nodes[name].serve(c.on(name, verb)...)
}

// mirror returns what a node says of the mirror, which it may not know yet.
func (c *cluster) mirror(name string) *mgmt.Mirror {
	c.t.Helper()
	out, err := c.ask(name, "ha", "status", "-o", "json")
	var s mgmt.Cluster
	if err == nil {
		err = json.Unmarshal([]byte(out), &s)
	}
	if err != nil || len(s.Mirrors) > 1 {
		c.t.Fatalf("%s does not say how the mirror is: %v: %s", name, err, out)
	}
	if len(s.Mirrors) == 0 {
		return &mgmt.Mirror{}
	}
	return &s.Mirrors[0]
}

// until waits until what a node says of the mirror is as it should be.
func (c *cluster) until(name, what string, holds func(*mgmt.Mirror) bool) {
	c.t.Helper()
	var m *mgmt.Mirror
	if !await(func() bool { m = c.mirror(name); return holds(m) }) {
		c.t.Fatalf("%s: not yet: %s: %+v", name, what, m)
	}
}

func inSync(m *mgmt.Mirror, names ...string) bool {
	n := 0
	for _, copied := range m.Copies {
		for _, name := range names {
			if copied.Node == name && copied.State == mgmt.CopyInSync {
				n++
			}
		}
	}
	return n == len(names)
}

// level waits until both copies are in sync, and returns the primary.
func (c *cluster) level() (primary string) {
	c.t.Helper()
	c.until("w", "both copies are in sync", func(m *mgmt.Mirror) bool {
		primary = m.Primary
		if primary == "" || !inSync(m, "a", "b") {
			return false
		}
		out, err := c.ask(primary, "ha", "status", "-o", "json") // who is the primary knows first
		var s mgmt.Cluster
		return err == nil && json.Unmarshal([]byte(out), &s) == nil && len(s.Mirrors) == 1 && s.Mirrors[0].Role == mgmt.RolePrimary && inSync(&s.Mirrors[0], "a", "b")
	})
	return primary
}

// partner is the other node with a copy.
func partner(name string) string { return map[string]string{"a": "b", "b": "a"}[name] }

// serves has a node serve, with both copies in sync.
func (c *cluster) serves(name string) string {
	c.t.Helper()
	for c.level() != name { // on a busy machine another node takes over from one that was given the mirror and is late
		c.switches()
	}
	return name
}

// loses takes the primary away with lose, until its partner has taken over, and returns the one that was lost. If the partner's copy was
// not in sync at that moment, which happens on a busy machine, nobody may serve: then back brings the primary back. level says who is
// the primary, with both copies in sync.
func (c *cluster) loses(level func() string, lose, back func(name string)) string {
	c.t.Helper()
	for range 10 {
		primary := level()
		lose(primary)
		took := false
		c.until(partner(primary), "it takes over, or may not", func(m *mgmt.Mirror) bool {
			took = m.Role == mgmt.RolePrimary
			return took || m.Primary != partner(primary) && !inSync(m, partner(primary))
		})
		if took {
			return primary
		}
		back(primary)
	}
	c.t.Fatal("the other copy was never in sync when the primary was lost")
	return ""
}

// switches has the partner of the primary serve. It reports false if that was refused, because the partner's copy was late.
func (c *cluster) switches() bool {
	c.t.Helper()
	primary := c.level()
	out, err := c.ask("w", "ha", "switch", "disk", partner(primary))
	c.t.Logf("from %s: %s", primary, strings.TrimSpace(out))
	return err == nil
}

// settled waits until both disks have everything, and returns the primary.
func (c *cluster) settled() (primary string) {
	c.t.Helper()
	var m *mgmt.Mirror
	if !await(func() bool {
		primary = c.level()
		m = c.mirror(primary)
		return m.Role == mgmt.RolePrimary && inSync(m, "a", "b") && m.Records == 0 && m.Unapplied == 0 && m.Unflushed == 0
	}) {
		c.t.Fatalf("the disks do not get all: %+v", m)
	}
	return primary
}

// awaitServing reads what a daemon in a guest says, until it serves.
func awaitServing(t *testing.T, daemon *command) {
	t.Helper()
	var said strings.Builder
	for line := range daemon.Lines {
		if strings.HasPrefix(line, "serving ") {
			return
		}
		said.WriteString(line + "\n")
	}
	t.Fatalf("the daemon ends with %d:\n%s", daemon.Exit, said.String())
}

// local is a node that is a process of the host.
type local struct {
	t      *testing.T
	dir    string
	within func(func()) // calls f where the process is started
	cmd    *exec.Cmd    // nil: it does not run
}

func newLocal(t *testing.T, name string, within func(func())) *local {
	n := &local{t: t, dir: t.TempDir(), within: within}
	t.Cleanup(func() {
		n.kill()
		if t.Failed() {
			b, err := os.ReadFile(n.path("log"))
			t.Logf("%s: %s %v", name, b, err)
		}
	})
	return n
}

// startLocal makes a cluster of three of them.
func startLocal(t *testing.T, size string) (*cluster, map[string]*local) {
	t.Helper()
	var at []string
	for range 5 {
		address, release, err := targettest.Reserve(netip.MustParseAddr("127.0.0.1"))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(release)
		at = append(at, address.String())
	}
	nodes, processes := make(map[string]clusterNode), make(map[string]*local)
	for _, name := range []string{"a", "b", "w"} {
		n := newLocal(t, name, func(f func()) { f() })
		nodes[name], processes[name] = n, n
	}
	return startCluster(t, size, fileCopy, at, nodes), processes
}

func (n *local) path(file string) string { return filepath.Join(n.dir, file) }

func (n *local) write(file, text string) {
	n.t.Helper()
	if err := os.WriteFile(n.path(file), []byte(text), 0o600); err != nil {
		n.t.Fatal(err)
	}
}

func (n *local) run(args ...string) (string, error) {
	c := exec.Command(targettest.Binary(n.t), args...)
	var out []byte
	var err error
	n.within(func() { out, err = c.CombinedOutput() })
	return string(out), err
}

func (n *local) serve(args ...string) {
	n.t.Helper()
	log, err := os.OpenFile(n.path("log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		n.t.Fatal(err)
	}
	defer log.Close()
	n.cmd = exec.Command(targettest.Binary(n.t), args...)
	n.cmd.Stderr = log
	out, err := n.cmd.StdoutPipe()
	if err == nil {
		n.within(func() { err = n.cmd.Start() })
	}
	if err != nil {
		n.t.Fatal(err)
	}
	if _, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		n.t.Fatalf("target %s does not serve: %v", strings.Join(args, " "), err)
	}
}

func (n *local) signal(s syscall.Signal) {
	n.t.Helper()
	if err := n.cmd.Process.Signal(s); err != nil {
		n.t.Fatal(err)
	}
}

// kill ends the daemon as SIGKILL does, if it runs.
func (n *local) kill() {
	if n.cmd != nil {
		_ = n.cmd.Process.Kill()
		_ = n.cmd.Wait() // it was killed
		n.cmd = nil
	}
}

// stop ends the daemon in good order.
func (n *local) stop() {
	n.t.Helper()
	n.signal(syscall.SIGTERM)
	if err := n.cmd.Wait(); err != nil {
		n.t.Errorf("the daemon in %s ends with %v", n.dir, err)
	}
	n.cmd = nil
}

// endLocal ends the nodes in good order. The copies are equal then.
func endLocal(t *testing.T, c *cluster, nodes map[string]*local) {
	t.Helper()
	primary := c.settled()
	for _, name := range []string{partner(primary), primary, "w"} {
		nodes[name].stop()
	}
	a, err := os.ReadFile(nodes["a"].path("disk.img"))
	if err != nil {
		t.Fatal(err)
	}
	if b, err := os.ReadFile(nodes["b"].path("disk.img")); err != nil || !bytes.Equal(a, b) {
		t.Errorf("the copies differ: %v", err)
	}
}
