package nbd

import (
	"bytes"
	"testing"

	"oneshot/internal/hexdump"
)

// The messages of the transmission phase, laid out as the description of the protocol has them.
func TestWire(t *testing.T) {
	request := hexdump.Parse(t, `
		25 60 95 13              # NBD_REQUEST_MAGIC
		00 01                    # command flags: FUA
		00 01                    # type: NBD_CMD_WRITE
		01 02 03 04 05 06 07 08  # cookie
		00 00 00 12 34 56 70 00  # offset
		00 01 00 00              # length`)
	want := Request{Flags: FlagFUA, Type: Write, Cookie: 0x0102030405060708, Offset: 0x1234567000, Length: 65536}
	got, err := ParseRequest(request)
	if err != nil || got != want {
		t.Errorf("%+v, %v", got, err)
	}
	if b := want.AppendTo(nil); !bytes.Equal(b, request) {
		t.Errorf("% x", b)
	}
	reply := hexdump.Parse(t, `
		67 44 66 98              # NBD_SIMPLE_REPLY_MAGIC
		00 00 00 05              # error: NBD_EIO
		01 02 03 04 05 06 07 08  # cookie`)
	r := Reply{Errno: errnoIO, Cookie: 0x0102030405060708}
	if b := r.AppendTo(nil); !bytes.Equal(b, reply) {
		t.Errorf("% x", b)
	}
	if got, err := ParseReply(reply); err != nil || got != r {
		t.Errorf("%+v, %v", got, err)
	}
	for i, typ := range []Type{Read, Write, Disconnect, Flush, Trim} { // NBD_CMD_…
		if int(typ) != i {
			t.Errorf("%v is %d", typ, typ)
		}
	}
	request[3]++
	if _, err := ParseRequest(request); err == nil {
		t.Error("a request with another magic number")
	}
	reply[3]++
	if _, err := ParseReply(reply); err == nil {
		t.Error("a reply with another magic number")
	}
}

// A message that is parsed and encoded again has the same octets.
func FuzzRequest(f *testing.F) {
	for _, r := range []Request{
		{Type: Read, Length: 4096}, {Type: Write, Flags: FlagFUA, Offset: 1 << 40}, {Type: Disconnect}, {Type: Flush}, {Type: Trim, Cookie: 1<<64 - 1},
	} {
		f.Add(r.AppendTo(nil))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) < RequestLen {
			return
		}
		if r, err := ParseRequest(b); err == nil && !bytes.Equal(r.AppendTo(nil), b[:RequestLen]) {
			t.Errorf("%+v of % x", r, b)
		}
	})
}
