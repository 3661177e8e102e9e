package auth

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"math/big"
	"slices"
	"strings"
	"testing"
)

var testNames = Names{
	Host: "nqn.2014-08.org.nvmexpress:uuid:6d1e2f3a-4b5c-4d6e-8f70-8192a3b4c5d6", Subsystem: "nqn.2026-11.com.example:disk",
}

// counting is n bytes that count from first on.
func counting(n int, first byte) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = first + byte(i)
	}
	return b
}

// The secrets are those of nvme-cli 2.3: nvme gen-dhchap-key --secret=0102… --key-length=N --hmac=H --nqn=HOST. It prints the
// transformed key.
func TestSecrets(t *testing.T) {
	for _, x := range []struct {
		hash Hash
		n    int
		text string
	}{
		{0, 32, "DHHC-1:00:AQIDBAUGBwgJCgsMDQ4PEBESExQVFhcYGRobHB0eHyAl7OaH:"},
		{0, 48, "DHHC-1:00:AQIDBAUGBwgJCgsMDQ4PEBESExQVFhcYGRobHB0eHyAhIiMkJSYnKCkqKywtLi8wyg3Bcw==:"},
		{0, 64, "DHHC-1:00:AQIDBAUGBwgJCgsMDQ4PEBESExQVFhcYGRobHB0eHyAhIiMkJSYnKCkqKywtLi8wMTIzNDU2Nzg5Ojs8PT4/QJn7gCg=:"},
		{SHA256, 32, "DHHC-1:01:PzfkoanINrAhrdmD2w8017ocgDjIM3mYnMSVsfozJr8hBCGo:"},
		{SHA384, 48, "DHHC-1:02:iKq+KSxcAqQWYyGGHOyZ6vMp5cB/Acgo6YEP2oX793F0zTzrpy6cxeBLmVpdZ1UVYVwhOg==:"},
		{SHA512, 64, "DHHC-1:03:jvTvLStelz/4+w36oFO372iYYSv0le41BRSYxe+SdNri8l/GSzXcimkp0bmuFlcIHhooHXHaF7xzK5aITEPMGA88I60=:"},
	} {
		s, err := ParseSecret(x.text)
		if err != nil {
			t.Errorf("%s: %v", x.text, err)
			continue
		}
		if s.Text() != x.text || s.hash != x.hash {
			t.Errorf("%s comes back as %s", x.text, s.Text())
		}
		if want := (Secret{key: counting(x.n, 1), hash: x.hash}).transformed(testNames.Host); !bytes.Equal(s.key, want) {
			t.Errorf("hash %d: % x, of nvme-cli % x", x.hash, want, s.key)
		}
		if text := fmt.Sprintf("%v %#v %s", s, s, s.LogValue()); strings.Contains(text, "0x") || !strings.Contains(text, redacted) {
			t.Errorf("it prints as %s", text)
		}
	}
}

func TestBadSecrets(t *testing.T) {
	const good = "DHHC-1:00:AQIDBAUGBwgJCgsMDQ4PEBESExQVFhcYGRobHB0eHyAl7OaH:"
	for text, want := range map[string]string{
		"":                                         "nvme gen-dhchap-key",
		strings.TrimSuffix(good, ":"):              "nvme gen-dhchap-key",
		strings.TrimPrefix(good, "DHHC-1:"):        "nvme gen-dhchap-key",
		strings.Replace(good, ":00:", ":04:", 1):   "00, 01, 02 or 03",
		strings.Replace(good, ":00:", ":02:", 1):   "is for 48",
		strings.Replace(good, "AQ", "AR", 1):       "checksum",
		strings.Replace(good, "AQID", "A?ID", 1):   "BASE64",
		strings.Replace(good, "AQID", "AQ\nID", 1): "BASE64",
		"DHHC-1:00:AQIDBA==:":                      "32, 48 or 64",
		good + good:                                "BASE64",
	} {
		_, err := ParseSecret(text)
		if err == nil || !strings.Contains(err.Error(), want) || len(text) > 20 && strings.Contains(err.Error(), text[11:20]) {
			t.Errorf("%q: %v, want one with %q", text, err, want)
		}
	}
	for _, h := range []Hash{0, SHA256, SHA384, SHA512} {
		if s, err := ParseSecret(NewSecret(h).Text()); err != nil || s.hash != h || bytes.Equal(s.key, make([]byte, len(s.key))) {
			t.Errorf("%d: %v", h, err)
		}
	}
}

