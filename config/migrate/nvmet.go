package migrate

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"net"
	"slices"
	"strings"

	"oneshot/config"
)

// nvmetConfig holds those parts of the config.json of nvmetcli, which saves Linux's target of NVMe, that import reads.
type nvmetConfig struct {
	Hosts      []nvmetHost      `json:"hosts"`
	Ports      []nvmetPort      `json:"ports"`
	Subsystems []nvmetSubsystem `json:"subsystems"`
}

type nvmetHost struct {
	NQN  string         `json:"nqn"`
	Attr map[string]any `json:"attr"`
}

type nvmetPort struct {
	ID   json.Number `json:"portid"`
	Addr struct {
		Type    string `json:"trtype"`
		Address string `json:"traddr"`
		Service string `json:"trsvcid"`
		Secure  string `json:"treq"`
		Socket  string `json:"tsas"`
	} `json:"addr"`
	ANAGroups []struct {
		ID  int `json:"grpid"`
		ANA struct {
			State string `json:"state"`
		} `json:"ana"`
	} `json:"ana_groups"`
	Referrals []struct {
		Enable any `json:"enable"`
		Addr   struct {
			Type    string `json:"trtype"`
			Address string `json:"traddr"`
			Service string `json:"trsvcid"`
		} `json:"addr"`
	} `json:"referrals"`
	Subsystems []string `json:"subsystems"`
}

type nvmetSubsystem struct {
	NQN        string           `json:"nqn"`
	Hosts      []string         `json:"allowed_hosts"`
	Attr       map[string]any   `json:"attr"`
	Namespaces []nvmetNamespace `json:"namespaces"`
}

type nvmetNamespace struct {
	NSID   uint32 `json:"nsid"`
	Enable any    `json:"enable"`
	Group  int    `json:"ana_grpid"`
	Device struct {
		Path  string `json:"path"`
		UUID  string `json:"uuid"`
		NGUID string `json:"nguid"`
	} `json:"device"`
}

// isNVMET reports whether an object of JSON is a configuration of nvmetcli, and none of targetcli.
func isNVMET(data []byte) bool {
	var keys map[string]json.RawMessage
	if json.Unmarshal(data, &keys) != nil || keys["targets"] != nil || keys["storage_objects"] != nil {
		return false
	}
	return keys["subsystems"] != nil || keys["ports"] != nil
}

func (m *model) readNVMET(data []byte) error {
	var c nvmetConfig
	if err := json.Unmarshal(data, &c); err != nil {
		return fmt.Errorf("this is not a config.json of nvmetcli: %w", err)
	}
	at := m.nvmetPorts(c.Ports)
	hosts := make(map[string]host)
	for _, h := range c.Hosts {
		if out := m.nvmetHost(&h); out.secret != "" || hosts[h.NQN].secret == "" { // what is named twice keeps what is said of it once
			hosts[h.NQN] = out
		}
	}
	for i := range c.Subsystems {
		m.nvmetSubsystem(&c.Subsystems[i], at, hosts)
	}
	if len(m.subsystems) > 0 {
		m.remark("reservations are not taken over: hosts register again")
	}
	return nil
}

// nvmetTransports are those of Linux's target that portals have.
var nvmetTransports = map[string]config.Transport{"tcp": config.TransportNVMeTCP, "rdma": config.TransportNVMeRDMA}

// nvmetReached is a port at which a subsystem is reached, with the states of its ANA groups.
type nvmetReached struct {
	portal
	states map[int]string
}

// nvmetPorts takes over the ports of TCP and RDMA. It returns where each subsystem is reached.
func (m *model) nvmetPorts(ports []nvmetPort) map[string][]nvmetReached {
	at := make(map[string][]nvmetReached)
	for _, p := range ports {
		where := fmt.Sprintf("port %s", p.ID)
		transport, ok := nvmetTransports[p.Addr.Type]
		if !ok {
			m.remark("%s is for NVMe over %q, which there is none of: left out", where, p.Addr.Type)
			continue
		}
		if p.Addr.Secure == "required" && p.Addr.Socket == "tls1.3" {
			m.remark("%s lets nobody in without TLS, which there is none of: left out", where)
			continue
		}
		for _, r := range p.Referrals {
			to := net.JoinHostPort(strings.Trim(r.Addr.Address, "[]"), r.Addr.Service)
			switch {
			case r.Enable != nil && !isSet(r.Enable):
			case r.Addr.Type != "tcp":
				m.remark("%s refers to %s by NVMe over %q: left out", where, to, r.Addr.Type)
			case !slices.Contains(m.referrals, to):
				m.referrals = append(m.referrals, to)
			}
		}
		here := nvmetReached{states: make(map[int]string)}
		for _, g := range p.ANAGroups {
			here.states[g.ID] = g.ANA.State
		}
		here.portal = portal{address: net.JoinHostPort(strings.Trim(p.Addr.Address, "[]"), p.Addr.Service), transport: string(transport)}
		m.addPortal(here.portal)
		for _, nqn := range p.Subsystems {
			at[nqn] = append(at[nqn], here)
		}
	}
	return at
}

