package text

import (
	"errors"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// MaxName is the longest iSCSI name, in bytes (RFC 7143 §4.2.7.1).
const MaxName = 223

// Name checks a name that a peer sends and returns it as names are compared, in lower case (RFC 7143
// §4.2.7). Its form is checked, and that it has no character that RFC 3722 §6 prohibits: a comma,
// for example, separates a name from what follows it in the names of SCSI ports. What is not checked
// is what other targets leave to the initiator, too: whether there is a month and a domain after
// "iqn.". The underscore is prohibited, but so many names have one that it is let pass.
func Name(s string) (string, error) {
	name := strings.ToLower(s)
	format, rest, _ := strings.Cut(name, ".")
	var err error
	switch {
	case len(name) > MaxName:
		err = fmt.Errorf("it has %d bytes, and %d are allowed", len(name), MaxName)
	case format == "eui":
		err = checkDigits(rest, 16, 16)
	case format == "naa":
		err = checkDigits(rest, 16, 32)
	case format != "iqn":
		err = errors.New("it begins with none of iqn., eui. and naa., as names do")
	case rest == "":
		err = errors.New("nothing follows iqn")
	case !utf8.ValidString(rest):
		err = errors.New("it is not valid UTF-8")
	default:
		if i := strings.IndexFunc(rest, notInNames); i >= 0 {
			r, _ := utf8.DecodeRuneInString(rest[i:])
			err = fmt.Errorf("%q does not occur in names", r)
		}
	}
	if err != nil {
		return "", fmt.Errorf("%.80q is no iSCSI name: %w", s, err)
	}
	return name, nil
}

// notInNames reports whether a character of lower case is not allowed in a name. Of those beyond
// ASCII letters, digits and marks are.
func notInNames(r rune) bool {
	switch {
	case r >= 'a' && r <= 'z', r >= '0' && r <= '9', strings.ContainsRune("-.:_", r):
		return false
	}
	return r < utf8.RuneSelf || !unicode.In(r, unicode.L, unicode.N, unicode.M)
}

// checkDigits checks for n or m hexadecimal digits (RFC 7143 §4.2.7.5, §4.2.7.6).
func checkDigits(s string, n, m int) error {
	if len(s) != n && len(s) != m || strings.Trim(s, "0123456789abcdef") != "" {
		return fmt.Errorf("after the dot come %d or %d hexadecimal digits", n, m)
	}
	return nil
}

// IsName reports whether s is an iSCSI name.
func IsName(s string) bool {
	_, err := Name(s)
	return err == nil
}
