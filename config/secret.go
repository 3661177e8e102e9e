package config

import (
	"io/fs"
	"log/slog"
	"os"
	"strings"
	"unicode/utf8"
)

// minSecretBytes is 96 bits. For a shorter CHAP secret RFC 7143 §9.2.1 demands IPsec
// under the connection, and the daemon cannot know whether there is any.
const minSecretBytes = 12

// maxSecretBytes is the length of the longest secret, and so bounds what is read from the file of a secret.
const maxSecretBytes = 255

// Secret is a secret of CHAP or DH-HMAC-CHAP. It prints, logs and marshals as a placeholder.
type Secret struct{ text string }

// NewSecret returns text as a Secret, unchecked.
func NewSecret(text string) Secret { return Secret{text} }

// Bytes returns the secret itself, in a slice that the caller owns.
func (s Secret) Bytes() []byte { return []byte(s.text) }

const redacted = "(secret)"

// String returns a placeholder.
func (s Secret) String() string { return redacted }

// GoString returns a placeholder, for %#v.
func (s Secret) GoString() string { return redacted }

// LogValue returns a placeholder.
func (s Secret) LogValue() slog.Value { return slog.StringValue(redacted) }

// MarshalText returns a placeholder.
func (s Secret) MarshalText() ([]byte, error) { return []byte(redacted), nil }

// secretReader reads the files and environment variables that hold secrets.
type secretReader interface {
	file(path string) (data []byte, mode fs.FileMode, err error)
	env(name string) (text string, found bool)
}

type osSecrets struct{}

func (osSecrets) file(path string) ([]byte, fs.FileMode, error) {
	return readRegular(path, maxSecretBytes+2) // and a line end
}

func (osSecrets) env(name string) (string, bool) { return os.LookupEnv(name) }

// secret reads the secret of CHAP. Its messages never show any part of it.
func (d *decoder) secret(v value) (Secret, bool) {
	text, ok := d.secretText(v)
	if !ok {
		return Secret{}, false
	}
	return d.checkSecret(v, text)
}

// secretText reads a secret: a text in the configuration, or the content of a file or environment variable that it names.
func (d *decoder) secretText(v value) (string, bool) {
	if !v.given() {
		return "", false
	}
	text, ok := scalarText(v.node)
	if !ok {
		return d.secretElsewhere(v)
	}
	if d.inlineSecret.Line == 0 {
		d.inlineSecret = v.pos()
	}
	return text, true
}

func (d *decoder) checkSecret(v value, text string) (Secret, bool) {
	switch {
	case len(text) < minSecretBytes:
		v.errorf("the secret has %d bytes: use at least %d, for a shorter CHAP secret can be guessed from a recorded login (RFC 7143 §9.2.1 demands 96 bits)", len(text), minSecretBytes)
	case len(text) > maxSecretBytes:
		v.errorf("the secret has %d bytes: initiators take at most %d", len(text), maxSecretBytes)
	case !utf8.ValidString(text) || strings.ContainsAny(text, "\x00\r\n"):
		v.errorf("the secret holds a line break or bytes that are not text: nobody could type it at the initiator")
	default:
		return Secret{text}, true
	}
	return Secret{}, false
}

const secretForms = "a secret is a text, {file: PATH} or {env: NAME}: write one of these"

func (d *decoder) secretElsewhere(v value) (string, bool) {
	if _, ok := mappingEntries(v.node); !ok {
		v.errorf("%s", secretForms)
		return "", false
	}
	o := d.object(v.node, "a secret")
	var path, name string
	hasPath, hasName := o.text("file", &path), o.text("env", &name)
	known := len(o.fields)
	o.done()
	switch {
	case known != 1:
		v.errorf("%s", secretForms)
	case hasPath:
		return d.secretFile(v, resolvePath(d.src.file, path))
	case hasName:
		return d.secretEnv(v, name)
	}
	return "", false
}

func (d *decoder) secretFile(v value, path string) (string, bool) {
	data, mode, err := d.secrets.file(path)
	if err != nil {
		v.errorf("cannot read the secret: %s", oneLine(err))
		return "", false
	}
	if mode.Perm()&0o004 != 0 {
		d.warnf(v.pos(), "every user of this machine can read the secret in %s: chmod o-r it", path)
	}
	text := strings.TrimSuffix(string(data), "\n")
	return strings.TrimSuffix(text, "\r"), true
}

func (d *decoder) secretEnv(v value, name string) (string, bool) {
	text, found := d.secrets.env(name)
	if !found {
		v.errorf("the environment variable %s, which should hold the secret, is not set: set it for the daemon", name)
	}
	return text, found
}
