package vm

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// siwDir is where the sources of Linux's software iWARP are.
const siwDir = "drivers/infiniband/sw/siw"

// buildSiw builds the module siw, which Debian's kernel lacks, from Debian's sources of the kernel whose
// modules are in moduleDir, and puts it there. dir keeps the downloads.
func buildSiw(dir, moduleDir string) error {
	ko := filepath.Join(moduleDir, "extra/siw.ko")
	if b, err := os.ReadFile(ko); err == nil && hasParameters(b) {
		return nil
	}
	version := filepath.Base(moduleDir) // 6.1.0-56-amd64
	abi := strings.TrimSuffix(version, "-amd64")
	series := strings.Join(strings.SplitN(abi, ".", 3)[:2], ".") // 6.1
	tmp, err := os.MkdirTemp(dir, "siw")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(tmp) }()
	packages := []string{"linux-headers-" + version, "linux-headers-" + abi + "-common", "linux-kbuild-" + series, "linux-source-" + series}
	if _, err := run(tmp, "apt-get", append([]string{"-q", "download"}, packages...)...); err != nil {
		return err
	}
	for _, p := range packages[:3] {
		if _, err := run(tmp, "sh", "-c", "dpkg-deb -x "+p+"_*.deb ."); err != nil {
			return err
		}
	}
	extract := fmt.Sprintf("dpkg-deb --fsys-tarfile %s_*.deb | tar xO ./usr/src/linux-source-%s.tar.xz | tar xJ --strip-components=1 linux-source-%s/%s",
		packages[3], series, series, siwDir)
	if _, err := run(tmp, "sh", "-c", extract); err != nil {
		return err
	}
	// The headers have to be unpacked at the place where they would be installed.
	build := filepath.Join(tmp, "usr/src", packages[0])
	makefile := filepath.Join(build, "Makefile")
	b, err := os.ReadFile(makefile)
	if err != nil {
		return err
	}
	b = bytes.ReplaceAll(b, []byte("/usr/src/"), []byte(filepath.Join(tmp, "usr/src")+"/"))
	if err := os.WriteFile(makefile, b, 0o644); err != nil {
		return err
	}
	source := filepath.Join(tmp, siwDir)
	if err := addParameters(source); err != nil {
		return err
	}
	if _, err := run(tmp, "make", "-C", build, "M="+source, "CONFIG_RDMA_SIW=m", "modules"); err != nil {
		return err
	}
	if _, err := run(tmp, "strip", "-g", filepath.Join(source, "siw.ko")); err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(ko), 0o755); err != nil {
		return err
	}
	return os.Rename(filepath.Join(source, "siw.ko"), ko) // tmp is on the same file system
}

// siwParameters are constants of siw that become module parameters, so that the tests can change them
// in /sys/module/siw/parameters.
var siwParameters = []string{"mpa_crc_required", "mpa_crc_strict", "peer_to_peer"}

// addParameters makes module parameters of siwParameters.
func addParameters(source string) error {
	for _, file := range []string{"siw.h", "siw_main.c"} {
		path := filepath.Join(source, file)
		b, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		text := string(b)
		for _, p := range siwParameters {
			constant := "const bool " + p + ";"
			if !strings.Contains(text, constant) {
				return fmt.Errorf("%s does not say %q", path, constant)
			}
			text = strings.ReplaceAll(text, constant, "bool "+p+";")
			if file == "siw_main.c" {
				text += "module_param(" + p + ", bool, 0644);\n"
			}
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// hasParameters reports whether a module was built with siwParameters.
func hasParameters(ko []byte) bool {
	for _, p := range siwParameters {
		if !bytes.Contains(ko, []byte("parmtype="+p+":bool")) {
			return false
		}
	}
	return true
}
