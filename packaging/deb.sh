#!/bin/bash
# Builds the Debian package: deb.sh [-v VERSION] TARGET INITIATOR DIRECTORY writes
# DIRECTORY/oneshot_VERSION_ARCH.deb around the built programs, which it installs as oneshot and
# oneshot-initiator. The same commit gives the same bytes.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
version=
if [ "$1" = -v ]; then
	version=$2
	shift 2
fi
target=$1 initiator=$2 out=$3

commit() { git -C "$here" log -1 --format="$1" 2>/dev/null || echo "$2"; }
: "${version:=$("$here/version.sh")}"
export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(commit %ct 0)}
arch=$(dpkg --print-architecture)

tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT
chmod 755 "$tree"
put() { install -D -m "$1" "$2" "$tree/$3"; }

put 755 "$target" usr/bin/oneshot
put 755 "$initiator" usr/bin/oneshot-initiator
docs=$tree/.docs
mkdir "$docs"
"$tree/usr/bin/oneshot" docs "$docs" # the pages name the program as it is called here
"$tree/usr/bin/oneshot-initiator" docs "$docs"

put 644 "$here/oneshot.service" lib/systemd/system/oneshot.service
put 644 "$here/oneshot-keeper.service" lib/systemd/system/oneshot-keeper.service
put 644 "$here/oneshot-attach@.service" "lib/systemd/system/oneshot-attach@.service"
install -d -m 750 "$tree/etc/oneshot/attach" # its files have secrets
put 640 "$here/target.yaml" etc/oneshot/target.yaml
for page in "$docs"/*.1; do
	gzip -9n "$page"
	put 644 "$page.gz" "usr/share/man/man1/$(basename "$page").gz"
done
for name in oneshot oneshot-initiator; do
	put 644 "$docs/$name.bash" "usr/share/bash-completion/completions/$name"
	put 644 "$docs/_$name" "usr/share/zsh/vendor-completions/_$name"
	put 644 "$docs/$name.fish" "usr/share/fish/vendor_completions.d/$name.fish"
done
for example in "$here"/../configs/*.yaml; do
	put 644 "$example" "usr/share/doc/oneshot/examples/$(basename "$example")"
done
# The pages keep their places, so that links among them work; those to sources lead nowhere.
(cd "$here/.." && find README.md ARCHITECTURE.md CONTRIBUTING.md mgmt/API.md bench/results docs docs/examples/log/main.go -name '*.md' -o -name '*.svg' -o -name main.go) | sort -u | while read -r page; do
	put 644 "$here/../$page" "usr/share/doc/oneshot/$page"
done
ln -s examples "$tree/usr/share/doc/oneshot/configs"
put 755 "$here/../scripts/soft-roce.sh" usr/share/doc/oneshot/scripts/soft-roce.sh # docs/rdma.md runs it from there
put 644 "$here/debian/copyright" usr/share/doc/oneshot/copyright
gzip -9nc "$here/debian/NEWS" > "$docs/NEWS"
put 644 "$docs/NEWS" usr/share/doc/oneshot/NEWS.Debian.gz
gzip -9n > "$docs/changelog" <<CHANGELOG
oneshot ($version) unstable; urgency=medium

  * Built from commit $(commit %H unknown): $(commit %s '')

 -- oneshot maintainers <maintainers@oneshot.example>  $(date -u -R --date="@$SOURCE_DATE_EPOCH")
CHANGELOG
put 644 "$docs/changelog" usr/share/doc/oneshot/changelog.gz
rm -rf "$docs"

# Programs that are linked to the C library need the one that they were built with, or a later one.
depends="init-system-helpers (>= 1.51), passwd"
if needed=$(objdump -T "$target" "$initiator" 2>/dev/null | grep -o 'GLIBC_[0-9.]*' | sort -uV | tail -1) && [ -n "$needed" ]; then
	depends="libc6 (>= ${needed#GLIBC_}), $depends"
fi

mkdir "$tree/DEBIAN"
for script in postinst prerm postrm; do
	install -m 755 "$here/debian/$script" "$tree/DEBIAN/$script"
done
echo /etc/oneshot/target.yaml > "$tree/DEBIAN/conffiles"
cat > "$tree/DEBIAN/control" <<CONTROL
Package: oneshot
Version: $version
Architecture: $arch
Maintainer: oneshot maintainers <maintainers@oneshot.example>
Installed-Size: $(du -sk --exclude=DEBIAN "$tree" | cut -f1)
Depends: $depends
Suggests: librdmacm1, ibverbs-providers, open-iscsi, prometheus
Section: admin
Priority: optional
Description: block-storage target for iSCSI, iSER and NVMe over Fabrics
 Makes disks out of memory, files and block devices, and serves them over the
 network to open-iscsi, libiscsi, QEMU, nvme-cli and every other initiator, over
 TCP and over RDMA. One daemon in user space, one configuration file that is read
 again without disturbing sessions, figures for Prometheus.
 .
 The commands are oneshot, the target, and oneshot-initiator, which lists, reads,
 writes and measures disks of iSCSI and NVMe/TCP without the kernel's help, and
 attaches those of iSCSI as block devices, for which it needs the kernel's module
 nbd.
CONTROL
(cd "$tree" && find . -type f -not -path './DEBIAN/*' -printf '%P\n' | LC_ALL=C sort | xargs md5sum > DEBIAN/md5sums)

find "$tree" -newermt "@$SOURCE_DATE_EPOCH" -print0 | xargs -0r touch --no-dereference --date="@$SOURCE_DATE_EPOCH"
mkdir -p "$out"
deb=$out/oneshot_${version}_$arch.deb
dpkg-deb --root-owner-group -Zxz --build "$tree" "$deb" >/dev/null
echo "$deb"
