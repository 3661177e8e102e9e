package wire

import (
	"bytes"
	"fmt"
	"maps"
	"math/rand/v2"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"oneshot/test/targettest"
)

func TestMain(m *testing.M) { targettest.Main(m) }

const (
	iqn    = "iqn.2026-11.example.oneshot:wire"
	config = `
stores:  {disk: {type: memory, size: 64MiB}}
targets: [{iqn: "iqn.2026-11.example.oneshot:wire", luns: {0: disk}}]
portals: [{transport: tcp, listen: $PORTAL}]
`
)

// TestCapture lets several initiators talk to the daemon and tshark read what
// went over the wire.
func TestCapture(t *testing.T) {
	tg := targettest.Start(t, config)
	c, err := startCapture(t.Context(), tg.Port())
	if err != nil {
		t.Fatal(err)
	}
	converse(t, tg.Portal(), iqn, 0)
	foreign(t, tg.URL(iqn, 0))
	pcapng, err := c.stop(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	judge(t, pcapng, tg.Port())
	if t.Failed() {
		keep(t, pcapng)
	}
}

// converse is the scripted part: every kind of PDU, with and without digests.
func converse(t *testing.T, addr, target string, lun byte) {
	sessions := []struct {
		name        string
		digests     bool
		keys        []string
		unsolicited int
	}{
		{"R2T for all", false, []string{"InitialR2T=Yes", "ImmediateData=Yes"}, 0},
		{"R2T for all, digests", true, []string{"InitialR2T=Yes", "ImmediateData=Yes"}, 0},
		{"unsolicited data", false, []string{"InitialR2T=No", "ImmediateData=Yes", "FirstBurstLength=32768"}, 32768},
		{"unsolicited data, digests", true, []string{"InitialR2T=No", "ImmediateData=Yes", "FirstBurstLength=32768"}, 32768},
		{"several R2Ts", true, []string{"InitialR2T=Yes", "ImmediateData=Yes", "MaxBurstLength=16384", "FirstBurstLength=8192", "MaxOutstandingR2T=1"}, 0},
	}
	for seed, s := range sessions {
		t.Run(s.name, func(t *testing.T) {
			i, err := dial(addr, target, s.digests, s.keys...)
			if err != nil {
				t.Fatal(err)
			}
			i.lun = lun
			if err := i.talk(uint64(seed), s.unsolicited); err != nil {
				i.conn.Close()
				t.Fatal(err)
			}
		})
	}
	t.Run("discovery", func(t *testing.T) {
		i, err := dial(addr, "", false)
		if err != nil {
			t.Fatal(err)
		}
		targets, err := i.sendTargets("All")
		if err != nil {
			i.conn.Close()
			t.Fatal(err)
		}
		if want := "TargetName=" + target; !slices.Contains(targets, want) {
			t.Errorf("SendTargets=All answers %q, without %q", targets, want)
		}
		if err := i.logout(); err != nil {
			t.Error(err)
		}
	})
}

// talk goes through what a full-feature session has.
func (i *initiator) talk(seed uint64, unsolicited int) error {
	inquiry := []byte{0x12, 0, 0, 0, 96, 0}
	if _, err := i.read(inquiry, 96); err != nil {
		return fmt.Errorf("INQUIRY: %w", err)
	}
	// A unit attention may await the first command that is not INQUIRY.
	if err := i.testUnitReady(); err != nil {
		return err
	}
	for _, size := range []int{512, 8192, 128 << 10} {
		data := make([]byte, size)
		r := rand.NewChaCha8([32]byte{byte(seed), byte(size >> 9)})
		_, _ = r.Read(data) // never fails
		if err := i.write(100, data, min(unsolicited, size)); err != nil {
			return fmt.Errorf("WRITE of %d bytes: %w", size, err)
		}
		back, err := i.read(cdb10(0x28, 100, size/512), size)
		if err != nil {
			return fmt.Errorf("READ of %d bytes: %w", size, err)
		}
		if !bytes.Equal(data, back) {
			return fmt.Errorf("READ of %d bytes: other bytes than written", size)
		}
	}
	if err := i.ping("odd length of ping data."[:23]); err != nil {
		return err
	}
	if err := i.manage(abortTask, tmfNoTask); err != nil {
		return err
	}
	if err := i.manage(lunReset, tmfComplete); err != nil {
		return err
	}
	if err := i.testUnitReady(); err != nil { // after its unit attention
		return err
	}
	if _, err := i.sendTargets(""); err != nil {
		return fmt.Errorf("SendTargets: %w", err)
	}
	return i.logout()
}

func (i *initiator) testUnitReady() error {
	for attempt := 0; ; attempt++ {
		if _, err := i.command(make([]byte, 6), final, 0, nil); err != nil {
			return err
		}
		h, _, err := i.receive(opSCSIResp)
		if err != nil {
			return err
		}
		if err := goodStatus(h); err == nil || attempt == 3 {
			return err
		}
	}
}

// foreign lets libiscsi's tools speak, which know header digests. QEMU is not
// among them: it asks for only the first 64 bytes of a longer VPD page, and
// tshark takes what the initiator cut off for malformed.
func foreign(t *testing.T, url string) {
	for _, args := range [][]string{
		{"iscsi-ls", "--show-luns", url[:strings.LastIndex(url, "/iqn")]},
		{"iscsi-inq", url + "?header_digest=crc32c"},
		{"iscsi-readcapacity16", url + "?header_digest=crc32c"},
		{"iscsi-swp", url},
	} {
		out, err := exec.CommandContext(t.Context(), args[0], args[1:]...).CombinedOutput()
		if err != nil {
			t.Errorf("%s: %v\n%s", args, err, out)
		}
	}
}

// judge reads the capture.
func judge(t *testing.T, pcapng []byte, port string) {
	packets, err := decode(t.Context(), pcapng, port)
	if err != nil {
		t.Fatal(err)
	}
	complain(t, packets)
	all := pdus(packets, port)
	t.Logf("%d packets, %d PDUs", len(packets), len(all))
	checkOpcodes(t, all)
	if streams := checkNumbers(t, all); streams < 8 {
		t.Errorf("only %d connections in the capture", streams)
	}
}

// checkOpcodes: what was not in the capture was not looked at.
func checkOpcodes(t *testing.T, all []pdu) {
	count := map[uint64]int{}
	for _, u := range all {
		count[u.opcode]++
	}
	for _, op := range []uint64{
		opNOPOut, opSCSI, opTMF, opLogin, opText, opDOut, opLogout,
		opNOPIn, opSCSIResp, opTMFResp, opLoginResp, opTextResp, opDIn, opLogoutResp, opR2T,
	} {
		if count[op] == 0 {
			t.Errorf("the capture has no PDU of opcode %#02x; it has %v", op, slices.Sorted(maps.Keys(count)))
		}
	}
	if count[opReject] > 0 {
		t.Errorf("the target rejected %d PDUs", count[opReject])
	}
}
