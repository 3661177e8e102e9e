// Package access tests who reaches which target and which of its LUNs, and where: portal
// groups, rules for initiators, and targets that have moved.
package access

import (
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"oneshot/initiator"
	"oneshot/iscsi/pdu"
	"oneshot/test/isnsd"
	"oneshot/test/targettest"
)

func TestMain(m *testing.M) { targettest.Main(m) }

const prefix = "iqn.2026-11.example.oneshot:"

func url(t *testing.T, s string) initiator.URL {
	t.Helper()
	u, err := initiator.ParseURL(s)
	if err != nil {
		t.Fatal(err)
	}
	return u
}

// listed returns the targets, with their portals, that discovery at u finds.
func listed(t *testing.T, u string) (found []string) {
	t.Helper()
	targets, err := initiator.Discover(t.Context(), url(t, u), initiator.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range targets {
		s := strings.TrimPrefix(x.Name, prefix)
		for _, p := range x.Portals {
			s += " " + p.Address + "," + p.TPGT
		}
		found = append(found, s)
	}
	return found
}

// Discovery lists a target with those portals of its groups that have the transport of the portal that was
// asked. Logins work there and nowhere else.
func TestPortalGroups(t *testing.T) {
	tg := targettest.Start(t, `
stores: {a: {type: memory, size: 1MiB}, b: {type: memory, size: 1MiB}, c: {type: memory, size: 1MiB}}
targets:
  - {iqn: `+prefix+`a, luns: {0: a}, portal_groups: [1]}
  - {iqn: `+prefix+`b, luns: {0: b}, portal_groups: [2, 3]}
  - {iqn: `+prefix+`c, luns: {0: c}}
portals:
  - {listen: $PORTAL}
  - {listen: $PORTAL2, group: 2}
  - {transport: iwarp, listen: $PORTAL3, group: 3}
`)
	p := tg.Portals
	for at, want := range map[string][]string{
		"iscsi://" + p[0]:         {"a " + p[0] + ",1", "b " + p[1] + ",2", "c " + p[0] + ",1 " + p[1] + ",2"},
		"iscsi://" + p[1]:         {"a " + p[0] + ",1", "b " + p[1] + ",2", "c " + p[1] + ",2 " + p[0] + ",1"},
		"oneshot+iwarp://" + p[2]: {"b " + p[2] + ",3", "c " + p[2] + ",3"},
	} {
		if got := listed(t, at); !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", at, got, want)
		}
	}
	for at, there := range map[string]bool{
		"iscsi://" + p[0] + "/" + prefix + "a": true, "iscsi://" + p[1] + "/" + prefix + "a": false,
		"iscsi://" + p[0] + "/" + prefix + "b": false, "iscsi://" + p[1] + "/" + prefix + "b": true,
		"iser+iwarp://" + p[2] + "/" + prefix + "a": false, "iser+iwarp://" + p[2] + "/" + prefix + "b": true,
		"iscsi://" + p[1] + "/" + prefix + "c": true,
	} {
		s, err := initiator.Dial(t.Context(), url(t, at), initiator.Options{})
		switch e, refused := errors.AsType[*initiator.LoginError](err); {
		case there && err == nil:
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		case there || !refused || e.Status != pdu.LoginNotFound:
			t.Errorf("%s: %v, want it to be there: %v", at, err, there)
		}
	}
}

