package migrate

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"

	"oneshot/config"
)

// saveconfig holds those parts of saveconfig.json that import reads.
type saveconfig struct {
	FabricModules  []lioFabric `json:"fabric_modules"`
	StorageObjects []lioObject `json:"storage_objects"`
	Targets        []lioTarget `json:"targets"`
}

type lioFabric struct {
	Name           string `json:"name"`
	User           string `json:"discovery_userid"`
	Password       string `json:"discovery_password"`
	MutualUser     string `json:"discovery_mutual_userid"`
	MutualPassword string `json:"discovery_mutual_password"`
	Enable         any    `json:"discovery_enable_auth"`
}

type lioObject struct {
	Plugin     string         `json:"plugin"`
	Name       string         `json:"name"`
	Dev        string         `json:"dev"`
	Size       json.Number    `json:"size"`
	WriteBack  *bool          `json:"write_back"`
	ReadOnly   bool           `json:"readonly"`
	NullIO     bool           `json:"nullio"`
	Attributes map[string]any `json:"attributes"`
}

type lioTarget struct {
	Fabric string   `json:"fabric"`
	WWN    string   `json:"wwn"`
	TPGs   []lioTPG `json:"tpgs"`
}

type lioTPG struct {
	Tag        int            `json:"tag"`
	Enable     *bool          `json:"enable"`
	Attributes map[string]any `json:"attributes"`
	Parameters map[string]any `json:"parameters"`
	lioAuth
	LUNs []struct {
		Index  int    `json:"index"`
		Object string `json:"storage_object"`
	} `json:"luns"`
	ACLs []struct {
		WWN        string         `json:"node_wwn"`
		Depth      any            `json:"tcq_depth"`
		Attributes map[string]any `json:"attributes"`
		lioAuth
		MappedLUNs []struct {
			Index        int  `json:"index"`
			TPGLUN       int  `json:"tpg_lun"`
			WriteProtect bool `json:"write_protect"`
		} `json:"mapped_luns"`
	} `json:"node_acls"`
	Portals []struct {
		Address string `json:"ip_address"`
		Port    int    `json:"port"`
		ISER    bool   `json:"iser"`
	} `json:"portals"`
}

type lioAuth struct {
	User           string `json:"chap_userid"`
	Password       string `json:"chap_password"`
	MutualUser     string `json:"chap_mutual_userid"`
	MutualPassword string `json:"chap_mutual_password"`
}

func (a lioAuth) auth() auth {
	return auth{credentials{a.User, a.Password}, credentials{a.MutualUser, a.MutualPassword}}
}

// has reports whether an attribute of the group is set. One that was not saved has the value that Linux gives a new group.
func (g *lioTPG) has(name string) bool {
	if v := g.Attributes[name]; v != nil {
		return isSet(v)
	}
	return name == "authentication" || name == "demo_mode_write_protect"
}

// isSet reports whether an attribute is 1, true, "1" or the like.
func isSet(v any) bool {
	switch fmt.Sprint(v) {
	case "1", "true", "True", "yes":
		return true
	}
	return false
}

func (m *model) readLIO(data []byte) error {
	var c saveconfig
	if err := json.Unmarshal(data, &c); err != nil {
		return fmt.Errorf("this is not a saveconfig.json of targetcli: %w", err)
	}
	if len(c.StorageObjects) == 0 && len(c.Targets) == 0 {
		return errors.New("this is not a saveconfig.json of targetcli: it has neither storage_objects nor targets")
	}
	objects := m.lioObjects(c.StorageObjects)
	for i := range c.Targets {
		m.lioTarget(&c.Targets[i], objects)
	}
	for _, t := range m.targets {
		for _, p := range t.portals {
			if !slices.Contains(m.portals, p) {
				m.remark("target %s is reached at all addresses, not only at %s: another target needs the portal for all", t.iqn, p.address)
			}
		}
	}
	for _, f := range c.FabricModules {
		if f.Name == "iscsi" && f.User != "" && isSet(f.Enable) {
			m.discovery = lioAuth{f.User, f.Password, f.MutualUser, f.MutualPassword}.auth()
			m.checkSecrets("discovery", m.discovery)
		}
	}
	if len(m.targets) > 0 {
		m.remark("persistent reservations are not taken over: initiators register again")
		m.remark("disks get new serial numbers and names (WWN): initiators that mount by the UUID or label of a file system find it again; check multipath and /dev/disk/by-id")
	}
	return nil
}

// lioBlock holds what import takes over of a storage object besides its store.
type lioBlock struct {
	store string
	size  int // block size; 0: the default
}

