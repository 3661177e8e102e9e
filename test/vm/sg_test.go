package vm

import (
	"bytes"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"oneshot/test/targettest"
)

// Exit statuses of the programs of sg3_utils (sg3_utils(8)).
const (
	sgNotReady    = 2
	sgIllegal     = 5
	sgAttention   = 6
	sgMiscompare  = 14
	sgReservation = 24
)

// sgDisks holds the disks of TestSG, by the letters that stand for their devices in its commands.
type sgDisks struct {
	*testing.T
	dir     string
	devices map[string]string
}

// run runs a command in which %A stands for the device of the letter A. The command has to end with the
// status exit and to print all texts of want; several blanks count as one.
func (d *sgDisks) run(command string, exit int, want ...string) string {
	d.Helper()
	argv := strings.Fields(command)
	for i := range argv {
		for letter, device := range d.devices {
			argv[i] = strings.ReplaceAll(argv[i], "%"+letter, device)
		}
	}
	out, got := guest.start(d.T, argv...).wait(d.T, guest)
	if got != exit {
		d.Errorf("%s: exit %d, want %d\n%s", command, got, exit, out)
	}
	words := strings.Join(strings.Fields(out), " ")
	for _, w := range want {
		if !strings.Contains(words, w) {
			d.Errorf("%s does not say %q\n%s", command, w, out)
		}
	}
	return out
}

// forget takes a unit attention, unless the kernel's ALUA handler has already taken it.
func (d *sgDisks) forget(letter string) {
	guest.start(d.T, "sg_turs", d.devices[letter]).wait(d.T, guest)
}

// holds checks in the file of a store that the blocks from block on hold b.
func (d *sgDisks) holds(what, store string, block int, b []byte) {
	d.Helper()
	f, err := os.Open(d.dir + "/" + store + ".img")
	if err != nil {
		d.Fatal(err)
	}
	defer f.Close()
	got := make([]byte, len(b))
	if _, err := f.ReadAt(got, int64(block)*512); err != nil {
		d.Fatal(err)
	}
	if !bytes.Equal(got, b) {
		d.Errorf("%s: block %d of %s holds % x …, not % x …", what, block, store, got[:8], b[:8])
	}
}

// TestSG describes and changes disks of Linux's initiator with sg3_utils, which is independent of libiscsi
// and of this project, and checks the changes in the files of the stores.
func TestSG(t *testing.T) {
	tg := targettest.Start(t, `
state: $DIR/state
stores:
  a: {type: file, path: $DIR/a.img, size: 16MiB, sparse: true}
  b: {type: file, path: $DIR/b.img, size: 16MiB, sparse: true}
  r: {type: file, path: $DIR/r.img, size: 16MiB, sparse: true}
targets: [{iqn: "`+iqn+`", luns: {0: {store: a, alua: both, serial: SG-A}, 1: b, 2: {store: r, removable: true}}}]
portals: [{transport: tcp, listen: $PORTAL}, {transport: tcp, listen: $PORTAL2, group: 2}]
`)
	first := prepare(t, tg)
	first.record(nil)
	disks := first.login(3)
	second := &iscsi{t: t, portal: guestAddr(t, tg.Portals[1]), iface: "default"}
	second.record(nil)
	second.adm(second.node("--login")...)
	d := &sgDisks{t, tg.Dir, map[string]string{
		"A": generic(t, disks[0]), "B": generic(t, disks[1]), "R": generic(t, disks[2]),
		"C": generic(t, otherPath(t, disks, 0)), // A by the second portal
	}}
	d.describe()
	d.change()
	d.reserve()
	d.eject()
	d.states()
	d.sanitize()
}

// otherPath waits for the disk of a LUN that is not in disks.
func otherPath(t *testing.T, disks map[int]string, lun int) string {
	t.Helper()
	i := &iscsi{t: t}
	for {
		lines := diskLine.FindAllStringSubmatch(i.adm("session", "-P", "3"), -1)
		if len(lines) < 2*len(disks) {
			continue // the kernel is still looking
		}
		for _, m := range lines {
			if m[1] == fmt.Sprint(lun) && m[2] != disks[lun] {
				return m[2]
			}
		}
	}
}

// generic returns the device of the driver sg for a disk. Opening it has no effect, while opening a
// removable disk prevents its removal, and sg_xcopy does not accept disks.
func generic(t *testing.T, disk string) string {
	t.Helper()
	return "/dev/" + strings.TrimSpace(guest.run(t, "bash", "-c", "cd /sys/block/"+disk+"/device/scsi_generic && echo *"))
}

var vpdName = regexp.MustCompile(`\[(\w+)\]`)

