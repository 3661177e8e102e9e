package vm

import (
	"bytes"
	"os"
	"strings"
	"testing"

	"oneshot/mgmt"
	"oneshot/test/targettest"
)

// TestDiskReplaced: a reload puts another disk in the place of one that Linux uses. What programs write, on the session that is there and after
// Linux has logged in again by itself, fails and does not reach that one, until the administrator has Linux look at the disk, or find it anew.
func TestDiskReplaced(t *testing.T) {
	tg := targettest.Start(t, `
stores:
  d: {type: file, path: $DIR/d.img, size: 16MiB}
  e: {type: file, path: $DIR/e.img, size: 16MiB}
targets: [{iqn: "`+iqn+`", luns: {0: d}}]
portals: [{listen: $PORTAL}]
management: {socket: $DIR/socket}
`)
	c := mgmt.NewClient(tg.Dir + "/socket")
	replace := func(old, new string) {
		t.Helper()
		tg.Edit("luns: {0: "+old, "luns: {0: "+new)
		if _, err := c.Reload(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	written := func(store string) bool {
		t.Helper()
		b, err := os.ReadFile(tg.Dir + "/" + store + ".img")
		if err != nil {
			t.Fatal(err)
		}
		return len(bytes.Trim(b, "\x00")) > 0
	}
	i := prepare(t, tg)
	i.record(nil)
	disk := i.login(1)[0]
	records := []string{"@records", "/dev/" + disk, "5"}
	guest.run(t, records...)

	replace("d", "e")
	guest.fails(t, records...)
	list, err := c.Sessions(t.Context())
	if err != nil || len(list.Sessions) != 1 {
		t.Fatalf("%+v, %v", list, err)
	}
	if err := c.DropSession(t.Context(), list.Sessions[0].ID); err != nil {
		t.Fatal(err)
	}
	guest.fails(t, records...) // waits for the login
	if list, err = c.Sessions(t.Context()); err != nil || len(list.Sessions) != 1 {
		t.Fatalf("%+v, %v", list, err)
	}
	if written("e") {
		t.Error("the other disk was written to")
	}
	guest.run(t, "@write", "/sys/block/"+disk+"/device/rescan", "1")
	guest.run(t, records...)
	if !written("e") {
		t.Error("after Linux has looked, its writes do not reach the other disk")
	}

	replace("e", "d")
	guest.fails(t, records...)
	guest.run(t, "@write", "/sys/block/"+disk+"/device/delete", "1")
	i.adm("session", "--rescan")
	if !await(func() bool {
		m := diskLine.FindStringSubmatch(i.adm("session", "-P", "3"))
		if m != nil {
			disk = m[2]
		}
		return m != nil
	}) {
		t.Fatalf("there is no disk\n%s", guest.Log())
	}
	guest.run(t, strings.Fields("@records /dev/"+disk+" 5")...)
	i.logout()
}
