#!/bin/bash
# Downloads the Go that go.mod names, for machines whose distribution has an older one:
#
#   scripts/get-go.sh [DIRECTORY]      default: .cache/go, which git ignores
#
# It comes from Go's module proxy, as it does for `go` itself where GOTOOLCHAIN=auto has a
# newer one fetched. Needs curl and unzip; a directory that has this version is left alone.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
dir=${1:-$root/.cache/go}

version=go$(awk '$1 == "go" { print $2; exit }' "$root/go.mod")
case $(uname -m) in
	x86_64) arch=amd64 ;;
	aarch64) arch=arm64 ;;
	*) echo "get-go.sh: there is no Go for $(uname -m) here; see https://go.dev/dl/" >&2; exit 1 ;;
esac
proxy=${GOPROXY:-https://proxy.golang.org}
proxy=${proxy%%[,|]*}

if [ "$(head -n 1 "$dir/VERSION" 2>/dev/null)" != "$version" ]; then
	for tool in curl unzip; do
		command -v $tool >/dev/null || { echo "get-go.sh: install $tool first: apt install curl unzip" >&2; exit 1; }
	done
	[ ! -e "$dir" ] || { echo "get-go.sh: $dir is there and is not $version: remove it, or name another directory" >&2; exit 1; }
	mkdir -p "$(dirname "$dir")"
	tmp=$(mktemp -d "$(dirname "$dir")/get-go.XXXXXX")
	trap 'rm -rf "$tmp"' EXIT
	module=toolchain@v0.0.1-$version.linux-$arch
	curl -fL --progress-bar -o "$tmp/go.zip" "$proxy/golang.org/toolchain/@v/v0.0.1-$version.linux-$arch.zip"
	unzip -q "$tmp/go.zip" -d "$tmp"
	chmod -R u+w "$tmp/golang.org/$module"
	chmod +x "$tmp/golang.org/$module"/bin/* "$tmp/golang.org/$module"/pkg/tool/*/*
	mv "$tmp/golang.org/$module" "$dir"
fi
echo "$version is in $dir. For this shell:"
echo "  export PATH=$dir/bin:\$PATH"
