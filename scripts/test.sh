#!/bin/bash
# Runs every test, goes on after a failure, and ends with status 1 if any step failed.
# `make test` installs first what the tests need.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 2
go=${GO:-go}
# Without paths in them, packages that were compiled for one clone are there for the next.
export GOFLAGS="${GOFLAGS:+$GOFLAGS }-trimpath"

# The packages under test/ that talk to foreign programs get steps of their own.
outside='/test/(conformance|integrity|wire|qemu|vm)(/|$)'
mapfile -t unit < <("$go" list ./... | grep -Ev "$outside")
[ ${#unit[@]} -gt 0 ] || { echo "test.sh: go list finds no packages" >&2; exit 1; }

# Variants take turns: of what does nearly the same twice (over one RDMA device and the other, by one way of killing and another, with
# the race detector and once more without), a run does a half, for all of it takes too long on a machine that has other work. TURN
# says which half: 1, 2, or all, which is both. Without it chance does.
turn=${TURN:-$((RANDOM % 2 + 1))}
case $turn in
1) waits='TestVerbs$/^rxe|TestVerbs(Offences|Connections|Reuse|ISER|Logins)/^rxe|TestInitiatorOverVerbs/^rxe|TestNVMeRDMA$/^rxe|TestVerbsKilledUnderLoad|TestNVMeUnderLoad|TestMirrorOverVerbs/^rxe|TestStoppedUnderLoad|TestLibiscsiVerbs|TestVerbsFio|TestISER$/^xfs|TestAppliance|TestMirrorMachine$/^(kernel|stopped_but|clock|no|disk)' ;;
2) waits='TestVerbs$/^siw|TestVerbs(Offences|Connections|Reuse|ISER|Logins)/^siw|TestInitiatorOverVerbs/^siw|TestNVMeRDMA$/^siw|TestISERKilledUnderLoad|TestMirrorOverVerbs/^siw|TestNVMeRDMAUnderLoad|TestKilledUnderLoad|TestLibiscsiISER|TestISERLoginsAndLogouts|TestPartitionsOverVerbs|TestISER$/^ext4|TestDeviceStore|TestMirrorMachine$/^(power|stopped_with|wall|slow)' ;;
all) waits= ;;
*) echo "test.sh: TURN is 1, 2 or all, not $turn" >&2; exit 2 ;;
esac
echo "== turn $turn of the variants (TURN=$turn does the same again, TURN=all does both)"

work=$(mktemp -d)
# The daemon is linked once for all packages that start it with the same build options.
ONESHOT_BUILT=$work/built
export ONESHOT_BUILT
mkdir "$ONESHOT_BUILT"
beside=
# Who runs beside goes with its child, or it would go on with the next step.
trap '[ -z "$beside" ] || kill $(pgrep -P "$beside") "$beside"; rm -rf "$work"' EXIT

step() { # title command...
	local title=$1 begin=$SECONDS
	shift
	echo "== $title"
	"$@" </dev/null || echo "$title" >>"$work/failed"
	echo "== $title: $((SECONDS - begin)) s"
}

# untaken is step, for who comes first: of two who come to the same steps each does those that the other has not begun.
untaken() { # title command...
	mkdir "$work/${1// /-}" 2>/dev/null || return 0
	step "$@"
}

# The daemons that keep mirrors, and the simulation, have more to do without the race detector than under it: they are in no turn, and
# take longest of what is tested on one processor.
always='^oneshot/(cmd/target|ha/sim)$'
# Tests wait as much as they compute: one package more than there are processors is under way.
packages=$(($(nproc) + 1))
one_processor=("$go" test -count=1 -p "$packages" -shuffle=on -exec "env GOMAXPROCS=1")

