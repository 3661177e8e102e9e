package initiator

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"
)

// Transport is how PDUs travel.
type Transport uint8

const (
	TCP       Transport = iota // iscsi://
	ISER                       // iser+iwarp://: iSER over iWARP in user space
	OneShot                    // oneshot+iwarp://: iSCSI PDUs unmodified over one-shot RDMA
	ISERVerbs                  // iser+verbs://: iSER over a device of the kernel's
)

var schemes = [...]struct{ name, port string }{
	TCP: {"iscsi", "3260"}, ISER: {"iser+iwarp", "3261"}, OneShot: {"oneshot+iwarp", "3261"}, ISERVerbs: {"iser+verbs", "3260"},
}

// String returns the scheme of URLs.
func (t Transport) String() string { return schemes[t].name }

// URL says what to connect with, in the form that libiscsi and QEMU use:
//
//	iscsi://[user[%secret]@]host[:port]/[iqn[/lun]][?key=value[&…]]
//
// The scheme may also be iser+iwarp, oneshot+iwarp or iser+verbs. The port is 3260 if none is
// given, over iWARP 3261. Keys are header_digest and data_digest (none or crc32c), target_user and
// target_password (the target is to prove that it knows the secret), and device (for iser+verbs).
type URL struct {
	Transport    Transport
	Address      string // host:port
	CHAP, Mutual *Credentials
	Target       string // iSCSI name; empty: none named
	LUN          int    // -1: none named
	HeaderDigest bool   // CRC32C
	DataDigest   bool   // CRC32C
	Device       string // of the kernel's RDMA devices, for ISERVerbs; empty: the only one
}

// PartitionError says that a URL names a partition, which is no LUN: package endpoint opens those.
type PartitionError struct{ Name string }

func (e *PartitionError) Error() string {
	return fmt.Sprintf("%q names a partition, not a LUN: a LUN is a target's name, which begins with iqn., eui. or naa., and a number", e.Name)
}

// ParseURL reads a URL. Errors do not repeat secrets.
func ParseURL(s string) (URL, error) {
	u := URL{LUN: -1}
	scheme, rest, ok := strings.Cut(s, "://")
	i := slices.IndexFunc(schemes[:], func(x struct{ name, port string }) bool { return x.name == scheme })
	if !ok || i < 0 {
		const want = "a URL of iSCSI begins with iscsi://, iser+iwarp://, oneshot+iwarp:// or iser+verbs://"
		if !ok || !isWord(scheme) {
			return u, errors.New(want) // the rest may have a secret in it
		}
		return u, fmt.Errorf("%s, not with %s://", want, scheme)
	}
	u.Transport = Transport(i)
	rest, query, _ := strings.Cut(rest, "?")
	authority, path, _ := strings.Cut(rest, "/")
	if at := strings.LastIndexByte(authority, '@'); at >= 0 {
		// Unlike other URLs, user and secret are divided by a percent sign.
		user, secret, _ := strings.Cut(authority[:at], "%")
		u.CHAP = &Credentials{Name: user, Secret: []byte(secret)}
		authority = authority[at+1:]
	}
	if strings.Contains(path, "@") || hasSecret(authority) {
		return u, errors.New("user and secret of the URL end at an @, and must not have / or ? in them: set LIBISCSI_CHAP_USERNAME and LIBISCSI_CHAP_PASSWORD")
	}
	var err error
	if u.Address, err = address(authority, schemes[i].port); err != nil {
		return u, err
	}
	if err := u.path(path); err != nil {
		return u, err
	}
	if err := u.query(query); err != nil {
		return u, err
	}
	if u.Device != "" && u.Transport != ISERVerbs {
		return u, fmt.Errorf("device is for iser+verbs://; the URL says %v", u.Transport)
	}
	return u, nil
}

// hasSecret reports whether s, which stands where host:port should, is the beginning of user%secret@. A % is also in the address of
// a link: fe80::1%eth0.
func hasSecret(s string) bool {
	before, _, has := strings.Cut(s, "%")
	return has && !strings.Contains(before, ":")
}

// isWord reports whether s is made as schemes and keys are.
func isWord(s string) bool { return strings.Trim(s, "abcdefghijklmnopqrstuvwxyz0123456789+_-") == "" }

func address(s, port string) (string, error) {
	host := strings.TrimSuffix(strings.TrimPrefix(s, "["), "]")
	if h, p, err := net.SplitHostPort(s); err == nil {
		host, port = h, p
	}
	if n, err := strconv.Atoi(port); host == "" || err != nil || n < 1 || n > 65535 {
		return "", fmt.Errorf("%q is no host:port", s)
	}
	return net.JoinHostPort(host, port), nil
}

func (u *URL) path(path string) error {
	if path == "" {
		return nil
	}
	name, lun, hasLUN := strings.Cut(path, "/")
	u.Target = name
	switch {
	case name == "":
		return errors.New("the URL has no target name in front of the LUN")
	case !hasLUN || lun == "":
		return nil
	case u.Transport == OneShot && !strings.HasPrefix(name, "iqn.") && !strings.HasPrefix(name, "eui.") && !strings.HasPrefix(name, "naa."):
		return &PartitionError{clip(path)}
	}
	n, err := strconv.Atoi(lun)
	if err != nil || n < 0 || n > maxLUN {
		return fmt.Errorf("LUN %q is no number from 0 to %d", clip(lun), maxLUN)
	}
	u.LUN = n
	return nil
}

func (u *URL) query(query string) error {
	q, err := url.ParseQuery(query)
	if err != nil {
		return errors.New("what follows the ? of the URL is no list of key=value with & between them; %, & and ; in a value are written %25, %26 and %3B")
	}
	for key, values := range q {
		v := values[len(values)-1]
		switch key {
		case "header_digest", "data_digest":
			on := strings.EqualFold(v, "crc32c")
			if !on && !strings.EqualFold(v, "none") {
				return fmt.Errorf("%s is none or crc32c, not %q", key, clip(v))
			}
			if key == "header_digest" {
				u.HeaderDigest = on
			} else {
				u.DataDigest = on
			}
		case "device":
			u.Device = v
		case "target_user":
			u.mutual().Name = v
		case "target_password":
			u.mutual().Secret = []byte(v)
		default:
			unknown := "an unknown key"
			if _, secret := q["target_password"]; !secret && isWord(key) { // what is behind an & may be the rest of a secret
				unknown += " " + strconv.Quote(clip(key))
			}
			return fmt.Errorf("the URL has %s; there are header_digest, data_digest, target_user, target_password, device", unknown)
		}
	}
	return nil
}

func (u *URL) mutual() *Credentials {
	if u.Mutual == nil {
		u.Mutual = new(Credentials)
	}
	return u.Mutual
}

// String returns the URL without secrets.
func (u URL) String() string {
	s := u.Transport.String() + "://"
	if u.CHAP != nil {
		s += u.CHAP.Name + "@"
	}
	s += u.Address
	if u.Target != "" {
		s += "/" + u.Target
		if u.LUN >= 0 {
			s += "/" + strconv.Itoa(u.LUN)
		}
	}
	return s
}

func clip(s string) string { return s[:min(len(s), 64)] }
