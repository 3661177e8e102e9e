package debian

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// Needs returns, for each of modules, its file and those of the modules that it needs, relative to
// dir (lib/modules/VERSION), in the order of modules.dep; none for a module that is part of the kernel.
func Needs(dir string, modules []string) ([][]string, error) {
	// What the package brings is not indexed before it is installed.
	base := filepath.Dir(filepath.Dir(filepath.Dir(dir))) // where depmod finds lib/modules
	if _, err := Run(".", "depmod", "-b", base, filepath.Base(dir)); err != nil {
		return nil, err
	}
	dep, err := os.ReadFile(filepath.Join(dir, "modules.dep"))
	if err != nil {
		return nil, err
	}
	builtin, err := os.ReadFile(filepath.Join(dir, "modules.builtin"))
	if err != nil {
		return nil, err
	}
	known := make(map[string][]string)
	for line := range strings.Lines(string(dep)) {
		file, list, _ := strings.Cut(line, ":")
		known[moduleName(file)] = append([]string{file}, strings.Fields(list)...)
	}
	for file := range strings.FieldsSeq(string(builtin)) {
		known[moduleName(file)] = nil
	}
	needs := make([][]string, len(modules))
	for i, m := range modules {
		files, ok := known[m]
		if !ok {
			return nil, fmt.Errorf("the kernel has no module %s", m)
		}
		needs[i] = files
	}
	return needs, nil
}

// moduleName is the name of the module in a file.
func moduleName(file string) string {
	name, _, _ := strings.Cut(filepath.Base(file), ".")
	return strings.ReplaceAll(name, "-", "_")
}
