package vm

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// Numbers of machines on the network of the tests.
const (
	sharedOnNetwork byte = iota + 1
	clientOnNetwork
	applianceOnNetwork
	mirrorOnNetwork
)

// bootOnLAN starts a guest on the network of the tests, with qemu's monitor, whose socket is dir/qmp, and more of qemu's arguments.
func bootOnLAN(dir string, number byte, more ...string) (*guestMachine, error) {
	m, err := lan.Boot(guestImage, dir, number, append(more, "-qmp", "unix:"+filepath.Join(dir, "qmp")+",server=on,wait=off")...)
	if err != nil {
		return nil, err
	}
	return &guestMachine{m}, nil
}

// lanDevice makes the RDMA device of a machine on the network.
func lanDevice(t *testing.T, m *guestMachine, host string) rdmaDevice {
	t.Helper()
	d := rdmaDevice{name: "rxe9", host: host}
	for _, c := range []string{
		"ip link set dev eth1 mtu 9000 up", "ip addr add " + host + "/24 dev eth1", "rdma link add " + d.name + " type rxe netdev eth1",
	} {
		m.run(t, strings.Fields(c)...)
	}
	return d
}

// sharedOnLAN makes the RDMA device of the shared machine on the network, until the end of the test.
func sharedOnLAN(t *testing.T, host string) rdmaDevice {
	t.Helper()
	d := lanDevice(t, guest, host)
	t.Cleanup(func() {
		guest.run(t, "rdma", "link", "delete", d.name)
		guest.run(t, "ip", "link", "set", "dev", "eth1", "down")
		guest.run(t, "ip", "addr", "flush", "dev", "eth1")
	})
	return d
}

// TestTwoGuests: initiator and target run in two machines. The link between them is down for 20 s under load, and
// the initiator logs in again by itself. Then the initiator dies with commands outstanding, and the target frees
// everything that it held for it; so does a target on the host, which the initiator uses over siw.
func TestTwoGuests(t *testing.T) {
	dir := t.TempDir()
	client, err := bootOnLAN(dir, clientOnNetwork)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Stop)
	server := guest
	d := sharedOnLAN(t, "10.9.2.1")
	lanDevice(t, client, "10.9.2.2")
	host := newSurvivor(t)

	portal := net.JoinHostPort(d.host, "3260")
	removeFile(t)
	g := startInGuest(t, inFile+`portals:
  - {transport: verbs, listen: "`+portal+`", device: `+d.name+`}
  - {transport: tcp, listen: "127.0.0.1:3261"}
limits: {nop_interval: 2s, nop_timeout: 6s}
`, 2)
	before := g.idle(d)

	var load, hostLoad *command
	onOther(client, func() {
		i := inGuest(t, portal, "iser")
		i.record(map[string]string{"node.session.queue_depth": "64"})
		dev := "/dev/" + i.login(1)[0]
		const count = 100
		writeRecords(t, dev, count, map[int]func(){30: func() { linkDown(g) }})
		guest.run(t, "@drop")
		guest.run(t, "@check", dev, strconv.Itoa(count))

		guest.run(t, "sg_raw", dev, "16", "0", "0", "0", "0", "0") // RESERVE(6)
		load = guest.start(t, "@busy", dev, "262144", "64")
		hostLoad = host.load()
	})
	for _, l := range []*command{load, hostLoad} {
		if line, more := <-l.Lines; !more || !strings.HasPrefix(line, "busy") {
			t.Fatalf("the load says %q\n%s", line, client.Log())
		}
	}
	host.isUsed()
	read := []string{"initiator", "read", "--length", "4096", "iscsi://127.0.0.1:3261/" + iqn + "/0", "/tmp/read"}
	if said := server.fails(t, read...); !strings.Contains(strings.ToLower(said), "reservation conflict") {
		t.Errorf("who reads what the client has reserved is told %q", said)
	}
	if now := g.status(); now.Buffers.Leases == 0 || now.Sessions != 1 || g.resources(d, "qp") != 1 {
		t.Errorf("under load the target holds %s", g.holds(d))
	}
	client.Stop()
	g.waitLog("connection lost", "connection dropped")
	g.holdsAgain(d, before)
	server.run(t, read...)
	host.isFree()
}

// linkDown pulls the target's cable for 20 s, in which the target closes the connection. (Taking the interface down
// has another effect: then rxe of Linux 6.1 cannot send, the queue pair of its connection manager ends, and it gets
// no connections any more.)
func linkDown(g *guestTarget) {
	g.t.Helper()
	cable := func(plugged bool) {
		g.t.Helper()
		if err := qmp(filepath.Join(guestDir, "qmp"), "set_link", map[string]any{"name": "lan", "up": plugged}); err != nil {
			g.t.Fatal(err)
		}
	}
	const outage = 20 * time.Second // the duration of the outage is part of the test
	end := time.After(outage)
	cable(false)
	g.waitLog("connection lost", "connection dropped")
	<-end
	cable(true)
}

// qmp makes the qemu with that socket execute a command.
func qmp(socket, command string, arguments map[string]any) error {
	c, err := net.Dial("unix", socket)
	if err != nil {
		return err
	}
	defer c.Close()
	dec, enc := json.NewDecoder(c), json.NewEncoder(c)
	if err := qmpAnswer(dec); err != nil { // a greeting
		return err
	}
	for _, request := range []map[string]any{{"execute": "qmp_capabilities"}, {"execute": command, "arguments": arguments}} {
		if err := enc.Encode(request); err != nil {
			return err
		}
		if err := qmpAnswer(dec); err != nil {
			return fmt.Errorf("qemu: %s: %w", command, err)
		}
	}
	return nil
}

// qmpAnswer reads qemu's messages up to the first one that is not an event.
func qmpAnswer(dec *json.Decoder) error {
	for {
		var said struct {
			Event string
			Error *struct{ Desc string }
		}
		switch err := dec.Decode(&said); {
		case err != nil:
			return err
		case said.Error != nil:
			return errors.New(said.Error.Desc)
		case said.Event == "":
			return nil
		}
	}
}