// nvmetHost takes over the secrets of a host.
func (m *model) nvmetHost(h *nvmetHost) host {
	text := func(name string) string { return strings.TrimSpace(fmt.Sprint(cmp.Or(h.Attr[name], any("")))) }
	out := host{nqn: h.NQN, secret: text("dhchap_key"), ctrlSecret: text("dhchap_ctrl_key")}
	if out.secret == "" {
		out.ctrlSecret = ""
		return out
	}
	if out.secret == out.ctrlSecret {
		m.remark("host %s: both sides of DH-HMAC-CHAP have the same secret: choose two", h.NQN)
	}
	for _, name := range []string{"dhchap_hash", "dhchap_dhgroup"} {
		if v := text(name); v != "" {
			m.remark("host %s: %s %q is not taken over: the strongest is used that both sides have", h.NQN, name, v)
		}
	}
	return out
}

func (m *model) nvmetSubsystem(s *nvmetSubsystem, at map[string][]nvmetReached, hosts map[string]host) {
	if len(at[s.NQN]) == 0 {
		m.remark("subsystem %s is reached at no port that was taken over: left out", s.NQN)
		return
	}
	out := subsystem{nqn: s.NQN}
	if !isSet(s.Attr["allow_any_host"]) {
		for _, h := range s.Hosts {
			if !m.isPlain("subsystem "+s.NQN, h) {
				continue
			}
			known := hosts[h]
			known.nqn = h
			out.hosts = append(out.hosts, known)
		}
		if len(out.hosts) == 0 {
			m.remark("subsystem %s lets no host in: left out", s.NQN)
			return
		}
	}
	if serial, ok := s.Attr["serial"].(string); ok {
		out.serial = strings.TrimSpace(serial)
	}
	first, last := s.attr("cntlid_min", "1"), s.attr("cntlid_max", lastCNTLID)
	if first != "1" || last != lastCNTLID {
		out.cntlids = first + "-" + last
	}
	var more []string
	for name, usual := range map[string]string{"model": "Linux", "pi_enable": "0"} {
		if v := s.Attr[name]; v != nil && fmt.Sprint(v) != usual {
			more = append(more, fmt.Sprintf("%s is %v", name, v))
		}
	}
	if len(more) > 0 {
		m.remark("subsystem %s: attributes are not taken over: %s", s.NQN, strings.Join(slices.Sorted(slices.Values(more)), ", "))
	}
	for i := range s.Namespaces {
		m.nvmetNamespace(&out, &s.Namespaces[i])
	}
	m.nvmetAccess(&out, s, at[s.NQN])
	for _, p := range m.portals {
		if !slices.ContainsFunc(at[s.NQN], func(r nvmetReached) bool { return p.covers(r.portal) }) {
			m.remark("subsystem %s is reached over %s at %s, too: portals serve all subsystems", s.NQN, p.transport, p.address)
		}
	}
	m.subsystems = append(m.subsystems, out)
}

// lastCNTLID is the largest identifier of a controller, which Linux's target gives unless it is told otherwise.
const lastCNTLID = "65519"

// attr is an attribute, or what Linux's target has if it was not saved.
func (s *nvmetSubsystem) attr(name, usual string) string {
	return fmt.Sprint(cmp.Or(s.Attr[name], any(usual)))
}

// nvmetStates are the words of target access for states of ANA.
var nvmetStates = map[string]string{
	"non-optimized": "non-optimized", "inaccessible": "unavailable", "persistent-loss": "offline", "change": "transitioning",
}

