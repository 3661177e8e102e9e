#!/bin/bash
# Installs, upgrades, removes and purges the Debian package in a chroot made by debootstrap, as
# root, while a daemon serves and an initiator outside writes to it. systemd does not run in a
# chroot, so a script in the place of systemctl starts and stops what the unit says.
#
#   chroot-test.sh [ROOT]     ROOT is kept for the next time; default: one that is removed
set -euo pipefail
cd "$(dirname "$0")/.."

root=${1:-}
work=$(mktemp -d)
cleanup() {
	[ ! -s "$root/run/oneshot.pid" ] || kill "$(cat "$root/run/oneshot.pid")" 2>/dev/null || true
	umount "$root/proc" 2>/dev/null || true
	[ "$root" != "$work/root" ] || rm -rf "$root"
	rm -rf "$work"
}
: "${root:=$work/root}"
trap cleanup EXIT
fail() { echo "chroot-test.sh: $*" >&2; exit 1; }
ok() { echo "ok: $*"; }

[ -e "$root/bin/sh" ] || debootstrap --variant=minbase "$(. /etc/os-release; echo "$VERSION_CODENAME")" "$root" >/dev/null
in_root() { chroot "$root" "$@"; }
mountpoint -q "$root/proc" || mount -t proc proc "$root/proc"
in_root dpkg --purge oneshot >/dev/null 2>&1 || true
rm -rf "$root/var/lib/oneshot" "$root/usr/sbin/policy-rc.d"

# The stand-in for systemd.
mkdir -p "$root/run/systemd/system" "$root/tmp"
cat > "$root/usr/bin/systemctl" <<'SYSTEMCTL'
#!/bin/bash
echo "systemctl $*" >> /run/systemctl.log
words=()
for w; do [ "${w#-}" = "$w" ] && words+=("$w"); done
unit=/lib/systemd/system/oneshot.service
wants=/etc/systemd/system/multi-user.target.wants
alive() { [ -s /run/oneshot.pid ] && kill -0 "$(cat /run/oneshot.pid)" 2>/dev/null; }
start() {
	alive && return
	mkdir -p /run/oneshot && chown oneshot: /run/oneshot
	cd /var/lib/oneshot
	setpriv --reuid oneshot --regid oneshot --init-groups $(sed -n 's/^ExecStart=//p' $unit) >/run/oneshot.out 2>>/run/oneshot.log </dev/null &
	echo $! > /run/oneshot.pid
	for i in $(seq 100); do [ -S /run/oneshot/target.sock ] && return; sleep 0.1; done
	exit 1
}
stop() {
	alive || return 0
	kill "$(cat /run/oneshot.pid)"
	while alive; do sleep 0.1; done
}
case ${words[0]} in
start) start ;;
stop) stop ;;
restart) stop; start ;;
is-active) alive ;;
is-enabled) [ -e $wants/oneshot.service ] && echo enabled ;;
preset | enable) mkdir -p $wants && ln -sf $unit $wants/oneshot.service ;;
esac
SYSTEMCTL
chmod 755 "$root/usr/bin/systemctl"
: > "$root/run/systemctl.log"

go=${GO:-go}
"$go" build -trimpath -o "$work/target" ./cmd/target
"$go" build -trimpath -o "$work/initiator" ./cmd/initiator
new=$(packaging/deb.sh -v 2.0 "$work/target" "$work/initiator" "$work")

# A package like those before the commands had names of their own: the target is /usr/bin/target.
old=$work/oneshot_0.1_old.deb
dpkg-deb -R "$new" "$work/old"
mv "$work/old/usr/bin/oneshot" "$work/old/usr/bin/target"
rm "$work/old/usr/bin/oneshot-initiator"
sed -i 's|/usr/bin/oneshot |/usr/bin/target |' "$work/old/lib/systemd/system/oneshot.service"
sed -i 's/^Version: .*/Version: 0.1.0~git202611010000.0000000/' "$work/old/DEBIAN/control"
(cd "$work/old" && find . -type f -not -path './DEBIAN/*' -printf '%P\n' | LC_ALL=C sort | xargs md5sum > DEBIAN/md5sums)
dpkg-deb --root-owner-group --build "$work/old" "$old" >/dev/null
cp "$old" "$new" "$root/tmp/"
install_deb() { in_root env DEBIAN_FRONTEND=noninteractive dpkg --force-confold -i "/tmp/$(basename "$1")" >>"$work/dpkg.log" 2>&1 || { cat "$work/dpkg.log"; fail "dpkg -i $1"; }; }
pid() { cat "$root/run/oneshot.pid"; }

install_deb "$old"
in_root target status >/dev/null || fail "the daemon of the old package does not answer after the installation"
[ "$(stat -c %U:%a "$root/etc/oneshot/target.yaml")" = root:640 ] || fail "target.yaml is open to others"
in_root target check --config /etc/oneshot/target.yaml >/dev/null || fail "the configuration of the package is not valid"
ok "installed and started, as user $(in_root ps -o user= -p "$(pid)" 2>/dev/null || stat -c %u "/proc/$(pid)")"

