package packaging

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write debian/copyright anew")

const preamble = `oneshot: a block-storage target for iSCSI, iSER and NVMe over Fabrics, and an initiator.

Copyright the oneshot maintainers. The sources of oneshot state no licence.

The programs of this package contain the modules below, under the terms that follow each, and the
runtime and standard library of Go.
`

// debian/copyright names the authors and terms of all modules that are linked into the programs.
func TestCopyright(t *testing.T) {
	goroot := command(t, "go", "env", "GOROOT")
	var b strings.Builder
	b.WriteString(preamble)
	writeLicences(t, &b, "Go (go.dev, golang)", filepath.Join(strings.TrimSpace(goroot), "LICENSE"))
	list := command(t, "go", "list", "-deps", "-f", "{{with .Module}}{{if not .Main}}{{.Path}}\t{{.Dir}}{{end}}{{end}}", "oneshot/cmd/target", "oneshot/cmd/initiator")
	modules := slices.Compact(slices.Sorted(strings.SplitSeq(list, "\n")))
	for _, line := range modules {
		path, dir, ok := strings.Cut(strings.TrimSpace(line), "\t")
		if !ok {
			continue
		}
		var files []string
		for _, pattern := range []string{"LICEN[CS]E*", "COPYING*", "NOTICE*"} {
			found, err := filepath.Glob(filepath.Join(dir, pattern))
			if err != nil {
				t.Fatal(err)
			}
			files = append(files, found...)
		}
		if len(files) == 0 {
			t.Errorf("%s has no licence", path)
		}
		writeLicences(t, &b, path, files...)
	}
	const name = "debian/copyright"
	if *update {
		if err := os.WriteFile(name, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, []byte(b.String())) {
		t.Errorf("%s does not say what the programs are linked with (%s): go test ./packaging -update writes it", name, runtime.Version())
	}
}

func writeLicences(t *testing.T, b *strings.Builder, what string, files ...string) {
	t.Helper()
	fmt.Fprintf(b, "\n%s\n%s\n", strings.Repeat("-", 80), what)
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(b, "\n%s\n", strings.TrimSpace(strings.ReplaceAll(string(text), "\r\n", "\n")))
	}
}

func command(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := exec.Command(name, args...).Output()
	if err != nil {
		t.Fatalf("%s %s: %v", name, strings.Join(args, " "), err)
	}
	return string(out)
}
