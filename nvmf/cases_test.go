package nvmf

import (
	"testing"

	"oneshot/nvme"
)

// What nvmFabTest (commit 497f15cc), a suite of cases for nvme-cli and libnvme, wants of a controller, as far as no other test looks at it; test/fab runs the suite itself. Its other
// cases are those of TestConnectChecks, TestProperties, TestDiscovery, TestAbort, TestAuthentication and TestKeepAlive. One does not apply:
// set_features_001 asks for a feature of a namespace (05h) with the number of all namespaces, which is Invalid Namespace or Format.
func TestCasesOfNvmFabTest(t *testing.T) {
	x := newTarget(t, nil, false)
	h, _ := x.admin(0)
	for _, p := range []uint32{0x0c, 0x10, 0x18, 0x24, 0x28, 0x30, 0x38, 0x3c, 0x40, 0xf00, 0x1000} { // get_property_003
		for wide := range uint32(2) {
			get := nvme.Command{Opcode: nvme.Fabrics, NSID: uint32(nvme.PropertyGet), DWords: [6]uint32{wide, p}}
			if a := h.do(get, 0, nil, false); a.Status != nvme.Success || a.DW0|a.DW1 != 0 {
				t.Errorf("property %#x: %v, %#x", p, a.Status, a.DW0)
			}
		}
	}
	for _, nsid := range []uint32{0, 1, nvme.AllNamespaces} { // identify_002
		if a := h.do(nvme.Command{Opcode: nvme.AdminIdentify, NSID: nsid, DWords: [6]uint32{0xff}}, nvme.IdentifyLen, nil, false); a.Status != nvme.InvalidField|nvme.DNR {
			t.Errorf("CNS FFh of namespace %#x: %v", nsid, a.Status)
		}
	}
	printable := func(what string, b []byte) {
		t.Helper()
		for _, c := range b {
			if c < ' ' || c > '~' {
				t.Errorf("%s is %q", what, b)
				return
			}
		}
	}
	b := h.must(nvme.Command{Opcode: nvme.AdminIdentify, DWords: [6]uint32{uint32(nvme.CNSController)}}, nvme.IdentifyLen, nil, false).data
	printable("SN, MN and FR", b[4:72]) // identify_001
	b = h.must(logPage(nvme.LogFirmware, nvme.AllNamespaces, 64, 0), 64, nil, false).data
	if b[0] < 1 || b[0] > 7 { // get_log_001
		t.Errorf("the firmware log names slot %d", b[0])
	}
	printable("the firmware", b[8*b[0]:][:8])
	h.must(nvme.Command{Opcode: nvme.AdminGetFeatures, NSID: nvme.AllNamespaces, DWords: [6]uint32{uint32(nvme.FeatureQueues)}}, 0, nil, false) // get_features_001
	h.must(nvme.Command{Opcode: nvme.AdminSetFeatures, NSID: 1, DWords: [6]uint32{uint32(nvme.FeatureErrorRecovery), 30}}, 0, nil, false)       // set_features_001,
	a := h.must(nvme.Command{Opcode: nvme.AdminGetFeatures, NSID: 1, DWords: [6]uint32{uint32(nvme.FeatureErrorRecovery)}}, 0, nil, false)      // but for one namespace
	if a.DW0 != 30 {
		t.Errorf("TLER is %d", a.DW0)
	}
}

// The time limit of error recovery is that of one namespace (NVM 1.0 §4.1.3.2), or is set for all; a reset forgets it.
func TestErrorRecovery(t *testing.T) {
	x, y := newTarget(t, nil, false), newTarget(t, nil, false)
	h, _ := x.admin(0)
	x.sub.SetNamespaces([]Shown{{NSID: 2, Namespace: y.ns}})
	t.Cleanup(func() { x.sub.SetNamespaces([]Shown{{NSID: 2}}) })
	set := func(nsid, v uint32) {
		t.Helper()
		h.must(nvme.Command{Opcode: nvme.AdminSetFeatures, NSID: nsid, DWords: [6]uint32{uint32(nvme.FeatureErrorRecovery), v}}, 0, nil, false)
	}
	want := func(sel uint32, values ...uint32) {
		t.Helper()
		for i, v := range values {
			get := nvme.Command{Opcode: nvme.AdminGetFeatures, NSID: uint32(i + 1), DWords: [6]uint32{uint32(nvme.FeatureErrorRecovery) | sel<<8}}
			if a := h.must(get, 0, nil, false); a.DW0 != v {
				t.Errorf("TLER of namespace %d is %d, want %d", i+1, a.DW0, v)
			}
		}
	}
	set(1, 30)
	want(0, 30, 0)
	set(nvme.AllNamespaces, 40)
	set(2, 50)
	want(0, 40, 50)
	want(1, 0, 0)
	h.setCC(enabled &^ nvme.CCEnable)
	h.setCC(enabled)
	want(0, 0, 0)
}
