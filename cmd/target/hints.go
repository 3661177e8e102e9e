package main

import (
	"cmp"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"

	"oneshot/config"
)

// maxHints is the number of targets for which serve prints commands to paste.
const maxHints = 8

// writeHints prints commands that use what c serves, to paste into a shell. addrs has the bound address of each
// portal. In the place of secrets it prints the word SECRET.
func writeHints(w io.Writer, c *config.Config, addrs []net.Addr) error {
	var b strings.Builder
	what := count(len(c.Targets), "target")
	if n := len(c.Subsystems); n > 0 && len(c.Targets) == 0 {
		what = count(n, "subsystem")
	} else if n > 0 {
		what += " and " + count(n, "subsystem")
	}
	switch at := clusterText(c); {
	case at != "" && len(addrs) == 0:
		fmt.Fprintf(&b, "serving no disks, as %s\n", at)
	case at != "":
		fmt.Fprintf(&b, "serving %s at %s, as %s\n", what, joinAddrs(addrs), at)
	default:
		fmt.Fprintf(&b, "serving %s at %s\n", what, joinAddrs(addrs))
	}
	if portal := reachable(c, config.TransportTCP, addrs); portal != "" && len(c.Targets) > 0 {
		writeDiscoveryHints(&b, portal, c.Discovery.Auth)
		for i := range c.Targets[:min(len(c.Targets), maxHints)] {
			writeTargetHints(&b, portal, &c.Targets[i])
		}
		if more := len(c.Targets) - maxHints; more > 0 {
			fmt.Fprintf(&b, "\nand %s; discovery lists them\n", count(more, "more target"))
		}
	}
	for _, transport := range []config.Transport{config.TransportNVMeTCP, config.TransportNVMeRDMA} {
		host, port, err := net.SplitHostPort(reachable(c, transport, addrs))
		if err == nil && len(c.Subsystems) > 0 {
			writeNVMeHints(&b, strings.TrimPrefix(string(transport), "nvme-"), host, port, c.Subsystems)
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// dhchapSettings returns the arguments of nvme connect for secrets.
func dhchapSettings(a *config.HostAuth) string {
	switch {
	case a == nil:
		return ""
	case a.Controller == nil:
		return " --dhchap-secret SECRET"
	}
	return " --dhchap-secret SECRET --dhchap-ctrl-secret SECRET"
}

// writeNVMeHints prints commands of nvme-cli.
func writeNVMeHints(b *strings.Builder, transport, host, port string, subsystems []config.Subsystem) {
	at := fmt.Sprintf("-t %s -a %s -s %s", transport, host, port)
	fmt.Fprintf(b, "\nWhich subsystems there are\n  nvme discover %s\n", at)
	for i := range subsystems[:min(len(subsystems), maxHints)] {
		s := &subsystems[i]
		fmt.Fprintf(b, "\n%s\n", s.NQN)
		if len(s.Hosts) > 0 {
			names := make([]string, len(s.Hosts))
			for j, h := range s.Hosts {
				names[j] = string(h.NQN)
			}
			fmt.Fprintf(b, "  # only for hosts named %s\n", strings.Join(names, ", "))
		}
		fmt.Fprintf(b, "  nvme connect %s -n %s%s\n", at, s.NQN, dhchapSettings(s.Auth))
	}
	if more := len(subsystems) - maxHints; more > 0 {
		fmt.Fprintf(b, "\nand %s; discovery lists them\n", count(more, "more subsystem"))
	}
}

// writeStatusHint prints the command that shows the status of a daemon, if it has a management socket. program is
// how the user called this one.
func writeStatusHint(w io.Writer, program, socket string) error {
	if socket == "" {
		return nil
	}
	flag := ""
	if socket != socketToAsk() {
		flag = " --socket " + quote(socket)
	}
	_, err := fmt.Fprintf(w, "\nHow it is doing\n  %s status%s\n", quote(program), flag)
	return err
}

// typed returns what the user types to call this program again: name, if the shell finds the program by that, or
// arg0, which is how it was called now.
func typed(arg0, name string) string {
	found, err := exec.LookPath(name)
	if err != nil {
		return arg0
	}
	a, errFound := os.Stat(found)
	b, errCalled := os.Stat(arg0)
	if errFound == nil && errCalled == nil && !os.SameFile(a, b) {
		return arg0
	}
	return name
}

func joinAddrs(addrs []net.Addr) string {
	texts := make([]string, len(addrs))
	for i, a := range addrs {
		texts[i] = a.String()
	}
	return strings.Join(texts, ", ")
}

// reachable returns an address of the first portal of a transport: the one that it advertises, if the configuration has one,
// or else one that this machine can connect to. For a portal on all addresses that is the loopback address.
func reachable(c *config.Config, transport config.Transport, addrs []net.Addr) string {
	for i, p := range c.Portals {
		if p.Transport != transport || i >= len(addrs) {
			continue
		}
		if p.Advertise != "" {
			return p.Advertise
		}
		bound, err := netip.ParseAddrPort(addrs[i].String())
		if err != nil {
			continue
		}
		switch addr := bound.Addr(); {
		case !addr.IsUnspecified():
		case p.Network() == "tcp6":
			bound = netip.AddrPortFrom(netip.IPv6Loopback(), bound.Port())
		default:
			bound = netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), bound.Port())
		}
		return bound.String()
	}
	return ""
}

func writeDiscoveryHints(b *strings.Builder, portal string, a config.Auth) {
	p := quote(portal)
	fmt.Fprintf(b, "\nWhich targets there are\n")
	if a.CHAP == nil {
		fmt.Fprintf(b, "  iscsiadm -m discovery -t sendtargets -p %s\n", p)
	} else {
		db := "iscsiadm -m discoverydb -t sendtargets -p " + p
		fmt.Fprintf(b, "  %s -o new\n", db)
		fmt.Fprintf(b, "  %s -o update%s\n", db, chapSettings("discovery.sendtargets.auth", a))
		fmt.Fprintf(b, "  %s --discover\n", db)
	}
	fmt.Fprintf(b, "  %siscsi-ls -s %s\n", libiscsiEnv(a), quote("iscsi://"+portal))
}

func writeTargetHints(b *strings.Builder, portal string, t *config.Target) {
	node := fmt.Sprintf("iscsiadm -m node -T %s -p %s", t.Name, quote(portal))
	fmt.Fprintf(b, "\n%s\n", cmp.Or(t.Alias, t.Name))
	if len(t.Initiators) > 0 {
		fmt.Fprintf(b, "  # only for initiators named %s\n", joinPatterns(t.Initiators))
	}
	if t.Auth.CHAP != nil {
		fmt.Fprintf(b, "  %s -o update%s\n", node, chapSettings("node.session.auth", t.Auth))
	}
	fmt.Fprintf(b, "  %s --login\n", node)
	if len(t.LUNs) == 0 {
		return
	}
	lun, env := t.LUNs[0], libiscsiEnv(t.Auth)
	url := fmt.Sprintf("iscsi://%s/%s/%d", portal, t.Name, lun.Number)
	readonly := ""
	if lun.ReadOnly {
		readonly = ",readonly=on"
	}
	fmt.Fprintf(b, "  %sqemu-img info %s\n", env, quote(url))
	fmt.Fprintf(b, "  %sqemu-system-x86_64 -drive %s\n", env, quote("file="+url+",format=raw,if=virtio"+readonly))
}

func joinPatterns(rules []config.Initiator) string {
	texts := make([]string, len(rules))
	for i, r := range rules {
		texts[i] = string(r.Name)
	}
	return strings.Join(texts, ", ")
}

// chapSettings returns the arguments of iscsiadm -o update that set CHAP.
func chapSettings(prefix string, a config.Auth) string {
	set := func(name, value string) string { return fmt.Sprintf(" -n %s.%s -v %s", prefix, name, quote(value)) }
	text := set("authmethod", "CHAP") + set("username", a.CHAP.User) + set("password", "SECRET")
	if a.Mutual != nil {
		text += set("username_in", a.Mutual.User) + set("password_in", "SECRET")
	}
	return text
}

// libiscsiEnv returns the variables from which libiscsi and QEMU take the CHAP
// credentials. Unlike a URL, they do not show in the list of processes.
func libiscsiEnv(a config.Auth) string {
	if a.CHAP == nil {
		return ""
	}
	text := fmt.Sprintf("LIBISCSI_CHAP_USERNAME=%s LIBISCSI_CHAP_PASSWORD=SECRET ", quote(a.CHAP.User))
	if a.Mutual != nil {
		text += fmt.Sprintf("LIBISCSI_CHAP_TARGET_USERNAME=%s LIBISCSI_CHAP_TARGET_PASSWORD=SECRET ", quote(a.Mutual.User))
	}
	return text
}

// quote returns text as one word of a shell.
func quote(text string) string {
	const plain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._:/,=@%+"
	if text != "" && strings.Trim(text, plain) == "" {
		return text
	}
	return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'"
}