// The hashes are of the primes that OpenSSL 3.0.19 has in its named groups.
func TestPrimes(t *testing.T) {
	for g, want := range map[Group]string{
		FFDHE2048: "9cd3b7f336872f46c09428d1bbc19877a4d440512cda8d1c1cf0cd6e33698966",
		FFDHE3072: "0eaf67db3a839156d5013494a5318a772b5697d270d721f37f092efc69ea5a17",
		FFDHE4096: "4648414224ac881b3d0dc59b466f96d06a558278776807797ecf1f66ff397b3e",
		FFDHE6144: "227ac9066b3ddd9e193670cda2388fa884f65ba0cf98b742d1fe77a6687c79c7",
		FFDHE8192: "770b14efaf6f049929c523113b3fa99a8d11dab1b18af3609590122075d19833",
	} {
		b := primes[g]().Bytes()
		if sum := sha256.Sum256(b); hex.EncodeToString(sum[:]) != want || len(b) != g.size() {
			t.Errorf("%v: %d bytes, %x", g, len(b), sum)
		}
	}
}

// The responses were computed by Python's hmac and pow, with OpenSSL's primes: keys and challenges count, S1 is 01020304h, S2 05060708h,
// T_ID 1234h.
func TestResponses(t *testing.T) {
	for _, x := range []struct {
		hash    Hash
		group   Group
		keyHash Hash
		keyLen  int
		r1, r2  string
	}{
		{SHA256, Null, 0, 32, "5c18ccacead13ab8befbfe6becb88ce16ca0634a2cfdfecca9b6c2a0edd39fc7", "861cd85efd11b64e17c00a26c8a93b43ceadbbcf30e63565ebb427b12445f3b7"},
		{SHA256, FFDHE2048, SHA256, 32, "c1df3d0f76ddae05e284588517c7491654b0cd922981ef72ca4ba16c5532f99c", "810dae8c7c2c5ab31582a7a53cdd724b897c7fab7eaa50a9b58fcea855ec1456"},
		{SHA384, FFDHE3072, SHA512, 64, "71bdbd2c26cdf87d4d04e693b8be01da55c8a654dd6f8bac5f965c9eaa4f279c0ad3c6d788f2b6d8a22be559ceec51a5", "06df6ffef756eb2f520794c3899b91a2f7b8ad7dd5c404c351c2f01216d9a4f991ff3343c743e50a4fad29db1f8381f0"},
		{SHA512, FFDHE4096, SHA384, 48, "e174fffc52a0f96bf31a5f64849fbf7be2b4e2b12859845c3ff19be38db6e0dc8d9454d2e4559c92c09e9b88c3bf3a2ed1554d0b1c46bbc57b9a07798e4cb81f", "0483aee546f1227ab6a5a87f52563dcbe716c6b6cf9ce3c29396fd3aac3c78e652e0f5280d189d09dbc3c6635ab670634be3b65be40ec9f7681a12d1bef0d510"},
		{SHA512, FFDHE6144, 0, 64, "7835f1fc54ed5c844baecaa5d798c09c4570491ef1ca6ac2c4619a69072e3369cb0c8d99c928bd39ce1ddfc41d3890f9a29bd0d6c871e72c67ca5758a856abde", "9ffe54306a93d4d2d9085178b41d39cb73b643d510417c8e26bd96b176be3d45e718a550a2fdf94ff89cb7a7539ac7f8a48978f32b7f0c5bf0cca4ee2cbc5ebd"},
		{SHA384, FFDHE8192, 0, 48, "61ce12b22ab5053ea67587001a9f87ef90b83d6fa1a09dd4d462de31f3263c130cb23c126f0dcbadd406ebfe8d325931", "986f158470020343df13fe0e0845f4e6f291f1de7d4ce5d91fae601f1c10f197c51862af5523f901e9ff21cd92817b9c"},
	} {
		n := x.hash.size()
		s := Secret{key: counting(x.keyLen, 1), hash: x.keyHash}
		var shared []byte
		if x.group != Null {
			host := &exchange{x.group, new(big.Int).SetBytes(counting(28, 31))}
			ctrl := &exchange{x.group, new(big.Int).SetBytes(counting(28, 1))}
			var ok bool
			if shared, ok = host.shared(x.group.power(big.NewInt(2), ctrl.x)); !ok {
				t.Fatal(x.group)
			}
			if other, ok := ctrl.shared(x.group.power(big.NewInt(2), host.x)); !ok || !bytes.Equal(shared, other) {
				t.Errorf("%v: the sides have two secrets", x.group)
			}
		}
		r1 := x.hash.ofHost(s.transformed(testNames.Host), x.hash.augment(counting(n, 0x40), shared), 0x01020304, 0x1234, testNames)
		r2 := x.hash.ofController(s.transformed(testNames.Subsystem), x.hash.augment(counting(n, 0x90), shared), 0x05060708, 0x1234, testNames)
		if hex.EncodeToString(r1) != x.r1 || hex.EncodeToString(r2) != x.r2 {
			t.Errorf("%v %v: R1 %x R2 %x", x.hash, x.group, r1, r2)
		}
	}
}

