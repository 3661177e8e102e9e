package main

import (
	"errors"
	"fmt"
)

// system is a kind of mirror.
type system interface {
	disk() contender
	// begin makes the mirror on empty disks, with the first node as the primary.
	begin(s *site) error
	// rejoin starts it on a node that was lost.
	rejoin(s *site, n *storage) error
	// level waits until the copies are level, as a node tells it.
	level(s *site, n *storage) error
}

var systems = []system{&oneshotSystem{}, drbdSystem{}}

// oneshotSystem is a mirror of this target, with an address that moves.
type oneshotSystem struct{ c *cluster }

func (*oneshotSystem) disk() contender {
	return contender{target: ours, transport: overMirror, name: iqn + ours, address: movedAddress, port: 3262}
}

func (o *oneshotSystem) begin(s *site) error {
	o.c = &cluster{
		on: map[string]*guest{"a": s.nodes[0].guest, "b": s.nodes[1].guest, "w": s.guest}, dir: "/node", witness: hostAddress + ":7262", size: failoverText,
		portal: fmt.Sprintf(`{mirror: disk, listen: "%s", group: 10, interface: eth1}`, o.disk().portal()),
	}
	return o.c.start()
}

func (o *oneshotSystem) rejoin(_ *site, n *storage) error {
	o.c.on[n.name] = n.guest
	return o.c.serve(n.name)
}

func (o *oneshotSystem) level(_ *site, n *storage) error { return o.c.level(n.name) }

// drbdSystem is DRBD, and keepalived, whose script makes a node the primary, shows the disk by the kernel's target, and then takes the address:
// who is refused meanwhile would try again 3 s later. DRBD makes no node a primary as long as it takes the other one for that: it looks for it each second, as
// keepalived does by default, where its own default is ten.
type drbdSystem struct{}

func (drbdSystem) disk() contender {
	return contender{target: drbd, transport: overMirror, name: iqn + "lio", address: movedAddress, port: 3264}
}

const keepalivedText = `global_defs {
	script_user root
}
vrrp_instance disk {
	state BACKUP
	interface eth1
	virtual_router_id 51
	priority %d
	nopreempt
	advert_int 1
	virtual_ipaddress {
		` + vrrpAddress + `/24
	}
	notify_master "/sbin/bash /tmp/master"
}
`

// masterText is the script. DRBD refuses to be the primary as long as it does not know that the other node is gone.
const masterText = `exec >/tmp/master.log 2>&1
until drbdadm primary r0; do :; done
` + "%s" + `
ip addr add ` + movedAddress + `/24 dev eth1
arping -q -c 1 -A -I eth1 ` + movedAddress + `
`

func (d drbdSystem) begin(s *site) error {
	if err := makeDRBD(s.nodes[0].guest, s.nodes[1].guest, d.config()); err != nil {
		return err
	}
	for _, n := range s.nodes {
		if err := d.keep(n); err != nil {
			return err
		}
		if n == s.nodes[0] {
			if err := n.awaitText(movedAddress, "ip", "addr", "show", "dev", "eth1"); err != nil {
				return err
			}
		}
	}
	return d.level(s, s.nodes[0])
}

func (drbdSystem) config() string { return drbdText("/dev/dm-0", "ping-int 1;") }

func (d drbdSystem) keep(n *storage) error {
	script := lioScript("iblock_0", "echo udev_path=/dev/drbd0 >$core/control", d.disk().portal()) +
		"echo 0 >$tpg/param/DefaultTime2Wait\n"
	err := errors.Join(
		n.write("/tmp/master", fmt.Sprintf(masterText, script)),
		n.write("/tmp/keepalived.conf", fmt.Sprintf(keepalivedText, 110-n.number)),
		n.write("/proc/sys/net/ipv4/ip_nonlocal_bind", "1"), // the portal is there before its address
	)
	if err != nil {
		return err
	}
	_, err = n.Start("keepalived", "--dont-fork", "--log-console", "--use-file=/tmp/keepalived.conf")
	return err
}

func (d drbdSystem) rejoin(_ *site, n *storage) error {
	if err := errors.Join(n.write("/etc/drbd.conf", d.config()), n.runAll("drbdadm up r0")); err != nil {
		return err
	}
	return d.keep(n)
}

func (drbdSystem) level(_ *site, n *storage) error { return levelDRBD(n.guest) }
