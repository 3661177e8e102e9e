#!/bin/bash
# Says which version the sources are, for packages and for what the linker builds in: 0.1.0~git, the date and
# the name of the commit. Changes that are in no commit do not count.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
base=$(cat "$here/../internal/version/VERSION")
commit=$(git -C "$here" log -1 --format=%cd.%h --date=format:%Y%m%d%H%M 2>/dev/null || true)
echo "$base${commit:+~git$commit}"
