package initiator_test

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"oneshot/initiator"
)

// startTgt runs tgtd, a target that is not ours, and returns the URL of a disk of 16 MiB with
// CHAP both ways.
func startTgt(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	check(t, err)
	addr := l.Addr().String()
	check(t, l.Close())
	image := filepath.Join(t.TempDir(), "disk.img")
	check(t, os.WriteFile(image, make([]byte, 16<<20), 0o600))
	// Its control socket is named by a number below 2¹⁵.
	control := fmt.Sprint(10000 + os.Getpid()%20000)
	daemon := exec.Command("tgtd", "-f", "-C", control, "--iscsi", "portal="+addr)
	check(t, daemon.Start())
	t.Cleanup(func() {
		_ = daemon.Process.Kill() // it ignores SIGTERM while it has a target
		_ = daemon.Wait()
	})
	admin := func(args string) error {
		out, err := exec.Command("tgtadm", strings.Fields("-C "+control+" --lld iscsi "+args)...).CombinedOutput()
		if err != nil {
			return fmt.Errorf("tgtadm %s: %w: %s", args, err, out)
		}
		return nil
	}
	for try := 0; ; try++ {
		if err = admin("--op show --mode sys"); err == nil {
			break
		}
		if try == 100 {
			t.Fatal(err)
		}
		time.Sleep(50 * time.Millisecond) // until the daemon answers: it tells nobody when it does
	}
	for _, args := range []string{
		"--op new --mode target --tid 1 -T " + iqn,
		"--op new --mode logicalunit --tid 1 --lun 1 -b " + image,
		"--op update --mode target --tid 1 --name HeaderDigest --value None,CRC32C",
		"--op update --mode target --tid 1 --name DataDigest --value None,CRC32C",
		"--op bind --mode target --tid 1 -I ALL",
		"--op new --mode account --user alice --password wonderland-looking",
		"--op new --mode account --user bob --password another-secret-12",
		"--op bind --mode account --tid 1 --user alice",
		"--op bind --mode account --tid 1 --user bob --outgoing",
	} {
		check(t, admin(args))
	}
	return "iscsi://" + addr + "/" + iqn + "/1"
}

// The initiator gets on with a target that is none of ours.
func TestTgt(t *testing.T) {
	at := startTgt(t)
	for _, query := range []string{"", "?header_digest=crc32c&data_digest=crc32c"} {
		u, err := initiator.ParseURL(at + query)
		check(t, err)
		if _, err := initiator.Dial(t.Context(), u, initiator.Options{}); err == nil {
			t.Fatal("a session without CHAP")
		}
		u.CHAP = &initiator.Credentials{Name: "alice", Secret: []byte("wonderland-looking")}
		u.Mutual = &initiator.Credentials{Name: "bob", Secret: []byte("another-secret-12")}
		open := u // discovery has no accounts of its own here
		open.CHAP, open.Mutual = nil, nil
		found, err := initiator.Discover(t.Context(), open, initiator.Options{})
		if err != nil || len(found) != 1 || found[0].Name != iqn {
			t.Fatalf("discovery: %v, %v", found, err)
		}
		for _, immediate := range []int{0, -1} {
			s, err := initiator.Dial(t.Context(), u, initiator.Options{Immediate: immediate})
			check(t, err)
			l, err := s.LU(t.Context(), u.LUN)
			check(t, err)
			for i, n := range []int{512, 8192, 300 << 10, 5 << 20} {
				want := pattern(n, uint64(i))
				_, err = l.WriteAt(want, 1<<20)
				check(t, err)
				got := make([]byte, n)
				_, err = l.ReadAt(got, 1<<20)
				check(t, err)
				if !bytes.Equal(got, want) {
					t.Fatalf("%d bytes came back otherwise", n)
				}
			}
			check(t, s.Close())
		}
	}
}
