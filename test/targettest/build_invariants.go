//go:build invariants

package targettest

const invariantsEnabled = true
