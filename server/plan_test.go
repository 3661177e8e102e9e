package server

import (
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"oneshot/config"
	"oneshot/config/configtest"
)

// drawConfig draws a configuration. It uses few names, so that two configurations have much in common.
func drawConfig(t *rapid.T, label string) *config.Config {
	line := 0
	pos := func() config.Position {
		line += rapid.IntRange(1, 3).Draw(t, "lines")
		return config.Position{File: label, Line: line, Column: 1}
	}
	c := &config.Config{Limits: config.DefaultLimits()}
	for _, name := range []string{"a", "b", "m"} {
		s := config.Store{Name: name, Type: config.StoreMemory, Pos: pos(), Size: 1 << 20 * rapid.Int64Range(1, 2).Draw(t, "size")}
		if name != "m" {
			s.Type = config.StoreFile
			s.File = &config.FileStore{
				Path:  rapid.SampledFrom([]string{"/" + name, "/" + name + "2"}).Draw(t, "path"),
				Cache: rapid.SampledFrom([]config.CacheMode{config.CacheWriteback, config.CacheWritethrough}).Draw(t, "cache"),
			}
		}
		s.Partitioned = name == "b" && rapid.Bool().Draw(t, "partitioned")
		c.Stores = append(c.Stores, s)
	}
	for _, name := range []string{"iqn.t:1", "iqn.t:2"} {
		if rapid.Bool().Draw(t, "absent") {
			continue
		}
		target := config.Target{Name: name, Pos: pos(), Alias: rapid.SampledFrom([]string{"", "x"}).Draw(t, "alias")}
		for number := range uint16(3) {
			if rapid.Bool().Draw(t, "no LUN") {
				continue
			}
			target.LUNs = append(target.LUNs, config.LUN{
				Number: number, Pos: pos(), BlockSize: 512, Store: rapid.SampledFrom([]string{"a", "b", "m"}).Draw(t, "store"),
				ReadOnly: rapid.Bool().Draw(t, "readonly"),
			})
			if l := &target.LUNs[len(target.LUNs)-1]; c.Store(l.Store).Partitioned {
				l.Partition = rapid.SampledFrom([]string{"p", "q"}).Draw(t, "partition")
			}
		}
		c.Targets = append(c.Targets, target)
	}
	for range rapid.IntRange(0, 3).Draw(t, "portals") {
		p := config.Portal{Transport: config.TransportTCP, Pos: pos()}
		p.Listen = netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), rapid.Uint16Range(0, 1).Draw(t, "port"))
		if rapid.Bool().Draw(t, "iwarp") {
			p.Transport, p.OneShot = config.TransportIWARP, &config.OneShot{Window: rapid.IntRange(1, 2).Draw(t, "window")}
		}
		c.Portals = append(c.Portals, p)
	}
	return c
}

// world is what initiators see of a configuration.
type world struct {
	luns    map[string]string // target and number: what is there
	access  map[string]string // target: the rest
	portals map[string]int
}

func worldOf(c *config.Config) world {
	w := world{make(map[string]string), make(map[string]string), make(map[string]int)}
	for i := range c.Targets {
		w.addTarget(c, &c.Targets[i])
	}
	for i := range c.Portals {
		w.portals[portalName(&c.Portals[i])]++
	}
	return w
}

func (w world) addTarget(c *config.Config, t *config.Target) {
	w.access[t.Name] = t.Alias
	for i := range t.LUNs {
		w.luns[lunName(t, t.LUNs[i].Number)] = lunText(c, &t.LUNs[i])
	}
}

func lunName(t *config.Target, n uint16) string { return fmt.Sprint(t.Name, " ", n) }
func lunText(c *config.Config, l *config.LUN) string {
	return fmt.Sprint(l.Shows(), l.ReadOnly, mediumOf(c, l))
}
func portalName(p *config.Portal) string { return fmt.Sprint(p.Transport, p.Listen, p.OneShot) }

