package config

import (
	"errors"
	"fmt"
	"math/big"
	"strconv"
	"strings"
	"time"
)

// The methods below read one key of an object into dst, and report whether they
// set it. If the key is not given, dst keeps its default. If the value is wrong,
// they note a problem, and dst keeps its default as well.

func (o *object) text(key string, dst *string) bool {
	return set(o.take(key), dst, "a text", func(s string) (string, error) { return s, nil })
}

func (o *object) bool(key string, dst *bool) {
	set(o.take(key), dst, "true or false", parseBool)
}

func (o *object) size(key string, dst *int64) bool {
	return set(o.take(key), dst, "a size such as 64MiB", ParseSize)
}

func (o *object) duration(key string, dst *time.Duration) bool {
	return set(o.take(key), dst, "a duration such as 5s", parseDuration)
}

// set parses the text of v into dst.
func set[T any](v value, dst *T, want string, parse func(string) (T, error)) bool {
	if !v.given() {
		return false
	}
	text, ok := scalarText(v.node)
	if !ok {
		v.errorf("%s: write %s, not %s", v.key, want, kind(v.node))
		return false
	}
	parsed, err := parse(text)
	if err != nil {
		v.errorf("%s: %v", v.key, err)
		return false
	}
	*dst = parsed
	return true
}

// oneOf returns a parser for a word out of names.
func oneOf[T ~string](names ...T) func(string) (T, error) {
	return func(text string) (T, error) {
		for _, name := range names {
			if text == string(name) {
				return name, nil
			}
		}
		words := make([]string, len(names))
		for i, name := range names {
			words[i] = string(name)
		}
		return "", fmt.Errorf("%q is not known: %s", text, choices(text, words))
	}
}

func parseBool(text string) (bool, error) {
	switch text {
	case "true":
		return true, nil
	case "false":
		return false, nil
	}
	return false, fmt.Errorf("%q is neither true nor false: write one of the two", text)
}

func parseInteger(text string) (int, error) {
	n, err := strconv.ParseInt(text, 10, 32)
	if err != nil {
		return 0, fmt.Errorf("%q is not a whole number that fits: write decimal digits", text)
	}
	return int(n), nil
}

func parseDuration(text string) (time.Duration, error) {
	t, err := time.ParseDuration(text)
	switch {
	case err != nil:
		return 0, fmt.Errorf("%q is not a duration: write a number and a unit, such as 500ms, 5s or 2m", text)
	case t < 0:
		return 0, fmt.Errorf("%s is negative: a duration is 0 or more", text)
	}
	return t, nil
}

// units lists the units of sizes, each with its number of bytes.
var units = []struct {
	name  string
	bytes int64
}{
	{"", 1},
	{"B", 1},
	{"kB", 1e3},
	{"MB", 1e6},
	{"GB", 1e9},
	{"TB", 1e12},
	{"PB", 1e15},
	{"KiB", 1 << 10},
	{"MiB", 1 << 20},
	{"GiB", 1 << 30},
	{"TiB", 1 << 40},
	{"PiB", 1 << 50},
}

// maxDigits is the longest number in a size. It is enough for any size in bytes.
const maxDigits = 24

// ParseSize reads a size in bytes: a number, which may have a decimal point, and
// a unit, powers of ten (kB, MB, GB, TB, PB) or of two (KiB, MiB, GiB, TiB,
// PiB). Without unit it counts bytes. "64MiB", "1.5 TB" and "512" are sizes.
func ParseSize(text string) (int64, error) {
	digits := strings.TrimRight(text, "BKMGTPEkmgtpebiI ")
	bytes, err := unitBytes(text, strings.TrimSpace(text[len(digits):]))
	if err != nil {
		return 0, err
	}
	if digits == "" || len(digits) > maxDigits || strings.Trim(digits, "0123456789.") != "" {
		return 0, notASize(text)
	}
	n, ok := new(big.Rat).SetString(digits)
	if !ok {
		return 0, notASize(text)
	}
	n.Mul(n, new(big.Rat).SetInt64(bytes))
	switch {
	case !n.IsInt():
		return 0, fmt.Errorf("%q is not a whole number of bytes: write a smaller unit", text)
	case !n.Num().IsInt64():
		return 0, fmt.Errorf("%q is more than 8EiB, which no store can be", text)
	}
	return n.Num().Int64(), nil
}

func notASize(text string) error {
	return fmt.Errorf("%q is not a size: write a number and a unit, such as 512, 64MiB or 10GB", text)
}

func unitBytes(text, unit string) (int64, error) {
	for _, u := range units {
		if u.name == unit {
			return u.bytes, nil
		}
	}
	for _, u := range units {
		if strings.EqualFold(u.name, unit) {
			return 0, fmt.Errorf("%q has the unit %s, which is written %s", text, unit, u.name)
		}
	}
	if len(unit) == 1 && strings.Contains("kKmMgGtTpP", unit) {
		binary := strings.ToUpper(unit) + "iB"
		decimal := strings.Replace(strings.ToUpper(unit), "K", "k", 1) + "B"
		return 0, fmt.Errorf("%q has the unit %s, which could be %s or %s: write one of them", text, unit, binary, decimal)
	}
	return 0, notASize(text)
}

// FormatSize returns n bytes in the largest unit that needs no fraction, as
// ParseSize reads it.
func FormatSize(n int64) string {
	best := units[1]
	for _, u := range units[2:] {
		if n != 0 && n%u.bytes == 0 && u.bytes > best.bytes {
			best = u
		}
	}
	return strconv.FormatInt(n/best.bytes, 10) + best.name
}

// within returns parse with bounds, inclusive.
func within(parse func(string) (int, error), low, high int) func(string) (int, error) {
	return func(text string) (int, error) {
		n, err := parse(text)
		if err == nil && (n < low || n > high) {
			err = fmt.Errorf("%d is out of range: write a number from %d to %d", n, low, high)
		}
		return n, err
	}
}

// printableASCII checks a field of INQUIRY data (SPC-4 §4.3.1: left-aligned
// ASCII, 20h to 7Eh) of at most limit bytes.
func printableASCII(limit int) func(string) (string, error) {
	return func(text string) (string, error) {
		switch {
		case text == "":
			return "", errors.New("the text is empty: give it some characters, or remove the key")
		case len(text) > limit:
			return "", fmt.Errorf("%q has %d bytes: the field has room for %d", text, len(text), limit)
		}
		for _, r := range text {
			if r < ' ' || r > '~' {
				return "", fmt.Errorf("%q holds %q: only printable ASCII characters can be sent", text, r)
			}
		}
		return text, nil
	}
}
