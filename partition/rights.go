package partition

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Rights say what an identity may do with a partition.
type Rights uint8

// The rights. They are printed as their letters, in this order.
const (
	MayRead    Rights = 1 << iota // r
	MayWrite                      // w
	MayFlush                      // f: flush and barrier
	MayAtomics                    // a
	MayDiscard                    // d
	MayManage                     // m
)

const rightLetters = "rwfadm"

// ParseRights reads letters of "rwfadm", each at most once and in any order.
func ParseRights(s string) (r Rights, err error) {
	for _, c := range s {
		bit := Rights(1) << max(strings.IndexRune(rightLetters, c), 0)
		if !strings.ContainsRune(rightLetters, c) || r&bit != 0 {
			return 0, fmt.Errorf("the rights %q have to be letters of %q, each at most once", s, rightLetters)
		}
		r |= bit
	}
	return r, nil
}

func (r Rights) String() string {
	var b []byte
	for i := range rightLetters {
		if r&(1<<i) != 0 {
			b = append(b, rightLetters[i])
		}
	}
	return string(b)
}

// Identity is who asks, as far as that is proved.
type Identity struct {
	Local bool // UID and GIDs are valid: the kernel said them of the peer of a Unix socket
	UID   uint32
	GIDs  []uint32
	Name  string // proved by a shared secret; empty: none
	Host  string // that he comes from over a network, as its device says; it gives no rights; empty: it is not known
}

// String writes who somebody is as access lines do.
func (id Identity) String() string {
	switch {
	case id.Name != "":
		return "name:" + id.Name
	case id.Local:
		return fmt.Sprintf("uid:%d", id.UID)
	}
	return "any"
}

// Shares says of whose share of connections and endpoints he takes some (door.Shares): his own, or, without a name, that of all without
// one, and of this that of his host.
func (id Identity) Shares() []string {
	who := []string{id.String()}
	if id.Name == "" && id.Host != "" {
		who = append(who, "host "+id.Host)
	}
	return who
}

type whoKind uint8

const (
	whoAny whoKind = iota
	whoUID
	whoGID
	whoName
)

// Who says whom an access line is for. The zero value is anybody.
type Who struct {
	kind whoKind
	id   uint32
	name string
}

const maxName = 223 // octets, as of an iSCSI name (RFC 7143 §4.2.7.1)

// ParseWho reads "any", "uid:N", "gid:N" or "name:NAME".
func ParseWho(s string) (Who, error) {
	kind, value, _ := strings.Cut(s, ":")
	switch kind {
	case "any":
		if s == "any" {
			return Who{}, nil
		}
	case "uid", "gid":
		n, err := strconv.ParseUint(value, 10, 32)
		if err != nil || strconv.FormatUint(n, 10) != value {
			break
		}
		if kind == "uid" {
			return Who{kind: whoUID, id: uint32(n)}, nil
		}
		return Who{kind: whoGID, id: uint32(n)}, nil
	case "name":
		if value != "" && len(value) <= maxName && !strings.ContainsFunc(value, func(c rune) bool { return c <= ' ' || c > '~' }) {
			return Who{kind: whoName, name: value}, nil
		}
	}
	return Who{}, fmt.Errorf("%q names nobody: write any, uid:N, gid:N, or name:NAME with at most %d printable characters", s, maxName)
}

func (w Who) String() string {
	switch w.kind {
	case whoUID:
		return fmt.Sprintf("uid:%d", w.id)
	case whoGID:
		return fmt.Sprintf("gid:%d", w.id)
	case whoName:
		return "name:" + w.name
	}
	return "any"
}

// Matches reports whether w means id.
func (w Who) Matches(id Identity) bool {
	switch w.kind {
	case whoUID:
		return id.Local && id.UID == w.id
	case whoGID:
		return id.Local && slices.Contains(id.GIDs, w.id)
	case whoName:
		return id.Name == w.name
	}
	return true
}

// Rights returns the union of the lines of p that match id.
func (p *Partition) Rights(id Identity) (r Rights) {
	for i := range p.Access {
		if p.Access[i].Who.Matches(id) {
			r |= p.Access[i].Rights
		}
	}
	return r
}
