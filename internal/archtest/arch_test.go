// Package archtest compares what the packages of this module import with the
// picture of the design: data goes from the wire to the medium, imports point
// the same way, and leaves know nobody.
package archtest

import (
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path"
	"slices"
	"strings"
	"testing"
)

const module = "oneshot/"

// A rule says what the packages it matches may import directly of this module.
// Patterns are those of path.Match; "…/**" is everything below. The packages of
// internal/ that are leaves may be imported by all.
type rule struct {
	pkg string
	may []string
	// not are imports from outside this module that would break what the
	// package is for.
	not []string
	// tests are what its tests may import besides, if they are of a lower layer.
	tests []string
}

var (
	sockets = []string{"net", "net/*", "os", "os/*", "syscall", "golang.org/x/sys/unix"}
	helpers = []string{"internal/crc32c", "internal/invariant", "internal/serial"}
)

// The first rule that matches a package holds for it.
var rules = []rule{
	// Leaves.
	{pkg: "mem"},
	{pkg: "ddp", not: sockets},
	{pkg: "iscsi/pdu", not: sockets},
	{pkg: "iscsi/text", not: sockets},
	{pkg: "nvme", not: append([]string{"net"}, sockets[2:]...)}, // addresses are values
	{pkg: "nvme/auth", not: sockets},
	{pkg: "nvme/tcp/pdu", may: []string{"nvme"}, not: sockets},
	{pkg: "nvme/rdma/cm", not: sockets},
	{pkg: "internal/invariant", not: sockets},
	{pkg: "internal/serial", not: sockets},
	{pkg: "internal/owed", not: sockets},
	{pkg: "internal/command", may: []string{"internal/version"}},
	{pkg: "internal/iostat", may: []string{"internal/latency"}, not: sockets},
	{pkg: "internal/*"},
	{pkg: "configs"},

	// From the wire to the medium.
	{pkg: "stag", may: []string{"mem"}, not: sockets},
	{pkg: "backend", may: []string{"mem"}},
	{pkg: "backend/**", may: []string{"backend", "backend/**", "internal/iov", "internal/loglimit", "internal/mounted", "internal/rounds", "mem"}},
	{pkg: "volume", may: []string{"volume/access", "backend", "mem"}, not: sockets},
	{pkg: "volume/access", not: sockets},
	{pkg: "partition", may: []string{"backend", "backend/slice", "mem"}, not: sockets},
	{pkg: "partition/registry", may: []string{"internal/door", "partition", "volume", "transport/rdma", "backend", "backend/aging", "backend/durable", "internal/latency", "mem"}, not: sockets},
	{pkg: "scsi", may: []string{"volume", "volume/access", "backend", "internal/iostat", "internal/latency", "internal/loglimit", "mem"}, not: sockets},
	{pkg: "partition/wire", not: sockets},
	{pkg: "partition/service", may: []string{"internal/door", "partition", "partition/wire", "backend", "transport/rdma", "transport/rdma/local", "mem"}, not: sockets[2:]},
	// The core of a mirror is a step function; its simulation has no clock but its own.
	{pkg: "ha/replica", not: append([]string{"sync", "math/rand", "math/rand/v2"}, sockets...)},
	{pkg: "ha/sim", may: []string{"ha/replica", "ha/quorum", "ha/reservations", "volume/access"}, not: append([]string{"sync"}, sockets...)},
	// Consensus is a step function, too, with an edge of its own: TLS and a ticker.
	{pkg: "ha/quorum", may: []string{"ha/replica", "internal/iov"}, not: []string{"net/http", "math/rand", "math/rand/v2"}},
	// Queue pairs between nodes. It knows no mirror, nor which device it is.
	{pkg: "ha/fabric", may: []string{"transport/rdma", "internal/invariant", "internal/loglimit"}, not: []string{"net/http", "math/rand", "math/rand/v2"}, tests: []string{"ddp", "transport/rdma/iwarp", "transport/rdma/local", "transport/rdma/verbs", "transport/rdma/verbs/fake"}},
	// The edge of a mirror: its core with a store, a network and a clock.
	{pkg: "ha/mirror", may: []string{"ha/fabric", "ha/replica", "ha/quorum", "backend", "internal/invariant", "internal/iov", "internal/loglimit"}, not: []string{"net/http", "math/rand", "math/rand/v2"}, tests: []string{"mem", "volume", "volume/access", "ha/reservations", "transport/rdma", "transport/rdma/iwarp", "transport/rdma/local"}},
	{pkg: "ha/front"},
	{pkg: "ha/keeper", may: []string{"ha/front", "internal/loglimit", "internal/peercred"}, not: []string{"net/http"}},
	{pkg: "ha/reservations", may: []string{"ha/quorum", "ha/replica", "volume/access"}, not: []string{"net/http", "math/rand", "math/rand/v2"}},
	// A heap is a step function and an edge, which works on a store; who uses one shares its wire with it, and nothing else.
	{pkg: "ha/heap/wire", not: sockets},
	{pkg: "ha/heap", may: []string{"ha/heap/wire", "backend"}, not: []string{"net", "net/*", "os", "math/rand", "math/rand/v2", "time"}},
	{pkg: "ha/heap/service", may: []string{"internal/door", "ha/heap", "ha/heap/wire", "transport/rdma", "transport/rdma/iwarp"}, not: sockets[2:]},
	{pkg: "scsi/**", may: []string{"scsi", "scsi/**", "volume", "volume/access", "backend", "backend/**", "mem"}},
	{pkg: "iscsi/chap", not: sockets},
	{pkg: "iscsi/login", may: []string{"iscsi/pdu", "iscsi/text", "iscsi/chap"}, not: sockets},
	{pkg: "iscsi", may: []string{"iscsi/*", "scsi", "internal/baton", "internal/door", "internal/iostat", "internal/owed", "mem"}, not: sockets},
	{pkg: "iscsi/**", may: []string{"iscsi", "iscsi/**", "scsi", "mem"}},
	// It knows no protocol.
	{pkg: "transport/bytestream", may: []string{"volume", "internal/iov", "internal/stream", "mem"}},
	{pkg: "transport/queuepair", may: []string{"transport/rdma", "transport/rdma/manager", "mem"}, not: sockets},
	{pkg: "transport/tcp", may: []string{"iscsi", "iscsi/*", "transport/bytestream", "internal/iov", "internal/stream", "mem"}},
	// Controllers know volumes, and nothing of SCSI.
	{pkg: "nvmf", may: []string{"nvme", "nvme/auth", "volume", "volume/access", "backend", "internal/baton", "internal/door", "internal/iostat", "internal/owed", "mem"}, not: append([]string{"net"}, sockets[2:]...)},
	{pkg: "nvmf/movertest", may: []string{"nvmf", "nvme", "volume", "backend", "backend/**", "internal/door", "internal/rounds", "mem"}}, // looks at movers from both sides
	{pkg: "transport/nvmetcp", may: []string{"nvmf", "nvme", "nvme/tcp/pdu", "transport/bytestream", "mem"}},
	{pkg: "transport/nvmerdma", may: []string{"nvmf", "nvme", "nvme/rdma/cm", "transport/queuepair", "transport/rdma", "transport/rdma/manager", "internal/iov", "mem"}, not: sockets[1:]},
	{pkg: "transport/nvmetcp/nvmetest", may: []string{"nvme", "nvme/tcp/pdu"}},
	{pkg: "transport/movertest", may: []string{"iscsi", "iscsi/*", "scsi", "volume", "backend", "backend/**", "initiator", "internal/rounds", "mem"}}, // looks at movers from both sides
	{pkg: "transport/rdma", may: []string{"stag", "mem"}},
	{pkg: "transport/rdma/soft", may: []string{"transport/rdma", "stag", "internal/ring"}, not: sockets},
	{pkg: "transport/rdma/iwarp", may: []string{"transport/rdma", "transport/rdma/soft", "stag", "ddp", "internal/iov", "internal/ring", "internal/stream", "mem"}},
	// An endpoint is a view of a volume, of which it knows an interface of its own.
	{pkg: "transport/rdma/local", may: []string{"transport/rdma", "transport/rdma/soft", "stag", "backend", "backend/durable", "internal/iov", "internal/ring", "mem"}, not: sockets[3:]},
	{pkg: "transport/rdma/remote", may: []string{"transport/rdma", "transport/rdma/soft", "partition/wire", "backend", "mem"}, not: sockets[2:]},
	// The driver and the card know each other by what they share, and by nothing else.
	{pkg: "transport/rdma/nic", may: []string{"transport/rdma", "transport/rdma/soft", "transport/rdma/nic/shm", "internal/ring"}},
	{pkg: "transport/rdma/nic/shm", may: []string{"transport/rdma"}},
	{pkg: "transport/rdma/nic/card", may: []string{"transport/rdma", "transport/rdma/soft", "transport/rdma/iwarp", "transport/rdma/nic/shm", "internal/peercred"}, tests: []string{"transport/rdma/local"}},
	{pkg: "transport/rdma/rdmatest", may: []string{"transport/rdma", "backend", "backend/**", "internal/ring", "internal/rounds", "mem"}},
	{pkg: "transport/rdma/verbs/internal/finder"},
	{pkg: "transport/rdma/verbs/fake", may: []string{"transport/rdma/verbs/internal/finder"}}, // stands for libibverbs and librdmacm in tests
	{pkg: "transport/rdma/verbs", may: []string{"transport/rdma", "transport/rdma/verbs/internal/finder", "internal/ring", "mem"}},
	{pkg: "transport/rdma/*", may: []string{"transport/rdma", "internal/ring", "mem"}},
	{pkg: "iser", may: []string{"iscsi", "iscsi/*", "transport/queuepair", "transport/rdma", "transport/rdma/manager", "internal/iserhdr", "mem"}},
	{pkg: "iser/isertest", may: []string{"iscsi/pdu", "ddp", "internal/iserhdr"}},

	// What builds and drives the above.
	{pkg: "config", may: []string{"configs", "nvme", "nvme/auth", "partition"}, not: []string{"net/http"}},
	{pkg: "state", may: []string{"internal/mounted"}},
	{pkg: "config/configtest", may: []string{"config"}},
	{pkg: "config/migrate", may: []string{"config"}},
	{pkg: "isns"},
	{pkg: "mgmt", may: []string{"internal/peercred"}}, // whom it manages it knows by an interface of its own
	{pkg: "server", may: []string{
		"config", "mgmt", "isns", "ha/quorum", "ha/fabric", "ha/mirror", "ha/replica", "ha/reservations", "ha/front", "ha/keeper", "ha/heap", "ha/heap/service", "transport/**", "iser", "iscsi", "iscsi/*", "scsi", "nvme", "nvme/auth", "nvmf", "partition", "partition/registry", "partition/service", "volume", "volume/access", "backend", "backend/**", "mem", "state", "internal/iostat", "internal/latency", "internal/loglimit", "internal/version",
	}},
	{pkg: "endpoint", may: []string{"transport/rdma", "transport/rdma/*", "partition/wire", "internal/ring", "mem"}, not: []string{"net/http"}},
	{pkg: "endpoint/endpointtest", may: []string{"endpoint", "transport/rdma", "transport/rdma/*", "partition", "partition/service", "volume", "backend", "mem"}}, // serves one to tests
	{pkg: "endpoint/object", may: []string{"ha/heap/wire", "transport/rdma", "transport/rdma/iwarp"}, not: []string{"net/http"}},
	{pkg: "endpoint/wal", may: []string{"endpoint", "transport/rdma", "mem"}, not: sockets},
	{pkg: "endpoint/load", may: []string{"endpoint", "transport/rdma", "internal/walk"}},
	{pkg: "initiator", may: []string{"iscsi/pdu", "iscsi/text", "iscsi/chap", "transport/rdma", "transport/rdma/*", "internal/iov", "internal/iserhdr", "internal/stream", "mem"}},
	{pkg: "initiator/nbd", may: []string{"initiator", "iscsi/pdu", "internal/iov", "internal/stream"}},
	// It shares the way of bytes with the target's mover, and nothing else of the target.
	{pkg: "initiator/host", may: []string{"nvme", "nvme/auth", "nvme/tcp/pdu", "transport/bytestream", "mem"}},
	{pkg: "initiator/load", may: []string{"initiator", "initiator/host", "internal/walk"}},
	{pkg: "initiator/*", may: []string{"initiator", "internal/walk"}},
	{pkg: "cmd/target", may: []string{"server", "ha/quorum", "ha/front", "ha/keeper", "config", "config/migrate", "configs", "mgmt", "transport/rdma/verbs", "transport/rdma/nic", "transport/rdma/nic/card", "internal/command", "internal/loglimit", "internal/version"}}, // lists devices, and is one
	{pkg: "cmd/initiator", may: []string{"initiator", "initiator/*", "nvme", "nvme/auth", "endpoint", "endpoint/load", "endpoint/object", "transport/rdma", "transport/rdma/nic", "internal/command", "internal/loglimit", "internal/version"}},
	{pkg: "cmd/*", may: []string{"server", "config", "configs", "mgmt", "initiator", "initiator/*", "internal/command", "internal/loglimit", "internal/version"}},

	// Tests that talk to the daemon from outside, and measurements.
	{pkg: "test/targettest"},
	{pkg: "test/**", may: []string{"test/**", "configs", "internal/debian", "backend/backendtest"}}, // makes block devices
	{pkg: "docs/examples/*", may: []string{"endpoint", "endpoint/wal"}},                             // what users write
	{pkg: "packaging"}, // tests alone
	{pkg: "packaging/*", may: []string{"initiator"}},
	{pkg: "bench", may: []string{"bench/harness"}},
	{pkg: "bench/harness"},
	{pkg: "appliance/**", may: []string{"internal/debian"}},
	{pkg: "bench/endpoint", may: []string{"bench/harness", "endpoint", "endpoint/load", "endpoint/wal", "initiator", "initiator/load", "partition", "server", "config", "transport/rdma", "transport/rdma/local", "volume", "backend", "backend/*"}}, // in one process
	{pkg: "bench/vm", may: []string{"bench/harness", "test/vm/machine", "internal/debian"}},
	{pkg: "bench/**", may: []string{"bench/harness"}},
}

