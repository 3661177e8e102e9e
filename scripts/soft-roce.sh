#!/bin/bash
# Soft-RoCE, RDMA over an ordinary network interface, on a target's or an initiator's host:
#
#   scripts/soft-roce.sh up|down|status|test [NETDEV]
#
# up      makes an RDMA device (rxe0, rxe1 ...) of NETDEV, unless it has one
# down    removes it; without NETDEV, all of soft-RoCE
# status  says what there is, and ends with 1 if something is missing
# test    runs rping over the device, as client and as server
#
# Without NETDEV it is the interface of the default route. Nothing outlives a reboot.
set -uo pipefail

sys=/sys/class/infiniband

say() { printf '%s\n' "$*"; }
problem() { printf 'soft-roce: %s\n' "$*" >&2; }
die() {
	problem "$@"
	exit 1
}

usage() {
	local line n=0
	while IFS= read -r line; do
		n=$((n + 1))
		[ "$n" -gt 1 ] || continue
		[[ $line == '#'* ]] || break
		line=${line#'#'}
		printf '%s\n' "${line# }"
	done <"$0"
}

# device_of NETDEV prints the soft-RoCE device that NETDEV has, if any. Only soft-RoCE's devices
# have a file "parent".
device_of() {
	local d parent
	for d in "$sys"/*; do
		[ -r "$d/parent" ] || continue
		read -r parent <"$d/parent"
		if [ "$parent" = "$1" ]; then
			printf '%s\n' "${d##*/}"
			return
		fi
	done
}

default_netdev() {
	local word previous=
	for word in $(ip -o route show default 2>/dev/null); do
		if [ "$previous" = dev ]; then
			printf '%s\n' "$word"
			return
		fi
		previous=$word
	done
}

# address_of NETDEV prints its first IPv4 address, or else IPv6.
address_of() {
	local word previous family
	for family in -4 -6; do
		previous=
		for word in $(ip -o "$family" addr show dev "$1" scope global 2>/dev/null); do
			case $previous in
			inet | inet6)
				printf '%s\n' "${word%%/*}"
				return
				;;
			esac
			previous=$word
		done
	done
}

in_container() {
	[ ! -e /.dockerenv ] && [ ! -e /run/.containerenv ] || return 0
	local variable
	while IFS= read -r -d '' variable; do
		[[ $variable != container=* ]] || return 0
	done 2>/dev/null </proc/1/environ
	return 1
}

need_root() {
	[ "$EUID" -eq 0 ] || die "this needs root: sudo $0 $*"
}

need_tools() {
	command -v ip >/dev/null || die "there is no ip: apt install iproute2"
	command -v rdma >/dev/null || die "there is no rdma, which makes the device: apt install iproute2"
}

# has_module NAME: it is loaded or built in.
has_module() { [ -d "/sys/module/$1" ]; }

# load NAME loads a module, or says what to do.
load() {
	has_module "$1" && return
	if in_container; then
		die "the module $1 is not loaded, and a container cannot load it: run '$0 up' on the host"
	fi
	command -v modprobe >/dev/null || die "the module $1 is not loaded, and there is no modprobe: apt install kmod"
	modprobe "$1" 2>/dev/null && return
	local kernel
	read -r kernel </proc/sys/kernel/osrelease
	case $kernel in
	*cloud*) die "the kernel $kernel has no module $1: Debian's kernels for clouds leave it out: apt install linux-image-amd64, boot that, and run this again" ;;
	*) die "the kernel $kernel has no module $1, or does not load it (dmesg says why): on Debian, apt install linux-image-amd64, and boot that" ;;
	esac
}

check_netdev() {
	[ -n "$netdev" ] || die "there is no default route: name the network interface: $0 $action NETDEV"
	[ -d "/sys/class/net/$netdev" ] || die "there is no network interface $netdev; 'ip -br link' lists them"
	[ "$netdev" != lo ] || die "soft-RoCE does not connect over lo: name another interface; for a machine on its own, 'ip link add rd0 type dummy', 'ip link set rd0 mtu 9000 up', 'ip addr add 10.9.0.1/24 dev rd0'"
}

# userland says what programs will miss. It returns 1 if that is something.
userland() {
	local missing=0 lib limit
	for lib in libibverbs.so.1 librdmacm.so.1; do
		compgen -G "/lib*/*/$lib" >/dev/null || compgen -G "/usr/lib*/*/$lib" >/dev/null || compgen -G "/usr/lib*/$lib" >/dev/null || {
			problem "there is no $lib: apt install rdma-core libibverbs1 librdmacm1 ibverbs-providers"
			missing=1
		}
	done
	if ! [ -e /dev/infiniband/rdma_cm ]; then
		if in_container; then
			problem "the container has no /dev/infiniband: start it with --device /dev/infiniband --ulimit memlock=-1, on the host's network"
		else
			problem "there is no /dev/infiniband/rdma_cm: modprobe rdma_ucm"
		fi
		missing=1
	fi
	limit=$(ulimit -l)
	if [ "$limit" != unlimited ] && [ "$EUID" -ne 0 ]; then
		problem "this user may lock $limit KiB of memory: LimitMEMLOCK=infinity in the systemd unit, or 'ulimit -l unlimited' as root"
		missing=1
	fi
	return "$missing"
}

