package vm

import (
	"debug/elf"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// unused are libraries that fio is linked with, for engines that no test uses. With those that they need they are 90 MB, whose
// symbols the loader resolves at each start of fio: nine tenths of its instructions.
var unused = []string{"libgfapi.so.0", "libnbd.so.0", "librados.so.2", "librbd.so.1", "libpmem.so.1", "libpmemblk.so.1"}

// buildStandIns makes libraries with the names of the unused ones in dir. They have the functions, with their
// versions, that program refers to; a function that is called ends the program.
func buildStandIns(dir, program string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	f, err := elf.Open(program)
	if err != nil {
		return err
	}
	defer f.Close()
	symbols, err := f.ImportedSymbols()
	if err != nil {
		return err
	}
	needed, err := f.ImportedLibraries()
	if err != nil {
		return err
	}
	for _, library := range unused {
		if !slices.Contains(needed, library) {
			continue
		}
		has, err := defined(filepath.Join("/usr/lib/x86_64-linux-gnu", library))
		if err != nil {
			return err
		}
		var code, versions strings.Builder
		of := make(map[string][]string) // functions by version
		for _, s := range symbols {
			if s.Library == library || s.Library == "" && has[s.Name] { // without a version it says no library
				fmt.Fprintf(&code, "void %s(void) { __builtin_trap(); }\n", s.Name)
				if s.Version != "" {
					of[s.Version] = append(of[s.Version], s.Name)
				}
			}
		}
		for version, functions := range of {
			fmt.Fprintf(&versions, "%s { global: %s; };\n", version, strings.Join(functions, "; "))
		}
		source, script, made := filepath.Join(dir, "standin.c"), filepath.Join(dir, "standin.map"), filepath.Join(dir, library)
		if err := os.WriteFile(source, []byte(code.String()), 0o600); err != nil {
			return err
		}
		if err := os.WriteFile(script, []byte(versions.String()), 0o600); err != nil {
			return err
		}
		args := []string{"-w", "-O1", "-shared", "-fPIC", "-nostdlib", "-fno-builtin", "-Wl,-soname=" + library, "-o", made, source}
		if len(of) > 0 {
			args = append(args, "-Wl,--version-script="+script)
		}
		if _, err := run(".", "gcc", args...); err != nil {
			return err
		}
	}
	return nil
}

// defined returns the names of what a library defines.
func defined(library string) (map[string]bool, error) {
	f, err := elf.Open(library)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	symbols, err := f.DynamicSymbols()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", library, err)
	}
	has := make(map[string]bool)
	for _, s := range symbols {
		if s.Section != elf.SHN_UNDEF {
			has[s.Name] = true
		}
	}
	return has, nil
}
