package vm

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// TestVerbsReuse: an initiator reads back what it has written, although the target overwrites I/O memory as soon
// as a task releases it (a build with invariants), and although both processors are busy, so that bytes are sent
// late. It does rounds of 16 to 256 KiB, 32 at a time, over each device: ten, or as many as ONESHOT_ROUNDS says.
func TestVerbsReuse(t *testing.T) {
	dir := t.TempDir()
	if _, err := run(".", "go", "build", "-tags", "verbs,invariants", "-o", filepath.Join(dir, "target"), "oneshot/cmd/target"); err != nil {
		t.Fatal(err)
	}
	daemon := newDownloads(t, dir).get("target")
	for _, d := range rdmaDevices {
		t.Run(d.name, func(t *testing.T) {
			d.start(t)
			serveInGuest(t, fmt.Sprintf(`
stores: {d: {type: memory, size: 64MiB}}
targets: [{iqn: %q, luns: {0: d}}]
portals: [{transport: verbs, listen: "%s:3276", device: %s}]
`, iqn, d.host, d.name), 1, daemon, "serve", "--config", "/tmp/target.yaml")
			i := inGuest(t, net.JoinHostPort(d.host, "3276"), "iser")
			i.record(nil)
			dev := "/dev/" + i.login(1)[0]
			stop := keepBusy(t)
			rounds := 10
			if text := os.Getenv("ONESHOT_ROUNDS"); text != "" {
				var err error
				if rounds, err = strconv.Atoi(text); err != nil {
					t.Fatal(err)
				}
			}
			// Ten rounds are one command: to start one takes long while the processors are busy.
			const sizes = "16384,65536,16384,32768,262144,16384,32768,16384,131072,16384"
			guest.run(t, "@direct", dev, sizes[:len("16384")], "32", "32")
			memory := newGuestMemory(t)
			for done := 0; done < rounds; done += strings.Count(sizes, ",") + 1 {
				guest.run(t, "@direct", dev, sizes, "32", "32")
			}
			memory.bounded(60)
			stop()
			i.logout()
		})
	}
}

// keepBusy runs a busy process on each of the guest's processors, until stop is called.
func keepBusy(t *testing.T) (stop func()) {
	t.Helper()
	var list []*command
	for range 2 {
		list = append(list, guest.start(t, "timeout", "3600", "bash", "-c", "while :; do :; done"))
	}
	return func() {
		t.Helper()
		guest.run(t, "@signal", "timeout", "15") // which it hands on
		for _, c := range list {
			c.wait(t, guest)
		}
	}
}