# A disk, by a reload, and a session that writes to it.
port=24590
cat > "$root/etc/oneshot/target.yaml" <<YAML
stores: {disk: {type: file, path: /var/lib/oneshot/disk.img, size: 64MiB}}
targets: [{iqn: "iqn.2026-11.example.oneshot:demo", luns: {0: disk}}]
portals: [{listen: "127.0.0.1:$port"}]
management: {socket: /run/oneshot/target.sock}
state: /var/lib/oneshot/state
YAML
in_root target reload >/dev/null || fail "reload"
"$go" build -o "$work/writer" ./packaging/writer
"$work/writer" "127.0.0.1:$port" iqn.2026-11.example.oneshot:demo >"$work/written" 2>"$work/writer.log" &
writer=$!
until grep -q '^100$' "$work/written"; do kill -0 $writer || { cat "$work/writer.log"; fail "the writer has died"; }; sleep 0.1; done

before=$(pid)
install_deb "$new"
[ "$(pid)" != "$before" ] || fail "the daemon was not restarted by the upgrade"
grep -q 'level=info msg=stopped' "$root/run/oneshot.log" || fail "the old daemon did not stop in good order"
grep -q "listen: \"127.0.0.1:$port\"" "$root/etc/oneshot/target.yaml" || fail "the upgrade has changed target.yaml"
! grep -q 'systemctl.* stop' "$root/run/systemctl.log" || fail "the upgrade stops the daemon before the new one is there"
[ ! -e "$root/usr/bin/target" ] || fail "the upgrade leaves /usr/bin/target"
# says PATTERN COMMAND...: the output of a command has the pattern. It is read to its end first: under pipefail, a
# command fails if it still writes when grep -q has seen enough.
says() {
	local pattern=$1 out
	shift
	out=$("$@" 2>&1) || fail "$*: $out"
	grep -q "$pattern" <<<"$out" || fail "$* says: $out"
}
says '^oneshot ' in_root oneshot status
in_root oneshot reload >/dev/null || fail "reload after the upgrade"
in_root oneshot check --config /etc/oneshot/target.yaml >/dev/null || fail "check after the upgrade"
says '^  oneshot check' in_root oneshot --help
says iqn.2026-11.example.oneshot:demo in_root oneshot-initiator ls "iscsi://127.0.0.1:$port"
doc=$root/usr/share/doc/oneshot
grep -q golang "$doc/copyright" || fail "the package has no copyright"
says '^oneshot (2.0) ' zcat "$doc/changelog.gz"
says /usr/bin/oneshot zcat "$doc/NEWS.Debian.gz"
while IFS=: read -r page link; do
	[ -e "$(dirname "$page")/$link" ] || fail "$page leads to $link, which the package has not"
done < <(grep -roP --include='*.md' '\]\((?!https?:)\K[^)#]+\.(md|yaml|svg)(?=[)#])' "$doc")
for page in oneshot oneshot-serve oneshot-initiator oneshot-initiator-bench; do
	[ -s "$root/usr/share/man/man1/$page.1.gz" ] || fail "there is no page $page"
done
for program in oneshot oneshot-initiator; do
	[ -s "$root/usr/share/bash-completion/completions/$program" ] || fail "bash does not complete $program"
done
! find "$root/usr" -path "$root/usr/share/doc" -prune -o -name 'target*' -path '*man1*' -print | grep . || fail "pages of the old name are left"
seen=$(wc -l < "$work/written")
until [ "$(wc -l < "$work/written")" -gt $((seen + 100)) ]; do kill -0 $writer || { cat "$work/writer.log"; fail "the writer has died over the upgrade"; }; sleep 0.1; done
kill -INT $writer
wait $writer || { cat "$work/writer.log"; fail "the writer did not read back what it wrote"; }
ok "upgraded under a session: $(tail -1 "$work/writer.log")"

in_root dpkg -r oneshot >/dev/null
! kill -0 "$(pid)" 2>/dev/null || fail "the daemon goes on after the removal"
[ -e "$root/etc/oneshot/target.yaml" ] && [ -e "$root/var/lib/oneshot/disk.img" ] || fail "the removal took the configuration or the disk"
[ ! -e "$root/usr/bin/oneshot" ] && [ ! -e "$root/usr/bin/oneshot-initiator" ] || fail "a program is left"
ok "removed"

in_root dpkg --purge oneshot >/dev/null
[ ! -e "$root/etc/oneshot" ] || fail "the configuration is left after the purge"
[ "$(ls "$root/var/lib/oneshot")" = disk.img ] || fail "the purge took the disk, or left something else: $(ls "$root/var/lib/oneshot")"
rm "$root/var/lib/oneshot/disk.img"
left=$(find "$root/etc/systemd" "$root/lib/systemd" "$root/usr" "$root/var/lib/systemd" -name '*oneshot*' 2>/dev/null || true)
[ -z "$left" ] || fail "left after the purge: $left"
ok "purged"
