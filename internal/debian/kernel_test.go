package debian

import (
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// fakes are Debian's tools, as far as Fetch needs them. A package is a text, of which apt-get writes the first half, waits until
// all who download have done so, and then the rest. DIR is the directory of what they leave: who was called, and which kernel is new.
var fakes = map[string]string{
	"apt-cache": `echo "$3"; echo "  Depends: $(cat DIR/newest)"`,
	"apt-get": `echo "$3" >>DIR/downloads
f=$3_1_amd64.deb; printf half >$f
while [ $(wc -l <DIR/downloads) -lt $(cat DIR/meet) ]; do :; done
printf whole >>$f`,
	"dpkg-deb": `[ "$(cat $2)" = halfwhole ] || { echo "a part of a package"; exit 1; }
n=${2##*/linux-image-}; n=${n%%_*}; mkdir -p $3/boot $3/lib/modules/$n; echo kernel >$3/boot/vmlinuz-$n`,
}

// TestFetch: a kernel is downloaded and unpacked once; a newer one is, too, when Debian has it; processes that fetch the same kernel
// at once all get a whole one, and leave nothing else behind.
func TestFetch(t *testing.T) {
	bin, dir := t.TempDir(), filepath.Join(t.TempDir(), "kernels")
	write := func(file, text string, mode os.FileMode) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(bin, file), []byte(text), mode); err != nil {
			t.Fatal(err)
		}
	}
	for name, script := range fakes {
		write(name, "#!/bin/sh\nset -e\n"+strings.ReplaceAll(script, "DIR", bin)+"\n", 0o755)
	}
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	fetch := func(version string) {
		t.Helper()
		k, err := Fetch(dir)
		if err != nil {
			t.Error(err)
			return
		}
		if b, err := os.ReadFile(k.Image); k.Version != version || err != nil || string(b) != "kernel\n" {
			t.Errorf("the kernel is %+v, %q, %v", k, b, err)
		}
		if i, err := os.Stat(k.Modules); err != nil || !i.IsDir() {
			t.Errorf("the modules: %v", err)
		}
	}

	const together = 4
	write("newest", "linux-image-6.1.0-1-amd64", 0o644)
	write("meet", "4", 0o644)
	var all sync.WaitGroup
	for range together {
		all.Go(func() { fetch("6.1.0-1-amd64") })
	}
	all.Wait()
	fetch("6.1.0-1-amd64")
	write("newest", "linux-image-6.1.0-2-amd64", 0o644)
	for range 2 {
		fetch("6.1.0-2-amd64")
	}
	downloads, err := os.ReadFile(filepath.Join(bin, "downloads"))
	if n := strings.Count(string(downloads), "\n"); n != together+1 || err != nil {
		t.Errorf("%d downloads, want %d: %v", n, together+1, err)
	}
	left, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil || len(left) != 4 {
		t.Errorf("there are %q, %v; want two kernels with their packages", left, err)
	}
}
