package machine

import (
	"encoding/binary"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// image makes a bzImage with a setup code of three sectors, and packed at 16 octets behind it.
func image(packed []byte) []byte {
	b := make([]byte, 3*512+16)
	b[setupSectors] = 2
	copy(b[headerMagic:], "HdrS")
	binary.LittleEndian.PutUint32(b[payloadOffset:], 16)
	binary.LittleEndian.PutUint32(b[payloadLength:], uint32(len(packed)))
	return append(b, packed...)
}

// TestUnpacked: the kernel in a bzImage comes out, also if its length is behind the compressed stream, and once only; one that
// is compressed otherwise is booted as it is; what is no bzImage, or a part of one, is refused.
func TestUnpacked(t *testing.T) {
	const kernel = "\x7fELF and more"
	xz := exec.Command("xz", "-c")
	xz.Stdin = strings.NewReader(kernel)
	packed, err := xz.Output()
	if err != nil {
		t.Fatal(err)
	}
	packed = append(packed, byte(len(kernel)), 0, 0, 0)
	dir := t.TempDir()
	for name, b := range map[string][]byte{
		"good": image(packed), "gzip": image([]byte("\x1f\x8b\x08 and more")),
		"none": []byte("no kernel"), "zeros": make([]byte, 1<<12), "cut": image(packed)[:3*512+20], "broken": image(packed[:len(packed)-20]),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		plain, err := Unpacked(dir, filepath.Join(dir, "good"))
		if err != nil {
			t.Fatal(err)
		}
		if b, err := os.ReadFile(plain); err != nil || string(b) != kernel {
			t.Errorf("the kernel is %.40q, %v", b, err)
		}
	}
	if made, _ := filepath.Glob(filepath.Join(dir, "kernel-*")); len(made) != 1 {
		t.Errorf("there are %q", made)
	}
	other := filepath.Join(dir, "gzip")
	if path, err := Unpacked(dir, other); err != nil || path != other {
		t.Errorf("a kernel that is compressed otherwise: %s, %v", path, err)
	}
	for _, name := range []string{"none", "zeros", "cut", "broken", "missing"} {
		if path, err := Unpacked(dir, filepath.Join(dir, name)); err == nil {
			t.Errorf("%s becomes %s", name, path)
		}
	}
}