// lioObjects returns the stores by the path that LUNs name: /backstores/fileio/disk.
func (m *model) lioObjects(objects []lioObject) map[string]lioBlock {
	known := make(map[string]lioBlock)
	ignored := make(map[string]bool)
	for i := range objects {
		o := &objects[i]
		s, ok := m.lioStore(o)
		if !ok {
			continue
		}
		s.name = m.storeName(o.Name)
		m.stores = append(m.stores, s)
		block := lioBlock{store: s.name}
		for name, v := range o.Attributes {
			if name != "block_size" {
				ignored[name] = true
				continue
			}
			if n, err := strconv.Atoi(fmt.Sprint(v)); err == nil && n != 512 {
				block.size = n
			}
		}
		known["/backstores/"+o.Plugin+"/"+o.Name] = block
	}
	if len(ignored) > 0 {
		m.remark("attributes of storage objects are not taken over, but for block_size: %s", strings.Join(slices.Sorted(maps.Keys(ignored)), ", "))
	}
	return known
}

func (m *model) lioStore(o *lioObject) (store, bool) {
	size, _ := strconv.ParseInt(o.Size.String(), 10, 64)
	switch {
	case o.Plugin == "fileio" && m.kindOf(o.Dev) == config.StoreDevice, o.Plugin == "block":
		return store{kind: string(config.StoreDevice), path: o.Dev, readOnly: o.ReadOnly}, true
	case o.Plugin == "fileio":
		return store{kind: string(config.StoreFile), path: o.Dev, size: size, through: o.WriteBack != nil && !*o.WriteBack}, true
	case o.Plugin == "ramdisk" && o.NullIO:
		return store{kind: string(config.StoreNull), size: size}, true
	case o.Plugin == "ramdisk":
		m.remark("storage object %s: what is in memory is not taken over", o.Name)
		return store{kind: string(config.StoreMemory), size: size}, true
	}
	m.remark("storage object %s of kind %q has no counterpart: its LUNs are left out", o.Name, o.Plugin)
	return store{}, false
}

func (m *model) lioTarget(t *lioTarget, objects map[string]lioBlock) {
	if t.Fabric != "iscsi" {
		m.remark("target %s is of the fabric %q: left out", t.WWN, t.Fabric)
		return
	}
	for i := range t.TPGs {
		g := &t.TPGs[i]
		where := fmt.Sprintf("target %s, portal group %d", t.WWN, g.Tag)
		switch {
		case g.Enable != nil && !*g.Enable:
			m.remark("%s is disabled: left out", where)
		case len(g.Portals) == 0:
			m.remark("%s is reached at no portal: left out", where)
		case slices.ContainsFunc(m.targets, func(o target) bool { return o.iqn == t.WWN }):
			m.remark("%s: a target has one portal group here: left out", where)
		default:
			m.lioTPG(t.WWN, where, g, objects)
		}
	}
}

func (m *model) lioTPG(iqn, where string, g *lioTPG, objects map[string]lioBlock) {
	out := target{iqn: iqn}
	open := g.has("generate_node_acls")
	protect := m.lioProtected(where, g, open)
	m.lioSettings(where, g)
	for _, l := range g.LUNs {
		block, ok := objects[l.Object]
		if !ok {
			m.remark("%s: LUN %d shows %s, which is not taken over", where, l.Index, l.Object)
			continue
		}
		out.luns = append(out.luns, lun{number: l.Index, store: block.store, blockSize: block.size, readOnly: protect[l.Index]})
	}
	if !m.lioAccess(where, g, open, &out) {
		return
	}
	m.checkSecrets(where, out.auth)
	for _, i := range out.initiators {
		m.checkSecrets(where+", "+i.name, i.auth)
	}
	out.portals = m.lioPortals(where, g)
	m.targets = append(m.targets, out)
}

// lioUsual lists settings about which import says nothing: those with the value that targetcli gives a new group,
// and those that are read elsewhere. An empty text stands for any value.
var lioUsual = map[string]string{
	"authentication": "", "generate_node_acls": "", "demo_mode_write_protect": "", "cache_dynamic_acls": "",
	"demo_mode_discovery": "1", "default_cmdsn_depth": "64", "default_erl": "0", "fabric_prot_type": "0",
	"login_keys_workaround": "", "login_timeout": "15", "netif_timeout": "", "prod_mode_write_protect": "0",
	"t10_pi": "0", "tpg_enabled_sendtargets": "1",

	"AuthMethod": "", "DataDigest": "CRC32C,None", "DataPDUInOrder": "Yes", "DataSequenceInOrder": "Yes",
	"DefaultTime2Retain": "20", "DefaultTime2Wait": "2", "ErrorRecoveryLevel": "0", "FirstBurstLength": "65536",
	"HeaderDigest": "CRC32C,None", "IFMarkInt": "", "IFMarker": "No", "ImmediateData": "Yes",
	"InitialR2T": "Yes", "MaxBurstLength": "262144", "MaxConnections": "1", "MaxOutstandingR2T": "1",
	"MaxRecvDataSegmentLength": "8192", "MaxXmitDataSegmentLength": "262144", "OFMarkInt": "", "OFMarker": "No",
	"TargetAlias": "",
}