others() {
	mapfile -t long < <(printf '%s\n' "${unit[@]}" | grep -E "$always")
	# Daemons of mirrors wait more than they compute: so some of their tests are done at a time. Beside other steps they take long.
	untaken "daemons and simulation, one processor" "${one_processor[@]}" -parallel 3 -timeout 34m "${long[@]}"
	# Most of the tool's tests sleep more than they work.
	untaken "conformance, daemon with invariants" \
		env ONESHOT_TARGET_TAGS=invariants "$go" test -count=1 -parallel 8 -timeout 15m ./test/conformance
	untaken "integrity under random load, daemon with race detector and invariants" \
		env ONESHOT_TARGET_RACE=1 ONESHOT_TARGET_TAGS=invariants "$go" test -count=1 ./test/integrity
	untaken "captures decoded by tshark" "$go" test -count=1 ./test/wire
	untaken "QEMU's initiator and libiscsi's tools" "$go" test -count=1 ./test/qemu
}

# Machines wait as much as they compute: they run beside the unit tests, and say at the end what they saw. They take longest and cannot
# use all processors, so they go first where that is allowed. Whoever is done sooner goes on with the others.
first=()
[ "$(nice -n -5 nice 2>/dev/null)" = "$(nice)" ] || first=(nice -n -5)
(
	# Debian 13's kernel, whose downloading and unpacking takes a minute, has a target of its own: make test-newer.
	mapfile -t machines < <("$go" list ./test/vm/... | grep -v '/newer$')
	step "virtual machines" "${first[@]}" "$go" test -count=1 -timeout 34m -skip "${waits:-^$}" "${machines[@]}"
	others
) >"$work/beside" 2>&1 &
beside=$!

# Plain runs of fuzz targets replay the committed corpora.
# Twice: with everything that watches, and the kernel's RDMA over a fake of libibverbs and librdmacm (test/vm
# runs the same suite over the kernel's devices); then as it is without build tags. The race detector makes everything ten
# times as expensive, and needs goroutines that meet, not numbers: it watches short runs (internal/rounds), and leaves out
# packages that start no goroutine, nor do their tests, nor what they import, and those that measure or help tests, where a data
# race harms no disk (internal/archtest compares). A program under it
# waits 1 s before it exits, for goroutines that race with the end; none of ours outlives its test.
# go vet looks in the second step and behind it, and with the tags in make check.
without='^oneshot/(bench|bench/.*|config|config/migrate|ddp|ha/(heap/wire|replica)|iscsi/(chap|login|pdu|text)|nvme|nvme/auth|nvme/rdma/cm|nvme/tcp/pdu|packaging|partition/wire|state|transport/rdma|transport/rdma/manager|internal/(archtest|command|debian|doctest|hexdump|iov|iserhdr|latency|ring|serial|version|walk))$'
mapfile -t watched < <(printf '%s\n' "${unit[@]}" | grep -Ev "$without")
step "unit tests, race detector, invariants, kernel RDMA" \
	env GORACE=atexit_sleep_ms=50 "$go" test -vet=off -race -short -p "$packages" -tags invariants,verbs -shuffle=on "${watched[@]}"
# Half of the packages that the first step has watched wait for the other turn.
# Packages that do the same in both steps, but for the number of processors, run in the first only: they have the same files in both,
# ask for no assertions, and use nothing that does less in a short run (internal/archtest compares).
once='^oneshot/(appliance/init|backend|backend/(durable|uring)|cmd/initiator|ha/heap/service|initiator/(load|nbd)|internal/loglimit|isns|mgmt|partition/registry|test/(access|blktests|breadth|medium)|transport/rdma/nic/(card|shm)|volume/access)$'
mapfile -t again < <(printf '%s\n' "${unit[@]}" | grep -Ev "$once" | grep -Ev "$always" |
	awk -v turn="$turn" -v watched=" ${watched[*]} " \
		'turn == "all" || index(watched, " " $0 " ") == 0 || n++ % 2 == turn - 1')
step "unit tests, one processor" "${one_processor[@]}" "${again[@]}"
mapfile -t unseen < <(printf '%s\n' "${unit[@]}" | grep -E "$once")
step "go vet of packages that run once" "$go" vet "${unseen[@]}"
others

wait "$beside" || echo "what runs beside the unit tests" >>"$work/failed"
beside=
cat "$work/beside"

echo "== all: $SECONDS s"
if [ -s "$work/failed" ]; then
	sed 's/^/FAILED: /' "$work/failed"
	exit 1
fi