// nvmetAccess says how the namespaces that were taken over get the access states that they had at each port: these are no part of a
// configuration. Each portal is a group then.
func (m *model) nvmetAccess(out *subsystem, s *nvmetSubsystem, at []nvmetReached) {
	for _, n := range s.Namespaces {
		if !slices.ContainsFunc(out.namespaces, func(taken namespace) bool { return taken.nsid == n.NSID }) {
			continue
		}
		for _, r := range at {
			state := nvmetStates[r.states[max(n.Group, 1)]]
			i := slices.IndexFunc(m.portals, func(p portal) bool { return p.covers(r.portal) })
			if state == "" || i < 0 {
				continue
			}
			m.apart = true
			m.remark("subsystem %s, namespace %d has another access state at %s: when the target serves, say target access set %s %d %s --nsid %d", s.NQN, n.NSID, r.address, s.NQN, i+1, state, n.NSID)
		}
	}
}

// nvmetBlock is the block size with which Linux shows a file: that of the usual file systems.
const nvmetBlock = 4096

func (m *model) nvmetNamespace(out *subsystem, n *nvmetNamespace) {
	const none = "00000000-0000-0000-0000-000000000000"
	where := fmt.Sprintf("subsystem %s, namespace %d", out.nqn, n.NSID)
	switch {
	case n.Enable != nil && !isSet(n.Enable):
		m.remark("%s is disabled: left out", where)
		return
	case n.Device.Path == "":
		m.remark("%s has no device: left out", where)
		return
	}
	taken := namespace{nsid: n.NSID, store: m.nvmetStore(n.Device.Path)}
	if m.kindOf(n.Device.Path) == config.StoreFile {
		taken.blockSize = nvmetBlock
		m.remark("%s shows a file, in blocks of %d bytes as Linux does on most file systems: hosts must find the block size that they had", where, nvmetBlock)
	}
	if id := n.Device.UUID; id != none {
		taken.uuid = id
	}
	if id := n.Device.NGUID; id != "" && id != none {
		m.remark("%s: the NGUID %s is not taken over: hosts that find the disk by it (/dev/disk/by-id) look for another name", where, id)
	}
	out.namespaces = append(out.namespaces, taken)
}

// nvmetStore returns the name of the store of a path, of which there is one.
func (m *model) nvmetStore(path string) string {
	if i := slices.IndexFunc(m.stores, func(s store) bool { return s.path == path }); i >= 0 {
		return m.stores[i].name
	}
	name := path[strings.LastIndexByte(path, '/')+1:]
	if kind := m.kindOf(path); kind == config.StoreFile {
		name = strings.TrimSuffix(name, ".img")
	}
	s := store{name: m.storeName(name), kind: string(m.kindOf(path)), path: path}
	m.stores = append(m.stores, s)
	return s.name
}

// subsystem is an NVM subsystem.
type subsystem struct {
	nqn, serial string
	cntlids     string // empty: all
	namespaces  []namespace
	hosts       []host // none: all
}

// host is a host of NVMe, with what it and the controller prove to know.
type host struct{ nqn, secret, ctrlSecret string }

func (h host) String() string {
	if h.secret == "" {
		return quote(h.nqn)
	}
	auth := "dhchap_secret: " + quote(h.secret)
	if h.ctrlSecret != "" {
		auth += ", dhchap_ctrl_secret: " + quote(h.ctrlSecret)
	}
	return fmt.Sprintf("{nqn: %s, auth: {%s}}", quote(h.nqn), auth)
}

type namespace struct {
	nsid      uint32
	store     string
	blockSize int    // 0: the default
	uuid      string // empty: a new one
}

func (s subsystem) yaml(b *bytes.Buffer) {
	fmt.Fprintf(b, "  - nqn: %s\n", quote(s.nqn))
	if s.serial != "" {
		fmt.Fprintf(b, "    serial: %s\n", quote(s.serial))
	}
	if s.cntlids != "" {
		fmt.Fprintf(b, "    cntlids: %s\n", quote(s.cntlids))
	}
	if len(s.namespaces) > 0 {
		b.WriteString("    namespaces:\n")
	}
	for _, n := range s.namespaces {
		w := fields{}
		w.add("store", n.store)
		if n.blockSize != 0 {
			w.add("block_size", fmt.Sprint(n.blockSize))
		}
		if n.uuid != "" {
			w.add("uuid", quote(n.uuid))
		}
		fmt.Fprintf(b, "      %d: %s\n", n.nsid, w)
	}
	if len(s.hosts) > 0 {
		b.WriteString("    hosts:\n")
	}
	for _, h := range s.hosts {
		fmt.Fprintf(b, "      - %s\n", h)
	}
}