// The plan leads from what was to what is to be, and touches nothing that is the same in both.
func TestPlan(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		old, next := drawConfig(t, "old"), drawConfig(t, "new")
		p := newPlan(old, next)
		w := worldOf(old)
		change := func(m map[string]string, key, to string) {
			if from, there := m[key]; there && from == to {
				t.Errorf("%s is the same before and after", key)
			}
			m[key] = to
		}
		for _, r := range p.remove {
			delete(w.access, r.Name)
			for _, l := range r.LUNs {
				delete(w.luns, lunName(r, l.Number))
			}
		}
		for _, l := range p.luns {
			if l.to == nil {
				delete(w.luns, lunName(l.target, l.number))
				continue
			}
			change(w.luns, lunName(l.target, l.number), lunText(next, l.to))
		}
		for _, a := range p.access {
			change(w.access, a.Name, a.Alias)
		}
		for _, a := range p.add {
			if _, there := w.access[a.Name]; there {
				t.Errorf("%s is added and was there", a.Name)
			}
			w.addTarget(next, a)
		}
		for _, q := range p.closePortals {
			w.portals[portalName(q)]--
			if slices.ContainsFunc(p.openPortals, func(o *config.Portal) bool { return portalName(o) == portalName(q) }) {
				t.Errorf("%s is closed and opened again", portalName(q))
			}
		}
		for _, q := range p.openPortals {
			w.portals[portalName(q)]++
		}
		for key, n := range w.portals {
			if n == 0 {
				delete(w.portals, key)
			}
		}
		if want := worldOf(next); fmt.Sprint(w) != fmt.Sprint(want) {
			t.Errorf("got  %v\nwant %v", w, want)
		}
		checkStorePlan(t, p, old, next)
	})
}

// Every medium that LUNs are to show is either open already or in the plan, once.
func checkStorePlan(t *rapid.T, p *plan, old, next *config.Config) {
	before, now := shown(old), shown(next)
	wasDivided, isDivided := dividedIn(old), dividedIn(next)
	opened := make(map[string]bool)
	for _, s := range p.converted {
		if m := medium(s); (isDivided[m] == nil || before[m] == nil) && (wasDivided[m] == nil || now[m] == nil) {
			t.Errorf("the store %q is not open in another way", s.Name)
		}
		opened[medium(s)] = true
	}
	divided := make(map[string]bool)
	for _, s := range p.divide {
		if wasDivided[medium(s)] != nil || isDivided[medium(s)] == nil || divided[medium(s)] {
			t.Errorf("the store %q is opened to be divided", s.Name)
		}
		divided[medium(s)] = true
	}
	for m := range isDivided {
		if wasDivided[m] == nil && !divided[m] && !opened[m] {
			t.Errorf("%s is not opened to be divided", m)
		}
	}
	for _, l := range p.parts {
		m := mediumOf(next, l.to)
		if before[m] != nil || opened[m] {
			t.Errorf("LUN %d of %s opens its partition", l.number, l.target.Name)
		}
		opened[m] = true
	}
	for _, s := range p.open {
		if before[medium(s)] != nil || now[medium(s)] == nil || opened[medium(s)] {
			t.Errorf("the store %q is opened", s.Name)
		}
		opened[medium(s)] = true
	}
	for m := range now {
		if before[m] == nil && !opened[m] {
			t.Errorf("%s is not opened", m)
		}
	}
	for _, s := range p.resize {
		was := before[medium(s)]
		if s.Partitioned {
			was = wasDivided[medium(s)]
		}
		if was == nil || was.Size == s.Size {
			t.Errorf("the store %q is resized", s.Name)
		}
	}
}

// A configuration that differs only in its line numbers needs no change.
func TestPlanOfTheSame(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := drawConfig(t, "x")
		moved := *c
		moved.Stores, moved.Targets, moved.Portals = slices.Clone(c.Stores), slices.Clone(c.Targets), slices.Clone(c.Portals)
		for i := range moved.Targets {
			moved.Targets[i].Pos.Line += 7
			moved.Targets[i].LUNs = slices.Clone(moved.Targets[i].LUNs)
			for j := range moved.Targets[i].LUNs {
				moved.Targets[i].LUNs[j].Pos.Line += 7
			}
		}
		for i := range moved.Stores {
			moved.Stores[i].Pos.Line += 7
		}
		slices.Reverse(moved.Portals)
		for i := range moved.Portals {
			moved.Portals[i].Pos.Line++
		}
		if p := newPlan(c, &moved); fmt.Sprintf("%+v", *p) != fmt.Sprintf("%+v", plan{}) {
			t.Errorf("%+v", *p)
		}
	})
}

// The plan names the keys that take effect only at the next start.
func TestPlanPending(t *testing.T) {
	c := parse(t, one)
	next := *c
	next.Limits.Memory, next.Limits.Sessions = 2<<30, 7
	next.Log.Format = config.LogJSON
	next.State.Dir = "/var/lib/oneshot"
	p := newPlan(c, &next)
	want := "[limits.memory will change at the next start only state will change at the next start only log.format will change at the next start only]"
	if got := fmt.Sprint(p.pending); got != want {
		t.Errorf("pending %s", got)
	}
}

