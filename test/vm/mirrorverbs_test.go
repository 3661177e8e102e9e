package vm

import (
	"fmt"
	"net"
	"strings"
	"testing"
)

// TestFabricOverVerbs runs the tests of connections between nodes over each device. The guest is at both ends.
func TestFabricOverVerbs(t *testing.T) {
	for _, d := range rdmaDevices {
		t.Run(d.name, func(t *testing.T) {
			d.start(t)
			out, exit := guest.start(t, "env", "ONESHOT_RDMA_DEVICE="+d.name, "ONESHOT_RDMA_LISTEN="+net.JoinHostPort(d.host, "0"),
				"/bin/fabric.test", "-test.v", "-test.timeout=9m", "-test.run=Test(Stream|Fetch|NoGrant)/"+d.name).wait(t, guest)
			if exit != 0 || !strings.Contains(out, "--- PASS: TestStream/"+d.name) {
				t.Errorf("exit %d\n%s\n%s", exit, out[max(0, len(out)-1<<14):], guest.Log())
			}
		})
	}
}

// guestNode is a node in the shared machine. It is a clusterNode.
type guestNode struct {
	t      *testing.T
	name   string
	device string // for the data of mirrors
	daemon *command
}

func (n *guestNode) path(file string) string { return "/tmp/nodes/" + n.name + "/" + file }

func (n *guestNode) write(file, text string) {
	n.t.Helper()
	text = strings.NewReplacer("name: lab\n", "name: lab\n  transport: {type: verbs, device: "+n.device+"}\n", "disk.img", "copy/disk.img").Replace(text)
	guest.run(n.t, "@write", n.path(file), text)
	guest.run(n.t, "@write", n.path("copy/here"), "the directory of the copy")
}

func (n *guestNode) run(args ...string) (string, error) {
	n.t.Helper()
	out, exit := guest.start(n.t, append([]string{"target"}, args...)...).wait(n.t, guest)
	if exit != 0 {
		return out, fmt.Errorf("exit %d", exit)
	}
	return out, nil
}

func (n *guestNode) serve(args ...string) {
	n.t.Helper()
	n.daemon = guest.start(n.t, "bash", "-c", "echo $$ > "+n.path("pid")+"; exec target "+strings.Join(args, " "))
	awaitServing(n.t, n.daemon)
}

// end sends a signal to the daemon, and waits until it has ended.
func (n *guestNode) end(signal string) {
	n.t.Helper()
	guest.run(n.t, "bash", "-c", "kill -s "+signal+" $(<"+n.path("pid")+")")
	out, _ := n.daemon.wait(n.t, guest)
	n.t.Logf("%s, ended by %s, has said:\n%s", n.name, signal, out)
	n.daemon = nil
}

// TestMirrorOverVerbs: the data of a mirror go over a device of the kernel, while a host writes and verifies: the primary is killed, and the
// mirror is switched. Nodes and host are in the guest.
func TestMirrorOverVerbs(t *testing.T) {
	for i, d := range rdmaDevices {
		t.Run(d.name, func(t *testing.T) {
			d.start(t)
			nodes, processes := make(map[string]clusterNode), make(map[string]*guestNode)
			for _, name := range []string{"a", "b", "w"} {
				n := &guestNode{t: t, name: name, device: d.name}
				nodes[name], processes[name] = n, n
			}
			t.Cleanup(func() {
				for _, n := range processes {
					if n.daemon != nil {
						n.end("KILL")
					}
				}
				guest.run(t, "@remove", "/tmp/nodes")
			})
			port := 7300 + 10*i
			at := func(n int) string { return fmt.Sprint("127.0.0.1:", port+n) }
			data := func(n int) string { return at(n) + `", data: "` + net.JoinHostPort(d.host, fmt.Sprint(port+3+n)) }
			c := startCluster(t, mirrorSize, fileCopy, []string{data(0), data(1), at(2), at(5), at(6)}, nodes)
			for _, name := range []string{"a", "b"} {
				if out, err := c.ask(name, "ha", "status"); err != nil || !strings.Contains(out, "over the RDMA device "+d.name) {
					t.Errorf("%s does not say which device it uses: %v\n%s", name, err, out)
				}
			}
			h := startMirrorHost(t, c, []string{at(5), at(6)})
			h.during("the primary is killed", func() {
				lost := c.loses(c.level, func(name string) { processes[name].end("KILL") }, c.start)
				h.goesOn(200)
				c.start(lost)
				c.level()
			})
			h.during("the mirror is switched", func() {
				for range 4 {
					c.switches()
					h.goesOn(100)
				}
			})
			if d.name == "rxe0" {
				h.during("the device is removed, and is back", func() {
					guest.run(t, "rdma", "link", "delete", "rxe0")
					h.goesOn(100)
					guest.run(t, "rdma", "link", "add", "rxe0", "type", "rxe", "netdev", "rd0")
					c.level()
				})
			}
			h.end()
			primary := c.settled()
			for _, name := range []string{partner(primary), primary, "w"} {
				processes[name].end("TERM")
			}
			expect(t, "copy of b", guest.run(t, "@sum", processes["b"].path("copy")), guest.run(t, "@sum", processes["a"].path("copy")))
		})
	}
}