func (d *sgDisks) describe() {
	d.run("sg_inq %A", 0, "version=0x06", "Resp_data_format=2", "RMB=0", "TPGS=3", "3PC=1", "MultiP=1", "CmdQue=1",
		"Vendor identification: ONESHOT", "Unit serial number: SG-A")
	d.run("sg_inq %R", 0, "RMB=1", "TPGS=1")
	pages := map[string][]string{
		"sv": nil,
		"sn": {"Unit serial number: SG-A"},
		"di": {
			"NAA, code set: Binary 0x602", "Target port group: 0x1", "Relative target port: 0x1",
			"SCSI name string: " + iqn + ",t,0x0001", "SCSI name string: " + iqn,
		},
		"ei":  {"SIMPSUP=1"},
		"tpc": {"Extended copy(LID1)", "Populate token", "ROD type: point in time copy - change vulnerable"},
		"bl": {
			"Write same non-zero (WSNZ): 0", "Maximum compare and write length: 255 blocks", "Maximum transfer length: 8192 blocks",
			"Maximum unmap LBA count: 1048576", "Maximum write same length: 0x8000 blocks", "Maximum atomic transfer length: 4096 blocks",
		},
		"bdc":  {"Non-rotating medium"},
		"lbpv": {"(LBPU): 1", "(LBPWS): 1", "(LBPWS10): 1", "(LBPRZ): 1", "thin provisioned"},
	}
	listed := vpdName.FindAllStringSubmatch(d.run("sg_vpd %A", 0), -1)
	if len(listed) != len(pages) {
		d.Errorf("%d pages are listed, %d are known here: %v", len(listed), len(pages), listed)
	}
	for _, m := range listed {
		d.run("sg_vpd --page="+m[1]+" %A", 0, pages[m[1]]...)
	}
	d.run("sg_vpd --page=di %C", 0, "Target port group: 0x2", "Relative target port: 0x2", iqn+",t,0x0002")
	d.run("sg_readcap --long %A", 0, "lbpme=1, lbprz=1", "Number of logical blocks=32768", "Logical block length=512 bytes")
	d.run("sg_luns %A", 0, "imples 3 lun entries", "0002000000000000")
	d.run("sg_logs --page=0xc %A", 0, "Used LBA mapping threshold resource count: 0")
	d.run("sg_logs --page=0xd %A", 0, "Temperature page")
	d.run("sg_modes %A", 0, "WP=0, DpoFua=1", "Caching", "Control")
	d.run("sg_requests %A", 0, "No Sense")
	opcodes := d.run("sg_opcodes %A", 0, "Sanitize, block erase", "Extended copy(LID1)", "Compare and write", "Write atomic(16)", "Set target port groups")
	if strings.Contains(opcodes, "Unknown") {
		d.Errorf("a command that sg_opcodes does not know:\n%s", opcodes)
	}
}

// blocks returns n blocks filled with c.
func blocks(c string, n int) []byte { return []byte(strings.Repeat(c, 512*n)) }

func (d *sgDisks) change() {
	guest.run(d.T, "@write", "/tmp/a", string(blocks("a", 1)))
	guest.run(d.T, "@write", "/tmp/ac", string(blocks("a", 1))+string(blocks("c", 1)))
	guest.run(d.T, "@write", "/tmp/8z", string(blocks("z", 8)))

	d.run("sg_write_same --lba=8 --num=8 --in=/tmp/a %A", 0)
	d.holds("WRITE SAME", "a", 7, slices.Concat(blocks("\x00", 1), blocks("a", 8), blocks("\x00", 1)))
	d.run("sg_verify --lba=8 --count=8 %A", 0)
	d.run("sg_verify --lba=15 --count=1 --ndo=512 --in=/tmp/a --ebytchk=1 %A", 0)
	d.run("sg_verify --lba=16 --count=1 --ndo=512 --in=/tmp/a --ebytchk=1 --quiet %A", sgMiscompare)

	d.run("sg_compare_and_write --lba=8 --in=/tmp/ac %A", 0)
	d.run("sg_compare_and_write --lba=8 --in=/tmp/ac --quiet %A", sgMiscompare) // it is c by now
	d.holds("COMPARE AND WRITE", "a", 8, slices.Concat(blocks("c", 1), blocks("a", 7)))

	d.run("sg_xcopy if=%A of=%B bs=512 skip=7 seek=100 count=10", 0, "10 blocks, 1 command")
	d.holds("EXTENDED COPY", "b", 99, slices.Concat(blocks("\x00", 2), blocks("c", 1), blocks("a", 7), blocks("\x00", 2)))

	d.run("sg_unmap --lba=8 --num=8 --force %A", 0)
	d.holds("UNMAP", "a", 7, blocks("\x00", 10))
	d.run("sg_write_x --atomic=0 --lba=24 --num=8 --in=/tmp/8z --strict --quiet %A", 0)
	d.holds("WRITE ATOMIC", "a", 24, blocks("z", 8))
	d.run("sg_get_lba_status --brief --lba=24 %A", 0, "0x0000000000000018 0x8 0 0") // 8 mapped
	d.run("sg_get_lba_status --brief --lba=8 %A", 0, "0x0000000000000008 0x10 1 0") // 16 not
}

