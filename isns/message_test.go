package isns

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"net/netip"
	"strings"
	"testing"
)

// A registration octet by octet (RFC 4171 §5.1, §5.6.5.1, §6.1).
func TestRegistration(t *testing.T) {
	m := newMessage(functionReg, flagReplace, 1)
	describe(m, Registration{
		Entity: "e", Targets: []Target{{Name: "iqn.t:a"}}, Portals: []Portal{{netip.MustParseAddrPort("1.2.3.4:3260"), 7}},
	})
	got, err := m.bytes()
	if err != nil {
		t.Fatal(err)
	}
	want, err := hex.DecodeString(strings.Join(strings.Fields(`
		0001 0001 00b8 9c00 0001 0000
		00000020 00000008 69716e2e743a6100
		00000001 00000004 65000000
		00000000 00000000
		00000001 00000004 65000000
		00000002 00000004 00000002
		00000006 00000004 00000384
		00000010 00000010 00000000000000000000ffff01020304
		00000011 00000004 00000cbc
		00000020 00000008 69716e2e743a6100
		00000021 00000004 00000001
		00000033 00000004 00000007
		00000031 00000010 00000000000000000000ffff01020304
		00000032 00000004 00000cbc`), ""))
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", hex.Dump(got), hex.Dump(want))
	}
}

func TestTooLong(t *testing.T) {
	m := newMessage(functionReg, 0, 1)
	m.attribute(tagName, make([]byte, maxPayload))
	if _, err := m.bytes(); err == nil {
		t.Error("a message that is too long")
	}
}

func answer(function, flags, transaction uint16, payload []byte) []byte {
	b := binary.BigEndian.AppendUint16(nil, version)
	for _, n := range []uint16{function, uint16(len(payload)), flags, transaction, 0} {
		b = binary.BigEndian.AppendUint16(b, n)
	}
	return append(b, payload...)
}

func TestReadResponse(t *testing.T) {
	ok := []byte{0, 0, 0, 0}
	whole := append(ok, 0, 0, 0, 32, 0, 0, 0, 2, 'x', 0, 0, 0, 0, 0, 0, 6, 0, 0, 0, 4, 0, 0, 1, 0)
	got, err := readResponse(bytes.NewReader(append(answer(0x8001, flagFirst, 9, whole[:10]), answer(0x8001, flagLast, 9, whole[10:])...)), 1, 9)
	if err != nil || period(got) != 256 {
		t.Errorf("% x: period %d, %v", got, period(got), err)
	}
	for name, b := range map[string][]byte{
		"nothing": nil, "a short header": make([]byte, 5), "a short payload": answer(0x8001, flagLast, 9, ok)[:14],
		"no status": answer(0x8001, flagLast, 9, nil), "another function": answer(0x8002, flagLast, 9, ok),
		"another transaction": answer(0x8001, flagLast, 8, ok), "no end": answer(0x8001, 0, 9, ok),
	} {
		if got, err := readResponse(bytes.NewReader(b), 1, 9); err == nil {
			t.Errorf("%s: % x", name, got)
		}
	}
	_, err = readResponse(bytes.NewReader(answer(0x8001, flagLast, 9, []byte{0, 0, 0, 8})), 1, 9)
	if e, refused := errors.AsType[*StatusError](err); !refused || e.Status != 8 || !strings.Contains(e.Error(), "unauthorized") {
		t.Errorf("a refusal: %v", err)
	}
}

func FuzzReadResponse(f *testing.F) {
	f.Add(answer(0x8001, flagLast, 1, []byte{0, 0, 0, 0, 0, 0, 0, 6, 0, 0, 0, 4, 0, 0, 1, 0}))
	f.Fuzz(func(_ *testing.T, b []byte) {
		if got, err := readResponse(bytes.NewReader(b), 1, 1); err == nil {
			period(got)
		}
	})
}