// A listed package has the files that one set of build tags selects, and what they import.
type listed struct {
	ImportPath                string
	Imports                   []string
	TestImports, XTestImports []string

	GoFiles, CgoFiles, TestGoFiles, XTestGoFiles []string
	IgnoredGoFiles                               []string
}

// tagSets select, one after the other, every file there is: TestTags says so.
var tagSets = []string{"", "verbs,invariants,race,guest,deb,blktests,nvmfabtest", "verbs,guest", "verbs"}

func TestImports(t *testing.T) {
	said := make(map[string]bool)
	for _, tags := range tagSets {
		for _, p := range list(t, tags) {
			name := strings.TrimPrefix(p.ImportPath, module)
			i := slices.IndexFunc(rules, func(r rule) bool { return matches(r.pkg, name) })
			if i < 0 {
				t.Errorf("%s has no place in the picture: add it to the rules here and to ARCHITECTURE.md", name)
				continue
			}
			for _, offence := range rules[i].offences(p.Imports) {
				if !said[name+offence] {
					t.Errorf("%s %s (tags: %s)", name, offence, tags)
				}
				said[name+offence] = true
			}
		}
	}
}

// lower are the layers whose tests, too, need nothing from above: who works on one can run its tests
// without the rest. Tests of the upper layers have peers and stores of all kinds.
var lower = []string{
	"mem", "ddp", "stag", "backend", "backend/**", "ha/**", "partition", "volume", "volume/**", "scsi", "iscsi/pdu", "iscsi/text", "iscsi/chap", "nvme", "nvme/**",
	"iscsi/login", "state", "internal/baton", "internal/crc32c", "internal/hexdump", "internal/iov", "internal/iserhdr", "internal/loglimit", "internal/ring", "internal/serial", "internal/stream",
}