// reserve makes a reservation through one port, and tries to write through the other.
func (d *sgDisks) reserve() {
	d.run("sg_persist --in --report-capabilities %A", 0, "(SIP_C): 1", "(ATP_C): 1", "(PTPL_C): 1", "Write Exclusive, all registrants: 1")
	d.run("sg_persist --out --register --param-sark=0x1234 --param-aptpl %A", 0)
	d.run("sg_persist --out --reserve --param-rk=0x1234 --prout-type=1 %A", 0)
	d.run("sg_persist --in --read-reservation %C", 0, "Key=0x1234", "type: Write Exclusive")
	d.run("sg_persist --in --read-full-status %C", 0, "Relative port address: 0x1", initiator+",i,0x", "<< Reservation holder >>")
	d.run("sg_write_same --lba=64 --num=1 --in=/tmp/a %C", sgReservation)
	d.holds("a write in spite of a reservation", "a", 64, blocks("\x00", 1))
	d.run("sg_verify --lba=24 --count=1 --ndo=512 --in=/tmp/8z --ebytchk=1 --readonly %C", 0)
	d.run("sg_persist --out --register --param-sark=0x5678 %C", 0)
	d.run("sg_persist --out --preempt --param-rk=0x5678 --param-sark=0x1234 --prout-type=3 %C", 0)
	d.run("sg_persist --in --read-reservation %C", 0, "Key=0x5678", "type: Exclusive Access")
	d.run("sg_write_same --lba=64 --num=1 --in=/tmp/a %C", 0)
	d.run("sg_turs %A", sgAttention) // registrations preempted
	d.run("sg_write_same --lba=65 --num=1 --in=/tmp/a %A", sgReservation)
	d.holds("the reservation, the other way round", "a", 64, slices.Concat(blocks("a", 1), blocks("\x00", 1)))
	d.run("sg_persist --out --clear --param-rk=0x5678 %C", 0)
	d.run("sg_persist --in --read-keys %A", 0, "NO registered reservation keys")
	d.run("sg_write_same --lba=65 --num=1 --in=/tmp/a %A", 0)
}

func (d *sgDisks) eject() {
	d.run("sg_prevent --prevent=1 %R", 0)
	d.run("sg_start --eject %R", sgIllegal)
	d.run("sg_turs %R", 0)
	d.run("sg_prevent --allow %R", 0)
	d.run("sg_start --eject %R", 0)
	d.run("sg_turs %R", sgNotReady)
	d.run("sg_start --load %R", 0)
	d.run("sg_turs %R", 0)
}

// states changes the access state of the second port group, as an initiator may (explicit ALUA).
func (d *sgDisks) states() {
	d.run("sg_stpg --tp=2 --state=3 %A", 0)
	d.run("sg_rtpg --decode %A", 0, "target port group id : 0x1 , Pref=0, Rtpg_fmt=0 target port group asymmetric access state : 0x00",
		"target port group id : 0x2 , Pref=0, Rtpg_fmt=0 target port group asymmetric access state : 0x03")
	d.forget("C")
	d.run("sg_write_same --lba=66 --num=1 --in=/tmp/a %C", sgNotReady)
	d.holds("a write by a port group that is unavailable", "a", 66, blocks("\x00", 1))
	d.run("sg_stpg --tp=2 --state=0 %A", 0)
	d.forget("C")
	d.run("sg_write_same --lba=66 --num=1 --in=/tmp/a %C", 0)
}

func (d *sgDisks) sanitize() {
	d.run("sg_sanitize --overwrite --pattern=/tmp/a --ipl=512 --quick --wait %B", 0)
	d.holds("SANITIZE, overwrite", "b", 0, blocks("a", 32768))
	d.run("sg_logs --page=0xc %B", 0, "Used LBA mapping threshold resource count: 16")
	d.run("sg_sanitize --block --quick --wait %B", 0)
	d.holds("SANITIZE, block erase", "b", 0, blocks("\x00", 32768))
	d.run("sg_logs --page=0xc %B", 0, "Used LBA mapping threshold resource count: 0")
	d.run("sg_sanitize --crypto --quick --wait %B", sgIllegal) // nothing is encrypted
}
