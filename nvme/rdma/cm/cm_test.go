package cm

import (
	"bytes"
	"encoding/hex"
	"strings"
	"testing"
)

func unhex(t testing.TB, text string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.Join(strings.Fields(text), ""))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// The private data as figures 12 to 14 draw them, and as Linux 6.1 lays them out (struct nvme_rdma_cm_req and its like).
func TestVectors(t *testing.T) {
	zeroes := strings.Repeat("00", 22)
	request := unhex(t, "0000 0200 8000 7f00 0301"+zeroes)
	r := Request{QID: 2, HRQ: 128, HSQ: 127, CNTLID: 0x103}
	if got, err := ParseRequest(append(request, 9, 9)); got != r || err != nil {
		t.Errorf("%+v, %v", got, err)
	}
	if got := r.AppendTo([]byte{7})[1:]; !bytes.Equal(got, request) {
		t.Errorf("% x", got)
	}
	accept := unhex(t, "0000 8000"+strings.Repeat("00", 28))
	if got := AppendAccept(nil, 128); !bytes.Equal(got, accept) {
		t.Errorf("% x", got)
	}
	if n, ok := ParseAccept(accept); n != 128 || !ok {
		t.Errorf("%d, %v", n, ok)
	}
	if got := AppendReject(nil, InvalidHSQSize); !bytes.Equal(got, unhex(t, "0000 0400")) {
		t.Errorf("% x", got)
	}
	if s, ok := ParseReject(unhex(t, "0000 0600")); s != NoResources || !ok {
		t.Errorf("%v, %v", s, ok)
	}
}

func TestBad(t *testing.T) {
	good := Request{QID: 1}.AppendTo(nil)
	for n := range RequestLen {
		if _, err := ParseRequest(good[:n]); err != InvalidLength {
			t.Errorf("%d bytes: %v", n, err)
		}
	}
	good[1] = 1
	if _, err := ParseRequest(good); err != InvalidFormat {
		t.Error(err)
	}
	if _, ok := ParseAccept(good); ok {
		t.Error("an accept of another format is taken")
	}
	if _, ok := ParseAccept(good[:AcceptLen-1]); ok {
		t.Error("a short accept is taken")
	}
	if _, ok := ParseReject([]byte{0, 1, 3, 0}); ok {
		t.Error("a refusal of another format is taken")
	}
	if _, ok := ParseReject([]byte{0, 0, 3}); ok {
		t.Error("a short refusal is taken")
	}
}

// FuzzRequest: what is parsed is what is written.
func FuzzRequest(f *testing.F) {
	f.Add(Request{QID: 2, HRQ: 128, HSQ: 127, CNTLID: 3}.AppendTo(nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := ParseRequest(b)
		if err == nil && !bytes.Equal(r.AppendTo(nil)[:10], b[:10]) {
			t.Errorf("%+v from % x", r, b)
		}
	})
}