func secret(n byte) *Secret { return &Secret{key: counting(32, n), hash: SHA256} }

// talk has both sides speak until both have ended; between sees each message, and may change it.
func talk(h *Host, first []byte, c *Controller, between func(fromHost bool, m []byte) []byte) error {
	out := first
	for {
		if out != nil {
			c.Send(between(true, out))
		}
		m := c.Receive()
		if m == nil {
			return nil
		}
		var err error
		if out, err = h.Next(append(between(false, m), 0, 0)); err != nil || h.Done() && out == nil {
			if out != nil {
				c.Send(out)
			}
			return err
		}
	}
}

func untouched(_ bool, m []byte) []byte { return m }

// Every hash function with every group, in one direction and in both.
func TestAll(t *testing.T) {
	for _, mutual := range []bool{false, true} {
		for i, g := range Groups {
			for j, h := range Hashes {
				if g > FFDHE2048 && i%len(Hashes) != j {
					continue // each large group once
				}
				r := Rules{Host: secret(1), Hashes: []Hash{h}, Groups: []Group{g}}
				if mutual {
					r.Controller = secret(2)
				}
				host, first := NewHost(testNames, r, 7)
				ctrl := NewController(testNames, r)
				if err := talk(host, first, ctrl, untouched); err != nil {
					t.Fatal(err)
				}
				if why, _ := ctrl.Failure(); why != 0 || !ctrl.Over() || !host.Done() || ctrl.Mutual() != mutual {
					t.Errorf("%v %v: %v, over %v %v, mutual %v", h, g, why, ctrl.Over(), host.Done(), ctrl.Mutual())
				}
				if ctrl.Description() != h.String()+" "+g.String() {
					t.Error(ctrl.Description())
				}
			}
		}
	}
}

