package migrate

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestReadTooLarge: of the image of a disk no more is read than a configuration can have.
func TestReadTooLarge(t *testing.T) {
	path := filepath.Join(t.TempDir(), "disk.img")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(path, 4*maxBytes); err != nil {
		t.Fatal(err)
	}
	data, err := Read(path)
	if err != nil || len(data) > 2*maxBytes {
		t.Errorf("%d bytes were read: %v", len(data), err)
	}
	if _, err := Import(path, data, nil); err == nil || !strings.Contains(err.Error(), "is larger than") {
		t.Error(err)
	}
}
