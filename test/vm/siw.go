package vm

import (
	"bytes"
	"errors"
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
	if b, err := os.ReadFile(ko); err == nil && isChanged(b) {
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
	if err := changeSiw(source); err != nil {
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

// siwTrailer is where siw (6.1) copies a piece of an FPDU's trailer, and siwTrailerEnd is what takes its place. siw puts a second piece
// where the first one is, finds the CRC wrong, and ends the connection; a command that Linux is just about to send fails then. QEMU's user
// network cuts segments anywhere, so this came every few thousand FPDUs.
const (
	siwTrailer    = "skb_copy_bits(skb, srx->skb_offset, tbuf, avail);"
	siwTrailerEnd = "skb_copy_bits(skb, srx->skb_offset, (u8 *)(&srx->trailer.crc + 1) - srx->fpdu_part_rem, avail);"
	siwMark       = "trailer_in_pieces"
)

// changeSiw makes module parameters of siwParameters, has trailers come in pieces, and has the module say so.
func changeSiw(source string) error {
	change := func(file, more string, pairs ...string) error {
		path := filepath.Join(source, file)
		b, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		for i := 0; i < len(pairs); i += 2 {
			if !bytes.Contains(b, []byte(pairs[i])) {
				return fmt.Errorf("%s does not say %q", path, pairs[i])
			}
		}
		return os.WriteFile(path, []byte(strings.NewReplacer(pairs...).Replace(string(b))+more), 0o644)
	}
	more, constants := "MODULE_INFO(oneshot, \""+siwMark+"\");\n", []string(nil)
	for _, p := range siwParameters {
		constants = append(constants, "const bool "+p+";", "bool "+p+";")
		more += "module_param(" + p + ", bool, 0644);\n"
	}
	return errors.Join(change("siw.h", "", constants...), change("siw_main.c", more, constants...), change("siw_qp_rx.c", "", siwTrailer, siwTrailerEnd))
}

// isChanged reports whether a module was built with changeSiw.
func isChanged(ko []byte) bool {
	for _, p := range siwParameters {
		if !bytes.Contains(ko, []byte("parmtype="+p+":bool")) {
			return false
		}
	}
	return bytes.Contains(ko, []byte("oneshot="+siwMark))
}
