package version

import (
	"regexp"
	"runtime/debug"
	"testing"
)

// However a program was built, its version is one that a bug report can name.
func TestVersion(t *testing.T) {
	revision := []debug.BuildSetting{{Key: "vcs.revision", Value: "0123456789abcdef0123"}}
	for _, c := range []struct {
		info *debug.BuildInfo
		want string
	}{
		{nil, `^[0-9.]+$`},
		{&debug.BuildInfo{}, `^[0-9.]+\+unreleased$`},
		{&debug.BuildInfo{Main: debug.Module{Version: "(devel)"}}, `^[0-9.]+\+unreleased$`},
		{&debug.BuildInfo{Main: debug.Module{Version: "(devel)"}, Settings: revision}, `^[0-9.]+\+git\.0123456789ab$`},
		{&debug.BuildInfo{Main: debug.Module{Version: "v1.2.3"}, Settings: revision}, `^v1\.2\.3$`},
	} {
		if got := of(c.info); !regexp.MustCompile(c.want).MatchString(got) {
			t.Errorf("%+v: %q", c.info, got)
		}
	}
	text = "1.0~git1"
	defer func() { text = "" }()
	if got := String(); got != text {
		t.Errorf("the version that was built in: %q", got)
	}
}
