package main

import (
	"context"
	"encoding/json"
	"net"
	"net/http"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"oneshot/mgmt"
)

// TestVerifiedByAnother: the primary changes while copies are compared, and the next one has compared them once, too. Nobody is told that
// as the result.
func TestVerifiedByAnother(t *testing.T) {
	began := time.Date(2026, 11, 26, 12, 0, 0, 0, time.UTC)
	now := mgmt.Verification{Primary: "a", Began: began, Done: 1 << 20, Total: 8 << 20}
	past := mgmt.Verification{Primary: "b", Began: began.AddDate(0, -1, 0), Ended: began.AddDate(0, -1, 1), Done: 8 << 20, Total: 8 << 20}
	again := now
	again.Began, again.Ended = began.Add(time.Second), began.Add(2*time.Second)
	for what, next := range map[string]mgmt.Verification{"node b tells of another": past, "node a tells of another": again} {
		answers := []mgmt.Verification{now, next}
		mux := http.NewServeMux()
		mux.HandleFunc("GET /v1/mirrors/disk/verify", func(w http.ResponseWriter, _ *http.Request) {
			if err := json.NewEncoder(w).Encode(answers[0]); err != nil {
				t.Error(err)
			}
			answers = answers[1:]
		})
		c := clientOf(t, mux)
		var out strings.Builder
		if err := awaitVerified(t.Context(), c, "disk", &out); err == nil || !strings.Contains(err.Error(), what) {
			t.Errorf("%v; and %s", err, out.String())
		}
	}
}

// TestStoppedIsNotEqual: of copies whose comparison was stopped nobody is told that they are equal.
func TestStoppedIsNotEqual(t *testing.T) {
	for _, c := range []struct {
		done     int64
		repaired int
		want     string
	}{
		{3, 0, "was stopped: what was compared is equal, 3 of 8 bytes"},
		{8, 0, "The copies of disk are equal: 8 of 8 bytes"},
		{3, 2, "was stopped: what was compared is equal again, with 2 ranges repaired, 3 of 8 bytes"},
		{8, 2, "The copies of disk are equal again, with 2 ranges repaired: 8 of 8 bytes"},
	} {
		var out strings.Builder
		v := mgmt.Verification{Verify: mgmt.Verify{Repair: true}, Stopped: true, Done: c.done, Total: 8, Differ: c.repaired, Repaired: c.repaired}
		if err := writeVerified(&out, "disk", &v); err != nil || !strings.Contains(out.String(), c.want) {
			t.Errorf("%v: %s", err, out.String())
		}
	}
}

// TestDrainedToNobody: a node that is drained has handed over to another one, which does not know, or has left since. drain does not say that all is well before
// somebody serves.
func TestDrainedToNobody(t *testing.T) {
	at := func(primary string) *mgmt.Cluster {
		return &mgmt.Cluster{Node: "w", Mirrors: []mgmt.Mirror{{Name: "disk", Primary: primary}, {Name: "other", Primary: "c"}}}
	}
	for _, knows := range []bool{true, false} {
		asked := 0
		ctx, cancel := context.WithCancel(t.Context())
		mux := http.NewServeMux()
		mux.HandleFunc("GET /v1/status", func(w http.ResponseWriter, _ *http.Request) {
			if err := json.NewEncoder(w).Encode(mgmt.Status{Cluster: at("b")}); err != nil {
				t.Error(err)
			}
		})
		mux.HandleFunc("POST /v1/mirrors/disk/switch", func(w http.ResponseWriter, r *http.Request) {
			if asked++; asked == 3 && !knows {
				cancel() // the patience of who asks is over
			}
			if asked < 3 || !knows || r.URL.Query().Get("to") != "b" {
				http.Error(w, `{"error": "node b is not the primary of disk any more: try again"}`, http.StatusUnprocessableEntity)
				return
			}
			if err := json.NewEncoder(w).Encode(mgmt.Switched{From: "b", To: "b"}); err != nil {
				t.Error(err)
			}
		})
		c := clientOf(t, mux)
		var out strings.Builder
		err := awaitDrained(ctx, c, "a", at("a"), &out)
		cancel()
		if !strings.Contains(out.String(), "nobody may serve the mirror disk (node b does not say that it does: node b is not the primary") {
			t.Errorf("%s", out.String())
		}
		if done := strings.Contains(out.String(), "Node a serves nothing"); done != knows || asked < 3 {
			t.Errorf("b knows: %t; %s", knows, out.String())
		}
		if (err == nil) != knows || err != nil && !strings.Contains(err.Error(), "target ha undrain a has another one serve") {
			t.Errorf("b knows: %t; %v", knows, err)
		}
	}
}

// clientOf returns a client of a daemon that answers in this way, until the test ends.
func clientOf(t *testing.T, h http.Handler) *mgmt.Client {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	s := &http.Server{Handler: h}
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(l) }()
	c := mgmt.NewClient(socket)
	t.Cleanup(func() {
		c.Close()
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		if err := <-ended; err != http.ErrServerClosed {
			t.Error(err)
		}
	})
	return c
}

// TestLeftAtACutOffNode: a node that is drained and asked, and does not hear the others for a moment, is the primary still, though it names
// nobody.
func TestLeftAtACutOffNode(t *testing.T) {
	c := &mgmt.Cluster{Node: "a", Mirrors: []mgmt.Mirror{{Name: "disk", Role: mgmt.RoleCutOff}}}
	if left := leftAt(c, "a"); !strings.Contains(left, "the mirror disk") {
		t.Errorf("node a has %q", left)
	}
	if left := leftAt(c, "b"); left != "" {
		t.Errorf("node b has %q", left)
	}
}

