package migrate

import (
	"errors"
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"oneshot/config"
)

var update = flag.Bool("update", false, "write the .want files anew")

// TestImport compares with testdata/*.want, which -update writes: read the difference.
func TestImport(t *testing.T) {
	for _, file := range []string{"saveconfig.json", "targets.conf"} {
		data, err := os.ReadFile(filepath.Join("testdata", file))
		if err != nil {
			t.Fatal(err)
		}
		r, err := Import(file, data)
		if err != nil {
			t.Errorf("%s: %v", file, err)
			continue
		}
		want := filepath.Join("testdata", strings.TrimSuffix(file, filepath.Ext(file))+".want")
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
			t.Errorf("%s (-want +got)\n%s", file, diff)
		}
		for _, remark := range r.Remarks {
			if !strings.Contains(string(text), "# NOTE "+remark) {
				t.Errorf("%s: the file does not say %q", file, remark)
			}
		}
	}
}

// What targetcli wrote can be served as it is.
func TestImportIsValid(t *testing.T) {
	data, err := os.ReadFile("testdata/saveconfig.json")
	if err != nil {
		t.Fatal(err)
	}
	r, err := Import("x", data)
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
		m.addPortal(portal{a})
	}
	want := []portal{{"[2001:db8::1]:3260"}, {"192.0.2.1:3261"}, {"0.0.0.0:3260"}, {"strange"}}
	if !slices.Equal(m.portals, want) {
		t.Errorf("%v, want %v", m.portals, want)
	}
}

// A portal for all addresses takes the place of others, which is said.
func TestCoveredPortalIsTold(t *testing.T) {
	target := func(name, address string) string {
		return `{"fabric": "iscsi", "wwn": "iqn.2003-01.org:` + name + `", "tpgs": [{"tag": 1, "enable": true,
			"attributes": {"generate_node_acls": 1}, "portals": [{"ip_address": "` + address + `", "port": 3260}]}]}`
	}
	r, err := Import("x", []byte(`{"targets": [`+target("one", "192.0.2.1")+`,`+target("all", "0.0.0.0")+`]}`))
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

// In LIO a rule for an initiator holds in a group that is open to all as well.
func TestRulesOfAnOpenGroupAreTold(t *testing.T) {
	r, err := Import("x", []byte(`{"targets": [{"fabric": "iscsi", "wwn": "iqn.2003-01.org:one", "tpgs": [{"tag": 1, "enable": true,
		"attributes": {"generate_node_acls": 1}, "portals": [{"ip_address": "192.0.2.1", "port": 3260}],
		"node_acls": [{"node_wwn": "iqn.2003-01.org:client", "mapped_luns": [{"index": 0, "tpg_lun": 1}]}]}]}]}`))
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(strings.Join(r.Remarks, "\n"), "rules for single ones (LUNs, credentials), 1 of them") {
		t.Errorf("remarks %q", r.Remarks)
	}
}

func TestImportRefuses(t *testing.T) {
	for text, want := range map[string]string{
		"":                              "no target",
		"{":                             "saveconfig.json",
		"{}":                            "neither storage_objects nor targets",
		`{"targets": 5}`:                "saveconfig.json",
		"hello":                         "no target",
		"<target a>\n":                  "line 1: <target> is not closed",
		"</target>":                     "line 1: </target> ends nothing",
		"<target a>\n</targe>":          "line 2",
		"<>":                            "no section",
		"<a>\n<a>\n<a>\n<a>\n<a>":       "sections in sections",
		strings.Repeat("x", maxBytes+1): "hardly the file",
	} {
		if _, err := Import("f", []byte(text)); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
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
		r, err := Import("name\nof file", data)
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
