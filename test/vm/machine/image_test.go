package machine

import (
	"bytes"
	"debug/elf"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// TestLighten: a module that guests load has neither a signature nor types for BPF programs nor calls of
// the tracer any more, and has its code.
func TestLighten(t *testing.T) {
	dir := t.TempDir()
	source, module := filepath.Join(dir, "m.c"), filepath.Join(dir, "m.ko")
	const text = `__attribute__((section(".BTF"))) const char types[] = "types of it"; int the_code(int i) { return i + 7; }`
	if err := os.WriteFile(source, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("gcc", "-c", "-O1", "-fno-pic", "-fcf-protection=none", "-pg", "-mfentry", "-mrecord-mcount", "-o", module, source).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	f, err := os.OpenFile(module, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	const signature = "~Module signature appended~\n" // Linux, include/linux/module_signature.h
	if _, err := f.WriteString(signature); err != nil {
		t.Fatal(err)
	}
	if err := lighten(module); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(module)
	if err != nil {
		t.Fatal(err)
	}
	for what, want := range map[string]bool{
		signature: false, "types of it": false, "the_code": true, "__mcount_loc": false,
		string(noCall[:]) + "\x8d\x47\x07\xc3": true, // lea 7(%rdi), %eax; ret
	} {
		if got := bytes.Contains(b, []byte(what)); got != want {
			t.Errorf("that the module has %q is %v", what, got)
		}
	}
	if e, err := elf.Open(module); err != nil {
		t.Error(err)
	} else {
		defer e.Close()
		rela := e.Section(".rela.text")
		if relocations, err := rela.Data(); err != nil {
			t.Error(err)
		} else if !bytes.Equal(relocations, make([]byte, 24)) {
			t.Errorf("relocations of the code: %x, want one that is none", relocations)
		}
	}
	if err := lighten(filepath.Join(dir, "none")); err == nil {
		t.Error("a module that is not there becomes lighter")
	}
}
