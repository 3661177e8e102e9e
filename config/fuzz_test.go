package config

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/tools/txtar"
)

// FuzzParse checks what must hold for any input: Parse ends; a refusal names
// places that exist and says something; what is accepted keeps the promises of
// the doc comments.
func FuzzParse(f *testing.F) {
	for _, data := range seeds(f) {
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := newDecoder("fuzz.yaml", data, fakeSecrets{}).decode()
		if err != nil {
			checkProblems(t, err, strings.Count(string(data), "\n")+1)
			return
		}
		checkPromises(t, c)
	})
}

func seeds(f *testing.F) (all [][]byte) {
	examples, _ := filepath.Glob("../configs/*.yaml")
	for _, path := range examples {
		data, err := os.ReadFile(path)
		if err != nil {
			f.Fatal(err)
		}
		all = append(all, data)
	}
	archives, _ := filepath.Glob("testdata/problems/*.txtar")
	for _, path := range archives {
		a, err := txtar.ParseFile(path)
		if err != nil {
			f.Fatal(err)
		}
		for _, file := range a.Files {
			if strings.HasSuffix(file.Name, ".yaml") {
				all = append(all, file.Data)
			}
		}
	}
	return all
}

func checkProblems(t *testing.T, err error, lines int) {
	bad, ok := errors.AsType[*Error](err)
	if !ok || len(bad.Problems) == 0 {
		t.Fatalf("not an Error with problems: %v", err)
	}
	for _, p := range bad.Problems {
		if p.Pos.Line < 1 || p.Pos.Line > lines || p.Pos.Column < 1 {
			t.Errorf("%s is no place in %d lines", p.Pos, lines)
		}
		if p.Message == "" || strings.ContainsAny(p.Message, "\r\n") || strings.Count(p.Excerpt, "\n") != 1 {
			t.Errorf("message %q with excerpt %q", p.Message, p.Excerpt)
		}
	}
}

func checkPromises(t *testing.T, c *Config) {
	objects := slices.ContainsFunc(c.Portals, func(p Portal) bool { return p.Serve == ServeObjects })
	if len(c.Targets)+len(c.Subsystems) == 0 && !objects || len(c.Portals) == 0 {
		t.Error("nothing to serve, or no portal")
	}
	for _, target := range c.Targets {
		if name, err := ParseName(target.Name); err != nil || name != target.Name {
			t.Errorf("target name %q: %v", target.Name, err)
		}
		for i, l := range target.LUNs {
			s := c.Store(l.Store)
			if s == nil || s.Size%int64(l.BlockSize) != 0 || l.Number > maxLUN || i > 0 && target.LUNs[i-1].Number >= l.Number {
				t.Errorf("LUN %+v of store %+v", l, s)
			}
		}
		if a := target.Auth; a.Mutual != nil && (a.CHAP == nil || a.CHAP.Secret == a.Mutual.Secret) {
			t.Error("mutual CHAP without CHAP, or with one secret")
		}
	}
	for _, s := range c.Stores {
		if (s.File != nil) != (s.Type == StoreFile) || s.Type == StoreMemory && s.Size <= 0 || s.File != nil && s.File.Path == "" {
			t.Errorf("store %+v", s)
		}
	}
}
