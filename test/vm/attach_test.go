package vm

import (
	"encoding/binary"
	"errors"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"oneshot/mgmt"
	"oneshot/test/targettest"
)

// attached is a device of the guest's that initiator attach serves.
type attached struct {
	t    *testing.T
	args []string
	load *command
	dev  string // /dev/nbd0
}

// attach makes a device of a LUN of iqn.
func attach(t *testing.T, scheme, portal string, lun int, flags ...string) *attached {
	t.Helper()
	a := &attached{t: t, args: append([]string{"initiator", "attach", scheme + "://" + portal + "/" + iqn + "/" + strconv.Itoa(lun)}, flags...)}
	a.start()
	t.Cleanup(func() {
		if t.Failed() {
			guest.start(t, "@signal", "initiator", "9").wait(t, guest)
		}
	})
	return a
}

// start runs the command until it says which device it has.
func (a *attached) start() {
	a.t.Helper()
	a.load = guest.start(a.t, a.args...)
	var said strings.Builder
	for line := range a.load.Lines {
		if strings.HasPrefix(line, "/dev/") {
			a.dev = line
			return
		}
		said.WriteString(line + "\n")
	}
	a.t.Fatalf("attach ends with %d: %s\n%s", a.load.Exit, said.String(), guest.Log())
}

// kill ends the process, as a lack of memory would, and starts another.
func (a *attached) kill() {
	a.t.Helper()
	was := a.dev
	guest.run(a.t, "@signal", "initiator", "9")
	a.load.wait(a.t, guest)
	a.start()
	expect(a.t, "device of the next process", a.dev, was)
}

func (a *attached) detach() {
	a.t.Helper()
	guest.run(a.t, "initiator", "detach", a.dev)
	if out, exit := a.load.wait(a.t, guest); exit != 0 {
		a.t.Errorf("after the end of its device attach ends with %d: %s", exit, out)
	}
}

func (a *attached) sys(file string) string {
	a.t.Helper()
	return sys(a.t, strings.TrimPrefix(a.dev, "/dev/"), file)
}

// direct writes to the device and reads that back, past the page cache.
func (a *attached) direct() []string { return []string{"@direct", a.dev, "65536", "4", "2"} }

// killTarget kills the target some times, and starts it again, while fio writes to a file on /mnt/d, syncs, and verifies.
func (a *attached) killTarget(tg *targettest.Target, times int) {
	a.t.Helper()
	const writes, underWay = 4, 8 // columns of stat
	stat := func(column int) int {
		n, err := strconv.Atoi(strings.Fields(a.sys("stat"))[column])
		if err != nil {
			a.t.Fatal(err)
		}
		return n
	}
	end := verify(a.t, "/mnt/d/load", "--fsync=16")
	for range times {
		before := stat(writes)
		if !await(func() bool { return stat(writes) >= before+50 }) {
			a.t.Fatal("the load writes nothing")
		}
		tg.Kill()
		if !await(func() bool { return stat(underWay) > 0 }) {
			a.t.Fatal("nothing waits for the target, which is gone")
		}
		tg.Start()
	}
	before := stat(writes)
	if !await(func() bool { return stat(writes) >= before+50 }) {
		a.t.Fatal("the load does not go on")
	}
	end()
}

