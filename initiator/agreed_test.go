package initiator_test

import (
	"bytes"
	"encoding/binary"
	"net"
	"strings"
	"testing"

	"oneshot/initiator"
	"oneshot/iscsi/pdu"
	"oneshot/test/targettest"
)

// Who asks for digests has them, or no session: a target that does not answer has not agreed.
func TestDigestsUnanswered(t *testing.T) {
	noLeaks(t)
	for keys, says := range map[string]string{
		"DataDigest=CRC32C\x00":   "HeaderDigest",
		"HeaderDigest=CRC32C\x00": "DataDigest",
		"":                        "Digest",
	} {
		addr := serve(t, func(c net.Conn) {
			g := &target{c: c}
			_ = g.logInWith(keys)
		})
		u, err := initiator.ParseURL("iscsi://" + addr + "/" + iqn + "?header_digest=crc32c&data_digest=crc32c")
		check(t, err)
		if s, err := initiator.Dial(t.Context(), u, initiator.Options{}); err == nil || !strings.Contains(err.Error(), says) || !strings.Contains(err.Error(), "not answered") {
			t.Errorf("%q: %v", keys, err)
			if err == nil {
				_ = s.Close()
			}
		}
	}
}

// A target that has to prove itself proves nothing to who has no secret for it: anybody knows the empty one.
func TestMutualWithoutSecret(t *testing.T) {
	noLeaks(t)
	called := make(chan struct{}, 2)
	addr := serve(t, func(net.Conn) { called <- struct{}{} })
	for _, m := range []initiator.Credentials{{Name: "bob"}, {Secret: []byte("another-secret-12")}} {
		u, err := initiator.ParseURL("iscsi://alice%wonderland-looking@" + addr + "/" + iqn)
		check(t, err)
		u.Mutual = &m
		if _, err := initiator.Dial(t.Context(), u, initiator.Options{}); err == nil || !strings.Contains(err.Error(), "prove") || len(called) > 0 {
			t.Errorf("%+v: %v", m, err)
		}
	}
}

// A target may have more LUNs than fit in the first answer.
func TestManyLUNs(t *testing.T) {
	const luns = 5000
	for name, says := range map[string]uint32{"": luns * 8, "more than there can be": 1 << 31} {
		s := dialFake(t, func(g *target) {
			for {
				h, _, err := g.read()
				if err != nil {
					return
				}
				if h.Opcode() != pdu.OpSCSICommand {
					g.write(&pdu.LogoutResponseFields{ITT: h.ITT(), Sequence: g.sequence()}, nil)
					continue
				}
				b := binary.BigEndian.AppendUint32(nil, says)
				b = append(b, 0, 0, 0, 0)
				for i := range luns {
					b = append(b, 0x40|byte(i>>8), byte(i), 0, 0, 0, 0, 0, 0)
				}
				asked := int((pdu.SCSICommand{Header: h}).EDTL())
				b = b[:min(asked, len(b))]
				g.write(&pdu.DataInFields{
					ITT: h.ITT(), TTT: pdu.ReservedTag, Final: true, HasStatus: true, Underflow: asked > len(b), ResidualCount: uint32(asked - len(b)),
					DataSegmentLength: len(b), Sequence: g.sequence(),
				}, b)
			}
		})
		got, err := s.ReportLUNs(t.Context())
		if name == "" && (err != nil || len(got) != luns || got[luns-1] != luns-1) || name != "" && err == nil {
			t.Errorf("%s: %d LUNs, %v", name, len(got), err)
		}
		check(t, s.Close())
	}
}

// However much data commands may take along, there is room for what targets agree to.
func TestMuchImmediate(t *testing.T) {
	tg := targettest.Start(t, config)
	for _, w := range ways {
		if w.opt.Flow != initiator.FlowDefault || w.opt.Depth != 0 || w.opt.Immediate != 0 {
			continue
		}
		w.opt.Immediate = 1 << 40
		s := w.dial(t, tg)
		l, err := s.LU(t.Context(), 0)
		check(t, err)
		want, got := pattern(64<<10, 1), make([]byte, 64<<10)
		_, err = l.WriteAt(want, 0)
		check(t, err)
		_, err = l.ReadAt(got, 0)
		check(t, err)
		if !bytes.Equal(got, want) {
			t.Errorf("%s: other bytes", w.name)
		}
		check(t, s.Close())
	}
}
