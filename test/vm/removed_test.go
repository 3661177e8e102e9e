package vm

import (
	"fmt"
	"strings"
	"testing"
)

// TestVerbsDeviceRemoved: a device is removed under load and comes back. The removal does not have to wait for
// the end of the daemon. Sessions over the device end, and everything else goes on. When the device is back,
// its portals open again, and Linux logs in again by itself.
func TestVerbsDeviceRemoved(t *testing.T) {
	startRXE.Do(t)
	startSiw.Do(t) // siw is not removed
	const over = "iser+verbs://10.9.0.1:%d/" + iqn + "/1?device=rxe0"
	g := startInGuest(t, fmt.Sprintf(`
stores: {d: {type: memory, size: 64MiB}, e: {type: memory, size: 16MiB}}
targets: [{iqn: %q, luns: {0: d, 1: e}}]
portals:
  - {transport: verbs, listen: "10.9.0.1:3276", device: rxe0}
  - {transport: verbs, listen: "0.0.0.0:3277", device: any}
  - {transport: tcp, listen: "10.9.0.1:3278"}
`, iqn), 3)
	i := inGuest(t, "10.9.0.1:3276", "iser")
	i.record(nil)
	disks := i.login(2)
	load := guest.start(t, "@busy", "/dev/"+disks[0], "4096", "8")
	<-load.Lines
	words := strings.Repeat("what is written stays there, ", 1000)
	guest.run(t, "@write", "/tmp/words", words)
	guest.run(t, "initiator", "write", fmt.Sprintf(over, 3277), "/tmp/words")

	guest.run(t, "rdma", "link", "del", "rxe0")
	g.waitAll("the RDMA device is lost", `portal takes connections again" address="0.0.0.0:3277"`)
	guest.fails(t, "initiator", "read", "--length", "4096", fmt.Sprintf(over, 3277), "/tmp/read")
	guest.run(t, "initiator", "read", "--length", fmt.Sprint(len(words)), "iscsi://10.9.0.1:3278/"+iqn+"/1", "/tmp/words")
	expect(t, "what was written over the device that is gone", strings.TrimSpace(guest.run(t, "@cat", "/tmp/words")), strings.TrimSpace(words))

	guest.run(t, "rdma", "link", "add", "rxe0", "type", "rxe", "netdev", "rd0")
	// The device may exist before it can be used.
	g.waitAll(`portal takes connections again" address="0.0.0.0:3277" devices="rxe0 siw0"`, `portal takes connections again" address="10.9.0.1:3276"`)
	guest.run(t, "initiator", "read", "--length", fmt.Sprint(len(words)), fmt.Sprintf(over, 3277), "/tmp/words")
	guest.run(t, "@direct", "/dev/"+disks[1], "65536", "20", "4")
	select {
	case line := <-load.Lines:
		t.Errorf("the load ends: %s", line)
	default:
	}
	i.logout()
}

// TestVerbsCannot: if a portal cannot open, one line of the log says why and what to do, and the other portals
// serve.
func TestVerbsCannot(t *testing.T) {
	startRXE.Do(t)
	const config = `
log: {format: json}
stores: {d: {type: memory, size: 16MiB}}
targets: [{iqn: "` + iqn + `", luns: {0: d}}]
portals:
  - {transport: verbs, listen: "10.9.0.1:3279", device: %s}
  - {transport: tcp, listen: "10.9.0.1:3280"}
`
	const library = "/lib/x86_64-linux-gnu/librdmacm.so.1"
	root := []string{"target", "serve", "--config", "/tmp/target.yaml"}
	nobody := []string{"setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", "bash", "-c"}
	for _, c := range []struct {
		name, device    string
		before, after   []string
		command         []string
		complaint, hint string
	}{
		{
			"another name", "nosuch0", nil, nil, root,
			"there is no RDMA device nosuch0", "there are [",
		},
		{
			"no device", "rxe0",
			[]string{"rdma", "link", "del", "rxe0"},
			[]string{"rdma", "link", "add", "rxe0", "type", "rxe", "netdev", "rd0"},
			root,
			"there is no RDMA device rxe0", "",
		},
		{
			"no library", "rxe0",
			[]string{"@rename", library, library + ".away"},
			[]string{"@rename", library + ".away", library},
			root,
			"librdmacm.so.1 cannot be loaded", "install rdma-core",
		},
		{
			"memlock", "rxe0", nil, nil, append(nobody, "ulimit -l 512; cd /tmp; exec target serve --config /tmp/target.yaml"),
			"register", "LimitMEMLOCK=infinity",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.before != nil {
				guest.run(t, c.before...)
				defer func() { guest.run(t, c.after...) }()
			}
			g := serveInGuest(t, fmt.Sprintf(config, c.device), 1, c.command...)
			guest.run(t, "initiator", "read", "--length", "4096", "iscsi://10.9.0.1:3280/"+iqn+"/0", "/tmp/read")
			log := g.end()
			if n := strings.Count(log, `"level":"error"`); n != 1 {
				t.Errorf("%d errors in the log", n)
			}
			for _, want := range []string{c.complaint, c.hint, "the other portals serve"} {
				if !strings.Contains(log, want) {
					t.Errorf("the log does not say %q:\n%s", want, log)
				}
			}
		})
	}
}
