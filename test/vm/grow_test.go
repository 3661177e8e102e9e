package vm

import (
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"oneshot/test/targettest"
)

// TestGrow: an administrator raises the sizes of two stores and sends SIGHUP, while their file systems are in
// use. The initiator is told, looks again, and ext4 and xfs grow with their disks; no byte is lost.
func TestGrow(t *testing.T) {
	tg := targettest.Start(t, `
stores:
  e: {type: file, path: $DIR/e.img, size: 24MiB}
  x: {type: file, path: $DIR/x.img, size: 320MiB}
targets: [{iqn: "`+iqn+`", luns: {0: e, 1: x}}]
portals: [{listen: $PORTAL}]
`)
	i := prepare(t, tg)
	i.record(nil)
	var sums, spaces [2]string
	disks, kinds := i.login(2), [2]string{"ext4", "xfs"}
	for n, fs := range kinds {
		makeFS(t, fs, "/dev/"+disks[n])
		guest.run(t, "@mount", fs, "/dev/"+disks[n], "/mnt/"+fs)
		t.Cleanup(func() { guest.start(t, "@umount", "/mnt/"+fs).wait(t, guest) })
		guest.run(t, "@fill", "/mnt/"+fs+"/data", "50", strconv.Itoa(4<<20), strconv.Itoa(n))
		sums[n], spaces[n] = guest.run(t, "@sum", "/mnt/"+fs+"/data"), guest.run(t, "@space", "/mnt/"+fs)
	}
	const count = 100
	load := guest.start(t, "@records", "/mnt/ext4/records", strconv.Itoa(count))
	<-load.Lines // it has begun

	tg.Edit("size: 24MiB", "size: 56MiB")
	tg.Edit("size: 320MiB", "size: 448MiB")
	process, err := os.FindProcess(tg.PID())
	if err != nil {
		t.Fatal(err)
	}
	if err := process.Signal(syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	tg.WaitLog(t.Context(), "configuration read again")
	if out, exit := load.wait(t, guest); exit != 0 {
		t.Fatalf("the load ends with %d: %s", exit, out)
	}
	const told = "Capacity data has changed" // what the kernel says of that unit attention
	if !strings.Contains(guest.run(t, "dmesg"), told) {
		t.Errorf("the kernel does not say %q", told)
	}
	i.adm("session", "--rescan")
	for n, fs := range kinds {
		expect(t, "size of "+fs+"'s disk", sys(t, disks[n], "size"), []string{strconv.Itoa(56 << 20 / 512), strconv.Itoa(448 << 20 / 512)}[n])
		if fs == "ext4" {
			guest.run(t, "resize2fs", "/dev/"+disks[n])
		} else {
			guest.run(t, "xfs_growfs", "/mnt/"+fs)
		}
		if more := megabytes(t, guest.run(t, "@space", "/mnt/"+fs)) - megabytes(t, spaces[n]); more < 25 {
			t.Errorf("%s has %d MiB more than before", fs, more)
		}
		guest.run(t, "@fill", "/mnt/"+fs+"/more", "20", strconv.Itoa(24<<20), "9") // ext4: more than there was
	}
	guest.run(t, "@drop")
	for n, fs := range kinds {
		expect(t, "checksum on "+fs, guest.run(t, "@sum", "/mnt/"+fs+"/data"), sums[n])
	}
	guest.run(t, "@check", "/mnt/ext4/records", strconv.Itoa(count))
	for n, fs := range kinds {
		guest.run(t, "@umount", "/mnt/"+fs)
		if fs == "ext4" {
			guest.run(t, "e2fsck", "-fn", "/dev/"+disks[n])
		} else {
			guest.run(t, "xfs_repair", "-n", "/dev/"+disks[n])
		}
	}
}

func megabytes(t *testing.T, bytes string) int {
	t.Helper()
	n, err := strconv.Atoi(strings.TrimSpace(bytes))
	if err != nil {
		t.Fatal(err)
	}
	return n >> 20
}
