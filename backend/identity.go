package backend

import (
	"slices"
	"strings"
)

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

// Identifier is a store that knows its identity.
type Identifier interface {
	Store
	// Identities returns the identity of the store, and after it those that it has with an older kernel, so that what was kept under one of them is
	// found. They do not change while it is open. It returns none if the store has no identity.
	Identities() []Identity
}

// IdentitiesOf returns the identity of s, and after it those that it has with an older kernel. A store in memory has none.
func IdentitiesOf(s Store) []Identity {
	if i, ok := As[Identifier](s); ok {
		return i.Identities()
	}
	return nil
}

// IdentityOf returns the identity of s, or the empty one of a store that has none: one in memory
// is known only by itself.
func IdentityOf(s Store) Identity {
	if ids := IdentitiesOf(s); len(ids) > 0 {
		return ids[0]
	}
	return ""
}

// Is reports whether s is the store of that identity, which was kept, perhaps with an older kernel.
func Is(s Store, kept Identity) bool { return slices.Contains(IdentitiesOf(s), kept) }