# notes say what is worth knowing about the interface.
notes() {
	local mtu address state
	address=$(address_of "$netdev")
	[ -n "$address" ] || problem "$netdev has no address: ip addr add ADDRESS/24 dev $netdev"
	read -r mtu <"/sys/class/net/$netdev/mtu"
	if [ "$mtu" -lt 4200 ]; then
		say "note: with the MTU $mtu of $netdev a packet carries 1024 bytes or less; with 'ip link set $netdev mtu 9000', on all hosts and switches, 4096"
	fi
	read -r state <"/sys/class/net/$netdev/operstate"
	[ "$state" != down ] || problem "$netdev is down: ip link set $netdev up"
	say "note: a firewall has to let UDP port 4791 through"
}

next_steps() {
	local device=$1 address
	address=$(address_of "$netdev")
	say
	say "On the target, in its configuration:"
	say "  portals: [{transport: verbs, listen: \"${address:-ADDRESS}:3260\", device: $device}]"
	say "On an initiator that has run this script, too:"
	say "  modprobe ib_iser"
	say "  iscsiadm -m discovery -t sendtargets -p TARGET:3260 -I iser"
	say "  iscsiadm -m node -p TARGET:3260 -I iser --login"
}

up() {
	need_root up
	need_tools
	check_netdev
	local module device n=0 out
	for module in ib_uverbs rdma_ucm rdma_rxe; do
		load "$module"
	done
	device=$(device_of "$netdev")
	if [ -n "$device" ]; then
		say "$device on $netdev is there already"
	else
		# Two at a time may choose the same number: then the next one is tried.
		while :; do
			while [ -e "$sys/rxe$n" ]; do n=$((n + 1)); done
			device=rxe$n
			out=$(rdma link add "$device" type rxe netdev "$netdev" 2>&1) && break
			[ -e "$sys/$device" ] || die "rdma link add $device type rxe netdev $netdev: ${out:-failed}; dmesg may say more"
		done
		say "$device on $netdev: made"
	fi
	userland || true
	notes
	next_steps "$device"
}

down() {
	need_root down
	need_tools
	local d parent found=0
	for d in "$sys"/*; do
		[ -r "$d/parent" ] || continue
		read -r parent <"$d/parent"
		[ -z "$netdev" ] || [ "$parent" = "$netdev" ] || continue
		found=1
		rdma link delete "${d##*/}" || die "could not remove ${d##*/}"
		say "${d##*/} on $parent: removed"
	done
	[ "$found" = 1 ] || say "there is no soft-RoCE${netdev:+ on $netdev}"
}

status() {
	local bad=0 module device d parent state
	for module in rdma_rxe rdma_ucm ib_uverbs; do
		if has_module "$module"; then
			say "module $module: loaded"
		else
			problem "module $module is not loaded: $0 up"
			bad=1
		fi
	done
	has_module ib_iser && say "module ib_iser: loaded (this host can be an initiator)"
	device=
	for d in "$sys"/*; do
		[ -r "$d/parent" ] || continue
		read -r parent <"$d/parent"
		read -r state <"$d/ports/1/state"
		say "${d##*/} on $parent: ${state#*: }"
		device=${d##*/}
		[[ $state == *ACTIVE* ]] || bad=1
	done
	if [ -z "$device" ]; then
		problem "there is no soft-RoCE device: $0 up"
		bad=1
	fi
	userland || bad=1
	return "$bad"
}

check() {
	check_netdev
	local device address server tries=0
	device=$(device_of "$netdev")
	[ -n "$device" ] || die "$netdev has no soft-RoCE: $0 up $netdev"
	command -v rping >/dev/null || die "there is no rping: apt install rdmacm-utils"
	address=$(address_of "$netdev")
	[ -n "$address" ] || die "$netdev has no address: ip addr add ADDRESS/24 dev $netdev"
	rping -s -a "$address" -p 7174 -C 10 >/dev/null 2>&1 &
	server=$!
	# The server may not listen yet.
	until rping -c -V -a "$address" -p 7174 -C 10 >/dev/null 2>&1; do
		tries=$((tries + 1))
		if [ "$tries" -ge 20 ] || ! kill -0 "$server" 2>/dev/null; then
			kill "$server" 2>/dev/null
			die "rping over $device ($address) fails: $0 status, and dmesg"
		fi
	done
	wait "$server" 2>/dev/null
	say "rping over $device ($address): 10 round trips, data compared"
}

action=${1:-}
netdev=${2:-}
case $action in
up | test) netdev=${netdev:-$(default_netdev)} ;;
esac
case $action in
up) up ;;
down) down ;;
status) status ;;
test) check ;;
-h | --help | help)
	usage
	;;
*)
	usage >&2
	exit 2
	;;
esac
