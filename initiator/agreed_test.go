package initiator_test

import (
	"net"
	"strings"
	"testing"

	"oneshot/initiator"
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
