package machine

import "path/filepath"

// LAN returns qemu's arguments for a second network interface of a machine, eth1. The socket of the network is in dir. Two machines are on
// it: one that listens, and is started first, and another one, which may come and go.
func LAN(dir string, listens bool) []string {
	server, mac := "off", "52:54:00:09:00:02"
	if listens {
		server, mac = "on", "52:54:00:09:00:01"
	}
	return []string{
		"-netdev", "stream,id=lan,server=" + server + ",addr.type=unix,addr.path=" + filepath.Join(dir, "lan"),
		"-device", "virtio-net-pci,netdev=lan,mac=" + mac + ",host_mtu=9000",
	}
}
