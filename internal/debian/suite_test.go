package debian

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// archive has apt-get and dpkg-deb in PATH that know packages a, which depends on b, and c, and returns the file that says who called
// apt-get, in a line each. A package is a text, and unpacks to a file of its name.
func archive(t *testing.T) string {
	t.Helper()
	bin := t.TempDir()
	calls := filepath.Join(bin, "calls")
	for name, script := range map[string]string{
		"apt-get": `case "$1" in indextargets) echo "Debian main http://archive.example/debian"; exit;; esac
command= packages= to=$PWD
while [ $# -gt 0 ]; do
	case "$1" in
	-o) case "$2" in Dir::Cache::archives=*) archives=${2#*=};; Dir::State::status=*) status=${2#*=};; esac; shift;;
	-*) ;;
	update | download | install) command=$1;;
	*) packages="$packages $1";;
	esac
	shift
done
echo "$command$packages" >>` + calls + `
if [ $command = install ]; then
	[ ! -s "$status" ] && [ -e "$status" ] # else what this machine has would be left out
	to=$archives
	case "$packages" in *a*) packages="$packages b";; esac
fi
for p in $packages; do echo $p >$to/${p}_1_amd64.deb; done`,
		"dpkg-deb": `touch $3/$(cat $2)`,
	} {
		if err := os.WriteFile(filepath.Join(bin, name), []byte("#!/bin/sh\nset -e\n"+script+"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	return calls
}

// TestFetchFrom: FetchFrom unpacks what it is told, and FetchRoot also what that depends on, whatever this machine has. Both do so once for a
// directory; a root file system of other packages is another one.
func TestFetchFrom(t *testing.T) {
	calls, dir := archive(t), t.TempDir()
	holds := func(want, root string, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		files, err := filepath.Glob(filepath.Join(root, "*"))
		if err != nil {
			t.Fatal(err)
		}
		for i := range files {
			files[i] = filepath.Base(files[i])
		}
		if got := strings.Join(files, " "); got != want {
			t.Errorf("%s holds %q, want %q", root, got, want)
		}
	}
	for range 2 {
		root, err := FetchFrom(dir, "newer", "a", "c")
		holds("a c", root, err)
		root, err = FetchRoot(dir, "newer", "a")
		holds("a b", root, err)
		root, err = FetchRoot(dir, "newer", "c")
		holds("c", root, err)
	}
	said, err := os.ReadFile(calls)
	if want := "update\ndownload a c\nupdate\ninstall a\nupdate\ninstall c\n"; string(said) != want || err != nil {
		t.Errorf("apt-get was called so: %q, %v; want %q", said, err, want)
	}
}
