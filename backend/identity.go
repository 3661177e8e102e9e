package backend

import "strings"

// Identity names the bytes of a store, whatever the store is called and by whichever path it was
// opened: two open stores with one identity show the same bytes. It is made of what outlives a
// restart of the machine where the medium has such a thing, and is printable text without spaces.
// The empty one says nothing.
type Identity string

const passing = "passing-"

// Passing is an identity that is good until the medium goes or the machine restarts. After that it may
// name other bytes.
func Passing(id string) Identity { return Identity(passing + id) }

// Lasts reports whether the identity outlives that, so that something can be kept under its name.
func (i Identity) Lasts() bool { return i != "" && !strings.HasPrefix(string(i), passing) }

// Identifier is a store that knows its identity, which does not change while it is open.
type Identifier interface {
	Store
	Identity() Identity
}

// IdentityOf returns the identity of s, or the empty one of a store that has none: one in memory
// is known only by itself.
func IdentityOf(s Store) Identity {
	if i, ok := As[Identifier](s); ok {
		return i.Identity()
	}
	return ""
}