// TestAttach: disks are block devices of the guest's kernel by initiator attach, over each transport. Programs
// on them see no error when the target is killed, when the link is cut, and when attach itself is.
func TestAttach(t *testing.T) {
	tg := targettest.Start(t, `
stores: {d: {type: file, path: $DIR/disk.img, size: 320MiB}}
targets: [{iqn: "`+iqn+`", luns: {0: d, 1: {store: d, readonly: true}}}]
portals: [{transport: tcp, listen: $PORTAL}, {transport: iwarp, listen: $PORTAL2}]
management: {socket: $DIR/socket}
`)
	disk := tg.Dir + "/disk.img"
	space := func() int64 { return allocated(t, disk) }
	tcp, iwarp := targettest.NewRelay(t, tg.Portals[0]), guestAddr(t, tg.Portals[1])

	t.Run("TCP", func(t *testing.T) {
		a := attach(t, "iscsi", guestAddr(t, tcp.Addr()), 0, "--ping", "1s")
		expect(t, "cache", a.sys("queue/write_cache"), "write back") // otherwise fsync would not come through
		expect(t, "FUA", a.sys("queue/fua"), "1")
		fileSystem(t, "ext4", a.dev, 30, 4<<20, space)
		guest.run(t, "@write", "/sys/block/"+strings.TrimPrefix(a.dev, "/dev/")+"/queue/io_timeout", "1000") // ms: until the kernel looks after what a dead attach had
		guest.run(t, "@mount", "ext4", a.dev, "/mnt/d")
		const count = 80
		writeRecords(t, "/mnt/d/records", count, map[int]func(){20: func() {
			tg.Kill()
			if !await(func() bool { return strings.Contains(guest.run(t, "dmesg"), "Possible stuck request") }) {
				t.Error("the kernel's timer has not fired")
			}
			tg.Start() // after which nothing may be given up
		}, 40: func() { tcp.Cut(false) }, 60: a.kill})
		if said := guest.fails(t, "initiator", "detach", a.dev); !strings.Contains(said, "in use") {
			t.Errorf("who detaches what is mounted is told %q", said)
		}
		guest.run(t, "@drop")
		guest.run(t, "@check", "/mnt/d/records", strconv.Itoa(count))
		guest.run(t, "@umount", "/mnt/d")
		guest.run(t, "e2fsck", "-fn", a.dev)
		if list := guest.run(t, "initiator", "attached"); !strings.Contains(list, a.dev) || !strings.Contains(list, " served ") {
			t.Errorf("attached lists %q", list)
		}

		tg.Edit("size: 320MiB", "size: 384MiB")
		process, err := os.FindProcess(tg.PID())
		if err != nil {
			t.Fatal(err)
		}
		if err := process.Signal(syscall.SIGHUP); err != nil {
			t.Fatal(err)
		}
		want := strconv.Itoa(384 << 20 / 512)
		if !await(func() bool { return a.sys("size") == want }) {
			t.Errorf("the device has %s sectors, the disk %s", a.sys("size"), want)
		}
		a.detach()
	})

	t.Run("one-shot", func(t *testing.T) {
		a := attach(t, "oneshot+iwarp", iwarp, 0, "--connections", "2")
		fileSystem(t, "xfs", a.dev, 20, 4<<20, space)
		guest.run(t, "@mount", "xfs", a.dev, "/mnt/d")
		a.killTarget(tg, 2)
		guest.run(t, "@umount", "/mnt/d")
		guest.run(t, "xfs_repair", "-n", a.dev)
		guest.run(t, "blkdiscard", "-f", a.dev)
		if n := space(); n > 1<<20 {
			t.Errorf("after blkdiscard the store takes %d bytes", n)
		}
		a.detach()
	})

	t.Run("iSER", func(t *testing.T) {
		a := attach(t, "iser+iwarp", iwarp, 0, "--dead-time", "1s")
		guest.run(t, "fio", "--name=verify", "--filename="+a.dev, "--direct=1", "--rw=randwrite", "--bsrange=4k-256k", "--iodepth=32", "--ioengine=io_uring",
			"--size=4M", "--verify=crc32c", "--do_verify=1", "--output=/tmp/fio")
		tg.Kill()
		if said := guest.fails(t, a.direct()...); !strings.Contains(said, "input/output error") {
			t.Errorf("without a target who writes is told %q", said)
		}
		tg.Start()
		if !await(func() bool {
			_, exit := guest.start(t, a.direct()...).wait(t, guest)
			return exit == 0
		}) {
			t.Error("the target is back, and the device is not")
		}
		a.detach()
	})

	t.Run("read-only", func(t *testing.T) {
		a := attach(t, "iscsi", guestAddr(t, tg.Portals[0]), 1)
		expect(t, "read-only", a.sys("ro"), "1")
		guest.fails(t, a.direct()...)
		a.detach()
	})

	t.Run("partition", func(t *testing.T) { partition(t, tg, disk) })
}

