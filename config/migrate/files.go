package migrate

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"oneshot/config"
)

// Files gives access to the files of the machine whose configuration is imported.
type Files interface {
	Glob(pattern string) ([]string, error)
	// ReadFile returns the content of a file that has at most limit bytes.
	ReadFile(path string, limit int64) ([]byte, error)
	Stat(path string) (fs.FileInfo, error)
}

// System gives access to the files of this machine.
var System Files = systemFiles{}

type systemFiles struct{}

func (systemFiles) Glob(pattern string) ([]string, error) { return filepath.Glob(pattern) }
func (systemFiles) Stat(path string) (fs.FileInfo, error) { return os.Stat(path) }

func (systemFiles) ReadFile(path string, limit int64) ([]byte, error) {
	if info, err := os.Stat(path); err != nil {
		return nil, err
	} else if !info.Mode().IsRegular() {
		return nil, errors.New("not a regular file")
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err == nil && int64(len(data)) > limit {
		err = errors.New("too large")
	}
	return data, err
}

// noFiles is a machine without files.
type noFiles struct{}

func (noFiles) Glob(string) ([]string, error)          { return nil, nil }
func (noFiles) ReadFile(string, int64) ([]byte, error) { return nil, fs.ErrNotExist }
func (noFiles) Stat(string) (fs.FileInfo, error)       { return nil, fs.ErrNotExist }

// kindOf says whether path is a file or a device. If the files do not tell, it guesses by the name.
func (m *model) kindOf(path string) config.StoreType {
	info, err := m.files.Stat(path)
	switch {
	case err == nil && info.Mode().IsRegular():
		return config.StoreFile
	case err == nil && info.Mode()&fs.ModeDevice != 0:
		return config.StoreDevice
	case strings.HasPrefix(path, "/dev/") && !strings.HasPrefix(path, "/dev/shm/"):
		return config.StoreDevice
	}
	return config.StoreFile
}

// Bounds of included files. A file may include itself.
const (
	maxIncludes = 1000
	maxNesting  = 16
)

// unread is the name of a directive that stands for what was not read. No line of a file has it.
const unread = "<include>"

// include returns the directives of the files that match pattern, which is relative to the file that contains it. In the place of what
// is not there, or cannot be read, stands a directive with the name unread.
func (m *model) include(p *tgtParser, pattern, where string) ([]directive, error) {
	if !filepath.IsAbs(pattern) {
		pattern = filepath.Join(filepath.Dir(p.name), pattern)
	}
	if info, err := m.files.Stat(pattern); err == nil && info.IsDir() {
		pattern = filepath.Join(pattern, "*")
	}
	paths, err := m.files.Glob(pattern)
	if err != nil {
		return nil, fmt.Errorf("%s: include %s: %w", where, pattern, err)
	}
	if len(paths) == 0 {
		m.remark("%s: include %s: there is no such file", where, pattern)
		return []directive{{at: where, name: unread, args: []string{pattern}}}, nil
	}
	var all []directive
	for _, path := range paths {
		if *p.included++; p.nesting == maxNesting || *p.included > maxIncludes {
			return nil, fmt.Errorf("%s: %s is included again and again", where, path)
		}
		data, err := m.files.ReadFile(path, maxBytes)
		if err != nil {
			m.remark("%s: %s is not read: %v", where, path, err)
			all = append(all, directive{at: where, name: unread, args: []string{path}})
			continue
		}
		inner := tgtParser{name: path, nesting: p.nesting + 1, included: p.included}
		list, err := m.parseTGT(&inner, string(data))
		if err != nil {
			return nil, err // which names the file
		}
		all = append(all, list...)
	}
	return all, nil
}
