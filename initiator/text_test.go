package initiator_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"strings"
	"testing"

	"oneshot/initiator"
	"oneshot/iscsi/pdu"
	"oneshot/iscsi/text"
	"oneshot/test/targettest"
)

// answerTexts has a target answer with the pieces, one in each response; more says whether they are
// one text cut anywhere (the C bit) or a text each. Without ends it begins anew after the last.
func (g *target) answerTexts(pieces [][]byte, more, ends bool) {
	for i := 0; ; i++ {
		h, _, err := g.read()
		if err != nil || h.Opcode() != pdu.OpTextRequest {
			return
		}
		piece, last := pieces[i%len(pieces)], ends && i == len(pieces)-1
		f := pdu.TextResponseFields{ITT: h.ITT(), TTT: 7, Continue: more && !last, Final: last, DataSegmentLength: len(piece), Sequence: g.sequence()}
		if last {
			f.TTT = pdu.ReservedTag
		}
		g.write(&f, piece)
	}
}

// An answer to a text comes in as many responses as the target likes, and is over with the F bit
// (RFC 7143 §11.11.1).
func TestLongTexts(t *testing.T) {
	const targets = 10_000
	var whole []byte
	var each [][]byte
	for i := range targets {
		a := text.Append(nil, "TargetName", fmt.Sprintf("iqn.2026-11.example.oneshot:%0180d", i)) // 208 bytes
		a = text.Append(a, "TargetAddress", "[2001:db8::1234:5678]:3260,1")
		whole, each = append(whole, a...), append(each, a)
	}
	var cut [][]byte
	for rest := whole; len(rest) > 0; {
		n := min(len(rest), 8000)
		cut, rest = append(cut, rest[:n]), rest[n:]
	}
	for name, c := range map[string]struct {
		pieces [][]byte
		more   bool
	}{"cut": {cut, true}, "a text each": {each, false}} {
		t.Run(name, func(t *testing.T) {
			s := dialFake(t, func(g *target) { g.answerTexts(c.pieces, c.more, true) })
			defer s.Close()
			got, err := s.Text(t.Context(), text.Pair{Key: "SendTargets", Value: "All"})
			if err != nil || len(got) != 2*targets || got[2*targets-2].Value[28:] != fmt.Sprintf("%0180d", targets-1) {
				t.Errorf("%d pairs, %v", len(got), err)
			}
		})
	}
}

// A target whose answer does not end is told off before it has all the memory there is.
func TestEndlessTexts(t *testing.T) {
	for name, c := range map[string]struct {
		piece []byte
		more  bool
	}{
		"one text":   {bytes.Repeat([]byte("x"), 8192), true},
		"many texts": {text.Append(nil, "X-a", strings.Repeat("x", 4000)), false},
		"nothing":    {nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			s := dialFake(t, func(g *target) { g.answerTexts([][]byte{c.piece}, c.more, false) })
			defer s.Close()
			_, err := s.Text(t.Context(), text.Pair{Key: "SendTargets", Value: "All"})
			if err == nil || !strings.Contains(err.Error(), "more than") {
				t.Errorf("%v", err)
			}
		})
	}
}

// Lists in which nothing stands are empty, and not null, for those who read them as JSON: the targets of a node that shows none, and the portals of
// one that is only at the address that was asked (RFC 7143 appendix C).
func TestDiscoverNothing(t *testing.T) {
	for name, c := range map[string]struct {
		answer []byte
		want   string
	}{
		"no target":    {nil, "[]"},
		"no addresses": {text.Append(nil, "TargetName", "iqn.x:y"), `[{"name":"iqn.x:y","portals":[]}]`},
	} {
		t.Run(name, func(t *testing.T) {
			addr := serve(t, func(conn net.Conn) {
				g := &target{c: conn}
				if g.logIn() != nil {
					return
				}
				h, _, err := g.read()
				if err != nil {
					return
				}
				g.write(&pdu.TextResponseFields{ITT: h.ITT(), TTT: pdu.ReservedTag, Final: true, DataSegmentLength: len(c.answer), Sequence: g.sequence()}, c.answer)
				if h, _, err = g.read(); err == nil {
					g.write(&pdu.LogoutResponseFields{ITT: h.ITT(), Sequence: g.sequence()}, nil)
				}
			})
			found, err := initiator.Discover(t.Context(), initiator.URL{Address: addr}, initiator.Options{})
			check(t, err)
			got, err := json.Marshal(found)
			check(t, err)
			if string(got) != c.want {
				t.Errorf("%s, want %s", got, c.want)
			}
		})
	}
}

// A node with thousands of targets is discovered.
func TestDiscoverMany(t *testing.T) {
	const targets = 3000
	var list []string
	for i := range targets {
		list = append(list, fmt.Sprintf("{iqn: %s-%d, luns: {}}", iqn, i))
	}
	tg := targettest.Start(t, `
stores: {}
targets: [`+strings.Join(list, ", ")+`]
portals: [{listen: $PORTAL}]
`)
	noLeaks(t)
	found, err := initiator.Discover(t.Context(), initiator.URL{Address: tg.Portal()}, initiator.Options{})
	if err != nil || len(found) != targets || found[targets-1].Name != fmt.Sprintf("%s-%d", iqn, targets-1) || len(found[0].Portals) != 1 {
		t.Errorf("%d targets, %v", len(found), err)
	}
}