// The best that both allow is taken, and a group at all unless Null is asked for.
func TestChoice(t *testing.T) {
	for _, x := range []struct {
		host, ctrl Rules
		want       string
		fails      Reason
	}{
		{host: Rules{Hashes: []Hash{SHA256, SHA384}, Groups: []Group{Null, FFDHE2048}}, want: "sha384 ffdhe2048"},
		{host: Rules{Groups: []Group{Null}}, fails: NoGroup},
		{host: Rules{Hashes: []Hash{SHA256}, Groups: []Group{Null}}, ctrl: Rules{Groups: []Group{Null}}, want: "sha256 null"},
		{host: Rules{Hashes: []Hash{SHA256}, Groups: []Group{FFDHE2048}}, ctrl: Rules{Hashes: []Hash{SHA512}}, fails: NoHash},
		{host: Rules{Groups: []Group{FFDHE2048}}, ctrl: Rules{Hashes: []Hash{SHA256, SHA512}}, want: "sha256 ffdhe2048"},
	} {
		x.host.Host, x.ctrl.Host = secret(1), secret(1)
		host, first := NewHost(testNames, x.host, 7)
		ctrl := NewController(testNames, x.ctrl)
		err := talk(host, first, ctrl, untouched)
		why, _ := ctrl.Failure()
		if why != x.fails || (err != nil) != (x.fails != 0) || x.want != "" && ctrl.Description() != x.want {
			t.Errorf("%v: %v, %v, want %q or %v", ctrl.Description(), why, err, x.want, x.fails)
		}
	}
}

// Who does not know the secret gets nowhere, and is told so.
func TestWrongSecrets(t *testing.T) {
	group := []Group{FFDHE2048}
	for name, x := range map[string]struct {
		host, ctrl Rules
		atHost     bool // it is the host that finds out
	}{
		"host":                       {host: Rules{Host: secret(1)}, ctrl: Rules{Host: secret(2)}},
		"controller":                 {host: Rules{Host: secret(1), Controller: secret(3)}, ctrl: Rules{Host: secret(1), Controller: secret(4)}, atHost: true},
		"controller without one":     {host: Rules{Host: secret(1), Controller: secret(3)}, ctrl: Rules{Host: secret(1)}},
		"the host's as controller's": {host: Rules{Host: secret(1), Controller: secret(3)}, ctrl: Rules{Host: secret(1), Controller: secret(1)}, atHost: true},
	} {
		x.host.Groups, x.ctrl.Groups = group, group
		host, first := NewHost(testNames, x.host, 7)
		ctrl := NewController(testNames, x.ctrl)
		err := talk(host, first, ctrl, untouched)
		why, byHost := ctrl.Failure()
		if e, ok := errors.AsType[*Error](err); !ok || e.Reason != Failed || e.Peer == x.atHost || why != Failed || byHost != x.atHost || !ctrl.Over() {
			t.Errorf("%s: host %v, controller %v (%v)", name, err, why, byHost)
		}
	}
}

// A response is good for one challenge, one transaction, one pair of names, and one direction.
func TestReplay(t *testing.T) {
	r := Rules{Host: secret(1), Groups: []Group{Null}, Hashes: []Hash{SHA256}}
	var recorded []byte
	host, first := NewHost(testNames, r, 7)
	if err := talk(host, first, NewController(testNames, r), func(fromHost bool, m []byte) []byte {
		if fromHost && message(m).kind() == kindReply {
			recorded = bytes.Clone(m)
		}
		return m
	}); err != nil {
		t.Fatal(err)
	}
	for name, n := range map[string]Names{"another challenge": testNames, "another subsystem": {testNames.Host, "nqn.2026-11.com.example:other"}} {
		c := NewController(n, r)
		c.Send(first)
		c.Receive()
		c.Send(recorded)
		if why, _ := c.Failure(); why != Failed {
			t.Errorf("%s: %v", name, why)
		}
	}
	// A host of another name that is asked the very same.
	c := NewController(Names{"nqn.2026-11.com.example:other", testNames.Subsystem}, r)
	c.Send(first)
	c.Receive()
	host, _ = NewHost(testNames, r, 7)
	good, err := host.Next(c.challenge.message(7))
	if err != nil {
		t.Fatal(err)
	}
	if c.Send(good); c.reason != Failed {
		t.Errorf("another host: %v", c.reason)
	}
}

// begun returns a controller that has sent its challenge, and the host's good answer.
func begun(t testing.TB, r Rules) (*Controller, []byte) {
	t.Helper()
	c := NewController(testNames, r)
	host, first := NewHost(testNames, r, 7)
	c.Send(first)
	out, err := host.Next(c.Receive())
	if err != nil {
		t.Fatal(err)
	}
	return c, out
}

