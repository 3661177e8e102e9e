package server

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"oneshot/config"
	"oneshot/ha/quorum"
	"oneshot/ha/replica"
	"oneshot/mgmt"
)

// apply puts a text in force.
func apply(t *testing.T, s *Server, on func(string) *config.Config, text string) {
	t.Helper()
	if _, err := s.Apply(on(text)); err != nil {
		t.Fatal(err)
	}
}

// TestForgetMirror: a mirror that no configuration has is forgotten, and no other one. Nothing of it is left in consensus, its copy is not taken for one of
// another mirror, and its name is free.
func TestForgetMirror(t *testing.T) {
	text, on := mirrorOn(t)
	s := newServer(t, on(text))
	m := primary(t, s)
	if err := s.ForgetMirror(t.Context(), "d"); err == nil || !strings.Contains(err.Error(), "the configuration of a has it") {
		t.Errorf("a mirror that is served: %v", err)
	}
	primary(t, s)
	kept := quorum.Key{Kind: quorum.KindUnit, Name: m.record.SetName("d")}
	if r, err := s.member.node.Get(t.Context(), kept); err != nil {
		t.Fatal(err)
	} else if r == nil {
		if _, err := s.member.node.Put(t.Context(), kept, 0, []byte("{}")); err != nil {
			t.Fatal(err)
		}
	}
	forgets := func(name string) {
		t.Helper()
		if err := s.ForgetMirror(t.Context(), name); err != nil {
			t.Fatal(err)
		}
	}
	apply(t, s, on, withoutMirror(text))
	forgets("d")
	for _, kind := range []quorum.Kind{quorum.KindStore, quorum.KindSet, quorum.KindUnit} {
		for _, r := range s.member.node.Records(kind) {
			t.Errorf("consensus still has %v", r.Key)
		}
	}
	if all := s.clusterStatus().Mirrors; len(all) > 0 {
		t.Errorf("status still has %+v", all)
	}
	for _, name := range []string{"d", "e"} {
		if _, ok := errors.AsType[*mgmt.NotFoundError](s.ForgetMirror(t.Context(), name)); !ok {
			t.Errorf("%s is to be forgotten, and nobody knows it", name)
		}
	}

	apply(t, s, on, text) // with what the node has noted of the former one
	refuses(t, s)
	apply(t, s, on, withoutMirror(text))
	if err := os.RemoveAll(filepath.Join(s.member.state, mirrorsDir, "d")); err != nil {
		t.Fatal(err)
	}
	apply(t, s, on, text)
	if again := primary(t, s); again.record.UUID == m.record.UUID {
		t.Error("the other mirror of that name has the UUID of the former one")
	}
	shutdown(t, s)
	s = newServer(t, on(text)) // it learns again that the name was deleted once
	defer shutdown(t, s)
	again := primary(t, s)
	again.confirm() // what it has learned of that is behind it then
	if text := again.trouble.Load(); text != nil {
		t.Errorf("the other mirror of that name: %s", *text)
	}
}

// refuses waits until the node takes no part in its mirror.
func refuses(t *testing.T, s *Server) {
	t.Helper()
	m := s.mirrors()[0]
	until(t, "the node takes no part in the mirror", func() bool { return m.trouble.Load() != nil && m.State().Role == replica.Waiting })
	if now := s.clusterStatus().Mirrors[0]; !strings.Contains(now.Trouble, "was forgotten") || now.Role == mgmt.RolePrimary || m.Term() != 0 {
		t.Errorf("%+v", now)
	}
}

// TestForgottenMeanwhile: a primary with the only copy in sync serves nothing any more when the mirror was forgotten, though it asks nobody.
func TestForgottenMeanwhile(t *testing.T) {
	text, on := mirrorOn(t)
	s := newServer(t, on(text))
	defer shutdown(t, s)
	primary(t, s)
	key := quorum.Key{Kind: quorum.KindStore, Name: "d"}
	r, err := s.member.node.Get(t.Context(), key)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.member.node.Delete(t.Context(), key, r.Version); err != nil {
		t.Fatal(err)
	}
	refuses(t, s)
}
