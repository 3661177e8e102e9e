package endpoint

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Scheme says what carries operations to a partition.
type Scheme uint8

// The schemes, as URLs begin with them.
const (
	Local   Scheme = iota // rdma+local://: the daemon of this host, or this process
	OneShot               // oneshot+iwarp://: iWARP in user space
	Verbs                 // rdma+verbs://: a device of the kernel's
)

var schemes = [...]string{Local: "rdma+local", OneShot: "oneshot+iwarp", Verbs: "rdma+verbs"}

func (s Scheme) String() string { return schemes[s] }

const defaultPort = "3262"

// URL names a partition:
//
//	rdma+local:///STORE/PARTITION[?socket=/run/oneshot/rdma.sock]
//	oneshot+iwarp://[user[%secret]@]host[:3262]/STORE/PARTITION
//	rdma+verbs://[user[%secret]@]host[:3262]/STORE/PARTITION[?device=rxe0]
//
// Instead of STORE/PARTITION it may be uuid:UUID, which follows a store to another name. Without a name behind the
// host it is the URL of a service (List).
type URL struct {
	Scheme  Scheme
	Address string // host:port; empty with Local
	Name    string // STORE/PARTITION, or uuid:UUID
	User    string // who asks; empty: anybody
	Secret  []byte // with which that is proved
	Device  string // with Verbs: of the kernel's; empty: the only one
	Socket  string // with Local: of the daemon; empty: DefaultSocket
}

// DefaultSocket is where the daemon of this host serves partitions, if its configuration names no other path.
const DefaultSocket = "/run/oneshot/rdma.sock"

// Names of stores are those of the configuration, names of partitions those of the table.
var (
	pathName = regexp.MustCompile(`^[A-Za-z0-9_.:-]{1,64}/[a-z0-9][a-z0-9._-]{0,62}$`)
	uuidName = regexp.MustCompile(`^uuid:[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`)
	lunName  = regexp.MustCompile(`^(iqn|eui|naa)\.`)
)

// ParseURL reads a URL. Errors do not repeat secrets.
func ParseURL(s string) (u URL, err error) {
	u, query, err := parseURL(s)
	if err != nil {
		return u, err
	}
	switch name := u.Name; {
	case lunName.MatchString(name):
		return u, fmt.Errorf("%q is the name of a target: it reaches a LUN, with the commands for disks; a partition is STORE/PARTITION or uuid:UUID", clip(name))
	case !pathName.MatchString(name) && !uuidName.MatchString(name):
		return u, fmt.Errorf("%q names no partition: write STORE/PARTITION or uuid:UUID behind the host", clip(name))
	}
	return u, u.query(query)
}

// ParseServiceURL reads the URL of a service, which is that of a partition without the name.
func ParseServiceURL(s string) (u URL, err error) {
	u, query, err := parseURL(s)
	switch {
	case err != nil:
		return u, err
	case u.Name != "":
		return u, fmt.Errorf("%q behind the host: the URL of a service names no partition", clip(u.Name))
	}
	return u, u.query(query)
}

// parseURL reads what stands before the query.
func parseURL(s string) (u URL, query string, err error) {
	scheme, rest, ok := strings.Cut(s, "://")
	i := slices.Index(schemes[:], scheme)
	if !ok || i < 0 {
		const want = "the URL of a partition begins with rdma+local://, oneshot+iwarp:// or rdma+verbs://"
		if !ok || strings.Trim(scheme, "abcdefghijklmnopqrstuvwxyz0123456789+-") != "" {
			return u, "", errors.New(want) // the rest may have a secret in it
		}
		return u, "", fmt.Errorf("%s, not with %s://", want, scheme)
	}
	u.Scheme = Scheme(i)
	rest, query, _ = strings.Cut(rest, "?")
	authority, name, _ := strings.Cut(rest, "/")
	// A % is also in the address of a link: fe80::1%eth0.
	before, _, percent := strings.Cut(authority, "%")
	inside := percent && !strings.Contains(authority, "@") && !strings.Contains(before, ":")
	if inside || strings.Contains(name+query, "@") {
		return u, "", errors.New("user and secret of the URL end at an @, and must not have / or ? in them: give the program the secret in another way")
	}
	u.Name = name
	return u, query, u.authority(authority)
}

func (u *URL) authority(s string) error {
	if u.Scheme == Local {
		if s != "" {
			return fmt.Errorf("rdma+local:// reaches this host alone: write three slashes, and the partition behind them, instead of %q", clip(s))
		}
		return nil
	}
	if at := strings.LastIndexByte(s, '@'); at >= 0 {
		user, secret, _ := strings.Cut(s[:at], "%")
		u.User, u.Secret = user, []byte(secret)
		s = s[at+1:]
	}
	host, port := strings.TrimSuffix(strings.TrimPrefix(s, "["), "]"), defaultPort
	if h, p, err := net.SplitHostPort(s); err == nil {
		host, port = h, p
	}
	if n, err := strconv.Atoi(port); host == "" || err != nil || n < 1 || n > 65535 {
		return fmt.Errorf("%q is no host:port", clip(s))
	}
	u.Address = net.JoinHostPort(host, port)
	return nil
}

func (u *URL) query(s string) error {
	q, err := url.ParseQuery(s)
	if err != nil {
		return errors.New("what follows the ? of the URL is no list of key=value")
	}
	for key, values := range q {
		v := values[len(values)-1]
		switch {
		case key == "device" && u.Scheme == Verbs:
			u.Device = v
		case key == "socket" && u.Scheme == Local && v != "":
			u.Socket = v
		default:
			return fmt.Errorf("a URL that begins with %v:// has no key %q", u.Scheme, clip(key))
		}
	}
	return nil
}

// String returns the URL without the secret.
func (u URL) String() string {
	s := u.Scheme.String() + "://"
	if u.User != "" {
		s += u.User + "@"
	}
	s += u.Address + "/" + u.Name
	switch {
	case u.Device != "":
		s += "?" + url.Values{"device": {u.Device}}.Encode()
	case u.Socket != "":
		s += "?" + url.Values{"socket": {u.Socket}}.Encode()
	}
	return s
}

func clip(s string) string { return s[:min(len(s), 64)] }