// A challenge that comes back as the host's own is nobody's who knows the secret.
func TestReflection(t *testing.T) {
	c, out := begun(t, Rules{Host: secret(1), Controller: secret(2), Groups: []Group{Null}, Hashes: []Hash{SHA256}})
	copy(out[headLen+32:], c.c1)
	if c.Send(out); c.reason != Failed {
		t.Errorf("%v", c.reason)
	}
	// What a challenge gets as an answer in one direction is none in the other.
	key := secret(1).transformed("x")
	if bytes.Equal(SHA256.ofHost(key, c.c1, 1, 7, testNames), SHA256.ofController(key, c.c1, 1, 7, testNames)) {
		t.Error("the directions have one response")
	}
}

// Public values of small order, or of another length, are refused by both sides.
func TestPublicValues(t *testing.T) {
	p := primes[FFDHE2048]()
	fill := func(x *big.Int) []byte { return x.FillBytes(make([]byte, FFDHE2048.size())) }
	r := Rules{Host: secret(1), Groups: []Group{FFDHE2048}, Hashes: []Hash{SHA256}}
	for _, bad := range [][]byte{
		fill(big.NewInt(0)), fill(big.NewInt(1)), fill(new(big.Int).Sub(p, one)), fill(p), bytes.Repeat([]byte{0xff}, FFDHE2048.size()),
	} {
		c, out := begun(t, r)
		copy(out[len(out)-len(bad):], bad)
		if c.Send(out); c.reason != IncorrectPayload {
			t.Errorf("controller, %x…%x: %v", bad[0], bad[len(bad)-1], c.reason)
		}
		host, first := NewHost(testNames, r, 7)
		c = NewController(testNames, r)
		c.Send(first)
		m := c.Receive()
		copy(m[len(m)-len(bad):], bad)
		out, err := host.Next(m)
		if e, ok := errors.AsType[*Error](err); !ok || e.Reason != IncorrectPayload || message(out).kind() != kindFailure2 {
			t.Errorf("host, %x…%x: %v", bad[0], bad[len(bad)-1], err)
		}
	}
	for _, good := range []*big.Int{big.NewInt(2), new(big.Int).Sub(p, big.NewInt(2))} {
		x, _ := FFDHE2048.newExchange()
		if _, ok := x.shared(fill(good)); !ok {
			t.Errorf("%x… is refused", good.Bytes()[0])
		}
	}
}

