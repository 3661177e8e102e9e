package machine

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// Unpacked returns the path of a kernel that QEMU boots without its decompressor (by PVH), which an emulated processor
// needs six seconds for: the ELF file in bzImage. It is in dir, and made if it is not there yet. A kernel that is not
// compressed with xz, which Debian's are, is returned as it is.
func Unpacked(dir, bzImage string) (string, error) {
	b, err := os.ReadFile(bzImage)
	if err != nil {
		return "", err
	}
	packed, err := payload(b)
	if err != nil {
		return "", fmt.Errorf("%s: %w", bzImage, err)
	}
	if !bytes.HasPrefix(packed, []byte("\xfd7zXZ\x00")) {
		return bzImage, nil
	}
	sum := sha256.Sum256(packed)
	plain := filepath.Join(dir, "kernel-"+hex.EncodeToString(sum[:6])+".elf")
	if _, err := os.Stat(plain); err == nil {
		return plain, nil
	}
	cmd := exec.Command("xz", "-dc", "--single-stream") // the length of what it becomes is behind the stream
	cmd.Stdin = bytes.NewReader(packed)
	elf, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("xz on the kernel in %s: %w", bzImage, err)
	}
	tmp, err := os.CreateTemp(dir, "kernel") // another process may do the same
	if err != nil {
		return "", err
	}
	_, err = tmp.Write(elf)
	if err = errors.Join(err, tmp.Close()); err == nil {
		err = os.Rename(tmp.Name(), plain)
	}
	if err != nil {
		_ = os.Remove(tmp.Name())
	}
	return plain, err
}

// Offsets in a bzImage (Linux, Documentation/x86/boot.rst). Numbers are little-endian.
const (
	setupSectors  = 0x1f1 // an octet: the length of the setup code in sectors, without the first one
	headerMagic   = 0x202
	payloadOffset = 0x248 // from the end of the setup code, in octets
	payloadLength = 0x24c // in octets
	headerEnd     = 0x250
)

// payload returns the compressed kernel in a bzImage, which it aliases.
func payload(b []byte) ([]byte, error) {
	if len(b) < headerEnd || string(b[headerMagic:][:4]) != "HdrS" {
		return nil, errors.New("not a bzImage")
	}
	b, offset, length := b[min(512*(1+int(b[setupSectors])), len(b)):], binary.LittleEndian.Uint32(b[payloadOffset:]), binary.LittleEndian.Uint32(b[payloadLength:])
	if uint64(offset)+uint64(length) > uint64(len(b)) {
		return nil, fmt.Errorf("a bzImage whose kernel of %d octets at %d does not fit in it", length, offset)
	}
	return b[offset:][:length], nil
}