func TestImportsOfTests(t *testing.T) {
	said := make(map[string]bool)
	for _, tags := range tagSets {
		for _, p := range list(t, tags) {
			name := strings.TrimPrefix(p.ImportPath, module)
			i := slices.IndexFunc(rules, func(r rule) bool { return matches(r.pkg, name) })
			if i < 0 || !matchesAny(lower, name) {
				continue
			}
			// The stores are what the tests of those above them use.
			r := rule{may: slices.Concat([]string{name, "backend/**", "internal/hexdump", "internal/mutants", "internal/rounds"}, rules[i].may, rules[i].tests)}
			for _, offence := range r.offences(slices.Concat(p.TestImports, p.XTestImports)) {
				if !said[name+offence] {
					t.Errorf("a test of %s %s (tags: %s)", name, offence, tags)
				}
				said[name+offence] = true
			}
		}
	}
}

// TestTags: no file escapes the sets of build tags above.
func TestTags(t *testing.T) {
	ignored := make(map[string]bool)
	seen := make(map[string]bool)
	for _, tags := range tagSets {
		for _, p := range list(t, tags) {
			for _, files := range [][]string{p.GoFiles, p.CgoFiles, p.TestGoFiles, p.XTestGoFiles} {
				for _, f := range files {
					seen[p.ImportPath+"/"+f] = true
				}
			}
			for _, f := range p.IgnoredGoFiles {
				ignored[p.ImportPath+"/"+f] = true
			}
		}
	}
	for f := range ignored {
		if !seen[f] {
			t.Errorf("%s is in no set of build tags: add its tags to tagSets", strings.TrimPrefix(f, module))
		}
	}
	if len(ignored) < 20 {
		t.Errorf("only %d files with build tags: does this test still look at what it should?", len(ignored))
	}
}