// Messages that are too short, too long, out of turn, of another transaction, or wrong in a field.
func TestBadMessages(t *testing.T) {
	r := Rules{Host: secret(1), Controller: secret(2), Groups: []Group{Null, FFDHE2048}, Hashes: []Hash{SHA256}}
	_, first := NewHost(testNames, r, 7)
	change := func(m []byte, at int, v byte) []byte {
		m = bytes.Clone(m)
		m[at] = v
		return m
	}
	for name, x := range map[string]struct {
		m    []byte
		want Reason
	}{
		"empty":            {nil, IncorrectPayload},
		"short":            {first[:7], IncorrectPayload},
		"one byte less":    {first[:len(first)-1], IncorrectPayload},
		"one byte more":    {append(bytes.Clone(first), 0), IncorrectPayload},
		"huge":             {make([]byte, MaxMessage+1), IncorrectPayload},
		"no protocol":      {change(first, offNAPD, 0), IncorrectPayload},
		"more protocols":   {change(first, offNAPD, 2), IncorrectPayload},
		"secure channel":   {change(first, offSCC, 1), NoConcatenation},
		"another protocol": {change(first, negotiateLen, 2), NoProtocol},
		"31 hashes":        {change(first, negotiateLen+2, 31), IncorrectPayload},
		"31 groups":        {change(first, negotiateLen+3, 31), IncorrectPayload},
		"no hash":          {change(first, negotiateLen+2, 0), NoHash},
		"no group":         {change(first, negotiateLen+3, 0), NoGroup},
		"unknown hash":     {change(first, negotiateLen+offHashes, 4), NoHash},
		"a reply first":    {change(first, 1, 2), UnexpectedMessage},
		"our own message":  {newFailure(kindFailure1, 7, Failed), UnexpectedMessage},
	} {
		c := NewController(testNames, r)
		c.Send(x.m)
		if c.reason != x.want || c.Over() {
			t.Errorf("%s: %v, want %v", name, c.reason, x.want)
		}
		if m := message(c.Receive()); m.kind() != kindFailure1 || m[6] != 1 || Reason(m[7]) != x.want || len(m) != failureLen || !c.Over() || c.Receive() != nil {
			t.Errorf("%s: % x", name, m)
		}
	}
	for name, x := range map[string]struct {
		change func([]byte) []byte
		want   Reason
	}{
		"one byte less":   {func(m []byte) []byte { return m[:len(m)-1] }, IncorrectPayload},
		"one byte more":   {func(m []byte) []byte { return append(m, 0) }, IncorrectPayload},
		"another T_ID":    {func(m []byte) []byte { return change(m, offTID, 8) }, IncorrectPayload},
		"a larger HL":     {func(m []byte) []byte { return change(m, offHL, 48) }, IncorrectPayload},
		"CVALID 2":        {func(m []byte) []byte { return change(m, offValid, 2) }, IncorrectPayload},
		"no public value": {func(m []byte) []byte { return change(m[:len(m)-256], offDHLen+1, 0) }, IncorrectPayload},
		"sequence 0":      {func(m []byte) []byte { return append(append(m[:offSeq:offSeq], 0, 0, 0, 0), m[headLen:]...) }, IncorrectPayload},
		"a bit of R1":     {func(m []byte) []byte { return change(m, headLen, m[headLen]^1) }, Failed},
		"Negotiate again": {func([]byte) []byte { return first }, UnexpectedMessage},
		"Success2":        {func([]byte) []byte { return newSuccess2(7) }, UnexpectedMessage},
	} {
		c, out := begun(t, Rules{Host: secret(1), Controller: secret(2), Groups: []Group{FFDHE2048}, Hashes: []Hash{SHA256}})
		if c.Send(x.change(out)); c.reason != x.want {
			t.Errorf("%s: %v, want %v", name, c.reason, x.want)
		}
	}
	// What the host says after a failure changes nothing.
	c, out := begun(t, r)
	c.Send(change(out, headLen, out[headLen]^1))
	c.Send(out)
	if c.reason != Failed || c.state != failing {
		t.Errorf("%v in state %d", c.reason, c.state)
	}
	// A reply is taken once.
	c, out = begun(t, r)
	c.Send(out)
	c.Send(out)
	if c.reason != UnexpectedMessage {
		t.Errorf("a second reply: %v", c.reason)
	}
	// Nothing is to be had before its turn.
	if c := NewController(testNames, r); c.Receive() != nil {
		t.Error("a message before Negotiate")
	}
	// Success2 is wanted.
	c, out = begun(t, r)
	c.Send(out)
	if c.Receive(); c.Over() {
		t.Error("over without Success2")
	}
	if c.Send(newSuccess2(7)); !c.Over() || c.reason != 0 {
		t.Errorf("after Success2: %v", c.reason)
	}
}

