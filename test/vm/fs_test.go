package vm

import (
	"fmt"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// fileSystem makes a file system and fills it with files of bytes in all. They are there after the caches were
// dropped, and the checker finds no error. space, if it is not nil, returns the space of the store on its medium;
// then fstrim has to free that of removed files.
func fileSystem(t *testing.T, fs, dev string, files, bytes int, space func() int64) {
	t.Helper()
	makeFS(t, fs, dev)
	guest.run(t, "@mount", fs, dev, "/mnt/d")
	guest.run(t, "@fill", "/mnt/d", strconv.Itoa(files), strconv.Itoa(bytes), "7")
	want := guest.run(t, "@sum", "/mnt/d")
	guest.run(t, "@drop")
	expect(t, "checksum after dropping caches", guest.run(t, "@sum", "/mnt/d"), want)
	if space != nil {
		trim(t, int64(bytes), space)
	}
	guest.run(t, "@umount", "/mnt/d")
	if fs == "ext4" {
		guest.run(t, "e2fsck", "-fn", dev)
	} else {
		guest.run(t, "xfs_repair", "-n", dev)
	}
}

func makeFS(t *testing.T, fs, dev string) {
	t.Helper()
	if fs == "ext4" {
		// Otherwise the kernel writes the inode tables in the background, and the store takes more while trim looks.
		guest.run(t, "mkfs.ext4", "-q", "-F", "-E", "lazy_itable_init=0,lazy_journal_init=0", dev)
	} else {
		guest.run(t, "mkfs.xfs", "-q", "-f", dev)
	}
}

// trim removes the files on /mnt/d, and checks that the store frees their space.
func trim(t *testing.T, bytes int64, space func() int64) {
	t.Helper()
	before := space()
	for d := range 16 {
		guest.run(t, "@remove", fmt.Sprintf("/mnt/d/d%d", d))
	}
	guest.run(t, "fstrim", "/mnt/d")
	if after := space(); before-after < bytes*3/4 {
		t.Errorf("the store took %d bytes before fstrim and %d after, of which %d were removed", before, after, bytes)
	}
}

// verify has fio write to a file or disk and read back what it has written, until end is called. fio sees no error.
func verify(t *testing.T, file string, flags ...string) (end func()) {
	t.Helper()
	load := guest.start(t, append([]string{
		"fio", "--name=load", "--filename=" + file, "--direct=1", "--ioengine=libaio", "--iodepth=16", "--rw=randwrite", "--bs=4k",
		"--size=32m", "--verify=crc32c", "--verify_backlog=64", "--verify_fatal=1", "--time_based", "--runtime=600", "--thinktime=200ms", "--thinktime_blocks=64", "--output-format=terse",
	}, flags...)...)
	return func() {
		t.Helper()
		guest.run(t, "@signal", "fio", strconv.Itoa(int(syscall.SIGINT)))
		out, _ := load.wait(t, guest) // 128: by a signal
		if fields := strings.Split(out[max(0, strings.Index(out, "3;fio")):], ";"); len(fields) < 5 || fields[4] != "0" {
			t.Errorf("fio saw an error:\n%s", out)
		}
	}
}

// allocated returns the space of a file of the host on its medium, in bytes.
func allocated(t *testing.T, file string) int64 {
	t.Helper()
	var st syscall.Stat_t
	if err := syscall.Stat(file, &st); err != nil {
		t.Fatal(err)
	}
	return st.Blocks * 512
}

// allocatedInGuest is allocated for a file of the guest's.
func allocatedInGuest(t *testing.T, file string) int64 {
	t.Helper()
	n, err := strconv.ParseInt(strings.TrimSpace(guest.run(t, "@allocated", file)), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n
}
