package wire

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"oneshot/nvme"
	nvmepdu "oneshot/nvme/tcp/pdu"
	"oneshot/test/targettest"
	"oneshot/transport/nvmetcp/nvmetest"
)

const subsystem = "nqn.2026-11.example.oneshot:wire"

// TestNVMe lets hosts of NVMe/TCP talk to the daemon, with digests and without, with flow control and without, and tshark read what went over the
// wire.
func TestNVMe(t *testing.T) {
	tg := targettest.Start(t, `
stores:     {disk: {type: memory, size: 64MiB}}
subsystems: [{nqn: "`+subsystem+`", namespaces: {1: disk}}]
portals:    [{transport: nvme-tcp, listen: $PORTAL}]
`)
	c, err := startCapture(t.Context(), tg.Port())
	check(t, err)
	for cattr, list := range map[uint8][]nvmepdu.IC{0: {{}, {HeaderDigest: true}, {DataDigest: true}}, 4: {{}, {HeaderDigest: true, DataDigest: true}}} {
		for _, ic := range list {
			talkNVMe(t, tg.Portal(), ic, cattr)
		}
	}
	pcapng, err := c.stop(t.Context())
	check(t, err)
	judgeNVMe(t, pcapng, tg.Port())
	if t.Failed() {
		keep(t, pcapng)
	}
}

// talkNVMe is a conversation with every kind of PDU that a controller sends, but termination requests.
func talkNVMe(t *testing.T, addr string, ic nvmepdu.IC, cattr uint8) {
	t.Helper()
	log := func(l nvme.LID, n int) nvme.Command {
		return nvme.Command{Opcode: nvme.AdminGetLogPage, DWords: [6]uint32{uint32(l) | uint32(n/4-1)<<16}}
	}
	identify := func(cns nvme.CNS, nsid uint32) nvme.Command {
		return nvme.Command{Opcode: nvme.AdminIdentify, NSID: nsid, DWords: [6]uint32{uint32(cns)}}
	}
	discovery := nvmetest.Admin(t, addr, ic, nvme.DiscoveryNQN)
	discovery.Must(log(nvme.LogDiscovery, 3072), nil, 3072)
	defer discovery.C.Close()
	admin := nvmetest.Admin(t, addr, ic, subsystem)
	defer admin.C.Close()
	for _, cns := range []nvme.CNS{nvme.CNSNamespace, nvme.CNSController, nvme.CNSDescriptors} {
		admin.Must(identify(cns, 1), nil, nvme.IdentifyLen)
	}
	admin.Must(identify(nvme.CNSActiveNamespaces, 0), nil, nvme.IdentifyLen)
	for l, n := range map[nvme.LID]int{nvme.LogError: 4096, nvme.LogSmart: 512, nvme.LogFirmware: 512, nvme.LogEffects: 4096, nvme.LogANA: 52} {
		admin.Must(log(l, n), nil, n)
	}
	admin.Must(nvme.Command{Opcode: nvme.AdminSetFeatures, DWords: [6]uint32{uint32(nvme.FeatureQueues), 3<<16 | 3}}, nil, 0)
	admin.Must(nvme.Command{Opcode: nvme.AdminKeepAlive}, nil, 0)
	q := admin.Queue(1, cattr)
	defer q.C.Close()
	for _, n := range []int{512, 16 << 10, 64 << 10} { // in capsules, and by R2T
		want := bytes.Repeat([]byte{byte(n >> 9), cattr, 7, 9}, n/4)
		q.Must(nvmetest.RW(nvme.Write, 8, uint32(n/512)), want, 0)
		if _, got := q.Must(nvmetest.RW(nvme.Read, 8, uint32(n/512)), nil, n); !bytes.Equal(got, want) {
			t.Errorf("%d bytes come back as others", n)
		}
		q.Must(nvmetest.RW(nvme.Compare, 8, uint32(n/512)), want, 0)
	}
	q.Must(nvmetest.RW(nvme.WriteZeroes, 8, 8), nil, 0)
	q.Must(nvme.Command{Opcode: nvme.Flush, NSID: 1}, nil, 0)
	if e, _ := q.Do(nvmetest.RW(nvme.Read, 1<<40, 8), nil, 4096); e.Status.Code() != nvme.LBAOutOfRange {
		t.Errorf("beyond the end: %v", e.Status)
	}
}

// judgeNVMe reads the capture.
func judgeNVMe(t *testing.T, pcapng []byte, port string) {
	packets, err := tshark(t.Context(), pcapng, "-d", "tcp.port=="+port+",nvme-tcp", "-o", "nvme-tcp.check_hdgst:TRUE", "-o", "nvme-tcp.check_ddgst:TRUE")
	check(t, err)
	complain(t, packets)
	count, digests := map[uint64]int{}, map[string]int{}
	for n, p := range packets {
		for _, proto := range p.Protos {
			for _, f := range flatten(proto.Fields) {
				switch f.Name {
				case "nvme-tcp.type":
					n, _ := number([]field{f}, f.Name)
					count[n]++
				case "nvme-tcp.hdgst.status", "nvme-tcp.ddgst.status":
					digests[f.Name]++
					if !strings.Contains(f.ShowName, "Good") {
						t.Errorf("packet %d: %s", n+1, f.ShowName)
					}
				}
			}
		}
	}
	t.Logf("%d packets, PDUs by type %v, digests %v", len(packets), count, digests)
	if len(digests) != 2 {
		t.Errorf("the capture has digests %v", digests)
	}
	for _, want := range []nvmepdu.Type{nvmepdu.ICReq, nvmepdu.ICResp, nvmepdu.CapsuleCmd, nvmepdu.CapsuleResp, nvmepdu.H2CData, nvmepdu.C2HData, nvmepdu.R2T} {
		if count[uint64(want)] == 0 {
			t.Errorf("the capture has no PDU of type %#02x; it has %v", want, fmt.Sprint(slices.Sorted(maps.Keys(count))))
		}
	}
}
