#!/bin/bash
# Installs those of the named Debian packages that are missing, as root or
# with sudo, and prints what it does. It does not start services of the packages,
# for example another target on port 3260.
#
#   deps.sh [-a PACKAGE] PACKAGE...
#
#   -a PACKAGE    apt-get has to know this package, because a test downloads it later
set -euo pipefail

available=
if [ "$1" = -a ]; then
	available=$2
	shift 2
fi

missing=()
for p in "$@"; do
	[ "$(dpkg-query -W -f '${db:Status-Status}' "$p" 2>/dev/null)" = installed ] || missing+=("$p")
done
known() { apt-cache show "$@" >/dev/null 2>&1; }
if [ ${#missing[@]} -eq 0 ] && { [ -z "$available" ] || known "$available"; }; then
	exit 0
fi

as_root=()
if [ "$(id -u)" -ne 0 ]; then
	command -v sudo >/dev/null || {
		echo "deps.sh: apt-get is needed (${missing[*]:-update}), but this is not root and there is no sudo" >&2
		exit 1
	}
	as_root=(sudo)
fi
say() { echo "deps.sh: $*"; "$@"; }
apt() { say "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -qq -o Dpkg::Use-Pty=0 "$@" </dev/null; }

# invoke-rc.d asks this file whether it may start a service (Debian Policy 9.3.3.1).
policy=/usr/sbin/policy-rc.d
if [ ! -e $policy ]; then
	printf '#!/bin/sh\nexit 101\n' | "${as_root[@]}" install -m 755 /dev/stdin $policy
	trap '"${as_root[@]}" rm -f $policy' EXIT
fi

# Package lists may be absent, or so old that the files they name are gone.
install() { [ ${#missing[@]} -eq 0 ] || apt install -y --no-install-recommends "${missing[@]}"; }
if ! known ${available:+"$available"} "${missing[@]}" || ! install; then
	apt update
	install
fi