// others returns how many commands LUN 0 has had that neither read nor write.
func others(t *testing.T, tg *targettest.Target) (n uint64) {
	t.Helper()
	c := mgmt.NewClient(tg.Dir + "/socket")
	defer c.Close()
	s, err := c.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, k := range s.Targets[0].LUNs[0].IO.Other.Latency {
		n += k
	}
	return n
}

// partition does with a device what blktests' group nbd does with those of nbd-client: partitions come and go with
// it, it has no size when it is detached, its module stays as long as it is there, and who detaches while others mount
// either ends it or is told that it is in use.
func partition(t *testing.T, tg *targettest.Target, disk string) {
	const first, sectors = 2048, 64 << 11
	mbr := make([]byte, 512)
	mbr[446+4] = 0x83 // Linux
	binary.LittleEndian.PutUint32(mbr[446+8:], first)
	binary.LittleEndian.PutUint32(mbr[446+12:], sectors)
	mbr[510], mbr[511] = 0x55, 0xaa
	f, err := os.OpenFile(disk, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	_, err = f.WriteAt(mbr, 0)
	if err = errors.Join(err, f.Close()); err != nil {
		t.Fatal(err)
	}
	a := attach(t, "iscsi", guestAddr(t, tg.Portals[0]), 0, "--ping", "1h") // the size of the disk is not asked for
	name := strings.TrimPrefix(a.dev, "/dev/")
	part := name + "p1"
	there := func() bool {
		guest.start(t, "e2fsck", "-n", a.dev).wait(t, guest) // who opens it first has the kernel look
		_, exit := guest.start(t, "@cat", "/sys/block/"+name+"/"+part+"/size").wait(t, guest)
		return exit == 0
	}
	if !await(there) {
		t.Fatalf("there is no %s", part)
	}
	expect(t, "sectors of the partition", a.sys(part+"/size"), strconv.Itoa(sectors))
	const count = 20
	before := others(t, tg)
	guest.run(t, "@records", "/dev/"+part, strconv.Itoa(count))
	if n := others(t, tg) - before; n < count-1 { // the last one may not be counted yet
		t.Errorf("%d calls of fsync are %d commands that neither read nor write", count, n)
	}
	guest.run(t, "mkfs.ext4", "-q", "-F", "/dev/"+part)
	if said := guest.fails(t, "@unload", "nbd"); !strings.Contains(said, "unavailable") && !strings.Contains(said, "busy") {
		t.Errorf("who unloads the module is told %q", said)
	}
	for range 4 {
		m, d := guest.start(t, "@mount", "ext4", "/dev/"+part, "/mnt/d"), guest.start(t, "initiator", "detach", a.dev)
		told, mounted := m.wait(t, guest)
		said, detached := d.wait(t, guest)
		switch {
		case mounted == 0 && detached == 0:
			t.Fatal("the device is mounted and detached")
		case mounted == 0:
			if !strings.Contains(said, "in use") {
				t.Errorf("who detaches what is mounted is told %q", said)
			}
			guest.run(t, "@umount", "/mnt/d")
		case detached == 0:
			a.load.wait(t, guest)
			expect(t, "sectors without a disk", a.sys("size"), "0")
			guest.fails(t, "@cat", "/sys/block/"+name+"/"+part+"/size")
			a.start()
			if !await(there) {
				t.Fatalf("there is no %s again", part)
			}
		default:
			t.Logf("neither: %s%s", told, said) // each has the device open for a moment
		}
	}
	a.detach()
	guest.fails(t, "@cat", "/sys/block/"+name+"/"+part+"/size")
}