// The size of a mirror is that of its copies, too, and no option of theirs: it can change while the mirror is open.
func TestPlanMirrorSize(t *testing.T) {
	text := `
cluster: {name: lab, state: /s, nodes: {a: {address: 10.1.0.1}, b: {address: 10.1.0.2}}}
stores:
  m: {type: mirror, size: 1GiB, copies: {a: {type: file, path: /m}, b: {type: file, path: /m}}}
targets: [{iqn: "iqn.2026-11.example.oneshot:m", luns: {0: m}}]
portals: [{node: a, listen: "192.0.2.1:3260"}, {node: b, listen: "192.0.2.2:3260", group: 2}]
`
	p := newPlan(parse(t, text), parse(t, strings.Replace(text, "1GiB", "2GiB", 1)))
	if len(p.resize) != 1 || len(p.pending) != 0 {
		t.Errorf("%d stores are resized, and pending is %q", len(p.resize), p.pending)
	}
	p = newPlan(parse(t, text), parse(t, strings.Replace(text, "path: /m}", "path: /m, direct: true}", 1)))
	if len(p.pending) != 1 {
		t.Errorf("pending is %q", p.pending)
	}
}

// Another pace of a mirror is in force at once, and nothing else changes.
func TestPlanPace(t *testing.T) {
	text := `
cluster: {name: lab, state: /s, nodes: {a: {address: 10.1.0.1}, b: {address: 10.1.0.2}}}
stores:
  m: {type: mirror, size: 1GiB, resync: {rate: auto}, copies: {a: {type: file, path: /m}, b: {type: file, path: /m}}}
targets: [{iqn: "iqn.2026-11.example.oneshot:m", luns: {0: m}}]
portals: [{node: a, listen: "192.0.2.1:3260"}, {node: b, listen: "192.0.2.2:3260", group: 2}]
`
	p := newPlan(parse(t, text), parse(t, strings.Replace(text, "auto", "30MiB/s", 1)))
	if len(p.paces) != 1 || p.paces[0].Mirror.Resync != (config.Resync{Rate: 30 << 20, Min: 20 << 20}) || len(p.pending) != 0 || len(p.changed) != 1 {
		t.Errorf("%d paces, changed %q, pending %q", len(p.paces), p.changed, p.pending)
	}
	if p = newPlan(parse(t, text), parse(t, text)); len(p.paces) != 0 {
		t.Errorf("nothing has changed, and %d mirrors have another pace", len(p.paces))
	}
}

func TestEqual(t *testing.T) {
	a := parse(t, one)
	b := parse(t, "\n\n"+one)
	if !equal(a.Targets, b.Targets) || !equal(a.Portals, b.Portals) || a.Targets[0].Pos == b.Targets[0].Pos {
		t.Error("positions count")
	}
	secret := func(s string) config.Auth {
		return config.Auth{CHAP: &config.Credentials{User: "u", Secret: config.NewSecret(s)}}
	}
	if equal(secret("twelve-bytes"), secret("other-twelve")) || !equal(secret("x"), secret("x")) || equal(secret("x"), config.Auth{}) {
		t.Error("secrets are not compared")
	}
	b.Targets[0].LUNs = b.Targets[0].LUNs[1:]
	if equal(a.Targets, b.Targets) {
		t.Error("a LUN less counts for nothing")
	}
}

// Each value of a configuration that changes is in the plan. So a reload never says "nothing has changed" after it
// has changed something.
func TestPlanMissesNothing(t *testing.T) {
	testPlan(t, "full.yaml", 100, func(path string) bool { return !strings.HasPrefix(path, ".Cluster") })
	testPlan(t, "cluster.yaml", 20, func(path string) bool { return strings.HasPrefix(path, ".Cluster") })
}

func testPlan(t *testing.T, file string, least int, looksAt func(path string) bool) {
	t.Helper()
	load := func() *config.Config {
		c, err := config.Load("../configs/" + file)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	leaves := configtest.Leaves(load())
	if len(leaves) < least {
		t.Fatalf("only %d values in %s", len(leaves), file)
	}
	old := load()
	for i, l := range leaves {
		if elsewhere.MatchString(l.Path) || !looksAt(l.Path) {
			continue
		}
		next := load()
		configtest.Leaves(next)[i].Alter(t)
		if p := newPlan(old, next); fmt.Sprintf("%+v", *p) == fmt.Sprintf("%+v", plan{closePortals: []*config.Portal{}}) {
			t.Errorf("a change of %s is not in the plan", l.Path)
		}
	}
}

// elsewhere matches values whose change others report: the command reports the level of the log, prepareServices
// the services. Changing the name of a store changes nothing, because its medium identifies it. Whether a store is
// read-only concerns its LUNs, for which the parser sets it. Who has which node of a cluster config.On decides.
var elsewhere = regexp.MustCompile(`^\.(Log\.Level|Metrics\.(Listen|Given)|Management\.Socket|Subsystems\[\d\]\.Node|Stores\[\d+\](\.On)*\.(Name|ReadOnly|File\.Create))$`)
