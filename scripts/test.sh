#!/bin/bash
# Runs every test, from the quickest to the slowest, goes on after a failure,
# and ends with status 1 if any step failed. `make test` installs first what
# the tests need.
set -uo pipefail
cd "$(dirname "$0")/.."
go=${GO:-go}

# The packages under test/ that talk to foreign programs get steps of their own.
outside='/test/(conformance|wire|qemu|vm)(/|$)'
mapfile -t unit < <("$go" list ./... | grep -Ev "$outside")
[ ${#unit[@]} -gt 0 ] || { echo "test.sh: go list finds no packages" >&2; exit 1; }

failed=()
step() { # title command...
	local title=$1 begin=$SECONDS
	shift
	echo "== $title"
	"$@" </dev/null || failed+=("$title")
	echo "== $title: $((SECONDS - begin)) s"
}

# Plain runs of fuzz targets replay the committed corpora.
step "unit tests, race detector" "$go" test -race -shuffle=on "${unit[@]}"
step "unit tests, one processor" "$go" test -count=1 -shuffle=on -exec "env GOMAXPROCS=1" "${unit[@]}"
step "unit tests, invariants" "$go" test -tags invariants -shuffle=on "${unit[@]}"
step "conformance, daemon with race detector and invariants" \
	env ONESHOT_TARGET_RACE=1 ONESHOT_TARGET_TAGS=invariants "$go" test -count=1 -timeout 15m ./test/conformance
step "captures decoded by tshark" "$go" test -count=1 ./test/wire
step "QEMU's initiator and libiscsi's tools" "$go" test -count=1 ./test/qemu
step "virtual machines" "$go" test -count=1 -timeout 20m ./test/vm/...

echo "== all: $SECONDS s"
if [ ${#failed[@]} -gt 0 ]; then
	printf 'FAILED: %s\n' "${failed[@]}"
	exit 1
fi
