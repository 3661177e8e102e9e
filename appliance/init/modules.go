package main

import (
	"bufio"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"time"

	"github.com/u-root/u-root/pkg/kmodule"
	"golang.org/x/sys/unix"
)

// always lists modules that no hardware asks for: file systems of disks with a configuration,
// soft-RoCE, and RDMA for programs.
var always = []string{"crc32_generic", "crc32c_generic", "ext4", "vfat", "xfs", "nls_ascii", "nls_cp437", "rdma_rxe", "ib_uverbs", "rdma_ucm", "evdev", "button"}

// busesSettle is how long devices may take to appear behind a bus whose driver was loaded.
const (
	busesSettle = 300 * time.Millisecond
	rounds      = 3 // one each for a bus, its controllers, and their devices
)

// loadModules loads drivers for the devices of the machine, and for the devices behind those.
func loadModules() {
	aliases := readAliases()
	seen := make(map[string]bool)
	for range rounds {
		before := len(seen)
		for _, want := range wanted() {
			for _, a := range aliases {
				if ok, _ := path.Match(a.pattern, want); ok && !seen[a.module] {
					seen[a.module] = true
					probe(a.module)
				}
			}
		}
		if len(seen) == before {
			break
		}
		time.Sleep(busesSettle)
	}
	for _, m := range always {
		probe(m)
	}
}

func probe(module string) {
	if err := kmodule.Probe(module, ""); err != nil && !os.IsExist(err) {
		say("module %s: %v", module, err)
	}
}

type alias struct{ pattern, module string }

// readAliases reads which module drives which devices.
func readAliases() (all []alias) {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return nil
	}
	f, err := os.Open(filepath.Join("/lib/modules", unix.ByteSliceToString(u.Release[:]), "modules.alias"))
	if err != nil {
		say("%v", err)
		return nil
	}
	defer f.Close()
	for s := bufio.NewScanner(f); s.Scan(); {
		if w := strings.Fields(s.Text()); len(w) == 3 && w[0] == "alias" {
			all = append(all, alias{w[1], w[2]})
		}
	}
	return all
}

// wanted lists the identities (modalias) of all devices.
func wanted() (all []string) {
	_ = filepath.WalkDir("/sys/devices", func(p string, d fs.DirEntry, err error) error {
		if err == nil && d.Name() == "modalias" {
			if b, err := os.ReadFile(p); err == nil {
				all = append(all, strings.TrimSpace(string(b)))
			}
		}
		return nil
	})
	return all
}
