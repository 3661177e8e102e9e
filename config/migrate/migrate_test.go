package migrate

import (
	"errors"
	"flag"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"

	"oneshot/config"
	nvmeauth "oneshot/nvme/auth"
)

var update = flag.Bool("update", false, "write the .want files anew")

// TestImport compares with testdata/*.want, which -update writes: read the difference.
func TestImport(t *testing.T) {
	for _, file := range []string{"saveconfig.json", "nvmet.json", "targets.conf"} {
		data, err := os.ReadFile(filepath.Join("testdata", file))
		if err != nil {
			t.Fatal(err)
		}
		r, err := Import(file, data, nil)
		if err != nil {
			t.Errorf("%s: %v", file, err)
			continue
		}
		compare(t, strings.TrimSuffix(file, filepath.Ext(file)), r)
	}
}

// compare compares a result with testdata/NAME.want.
func compare(t *testing.T, name string, r *Result) {
	t.Helper()
	want := filepath.Join("testdata", name+".want")
	if *update {
		if err := os.WriteFile(want, r.YAML, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	text, err := os.ReadFile(want)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(text), string(r.YAML)); diff != "" {
		t.Errorf("%s (-want +got)\n%s", name, diff)
	}
	for _, remark := range r.Remarks {
		if !strings.Contains(string(text), "# NOTE "+remark) {
			t.Errorf("%s: the file does not say %q", name, remark)
		}
	}
}

// machine is the files of a machine.
type machine fstest.MapFS

func (m machine) Glob(pattern string) ([]string, error) {
	list, err := fs.Glob(fstest.MapFS(m), strings.TrimPrefix(pattern, "/"))
	for i := range list {
		list[i] = "/" + list[i]
	}
	return list, err
}

func (m machine) ReadFile(path string, _ int64) ([]byte, error) {
	return fs.ReadFile(fstest.MapFS(m), strings.TrimPrefix(path, "/"))
}

func (m machine) Stat(path string) (fs.FileInfo, error) {
	return fs.Stat(fstest.MapFS(m), strings.TrimPrefix(path, "/"))
}

// What a Debian with tgt has: a file that includes others, with whatever tgt can do in them.
func TestImportStock(t *testing.T) {
	text := func(s string) *fstest.MapFile { return &fstest.MapFile{Data: []byte(s)} }
	files := machine{
		"etc/tgt/targets.conf":        text("# comment\ninclude /etc/tgt/conf.d/*.conf\ninclude /etc/tgt/none/*.conf\niSNS On\niSNSServerIP 192.0.2.9\n"),
		"etc/tgt/conf.d/a.conf":       text(stockA),
		"etc/tgt/conf.d/b.conf":       text(stockB),
		"etc/tgt/conf.d/snippet.part": text("incominguser included secretpass12\n"),
		"dev/plain.img":               text("a regular file under /dev"),
		"dev/sdq":                     &fstest.MapFile{Mode: fs.ModeDevice},
		"srv/disk":                    &fstest.MapFile{Mode: fs.ModeDevice},
	}
	data, _ := files.ReadFile("/etc/tgt/targets.conf", 0)
	r, err := Import("/etc/tgt/targets.conf", data, files)
	if err != nil {
		t.Fatal(err)
	}
	compare(t, "stock", r)
	c, err := config.Parse("stock.yaml", r.YAML)
	if err != nil {
		t.Fatalf("%v\n%s", err, r.YAML)
	}
	if len(c.Targets) != 2 {
		t.Errorf("%d targets", len(c.Targets))
	}
}

const stockA = `<target iqn.2008-09.com.example:a>
    backing-store /srv/a.img
    direct-store /dev/sdq
    backing-store /dev/plain.img
    backing-store /srv/disk
    vendor_id MyCompany Inc.
    removable 1
    write-cache off
    HeaderDigest CRC32C
    include snippet.part
    controller_tid 10
</target>
`

const stockB = `<target iqn.2008-09.com.example:b>
    bs-type rbd
    backing-store pool/image
    <backing-store /srv/b.img>
        bs-type rdwr
        bsoflags direct sync
        lbppbe 3
        scsi_sn a-serial-number-that-is-longer-than-others
        lun 2
    </backing-store>
    <backing-store /srv/debian.iso>
        device-type cd
        bs-type rdwr
        removable 1
    </backing-store>
    <backing-store /srv/c.img>
        bs-type aio
        online 0
        scsi_id x
    </backing-store>
</target>
<target iqn.2008-09.com.example:a>
    backing-store /srv/more.img
</target>
`

// A file may have a name that YAML takes for something else than a word.
func TestImportedStoresHaveNames(t *testing.T) {
	for _, name := range []string{"null", "Null", "NULL", "true", "False", "yes", "off", "y", "7", "007", "0x1f", "1e3", "1_000", "1.5.img", ".inf", ".NaN", "-", "~", "<<", "2026-11-27", "ü"} {
		r, err := Import("targets.conf", []byte("<target iqn.2008-09.com.example:a>\n  backing-store \"/srv/"+name+"\"\n</target>\n"), nil)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if _, err := config.Parse("x.yaml", r.YAML); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Files that include each other end.
func TestImportIncludesItself(t *testing.T) {
	files := machine{
		"etc/tgt/targets.conf": &fstest.MapFile{Data: []byte("include targets.conf\n")},
		"etc/wide/1.conf":      &fstest.MapFile{Data: []byte("include /etc/wide/*.conf\ninclude /etc/wide/*.conf\n")},
		"etc/wide/2.conf":      &fstest.MapFile{Data: []byte("include /etc/wide/\n")},
		"etc/bad/1.conf":       &fstest.MapFile{Data: []byte("\n<target x>\n")},
	}
	for name, want := range map[string]string{
		"/etc/tgt/targets.conf": "again and again", "/etc/wide/1.conf": "again and again", "/etc/bad/2.conf": "this is none: /etc/bad/1.conf, line 2: <target> is not closed",
	} {
		data, err := files.ReadFile(name, 0)
		if err != nil {
			data = []byte("include 1.conf\n")
		}
		if _, err := Import(name, data, files); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") || len(err.Error()) > 200 {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// What somebody has set in LIO and is lost is told, and what nobody has touched is not; a regular file is no
// device, wherever it lies.
func TestImportTellsSettings(t *testing.T) {
	r, err := Import("x", []byte(`{"storage_objects": [
			{"plugin": "fileio", "name": "f", "dev": "/dev/shm/disk.img", "size": 1048576},
			{"plugin": "fileio", "name": "g", "dev": "/dev/plain.img", "size": 1048576},
			{"plugin": "fileio", "name": "h", "dev": "/dev/sdx", "size": 1048576}],
		"targets": [{"fabric": "iscsi", "wwn": "iqn.2003-01.org:one", "tpgs": [{"tag": 1, "enable": true,
			"attributes": {"generate_node_acls": 0, "default_cmdsn_depth": 16, "authentication": 0},
			"parameters": {"HeaderDigest": "CRC32C", "DataDigest": "CRC32C,None", "MaxConnections": "1"},
			"portals": [{"ip_address": "192.0.2.1", "port": 3260}],
			"luns": [{"index": 0, "storage_object": "/backstores/fileio/f"}],
			"node_acls": [{"node_wwn": "iqn.2003-01.org:client", "tcq_depth": 8, "mapped_luns": [{"index": 0, "tpg_lun": 0}]},
				{"node_wwn": "iqn.2003-01.org:other", "tcq_depth": 64, "mapped_luns": [{"index": 0, "tpg_lun": 0}]}]}]}]}`),
		machine{"dev/plain.img": &fstest.MapFile{}})
	if err != nil {
		t.Fatal(err)
	}
	remarks := strings.Join(r.Remarks, "\n")
	for _, want := range []string{"not taken over: default_cmdsn_depth=16, HeaderDigest=CRC32C (", "the queue depth 8 of iqn.2003-01.org:client"} {
		if !strings.Contains(remarks, want) {
			t.Errorf("the remarks do not say %q:\n%s", want, remarks)
		}
	}
	for _, not := range []string{"DataDigest", "MaxConnections", "org:other"} {
		if strings.Contains(remarks, not) {
			t.Errorf("the remarks say %q:\n%s", not, remarks)
		}
	}
	for _, want := range []string{"f: {type: file,", "g: {type: file,", "h: {type: device,", "\nstate: "} {
		if !strings.Contains(string(r.YAML), want) {
			t.Errorf("the result does not say %q:\n%s", want, r.YAML)
		}
	}
}

// What targetcli wrote can be served as it is.
func TestImportIsValid(t *testing.T) {
	data, err := os.ReadFile("testdata/saveconfig.json")
	if err != nil {
		t.Fatal(err)
	}
	r, err := Import("x", data, nil)
	if err != nil {
		t.Fatal(err)
	}
	c, err := config.Parse("x.yaml", r.YAML)
	if err != nil {
		t.Fatal(err)
	}
	one := &c.Targets[0]
	for name, want := range map[string]string{"aaa": "u", "bbb": "other", "ccc": "u", "ddd": ""} {
		name = "iqn.1993-08.org.debian:01:" + name
		r := one.Rule(name)
		switch {
		case one.Admits(name) != (want != ""):
			t.Errorf("%s is admitted: %v", name, one.Admits(name))
		case want != "" && (r.Auth == nil || r.Auth.CHAP.User != want):
			t.Errorf("%s proves that it is %+v", name, r.Auth)
		}
	}
	if luns := one.Rule("iqn.1993-08.org.debian:01:ccc").LUNs; len(luns) != 1 || luns[0].Number != 5 || luns[0].LUN != 0 {
		t.Errorf("LUNs %+v", luns)
	}
	if !one.LUNs[0].ReadOnly || c.Discovery.Auth.CHAP == nil {
		t.Error("protection was lost")
	}
	if len(c.Targets) != 2 || !c.Targets[1].LUNs[0].ReadOnly || len(c.Targets[1].Initiators) != 0 || c.Targets[1].Auth.CHAP != nil {
		t.Errorf("%+v", c.Targets)
	}
}

func TestPortalsAreCovered(t *testing.T) {
	var m model
	for _, a := range []string{"192.0.2.1:3260", "[2001:db8::1]:3260", "192.0.2.1:3260", "192.0.2.1:3261", "0.0.0.0:3260", "192.0.2.2:3260", "strange"} {
		m.addPortal(portal{address: a})
	}
	want := []portal{{address: "[2001:db8::1]:3260"}, {address: "192.0.2.1:3261"}, {address: "0.0.0.0:3260"}, {address: "strange"}}
	if !slices.Equal(m.portals, want) {
		t.Errorf("%v, want %v", m.portals, want)
	}
}

// What was imported from nvmetcli is a configuration that can be served once its names are those of NVMe.
func TestImportedSubsystems(t *testing.T) {
	data, err := os.ReadFile("testdata/nvmet.json")
	if err != nil {
		t.Fatal(err)
	}
	r, err := Import("nvmet.json", data, nil)
	if err != nil {
		t.Fatal(err)
	}
	c, err := config.Parse("x.yaml", r.YAML)
	if err != nil {
		t.Fatal(err)
	}
	one, open := &c.Subsystems[0], &c.Subsystems[1]
	if len(c.Subsystems) != 2 || one.AuthOf("nqn.2014-08.org.example:host1") != nil || one.Admits("nqn.2014-08.org.example:any") || !one.Admits("nqn.2014-08.org.example:host1") || !open.Admits("nqn.2014-08.org.example:any") {
		t.Errorf("%+v", c.Subsystems)
	}
	if r := c.Discovery.Referrals; len(r) != 1 || r[0].String() != "192.0.2.9:8009" {
		t.Errorf("%v", r)
	}
	if c.Portals[0].Group == c.Portals[1].Group {
		t.Error("portals with other access states are in one group")
	}
	if a := one.AuthOf("nqn.2014-08.org.example:keyed"); a == nil || !strings.HasPrefix(string(a.Host.Bytes()), "DHHC-1:00:ia6z") || !strings.HasPrefix(string(a.Controller.Bytes()), "DHHC-1:01:") {
		t.Errorf("%+v", a)
	}
	if n := one.Namespaces; len(n) != 2 || n[0].NSID != 1 || n[0].UUID[0] != 0xd5 || n[0].BlockSize != 512 || n[1].BlockSize != 4096 || one.Serial != "123456789abcdef" {
		t.Errorf("%+v", one)
	}
	if one.CNTLIDs != [2]uint16{} || open.CNTLIDs != [2]uint16{1001, 2000} { // another machine may show the subsystem with the others
		t.Errorf("controllers %v and %v", one.CNTLIDs, open.CNTLIDs)
	}
	if len(c.Portals) != 3 || c.Portals[0].Transport != config.TransportNVMeTCP || c.Portals[1].Listen.String() != "[2001:db8::1]:8009" || c.Portals[2].Transport != config.TransportNVMeRDMA {
		t.Errorf("%+v", c.Portals)
	}
	if _, err := Import("x", []byte(`{"subsystems": 7}`), nil); err == nil || !strings.Contains(err.Error(), "nvmetcli") {
		t.Error(err)
	}
}

// A portal for all addresses takes the place of others, which is said.
func TestCoveredPortalIsTold(t *testing.T) {
	target := func(name, address string) string {
		return `{"fabric": "iscsi", "wwn": "iqn.2003-01.org:` + name + `", "tpgs": [{"tag": 1, "enable": true,
			"attributes": {"generate_node_acls": 1, "authentication": 0}, "portals": [{"ip_address": "` + address + `", "port": 3260}]}]}`
	}
	r, err := Import("x", []byte(`{"targets": [`+target("one", "192.0.2.1")+`,`+target("all", "0.0.0.0")+`]}`), nil)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(strings.Join(r.Remarks, "\n"), "target iqn.2003-01.org:one is reached at all addresses") {
		t.Errorf("remarks %q", r.Remarks)
	}
	if c, err := config.Parse("x.yaml", r.YAML); err != nil || len(c.Portals) != 1 {
		t.Errorf("%v\n%s", err, r.YAML)
	}
}

// An asterisk in a name lets nobody in where the file comes from, so it does not here either.
func TestImportNoPatterns(t *testing.T) {
	const star = "iqn.1993-08.org.debian:01:*"
	for name, text := range map[string]string{
		"LIO": `{"storage_objects": [{"plugin": "ramdisk", "name": "r", "size": 1048576}],
			"targets": [{"fabric": "iscsi", "wwn": "iqn.2003-01.org:one", "tpgs": [{"tag": 1, "enable": true, "attributes": {"generate_node_acls": 0, "authentication": 0},
			"luns": [{"index": 0, "storage_object": "/backstores/ramdisk/r"}], "portals": [{"ip_address": "192.0.2.1", "port": 3260}],
			"node_acls": [{"node_wwn": "iqn.1993-08.org.debian:01:a"}, {"node_wwn": "` + star + `"}]}]}]}`,
		"LIO, nobody else": `{"targets": [{"fabric": "iscsi", "wwn": "iqn.2003-01.org:one", "tpgs": [{"tag": 1, "enable": true, "attributes": {"generate_node_acls": 0, "authentication": 0},
			"portals": [{"ip_address": "192.0.2.1", "port": 3260}], "node_acls": [{"node_wwn": "` + star + `"}]}]}]}`,
		"nvmetcli": `{"ports": [{"portid": 1, "addr": {"trtype": "tcp", "traddr": "192.0.2.1", "trsvcid": "4420"}, "subsystems": ["nqn.2026-11.example:one", "nqn.2026-11.example:two"]}],
			"subsystems": [{"nqn": "nqn.2026-11.example:one", "allowed_hosts": ["nqn.2014-08.org.nvmexpress:*", "nqn.2014-08.org.nvmexpress:a"], "namespaces": []},
			{"nqn": "nqn.2026-11.example:two", "allowed_hosts": ["nqn.*"], "namespaces": []}]}`,
		"tgt": "<target iqn.2003-01.org:one>\n  backing-store /srv/a.img\n  initiator-name iqn.1993-08.org.debian:01:a\n</target>\n" +
			"<target iqn.2003-01.org:two>\n  backing-store /srv/b.img\n  initiator-name " + star + "\n</target>\n",
	} {
		r, err := Import("x", []byte(text), nil)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if !strings.Contains(strings.Join(r.Remarks, "\n"), "the asterisk of") {
			t.Errorf("%s: remarks %q", name, r.Remarks)
		}
		c, _ := config.Parse("x.yaml", r.YAML)
		if c == nil {
			continue // it has no target
		}
		for i := range c.Targets {
			if c.Targets[i].Admits("iqn.1993-08.org.debian:01:stranger") {
				t.Errorf("%s: a stranger is admitted to %s", name, c.Targets[i].Name)
			}
		}
		for i := range c.Subsystems {
			if c.Subsystems[i].Admits("nqn.2014-08.org.nvmexpress:stranger") {
				t.Errorf("%s: a stranger is admitted to %s", name, c.Subsystems[i].NQN)
			}
		}
	}
}

// A host that is named twice has its secret, wherever that stands.
func TestImportHostTwice(t *testing.T) {
	const nqn = "nqn.2014-08.org.nvmexpress:a"
	secret := nvmeauth.NewSecret(0)
	keyed, bare := `{"nqn": "`+nqn+`", "attr": {"dhchap_key": "`+secret.Text()+`"}}`, `{"nqn": "`+nqn+`"}`
	for _, hosts := range []string{keyed + "," + bare, bare + "," + keyed} {
		r, err := Import("x", []byte(`{"hosts": [`+hosts+`], "ports": [{"portid": 1, "addr": {"trtype": "tcp", "traddr": "192.0.2.1", "trsvcid": "4420"}, "subsystems": ["nqn.2026-11.example:one"]}],
			"subsystems": [{"nqn": "nqn.2026-11.example:one", "allowed_hosts": ["`+nqn+`"]}]}`), nil)
		if err != nil {
			t.Fatal(err)
		}
		if c, err := config.Parse("x.yaml", r.YAML); err != nil || c.Subsystems[0].AuthOf(nqn) == nil {
			t.Errorf("%v\n%s", err, r.YAML)
		}
	}
}

// Attributes that a file does not have are those of a new group of LIO: initiators have to prove themselves, and write nothing if they are not named.
func TestImportMissingAttributes(t *testing.T) {
	group := func(name, attributes, more string) string {
		return `{"fabric": "iscsi", "wwn": "iqn.2003-01.org:` + name + `", "tpgs": [{"tag": 1, "enable": true, "attributes": {` + attributes + `}` + more + `,
			"luns": [{"index": 0, "storage_object": "/backstores/ramdisk/r"}], "portals": [{"ip_address": "192.0.2.1", "port": 3260}],
			"node_acls": [{"node_wwn": "iqn.1993-08.org.debian:01:a"}]}]}`
	}
	const user = `, "chap_userid": "u", "chap_password": "a secret of some length"`
	r, err := Import("x", []byte(`{"storage_objects": [{"plugin": "ramdisk", "name": "r", "size": 1048576}], "targets": [`+
		group("none", "", "")+`,`+group("named", "", user)+`,`+group("all", `"generate_node_acls": 1`, user)+`]}`), nil)
	if err != nil {
		t.Fatal(err)
	}
	c, err := config.Parse("x.yaml", r.YAML)
	if err != nil {
		t.Fatal(err)
	}
	if len(c.Targets) != 2 {
		t.Fatalf("%s", r.YAML)
	}
	for i, readOnly := range []bool{false, true} {
		target := &c.Targets[i]
		if target.Auth.CHAP == nil || target.LUNs[0].ReadOnly != readOnly {
			t.Errorf("%s", r.YAML)
		}
	}
}

// In LIO a rule for an initiator holds in a group that is open to all as well.
func TestRulesOfAnOpenGroupAreTold(t *testing.T) {
	r, err := Import("x", []byte(`{"targets": [{"fabric": "iscsi", "wwn": "iqn.2003-01.org:one", "tpgs": [{"tag": 1, "enable": true,
		"attributes": {"generate_node_acls": 1}, "portals": [{"ip_address": "192.0.2.1", "port": 3260}],
		"node_acls": [{"node_wwn": "iqn.2003-01.org:client", "mapped_luns": [{"index": 0, "tpg_lun": 1}]}]}]}]}`), nil)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(strings.Join(r.Remarks, "\n"), "rules for single ones (LUNs, credentials), 1 of them") {
		t.Errorf("remarks %q", r.Remarks)
	}
}

// With Linux 5.19 and newer an initiator has to prove itself, or not, whatever its group says.
func TestAuthenticationOfOneInitiator(t *testing.T) {
	acl := func(name, own string) string {
		return `{"node_wwn": "iqn.2003-01.org:` + name + `", "chap_userid": "u", "chap_password": "secretpass12", "attributes": {` + own + `}}`
	}
	for group, want := range map[string]map[string]bool{
		"0": {"silent": false, "group": false, "yes": true, "text": true, "no": false},
		"1": {"silent": true, "group": true, "yes": true, "text": true, "no": false},
	} {
		r, err := Import("x", []byte(`{"targets": [{"fabric": "iscsi", "wwn": "iqn.2003-01.org:one", "tpgs": [{"tag": 1, "enable": true,
			"attributes": {"generate_node_acls": 0, "authentication": `+group+`}, "portals": [{"ip_address": "192.0.2.1", "port": 3260}],
			"node_acls": [`+acl("silent", "")+`, `+acl("group", `"authentication": -1`)+`, `+acl("yes", `"authentication": 1`)+`,
				`+acl("text", `"authentication": "1"`)+`, `+acl("no", `"authentication": 0`)+`]}]}]}`), nil)
		if err != nil {
			t.Fatal(err)
		}
		c, err := config.Parse("x.yaml", r.YAML)
		if err != nil {
			t.Fatal(err)
		}
		for name, proves := range want {
			rule := c.Targets[0].Rule("iqn.2003-01.org:" + name)
			if rule == nil || (rule.Auth != nil && rule.Auth.CHAP != nil || rule.Auth == nil && c.Targets[0].Auth.CHAP != nil) != proves {
				t.Errorf("the group says %s: %s proves itself: %v\n%s", group, name, !proves, r.YAML)
			}
		}
	}
}

// A target of tgt whose rules of access are not understood, or are in a file that is not read, is not served to everybody.
func TestUnknownAccessOfTGT(t *testing.T) {
	files := machine{
		"etc/tgt/empty.conf":        &fstest.MapFile{Data: []byte("# nothing\n")},
		"etc/tgt/conf.d/odd/x.conf": &fstest.MapFile{},
	}
	for line, known := range map[string]bool{
		"incominguser joe":                     false,
		"incominguser joe secretpass12 twelve": false,
		"initiator-name iqn.x:a iqn.x:b":       false,
		"initiator-address 192.0.2.1 x":        false,
		"include /etc/tgt/secret.conf":         false,
		"include /etc/tgt/secrets/*.conf":      false,
		"include /etc/tgt/conf.d":              false, // a directory in it
		"<<include /etc/tgt/secret.conf>>":     false,
		"include /etc/tgt/empty.conf":          true,
	} {
		r, err := Import("/etc/tgt/targets.conf", []byte("<target iqn.2008-09.com.example:a>\nbacking-store /srv/a.img\n"+line+"\n</target>\n<target iqn.2008-09.com.example:b>\nbacking-store /srv/b.img\n</target>\n"), files)
		if err != nil {
			t.Fatal(err)
		}
		c, err := config.Parse("x.yaml", r.YAML)
		if err != nil {
			t.Fatal(err)
		}
		remarks := strings.Join(r.Remarks, "\n")
		if served := len(c.Targets) == 2; served != known || strings.Contains(remarks, "not known who may log in") == known || strings.Contains(remarks, "twelve") {
			t.Errorf("%s: %d targets, remarks %q", line, len(c.Targets), r.Remarks)
		}
	}
}

// What one of two LUNs of a store asks for, or flags that stand before another option, is not lost: a write is durable when it is answered.
func TestDurabilityOfTGTStays(t *testing.T) {
	for _, text := range []string{
		"<target a>\nbacking-store /srv/a.img\n</target>\n<target b>\nwrite-cache off\nbacking-store /srv/a.img\n</target>\n",
		"<target a>\nbsoflags sync\n<backing-store /srv/a.img>\nwrite-cache on\n</backing-store>\n</target>\n",
	} {
		r, err := Import("x", []byte(text), nil)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(r.YAML), "cache: writethrough") {
			t.Errorf("%s\n%s", text, r.YAML)
		}
	}
}

func TestImportRefuses(t *testing.T) {
	for text, want := range map[string]string{
		"":                              "no target",
		"{":                             "saveconfig.json",
		"{}":                            "neither storage_objects nor targets",
		`{"targets": 5}`:                "saveconfig.json",
		"hello":                         "none of the formats",
		"<target a>\n":                  "line 1: <target> is not closed",
		"</target>":                     "line 1: </target> ends nothing",
		"<target a>\n</targe>":          "line 2",
		"<>":                            "not a section",
		"<a>\n<a>\n<a>\n<a>\n<a>":       "sections in sections",
		strings.Repeat("x", maxBytes+1): "probably not the file",
	} {
		if _, err := Import("f", []byte(text), nil); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%.30q: %v, which does not say %q in one line", text, err, want)
		}
	}
}

// Whatever it is given, Import returns YAML of which our parser understands the form, and
// never opens a target that was closed.
func FuzzImport(f *testing.F) {
	for _, name := range []string{"saveconfig.json", "targets.conf"} {
		data, err := os.ReadFile(filepath.Join("testdata", name))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Add([]byte("<target \"a b\">\nbacking-store \"/x\\y \u2028\"\n</target>"))
	f.Fuzz(func(t *testing.T, data []byte) {
		r, err := Import("name\nof file", data, nil)
		if err != nil {
			return
		}
		_, err = config.Parse("x.yaml", r.YAML)
		if bad, ok := errors.AsType[*config.Error](err); ok {
			for _, p := range bad.Problems {
				if strings.Contains(p.Message, "YAML") || strings.Contains(p.Message, "unknown key") {
					t.Errorf("%s\n%s", p, r.YAML)
				}
			}
		}
	})
}

// A configuration of another target is told by its name, not by each line that is no line of tgt's.
func TestForeignConfigurations(t *testing.T) {
	for want, text := range map[string]string{
		"SCST":           "HANDLER vdisk_fileio {\n  DEVICE disk01 {\n    filename /srv/x\n  }\n}\nTARGET_DRIVER iscsi {\n  enabled 1\n}\n",
		"istgt":          "[Global]\n  NodeBase \"iqn.2007-09.jp.ne.peach.istgt\"\n[PortalGroup1]\n  Portal DA1 127.0.0.1:3260\n",
		"oneshot itself": "stores:\n  disk: {type: memory, size: 64MiB}\ntargets:\n  - iqn: iqn.2026-11.example.oneshot:disk\n",
	} {
		if _, err := Import("x", []byte(text), nil); err == nil || !strings.Contains(err.Error(), "looks like a configuration of "+want+",") || len(err.Error()) > 200 {
			t.Errorf("%s: %v", want, err)
		}
	}
	const readme = "# oneshot\n\noneshot is a target. Its configuration has\n\nstores:\n  disk: {type: memory, size: 64MiB}\n"
	if _, err := Import("x", []byte(readme), nil); err == nil || !strings.Contains(err.Error(), "none of the formats") || len(err.Error()) > 200 {
		t.Errorf("a text that is none: %v", err)
	}
}