// Discovery lists a portal on all addresses with the address that the initiator has used.
func TestWildcardPortal(t *testing.T) {
	tg := targettest.Start(t, `
stores: {a: {type: memory, size: 1MiB}}
targets: [{iqn: `+prefix+`a, luns: {0: a}}]
portals: [{listen: $PORTAL}]
`)
	if got, want := listed(t, "iscsi://"+tg.Portal()), []string{"a " + tg.Portal() + ",1"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// Initiators have credentials and LUNs of their own.
func TestRules(t *testing.T) {
	tg := targettest.Start(t, `
stores: {a: {type: memory, size: 1MiB}, b: {type: memory, size: 2MiB}, c: {type: memory, size: 3MiB}}
targets:
  - iqn: `+prefix+`t
    luns: {0: a, 1: b, 300: c}
    auth: {chap: {user: all, secret: secret-of-everybody}}
    initiators:
      - {name: iqn.2026-11.example:one, auth: {chap: {user: one, secret: secret-of-number-one}}, luns: {0: 300, 5: 0}}
      - {name: iqn.2026-11.example:none, auth: {}, luns: {}}
      - "iqn.2026-11.example:*"
portals: [{listen: $PORTAL}, {transport: iwarp, listen: $PORTAL2}]
`)
	for _, c := range []struct {
		name, user, secret string
		status             pdu.LoginStatus
		luns               string
	}{
		{"iqn.2026-11.example:one", "one", "secret-of-number-one", 0, "[0:3 5:1]"},
		{"iqn.2026-11.example:one", "all", "secret-of-everybody", pdu.LoginAuthenticationFailure, ""},
		{"iqn.2026-11.example:two", "all", "secret-of-everybody", 0, "[0:1 1:2 300:3]"},
		{"iqn.2026-11.example:two", "one", "secret-of-number-one", pdu.LoginAuthenticationFailure, ""},
		{"iqn.2026-11.example:none", "", "", 0, "[]"},
		{"iqn.2026-11.example.other:x", "all", "secret-of-everybody", pdu.LoginAuthorizationFailure, ""},
	} {
		for _, at := range []string{"iscsi://" + tg.Portals[0], "oneshot+iwarp://" + tg.Portals[1]} {
			u := url(t, at+"/"+prefix+"t")
			if c.user != "" {
				u.CHAP = &initiator.Credentials{Name: c.user, Secret: []byte(c.secret)}
			}
			s, err := initiator.Dial(t.Context(), u, initiator.Options{InitiatorName: c.name})
			if err != nil {
				if e, ok := errors.AsType[*initiator.LoginError](err); !ok || e.Status != c.status || c.status == 0 {
					t.Errorf("%s as %s: %v", c.name, c.user, err)
				}
				continue
			}
			if got := seen(t, s); got != c.luns || c.status != 0 {
				t.Errorf("%s as %s sees %s, want %s", c.name, c.user, got, c.luns)
			}
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		}
	}
}

// seen lists the LUNs of a session with their sizes in MiB.
func seen(t *testing.T, s *initiator.Session) string {
	t.Helper()
	luns, err := s.ReportLUNs(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	found := []string{}
	for _, n := range luns {
		l, err := s.LU(t.Context(), n)
		if err != nil {
			t.Fatal(err)
		}
		found = append(found, fmt.Sprintf("%d:%d", n, l.Size()>>20))
	}
	return fmt.Sprint(found)
}

// This project's initiator and libiscsi follow the redirect of a target that has moved.
func TestRedirect(t *testing.T) {
	there := targettest.Start(t, `
stores: {a: {type: memory, size: 7MiB}}
targets: [{iqn: `+prefix+`t, luns: {0: a}}, {iqn: `+prefix+`u, luns: {0: a}}]
portals: [{listen: $PORTAL}]
`)
	here := targettest.Start(t, `
targets:
  - {iqn: `+prefix+`t, redirect: "`+there.Portal()+`"}
  - {iqn: `+prefix+`u, redirect: {address: "`+there.Portal()+`", permanent: true}}
portals: [{listen: $PORTAL}]
`)
	for _, name := range []string{"t", "u"} {
		s, err := initiator.Dial(t.Context(), url(t, here.URL(prefix+name, 0)), initiator.Options{})
		if err != nil {
			t.Fatal(err)
		}
		if got := seen(t, s); got != "[0:7]" {
			t.Errorf("the target has %s", got)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		if name == "u" {
			continue // libiscsi does not know that a move can be for good
		}
		if out, err := exec.Command("iscsi-readcapacity16", here.URL(prefix+name, 0)).CombinedOutput(); err != nil || !strings.Contains(string(out), "Total size:7340032") {
			t.Errorf("iscsi-readcapacity16: %v: %s", err, out)
		}
	}
}

// The daemon registers its targets with an iSNS server, also targets that a reload adds, and removes them at its end.
func TestISNS(t *testing.T) {
	names := isnsd.New(t)
	names.Start()
	tg := targettest.Start(t, `
stores: {a: {type: memory, size: 1MiB}}
targets: [{iqn: `+isnsd.Node+`, alias: the disk, luns: {0: a}, portal_groups: [7]}]
portals: [{listen: $PORTAL, group: 7}, {transport: iwarp, listen: $PORTAL2}]
isns: {server: "`+names.Addr+`", entity: storage.example}
`)
	_, port, _ := strings.Cut(tg.Portal(), ":")
	names.Until("nodes", `iSCSI alias = "the disk"`, true)
	names.Until("entities", `"storage.example"`, true)
	names.Until("portals", "port = "+port+"/tcp", true)
	names.Until("portal-groups", "Portal group tag = 7", true)
	if portals := names.List("portals"); strings.Count(portals, "Portal IP address") != 1 {
		t.Errorf("the portal of RDMA is registered as one of TCP:\n%s", portals)
	}
	tg.Stop()
	names.Until("entities", "storage.example", false)
}
