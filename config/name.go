package config

import (
	"errors"
	"fmt"
	"strings"
)

// maxNameBytes is the length of an iSCSI name, RFC 7143 §4.2.7.1.
const maxNameBytes = 223

// ParseName checks an iSCSI name (RFC 7143 §4.2.7) and returns it normalised:
// in lower case, as the stringprep profile of RFC 3722 has it. Of the characters
// that the profile leaves, those of ASCII are accepted: letters, digits, dash,
// dot and colon.
func ParseName(text string) (string, error) { return parseName(text, notNameRune) }

func parseName(text string, prohibited func(rune) bool) (string, error) {
	name := NormalizeName(text)
	if len(name) > maxNameBytes {
		return "", fmt.Errorf("the name has %d bytes: RFC 7143 §4.2.7.1 allows %d", len(name), maxNameBytes)
	}
	if i := strings.IndexFunc(name, prohibited); i >= 0 {
		return "", fmt.Errorf("%q holds %q: an iSCSI name is made of a-z, 0-9, dash, dot and colon (RFC 7143 §4.2.7.2)", text, []rune(name[i:])[0])
	}
	format, rest, _ := strings.Cut(name, ".")
	var err error
	switch format {
	case "iqn":
		err = checkIQN(rest)
	case "eui":
		err = checkHex(rest, 16)
	case "naa":
		err = checkHex(rest, 16, 32)
	default:
		err = errors.New("an iSCSI name begins with iqn., eui. or naa., as in iqn.2026-11.com.example:disk")
	}
	if err != nil {
		return "", fmt.Errorf("%q is not an iSCSI name: %w", text, err)
	}
	return name, nil
}

// NormalizeName returns name as it is compared: in lower case. It does not
// check it.
func NormalizeName(name string) string { return strings.ToLower(name) }

func notNameRune(r rune) bool {
	return !(r >= 'a' && r <= 'z' || r >= '0' && r <= '9' || r == '-' || r == '.' || r == ':')
}

// notInitiatorRune lets the underscore pass. RFC 3722 prohibits it, but so many initiators have one in their name that logins let it
// pass, and who may log in has to be named.
func notInitiatorRune(r rune) bool { return r != '_' && notNameRune(r) }

// checkIQN checks what follows "iqn." (RFC 7143 §4.2.7.4): yyyy-mm, a reversed
// domain name and, after a colon, a text that the owner of the domain chooses.
func checkIQN(rest string) error {
	date, authority, dotted := strings.Cut(rest, ".")
	if len(date) != len("yyyy-mm") || date[4] != '-' || !isDigits(date[:4]) || date[5:] < "01" || date[5:] > "12" || !isDigits(date[5:]) {
		return errors.New("after iqn. comes the year and month in which you owned the domain, as in iqn.2026-11.com.example:disk")
	}
	domain, unique, colon := strings.Cut(authority, ":")
	if !dotted || domain == "" {
		return errors.New("after the month comes a dot and your reversed domain, as in iqn.2026-11.com.example:disk")
	}
	for label := range strings.SplitSeq(domain, ".") {
		if label == "" || label[0] == '-' || label[len(label)-1] == '-' {
			return fmt.Errorf("%q is not a reversed domain such as com.example", domain)
		}
	}
	if colon && unique == "" {
		return errors.New("nothing follows the colon: add a word, or remove the colon")
	}
	return nil
}

func isDigits(s string) bool { return strings.Trim(s, "0123456789") == "" }

// checkHex checks what follows "eui." and "naa.": RFC 7143 §4.2.7.5 and §4.2.7.6.
func checkHex(rest string, lengths ...int) error {
	right := false
	for _, n := range lengths {
		right = right || len(rest) == n
	}
	if !right || strings.Trim(rest, "0123456789abcdef") != "" {
		return fmt.Errorf("after the dot come %s hexadecimal digits, but %q follows", joinInts(lengths, " or "), rest)
	}
	return nil
}

func joinInts[T int | uint16](numbers []T, sep string) string {
	words := make([]string, len(numbers))
	for i, n := range numbers {
		words[i] = fmt.Sprint(n)
	}
	return strings.Join(words, sep)
}

// NamePattern stands for the initiator names that match it. An asterisk matches
// any characters, dots and colons included, or none; every other character
// matches itself. The pattern has to match the whole name. Upper and lower case
// are the same, as in iSCSI names.
type NamePattern string

// Match reports whether the initiator name matches. At worst it takes time
// proportional to the product of the lengths. It allocates nothing if name is in
// lower case.
func (p NamePattern) Match(name string) bool {
	return glob(string(p), NormalizeName(name))
}

// glob reports whether name matches pattern, in which an asterisk stands for any characters.
func glob(pattern, name string) bool {
	rest := name
	retry, retryRest := -1, "" // the pattern after the last asterisk, and the part of name that the asterisk has not matched
	for i := 0; ; {
		switch {
		case i < len(pattern) && pattern[i] == '*':
			retry, retryRest = i+1, rest
			i++
		case i < len(pattern) && rest != "" && pattern[i] == rest[0]:
			i, rest = i+1, rest[1:]
		case i == len(pattern) && rest == "":
			return true
		case retry >= 0 && retryRest != "":
			retryRest = retryRest[1:]
			i, rest = retry, retryRest
		default:
			return false
		}
	}
}

// parsePattern checks that a pattern can match an iSCSI name.
func parsePattern(text string) (NamePattern, error) {
	before, _, wild := strings.Cut(text, "*")
	if !wild {
		name, err := parseName(text, notInitiatorRune)
		return NamePattern(name), err
	}
	pattern := NormalizeName(text)
	if len(pattern) > maxNameBytes {
		return "", fmt.Errorf("the pattern has %d bytes: names have at most %d", len(pattern), maxNameBytes)
	}
	if i := strings.IndexFunc(strings.ReplaceAll(pattern, "*", ""), notInitiatorRune); i >= 0 {
		return "", fmt.Errorf("%q matches no name: besides *, which stands for anything, only a-z, 0-9, dash, dot, colon and underscore occur in one", text)
	}
	before = NormalizeName(before)
	for _, format := range []string{"iqn.", "eui.", "naa."} {
		if strings.HasPrefix(format, before) || strings.HasPrefix(before, format) {
			return NamePattern(pattern), nil
		}
	}
	return "", fmt.Errorf("%q matches no name: a name begins with iqn., eui. or naa., as in \"iqn.2026-11.example:*\"", text)
}