// TestStatesWithoutPrimary: what a node says of a mirror whose primary it does not hear, or that it should serve itself and does not.
func TestStatesWithoutPrimary(t *testing.T) {
	inSync, stale := mgmt.Copy{Node: "b", State: mgmt.CopyInSync}, mgmt.Copy{Node: "b", State: mgmt.CopyStale}
	exchanged := mgmt.Copy{Node: "b", State: mgmt.CopyDoubted, Reason: "the disk is another one"}
	for _, c := range []struct {
		what       string
		isUp       bool // a
		leads      bool // w
		drained    bool // b
		role       string
		primary    string
		b          mgmt.Copy
		want, news string
	}{
		{"a serves", true, true, false, "follower", "a", inSync, "healthy", ""},
		{"it is taken over", false, true, false, "taking over", "a", inSync, "switching", ""},
		{"a is lost, and w", false, false, false, "taking over", "a", inSync, "primary down", "without a majority of the voters nobody takes its place"},
		{"a is lost, and had the only copy", false, true, false, "follower", "a", stale, "primary down", "no other copy is in sync, so if that node is lost hosts wait for it"},
		{"a is lost, and b is drained", false, true, true, "follower", "a", inSync, "primary down", "node b has a copy in sync, and is drained, so it does not take its place: target ha undrain b lets it"},
		{"a is lost, and b, which had no copy in sync, is drained", false, true, true, "follower", "a", stale, "primary down", "no other copy is in sync"},
		{"as a witness sees it", false, true, false, mgmt.RoleNoCopy, "a", stale, "primary down", "no other copy is in sync"},
		{"the disk of b, the only copy, was exchanged", false, true, false, "follower", "b", exchanged, "not served", "the copy of node b is unknown disk: the disk is another one"},
		{"the same, and a is lost, whose copy is in sync", false, true, false, "follower", "a", exchanged, "primary down", "no other copy is in sync"},
		{"no configuration has it", true, true, false, mgmt.RoleGivenUp, "", inSync, mgmt.RoleGivenUp, ""},
		{"b serves alone", false, true, false, mgmt.RolePrimary, "b", inSync, "degraded", ""},
	} {
		a := mgmt.Copy{Node: "a", State: mgmt.CopyInSync}
		if c.primary == "b" {
			a.State = mgmt.CopyStale
		}
		cluster := &mgmt.Cluster{
			Node:    "b",
			Members: []mgmt.Member{{Name: "a", Up: c.isUp}, {Name: "b", Up: true, Drained: c.drained}, {Name: "w", Up: c.leads, Leads: c.leads}},
			Mirrors: []mgmt.Mirror{{Name: "disk", Primary: c.primary, Role: c.role, Copies: []mgmt.Copy{a, c.b}}},
		}
		state, news := mirrorState(cluster, &cluster.Mirrors[0]), strings.Join(mirrorNews(cluster, &cluster.Mirrors[0]), "; ")
		if state != c.want || !strings.Contains(news, c.news) || c.news == "" && news != "" {
			t.Errorf("%s: %s: %s", c.what, state, news)
		}
	}
}

// TestOtherVersions: status names the version of a node that runs another one than the node that answers, and tells the two apart from configurations that differ.
func TestOtherVersions(t *testing.T) {
	c := &mgmt.Cluster{Name: "lab", Node: "a", Members: []mgmt.Member{
		{Name: "a", Number: 1, Up: true, Version: "2.0"},
		{Name: "b", Number: 2, Up: true, Version: "1.9"},
		{Name: "c", Number: 3, Up: true, Version: "2.0", Differs: []string{"limits"}},
		{Name: "d", Number: 4, Up: true, Version: "1.9", Differs: []string{"limits"}},
		{Name: "w", Number: 5, Up: true},
	}}
	var out strings.Builder
	if err := writeCluster(&out, c, nil); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		"a": "this node", "b": "the same; version 1.9, here 2.0", "c": "differs: limits", "d": "differs: limits; version 1.9, here 2.0", "w": "not known yet",
	} {
		if !regexp.MustCompile(`\n` + name + ` .*  ` + want + `\n`).MatchString(out.String()) {
			t.Errorf("node %s: no %q in\n%s", name, want, out.String())
		}
	}
}

// Why nodes are down stands below the table, which sentences would make too wide to read, and once only if it is what this node is told. A node
// without a copy has no log.
func TestReasonsBelowTable(t *testing.T) {
	refused := strings.Repeat("it was replaced, and this machine is the former one; ", 4)
	var out strings.Builder
	c := &mgmt.Cluster{
		Name: "lab", Node: "a", Trouble: refused,
		Members: []mgmt.Member{
			{Name: "a", Number: 1, Up: true, Votes: true},
			{Name: "b", Number: 2, Votes: true, Reason: refused},
			{Name: "w", Number: 3, Votes: true, Reason: "connection refused", ClockFaster: -1.54},
			{Name: "v", Number: 4, Up: true, Votes: true, Stuck: true},
			{Name: "x", Reason: "not joined"},
		},
		Mirrors: []mgmt.Mirror{{Name: "disk", Size: 1 << 30, Role: "no copy"}},
	}
	if err := writeCluster(&out, c, nil); err != nil {
		t.Fatal(err)
	}
	text := out.String()
	for _, want := range []string{"\n\nnode w is down: connection refused\nnode v takes no part: the disk of its log is full", " 1 of 4 voters up", " stuck ", " down, clock -1.5 % ", "disk    not served  1GiB  -        no copy            -\n"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	if strings.Count(text, refused) != 1 || strings.Contains(text, "node x") {
		t.Errorf("too much is said:\n%s", text)
	}
	for line := range strings.Lines(text[strings.Index(text, "\nNODE"):]) {
		if len(line) > 80 {
			t.Errorf("a line is %d wide:\n%s", len(line), text)
		}
	}
}