// offences names the imports that the rule does not allow.
func (r rule) offences(imports []string) []string {
	var bad []string
	for _, imp := range imports {
		own, inModule := strings.CutPrefix(imp, module)
		switch {
		case inModule && !matchesAny(helpers, own) && !matchesAny(r.may, own):
			bad = append(bad, "must not import "+own)
		case !inModule && matchesAny(r.not, imp):
			bad = append(bad, "must not import "+imp)
		}
	}
	return bad
}

func matchesAny(patterns []string, name string) bool {
	return slices.ContainsFunc(patterns, func(p string) bool { return matches(p, name) })
}

func matches(pattern, name string) bool {
	if tree, ok := strings.CutSuffix(pattern, "/**"); ok {
		return strings.HasPrefix(name, tree+"/")
	}
	ok, err := path.Match(pattern, name)
	return ok && err == nil
}

// list asks the go command for the packages of this module.
func list(t *testing.T, tags string) []listed {
	t.Helper()
	fields := "ImportPath,Imports,TestImports,XTestImports,GoFiles,CgoFiles,TestGoFiles,XTestGoFiles,IgnoredGoFiles"
	cmd := exec.Command("go", "list", "-tags", tags, "-json="+fields, module+"...")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=1") // files with cgo count; nothing is compiled
	out, err := cmd.Output()
	if err != nil {
		if exit, ok := errors.AsType[*exec.ExitError](err); ok {
			t.Fatalf("%s: %s", cmd, exit.Stderr)
		}
		t.Fatal(err)
	}
	var packages []listed
	for d := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p listed
		err := d.Decode(&p)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		packages = append(packages, p)
	}
	if len(packages) < 5 {
		t.Fatalf("go list finds only %d packages", len(packages))
	}
	return packages
}

