package vm

import (
	"strings"
	"testing"

	"oneshot/test/targettest"
)

// prepareISER is prepare for iSER over siw, the kernel's software iWARP, to a portal of RDMA in
// user space.
func prepareISER(t *testing.T, tg *targettest.Target) *iscsi {
	t.Helper()
	i := prepare(t, tg)
	startSiw.Do(t)
	i.iface = "iser"
	return i
}

// discoverISER makes records of the targets that it is told of. A discovery that waits for an answer which iscsiadm
// has got already is repeated: over iSER the answer of a quick target may come before the kernel's word that the
// request has left. open-iscsi 2.1.8 puts the answer aside then (__kipc_call), and polls for one (iscsi_login).
func (i *iscsi) discoverISER() {
	i.t.Helper()
	var found string
	for range 4 {
		var exit int
		found, exit = guest.start(i.t, "iscsiadm", "-m", "discovery", "-t", "sendtargets", "-p", i.portal, "-I", "iser").wait(i.t, guest)
		if exit == 0 || !strings.Contains(found, "Login response timeout") && !strings.Contains(found, "Discovery session to") {
			break
		}
		i.t.Logf("again after:\n%s", found)
	}
	if !strings.Contains(found, iqn) {
		i.t.Fatalf("discovery says:\n%s", found)
	}
}

var startSiw siwOnce

// siwOnce makes the RDMA device of the guest, once.
type siwOnce struct{ done bool }

func (o *siwOnce) Do(t *testing.T) {
	if !o.done {
		o.done = true
		guest.run(t, "rdma", "link", "add", "siw0", "type", "siw", "netdev", "eth0")
	}
}

// TestISER: discovery and login over iSER, with CHAP; a file system whose checksums are right after the
// caches were dropped; all of that twice.
func TestISER(t *testing.T) {
	const user, secret = "alice", "wonderland-looking"
	for _, c := range []struct{ fs, store string }{
		{"ext4", "{type: memory, size: 256MiB}"},
		{"xfs", "{type: file, path: $DIR/disk.img, size: 512MiB}"},
	} {
		t.Run(c.fs, func(t *testing.T) {
			tg := targettest.Start(t, `
stores: {d: `+c.store+`}
targets: [{iqn: "`+iqn+`", luns: {0: d}, auth: {chap: {user: `+user+`, secret: `+secret+`}}}]
portals: [{transport: iwarp, listen: $PORTAL}]
`)
			i := prepareISER(t, tg)
			i.discoverISER()
			guest.start(t, "iscsiadm", "-m", "node", "-o", "delete").wait(t, guest)
			const auth = "node.session.auth."
			i.record(map[string]string{auth + "authmethod": "CHAP", auth + "username": user, auth + "password": secret})
			dev := "/dev/" + i.login(1)[0]
			if session := i.adm("session", "-P", "1"); !strings.Contains(session, "Iface Transport: iser") {
				t.Errorf("the session is not over iSER:\n%s", session)
			}
			fileSystem(t, c.fs, dev, 100, 6<<20, nil)
			i.logout()
			i.login(1)
			i.logout()
		})
	}
}

// TestISERKilledUnderLoad is TestKilledUnderLoad over iSER.
func TestISERKilledUnderLoad(t *testing.T) {
	tg := targettest.Start(t, loadConfig("iwarp"))
	underLoad(t, prepareISER(t, tg), func() { kill(tg) })
}
