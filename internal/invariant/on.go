//go:build invariants

package invariant

// Enabled says whether this build checks its invariants.
const Enabled = true
