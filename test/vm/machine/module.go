package machine

import (
	"debug/elf"
	"encoding/binary"
	"fmt"
	"os"

	"oneshot/internal/debian"
)

// lighten takes from a module what a kernel looks through when it loads it, and the tests do without: the signature, for
// which an emulated processor has to compute SHA-256 of all octets and RSA, the types for BPF programs, and what traces
// functions and events, whose names the kernel looks up one by one (a third of the instructions of a boot). objcopy
// leaves out the signature, because it is behind what the ELF header tells of.
func lighten(module string) error {
	if err := untrace(module); err != nil {
		return fmt.Errorf("%s: %w", module, err)
	}
	_, err := debian.Run(".", "objcopy", "--remove-section=.BTF", "--remove-section=__mcount_loc",
		"--remove-section=_ftrace_events", "--remove-section=_ftrace_eval_map", module)
	return err
}

// noCall is an instruction of x86 that does nothing, and is as long as a call.
var noCall = [5]byte{0x0f, 0x1f, 0x44, 0x00, 0x00}

// untrace takes the call of the tracer out of each function, as a kernel does that finds them in the section __mcount_loc.
// It changes the call and its relocation in place.
func untrace(module string) error {
	f, err := os.OpenFile(module, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	e, err := elf.NewFile(f)
	if err != nil {
		return err
	}
	symbols, err := e.Symbols()
	if err != nil {
		return err
	}
	const call = 0xe8
	const relaLen = 24 // of Elf64_Rela: r_offset, r_info, r_addend
	for _, s := range e.Sections {
		if s.Type != elf.SHT_RELA || e.Sections[s.Info].Flags&elf.SHF_EXECINSTR == 0 {
			continue
		}
		code := e.Sections[s.Info]
		relocations, err := s.Data()
		if err != nil {
			return err
		}
		for at := 0; at+relaLen <= len(relocations); at += relaLen {
			offset := binary.LittleEndian.Uint64(relocations[at:])
			n := elf.R_SYM64(binary.LittleEndian.Uint64(relocations[at+8:]))
			if n == 0 || symbols[n-1].Name != "__fentry__" { // Symbols leaves out the first one
				continue
			}
			where := int64(code.Offset+offset) - 1
			var was [len(noCall)]byte
			if _, err := f.ReadAt(was[:], where); err != nil {
				return err
			}
			if was[0] != call {
				return fmt.Errorf("%s+%#x: %#x is not a call of the tracer", code.Name, offset-1, was)
			}
			if _, err := f.WriteAt(noCall[:], where); err != nil {
				return err
			}
			if _, err := f.WriteAt(make([]byte, relaLen), int64(s.Offset)+int64(at)); err != nil { // R_X86_64_NONE
				return err
			}
		}
	}
	return nil
}