// What a host refuses of a controller.
func TestHostRefuses(t *testing.T) {
	r := Rules{Host: secret(1), Controller: secret(2), Groups: []Group{Null}, Hashes: []Hash{SHA256}}
	c := challenge{hash: SHA256, seq: 1, c1: counting(32, 1)}
	for name, x := range map[string]struct {
		m    []byte
		want Reason
	}{
		"a hash that was not offered":  {(&challenge{hash: SHA512, seq: 1, c1: counting(64, 1)}).message(7), NoHash},
		"a group that was not offered": {(&challenge{hash: SHA256, group: FFDHE2048, seq: 1, c1: counting(32, 1), public: make([]byte, 256)}).message(7), NoGroup},
		"a group that there is not":    {(&challenge{hash: SHA256, group: 6, seq: 1, c1: counting(32, 1)}).message(7), IncorrectPayload},
		"another transaction":          {c.message(8), IncorrectPayload},
		"half a challenge":             {c.message(7)[:40], IncorrectPayload},
		"Success1 at once":             {newSuccess1(7, 32, nil), UnexpectedMessage},
		"nothing":                      {nil, IncorrectPayload},
	} {
		host, _ := NewHost(testNames, r, 7)
		out, err := host.Next(x.m)
		if e, ok := errors.AsType[*Error](err); !ok || e.Reason != x.want || e.Peer || message(out).kind() != kindFailure2 || !host.Done() {
			t.Errorf("%s: %v", name, err)
		}
	}
	// A controller that says that all is well, and proves nothing.
	host, _ := NewHost(testNames, r, 7)
	if _, err := host.Next(c.message(7)); err != nil {
		t.Fatal(err)
	}
	if _, err := host.Next(newSuccess1(7, 32, nil)); err == nil {
		t.Error("the host believes a controller without a proof")
	}
}

// Whatever comes, a controller answers or is silent, and nobody gets in who does not know the secret.
func FuzzController(f *testing.F) {
	r := Rules{Host: secret(1), Groups: []Group{Null}, Hashes: []Hash{SHA256}}
	_, first := NewHost(testNames, r, 7)
	_, out := begun(f, r)
	f.Add(first, out, newSuccess2(7))
	f.Add(first, []byte{}, newFailure(kindFailure2, 7, Failed))
	f.Fuzz(func(t *testing.T, a, b, d []byte) {
		c := NewController(testNames, r)
		for _, m := range [][]byte{a, b, d} {
			c.Send(m)
			if m := c.Receive(); m != nil && (len(m) > MaxMessage || len(m) < failureLen) {
				t.Errorf("% x", m)
			}
		}
		if why, _ := c.Failure(); c.Over() && why == 0 {
			t.Error("it takes a host that knows nothing")
		}
	})
}

func FuzzHost(f *testing.F) {
	c := challenge{hash: SHA256, seq: 1, c1: counting(32, 1)}
	f.Add(c.message(7), newSuccess1(7, 32, counting(32, 1)))
	f.Add(newFailure(kindFailure1, 7, Failed), []byte{})
	f.Fuzz(func(t *testing.T, a, b []byte) {
		h, _ := NewHost(testNames, Rules{Host: secret(1), Controller: secret(2), Groups: []Group{Null}}, 7)
		for _, m := range [][]byte{a, b} {
			if out, err := h.Next(m); err == nil && out != nil && message(out).kind() == kindSuccess2 {
				t.Error("it takes a controller that knows nothing")
			}
		}
	})
}

func FuzzSecret(f *testing.F) {
	f.Add("DHHC-1:00:AQIDBAUGBwgJCgsMDQ4PEBESExQVFhcYGRobHB0eHyAl7OaH:")
	f.Fuzz(func(t *testing.T, text string) {
		if s, err := ParseSecret(text); err == nil && s.Text() != text {
			t.Errorf("%q is read as %q", text, s.Text())
		}
	})
}

// Numbers of messages are never 0, and all hashes and groups have names.
func TestNames(t *testing.T) {
	was := sequence.Load()
	defer sequence.Store(was)
	sequence.Store(^uint32(0) - 1)
	for range 3 {
		if nextSequence() == 0 {
			t.Error("a sequence number is 0")
		}
	}
	for _, h := range Hashes {
		if h.String() == "" {
			t.Errorf("hash %d", h)
		}
	}
	for g := range groups {
		if !slices.Contains(Groups, Group(g)) || Group(g).String() == "" {
			t.Errorf("group %d", g)
		}
	}
}

func BenchmarkExchange(b *testing.B) {
	for _, g := range Groups[:len(Groups)-1] {
		_, public := g.newExchange()
		b.Run(g.String(), func(b *testing.B) {
			for b.Loop() {
				x, _ := g.newExchange()
				x.shared(public)
			}
		})
	}
}