// lioSettings remarks the settings of a group, or for an initiator, that are not taken over.
func (m *model) lioSettings(where string, g *lioTPG) {
	var list []string
	for _, settings := range []map[string]any{g.Attributes, g.Parameters} {
		for _, name := range slices.Sorted(maps.Keys(settings)) {
			usual, known := lioUsual[name]
			if v := fmt.Sprint(settings[name]); !known || usual != "" && v != usual {
				list = append(list, name+"="+v)
			}
		}
	}
	if len(list) > 0 {
		m.remark("%s: not taken over: %s (initiators choose digests; limits.commands is the depth of a session)", where, strings.Join(list, ", "))
	}
	for _, a := range g.ACLs {
		if a.Depth != nil && fmt.Sprint(a.Depth) != "64" {
			m.remark("%s: the queue depth %v of %s is not taken over: limits.commands is that of every session", where, a.Depth, a.WWN)
		}
	}
}

// lioProtected returns the LUNs of the group that some initiator may not write. In the result nobody may.
func (m *model) lioProtected(where string, g *lioTPG, open bool) map[int]bool {
	protect := make(map[int]bool)
	if open && g.has("demo_mode_write_protect") {
		for _, l := range g.LUNs {
			protect[l.Index] = true
		}
		return protect
	}
	for _, a := range g.ACLs {
		for _, l := range a.MappedLUNs {
			if l.WriteProtect && !protect[l.TPGLUN] {
				protect[l.TPGLUN] = true
				m.remark("%s: LUN %d is read-only for %s, and becomes so for everybody", where, l.TPGLUN, a.WWN)
			}
		}
	}
	return protect
}

// lioAccess sets who may log in, and with which credentials. False: no initiator is left.
func (m *model) lioAccess(where string, g *lioTPG, open bool, out *target) bool {
	authenticate := g.has("authentication")
	if open {
		if len(g.ACLs) > 0 {
			m.remark("%s lets every initiator in, and has rules for single ones (LUNs, credentials), %d of them: these are not taken over, and those initiators see all LUNs as the others do", where, len(g.ACLs))
		}
		if authenticate {
			out.auth = g.auth()
		}
		if authenticate && out.auth.chap.user == "" {
			m.remark("%s asks for CHAP but has no user: left out", where)
			return false
		}
		return true
	}
	for i, a := range g.ACLs {
		if !m.isPlain(where, a.WWN) {
			continue
		}
		r := initiator{name: a.WWN, luns: g.shown(i, out.luns)}
		if authenticates(a.Attributes, authenticate) {
			if r.auth = a.auth(); r.auth.chap.user == "" {
				r.auth = g.auth()
			}
			if r.auth.chap.user == "" {
				m.remark("%s: %s has to prove itself but has no user: left out", where, a.WWN)
				continue
			}
		}
		out.initiators = append(out.initiators, r)
	}
	if len(out.initiators) == 0 {
		m.remark("%s lets no initiator in that could be taken over: left out", where)
		return false
	}
	out.shareAuth()
	return true
}

// authenticates says whether an initiator has to prove itself: its own attribute counts, unless that leaves it to the group (-1), or
// there is none, as before Linux 5.19.
func authenticates(attributes map[string]any, group bool) bool {
	own := attributes["authentication"]
	if own == nil || fmt.Sprint(own) == "-1" {
		return group
	}
	return isSet(own)
}

// shareAuth makes credentials that all initiators share the credentials of the target.
func (t *target) shareAuth() {
	first := t.initiators[0].auth
	if slices.ContainsFunc(t.initiators, func(i initiator) bool { return i.auth != first }) {
		return
	}
	t.auth = first
	for i := range t.initiators {
		t.initiators[i].auth = auth{}
	}
}

// shown returns the LUN numbers that an initiator sees, each with the LUN of its group, as far as
// these were taken over; nil: it sees all LUNs under their own numbers.
func (g *lioTPG) shown(i int, luns []lun) map[int]int {
	numbers, plain := make(map[int]int), true
	for _, l := range g.ACLs[i].MappedLUNs {
		if slices.ContainsFunc(luns, func(t lun) bool { return t.number == l.TPGLUN }) {
			numbers[l.Index] = l.TPGLUN
			plain = plain && l.Index == l.TPGLUN
		}
	}
	if plain && len(numbers) == len(luns) {
		return nil
	}
	return numbers
}

// lioPortals takes over the portals of a group.
func (m *model) lioPortals(where string, g *lioTPG) (list []portal) {
	for _, p := range g.Portals {
		if p.ISER {
			m.remark("%s: the portal %s:%d is for iSER; it becomes one for TCP; for RDMA write transport: verbs there", where, p.Address, p.Port)
		}
		at := portal{address: lioAddress(p.Address, p.Port)}
		m.addPortal(at)
		list = append(list, at)
	}
	return list
}

func lioAddress(address string, port int) string {
	return net.JoinHostPort(strings.Trim(address, "[]"), strconv.Itoa(port))
}