// TestOffences: a check is worth its name only if it was seen failing.
func TestOffences(t *testing.T) {
	r := rule{pkg: "scsi", may: []string{"backend", "backend/**"}, not: sockets}
	for imp, bad := range map[string]bool{
		"oneshot/backend":            false,
		"oneshot/backend/file":       false,
		"oneshot/backend/file/x":     false,
		"oneshot/internal/serial":    false,
		"oneshot/iscsi":              true,
		"oneshot/internal/archtest":  true,
		"oneshot/backendx":           true,
		"net":                        true,
		"net/netip":                  true,
		"encoding/binary":            false,
		"github.com/google/go-cmp":   false,
		"golang.org/x/sys/unix":      true,
		"oneshot/transport/rdma/tcp": true,
	} {
		if got := len(r.offences([]string{imp})) > 0; got != bad {
			t.Errorf("%s: offence %v, want %v", imp, got, bad)
		}
	}
}

// TestRulesAreAcyclic: if a may import b, b may not import a, or the picture has no direction.
func TestRulesAreAcyclic(t *testing.T) {
	for _, a := range rules {
		for _, b := range rules {
			if a.pkg != b.pkg && !strings.Contains(a.pkg+b.pkg, "*") && matchesAny(a.may, b.pkg) && matchesAny(b.may, a.pkg) {
				t.Errorf("%s and %s may import each other", a.pkg, b.pkg)
			}
		}
	}
}
