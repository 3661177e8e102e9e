package conformance

import (
	"fmt"
	"strings"
	"testing"

	"oneshot/backend/backendtest"
	"oneshot/test/targettest"
)

const (
	iqnPrefix = "iqn.2026-11.example.oneshot:"
	secret    = "correct-horse-1"

	unitBytes = 64 << 20
)

// Names whose beginnings are those of encoded values (RFC 7143 §5.1), which they are not.
const (
	hexUser    = "0xbeef"
	base64User = "0bYWxpY2U="
)

// A kind is what the medium is. Each has targets of its own: the tests of one reset and
// reconfigure them, while those of another run beside them.
type kind struct {
	name  string
	store string // as the configuration writes it
	block int    // bytes
}

// LUNs of a kind's target, all on one store.
const (
	plain = iota
	readOnly
	removable
	physical // blocks of 4096 bytes, whatever the logical ones
)

// kinds returns what logical units are made of. Devices live until the test ends.
func kinds(t *testing.T) []kind {
	memory := fmt.Sprintf("{type: memory, size: %d}", unitBytes)
	return []kind{
		{"memory", memory, 512},
		{"file", fmt.Sprintf("{type: file, path: $DIR/file.img, size: %d, sparse: true}", unitBytes), 512},
		{"device", fmt.Sprintf("{type: device, path: %s}", backendtest.NewLoop(t, unitBytes, 512).Path), 512},
		{"blocks4k", memory, 4096},
	}
}

// configuration serves all kinds.
func configuration(kinds []kind) string {
	var stores, targets strings.Builder
	for _, k := range kinds {
		fmt.Fprintf(&stores, "  %s: %s\n", k.name, k.store)
		unit := fmt.Sprintf("store: %s, block_size: %d", k.name, k.block)
		fmt.Fprintf(&targets, "  - {iqn: %q, luns: {%d: {%s}, %d: {%s, readonly: true}, %d: {%s, removable: true}, %d: {%s, physical_block_size: 4096}}}\n",
			iqnPrefix+k.name, plain, unit, readOnly, unit, removable, unit, physical, unit)
		for _, user := range []string{hexUser, base64User} {
			fmt.Fprintf(&targets, "  - {iqn: %q, luns: {0: {%s}}, auth: {chap: {user: %q, secret: %s}}}\n",
				chapIQN(k.name, user), unit, user, secret)
		}
	}
	return "state: $DIR/state\nstores:\n" + stores.String() + "targets:\n" + targets.String() + `
portals:
  - {transport: tcp, listen: $PORTAL}
  - {transport: tcp, listen: $PORTAL2}
`
}

func chapIQN(kind, user string) string { return iqnPrefix + kind + "-" + user[:2] }

// urls names the logical unit of a kind that a test is for, by as many paths as it wants.
func urls(tg *targettest.Target, kind, test string) []string {
	suite, name, _ := strings.Cut(test, ".")
	url := func(lun int) string { return tg.URL(iqnPrefix+kind, lun) }
	switch suite {
	case "ReadOnly":
		return []string{url(readOnly)}
	case "NoMedia", "PreventAllow", "StartStopUnit":
		return []string{url(removable)}
	case "MultipathIO":
		return []string{url(plain), strings.Replace(url(plain), tg.Portals[0], tg.Portals[1], 1)}
	case "iSCSICHAP":
		user := hexUser
		if name == "Base64Name" {
			user = base64User
		}
		return []string{tg.CHAPURL(user, secret, chapIQN(kind, user), plain)}
	}
	switch name {
	case "InvalidDataOutSize", "UnmapUnaligned":
		return []string{url(physical)}
	}
	return []string{url(plain)}
}
