#!/bin/bash
# Runs every fuzz target of the module, one after the other.
#
#   fuzz.sh [TIME]     how long each, as go test's -fuzztime takes it (30s)
set -uo pipefail
cd "$(dirname "$0")/.."
go=${GO:-go}
status=0
for pkg in $("$go" list ./...); do
	list=$("$go" test -list '^Fuzz' "$pkg") || status=1
	for target in $(grep '^Fuzz' <<<"$list"); do
		"$go" test -run '^$' -fuzz "^$target\$" -fuzztime "${1:-30s}" "$pkg" || status=1
	done
done
exit $status
