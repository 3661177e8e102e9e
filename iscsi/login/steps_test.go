package login

import (
	"bytes"
	"crypto/md5"
	"crypto/sha1"
	"crypto/sha256"
	"crypto/sha3"
	"encoding/base64"
	"fmt"
	"hash"
	"maps"
	"strings"
	"testing"

	"oneshot/iscsi/pdu"
	"oneshot/iscsi/text"
)

// phonebook is a Directory of one open target, one with CHAP, and one for nobody.
type phonebook struct{ discovery *Target }

const secret, otherSecret = "wonderland-looking", "builder-of-things"

func (phonebook) Find(name, _ string) (*Target, pdu.LoginStatus) {
	switch name {
	case "iqn.t:open":
		return &Target{Name: name, TPGT: 1, Alias: "an alias"}, pdu.LoginSuccess
	case "iqn.t:chap":
		return &Target{
			Name: name, TPGT: 1, CHAP: &Credentials{Name: "alice", Secret: []byte(secret)}, Mutual: &Credentials{Name: "bob", Secret: []byte(otherSecret)},
		}, pdu.LoginSuccess
	case "iqn.t:private":
		return nil, pdu.LoginAuthorizationFailure
	}
	return nil, pdu.LoginNotFound
}

func (p phonebook) Discovery() *Target {
	if p.discovery != nil {
		return p.discovery
	}
	return &Target{}
}

// client is one login's initiator.
type client struct {
	t *testing.T
	l *Login
}

func newClient(t *testing.T) *client {
	cfg := DefaultConfig()
	return &client{t, New(&cfg, phonebook{}, bytes.NewReader(bytes.Repeat([]byte{0x5a, 0xc3, 0x17}, 100)))}
}

func join(pairs ...string) []byte {
	var b []byte
	for _, p := range pairs {
		b = append(append(b, p...), 0)
	}
	return b
}

// send sends a request; transit < 0: no T bit.
func (c *client) send(csg, nsg pdu.Stage, transit bool, pairs ...string) Outcome {
	return c.raw(pdu.LoginRequestFields{Transit: transit, CSG: csg, NSG: nsg}, join(pairs...))
}

func (c *client) raw(f pdu.LoginRequestFields, data []byte) Outcome {
	c.t.Helper()
	f.ISID, f.CmdSN, f.ITT, f.DataSegmentLength = pdu.ISID{0x80, 1, 2, 3, 4, 5}, 77, 9, len(data)
	req, err := pdu.ParseLoginRequest(f.AppendTo(nil))
	if err != nil {
		c.t.Fatal(err)
	}
	return c.l.Step(req, data)
}

// keys of an answer.
func keys(t *testing.T, o Outcome) map[string]string {
	t.Helper()
	pairs, err := text.Parse(o.Data)
	if err != nil {
		t.Fatal(err)
	}
	m := make(map[string]string)
	for _, p := range pairs {
		if _, twice := m[p.Key]; twice {
			t.Errorf("%s is answered twice", p.Key)
		}
		m[p.Key] = p.Value
	}
	return m
}

const (
	security    = pdu.StageSecurityNegotiation
	operational = pdu.StageLoginOperationalNegotiation
	full        = pdu.StageFullFeaturePhase
)

// The keys that Linux's open-iscsi sends, in its two stages.
func TestOpenISCSI(t *testing.T) {
	c := newClient(t)
	o := c.send(security, operational, true,
		"InitiatorName=iqn.c:1", "InitiatorAlias=host", "TargetName=iqn.T:Open", "SessionType=Normal", "AuthMethod=None")
	want := map[string]string{"TargetPortalGroupTag": "1", "TargetAlias": "an alias", "AuthMethod": "None"}
	if got := keys(t, o); o.State != Continue || !o.Response.Transit || o.Response.NSG != operational || !maps.Equal(got, want) {
		t.Fatalf("security: %+v %v", o, got)
	}
	o = c.send(operational, full, true,
		"HeaderDigest=CRC32C,None", "DataDigest=None", "DefaultTime2Wait=2", "DefaultTime2Retain=0", "IFMarker=No", "OFMarker=No",
		"ErrorRecoveryLevel=0", "InitialR2T=No", "ImmediateData=Yes", "MaxBurstLength=16776192", "FirstBurstLength=262144",
		"MaxOutstandingR2T=1", "MaxConnections=1", "DataPDUInOrder=Yes", "DataSequenceInOrder=Yes", "MaxRecvDataSegmentLength=262144")
	want = map[string]string{
		"HeaderDigest": "CRC32C", "DataDigest": "None", "DefaultTime2Wait": "2", "DefaultTime2Retain": "0", "IFMarker": "No", "OFMarker": "No",
		"ErrorRecoveryLevel": "0", "InitialR2T": "No", "ImmediateData": "Yes", "MaxBurstLength": "1048576", "FirstBurstLength": "262144",
		"MaxOutstandingR2T": "1", "MaxConnections": "1", "DataPDUInOrder": "Yes", "DataSequenceInOrder": "Yes",
		"MaxRecvDataSegmentLength": "262144",
	}
	if got := keys(t, o); o.State != Established || !o.Response.Transit || !maps.Equal(got, want) {
		t.Fatalf("operational: %+v %v", o, got)
	}
	if p := c.l.Params(); !p.HeaderDigest || p.DataDigest || p.MaxRecvDataSegmentLength != 262144 || p.InitialR2T {
		t.Errorf("params %+v", p)
	}
	if c.l.TargetName() != "iqn.t:open" || c.l.CmdSN() != 77 {
		t.Errorf("target %q, CmdSN %d", c.l.TargetName(), c.l.CmdSN())
	}
}

// Who wishes for more than there is gets what there is.
func TestWishes(t *testing.T) {
	for _, c := range []struct{ offer, answer string }{
		{"MaxConnections=9", "MaxConnections=8"},
		{"ErrorRecoveryLevel=2", "ErrorRecoveryLevel=0"},
		{"DefaultTime2Retain=3600", "DefaultTime2Retain=0"},
		{"DefaultTime2Wait=0", "DefaultTime2Wait=0"},
		{"DefaultTime2Wait=2", "DefaultTime2Wait=2"},
		{"MaxOutstandingR2T=65535", "MaxOutstandingR2T=16"},
		{"MaxOutstandingR2T=0", "MaxOutstandingR2T=Reject"},
		{"MaxBurstLength=511", "MaxBurstLength=Reject"},
		{"MaxBurstLength=0x10000", "MaxBurstLength=65536"},
		{"MaxBurstLength=16777216", "MaxBurstLength=Reject"},
		{"InitialR2T=Yes", "InitialR2T=Yes"},
		{"ImmediateData=No", "ImmediateData=No"},
		{"ImmediateData=maybe", "ImmediateData=Reject"},
		{"DataPDUInOrder=No", "DataPDUInOrder=Yes"},
		{"DataDigest=CRC32C,None", "DataDigest=CRC32C"},
		{"DataDigest=MD5,None", "DataDigest=None"},
		{"DataDigest=MD5", "DataDigest=Reject"},
		{"TaskReporting=FastAbort,RFC3720", "TaskReporting=RFC3720"},
		{"iSCSIProtocolLevel=1", "iSCSIProtocolLevel=1"},
		{"iSCSIProtocolLevel=3", "iSCSIProtocolLevel=2"},
		{"X-com.example.key=1", "X-com.example.key=NotUnderstood"},
		{"maxburstlength=1024", "maxburstlength=NotUnderstood"}, // keys are case sensitive (§6.1)
		{"IFMarkInt=1~2", "IFMarkInt=Irrelevant"},
	} {
		t.Run(c.offer, func(t *testing.T) {
			o := newClient(t).send(operational, full, true, "InitiatorName=iqn.c:1", "TargetName=iqn.t:open", c.offer)
			key, value, _ := strings.Cut(c.answer, "=")
			if got := keys(t, o)[key]; o.State != Established || got != value {
				t.Errorf("%s: %s=%s, want %s", c.offer, key, got, value)
			}
		})
	}
}

// RFC 7143 §13: keys of a session's data have no meaning in a discovery session.
func TestDiscovery(t *testing.T) {
	c := newClient(t)
	o := c.send(operational, full, true, "InitiatorName=iqn.c:1", "SessionType=Discovery", "MaxBurstLength=1024", "HeaderDigest=None")
	got := keys(t, o)
	if o.State != Established || got["MaxBurstLength"] != "Irrelevant" || got["HeaderDigest"] != "None" || !c.l.Discovery() {
		t.Errorf("%+v %v", o, got)
	}
	if _, ok := got["TargetPortalGroupTag"]; ok {
		t.Error("a discovery session has no portal group tag (§13.9)")
	}
}

func TestRefusals(t *testing.T) {
	const me, open = "InitiatorName=iqn.c:1", "TargetName=iqn.t:open"
	long := "X-" + strings.Repeat("a", 61) + "=1"
	var many []string
	for i := range 900 {
		many = append(many, "K"+string(rune('A'+i%26))+string(rune('A'+i/26%26))+string(rune('A'+i/676))+"=1")
	}
	for name, c := range map[string]struct {
		f    pdu.LoginRequestFields
		data []byte
		want pdu.LoginStatus
	}{
		"no InitiatorName":        {pdu.LoginRequestFields{CSG: operational, NSG: full, Transit: true}, join(open), pdu.LoginMissingParameter},
		"no TargetName":           {pdu.LoginRequestFields{CSG: operational, NSG: full, Transit: true}, join(me), pdu.LoginMissingParameter},
		"no such target":          {pdu.LoginRequestFields{CSG: operational, NSG: full, Transit: true}, join(me, "TargetName=iqn.t:none"), pdu.LoginNotFound},
		"not admitted":            {pdu.LoginRequestFields{CSG: operational, NSG: full, Transit: true}, join(me, "TargetName=iqn.t:private"), pdu.LoginAuthorizationFailure},
		"session type":            {pdu.LoginRequestFields{CSG: operational, NSG: full, Transit: true}, join(me, open, "SessionType=Odd"), pdu.LoginSessionTypeUnsupported},
		"version":                 {pdu.LoginRequestFields{VersionMin: 1, VersionMax: 2, CSG: operational}, join(me, open), pdu.LoginUnsupportedVersion},
		"C and T":                 {pdu.LoginRequestFields{CSG: operational, NSG: full, Transit: true, Continue: true}, join(me, open), pdu.LoginInitiatorError},
		"reserved stage":          {pdu.LoginRequestFields{CSG: 2, NSG: full, Transit: true}, join(me, open), pdu.LoginInvalidRequest},
		"backwards":               {pdu.LoginRequestFields{CSG: operational, NSG: security, Transit: true}, join(me, open), pdu.LoginInvalidRequest},
		"twice":                   {pdu.LoginRequestFields{CSG: operational, NSG: full, Transit: true}, join(me, open, "MaxBurstLength=1024", "MaxBurstLength=1024"), pdu.LoginInitiatorError},
		"no equals sign":          {pdu.LoginRequestFields{CSG: operational, NSG: full, Transit: true}, join(me, open, "what"), pdu.LoginInitiatorError},
		"no NUL":                  {pdu.LoginRequestFields{CSG: operational, NSG: full, Transit: true}, []byte(me), pdu.LoginInitiatorError},
		"key too long":            {pdu.LoginRequestFields{CSG: operational, NSG: full, Transit: true}, join(me, open, "X"+long), pdu.LoginInitiatorError},
		"SendTargets":             {pdu.LoginRequestFields{CSG: operational, NSG: full, Transit: true}, join(me, open, "SendTargets=All"), pdu.LoginInitiatorError},
		"first over max burst":    {pdu.LoginRequestFields{CSG: operational, NSG: full, Transit: true}, join(me, open, "MaxBurstLength=512", "FirstBurstLength=1024"), pdu.LoginInitiatorError},
		"answer too long":         {pdu.LoginRequestFields{CSG: operational, NSG: full, Transit: true}, join(append(many, me, open)...), pdu.LoginInitiatorError},
		"skips authentication":    {pdu.LoginRequestFields{CSG: operational, NSG: full, Transit: true}, join(me, "TargetName=iqn.t:chap"), pdu.LoginAuthenticationFailure},
		"leaves without CHAP":     {pdu.LoginRequestFields{CSG: security, NSG: full, Transit: true}, join(me, "TargetName=iqn.t:chap"), pdu.LoginAuthenticationFailure},
		"offers only None":        {pdu.LoginRequestFields{CSG: security, NSG: full, Transit: true}, join(me, "TargetName=iqn.t:chap", "AuthMethod=None"), pdu.LoginAuthenticationFailure},
		"offers what is not here": {pdu.LoginRequestFields{CSG: security, NSG: full, Transit: true}, join(me, open, "AuthMethod=KRB5"), pdu.LoginAuthenticationFailure},
	} {
		t.Run(name, func(t *testing.T) {
			o := newClient(t).raw(c.f, c.data)
			if o.State != Failed || o.Response.Status != c.want || o.Response.Transit || o.Err == nil {
				t.Errorf("%+v, want %v", o, c.want)
			}
		})
	}
}

// Whoever reads the log learns what to change.
func TestReasonOfRefusal(t *testing.T) {
	for target, want := range map[string]string{"iqn.t:none": "no target of that name", "iqn.t:private": "its initiators do not include"} {
		o := newClient(t).send(operational, full, true, "InitiatorName=iqn.c:1", "TargetName="+target)
		if o.Err == nil || !strings.Contains(o.Err.Error(), want) || !strings.Contains(o.Err.Error(), target) {
			t.Errorf("%s: %v, want %q", target, o.Err, want)
		}
	}
}

// RFC 7143 §6.2: C=1 is answered with an empty response until the text is whole.
func TestContinued(t *testing.T) {
	c := newClient(t)
	whole := join("InitiatorName=iqn.c:1", "TargetName=iqn.t:open", "MaxBurstLength=4096")
	o := c.raw(pdu.LoginRequestFields{CSG: operational, Continue: true}, whole[:50])
	if o.State != Continue || len(o.Data) > 0 || o.Response.Transit {
		t.Fatalf("%+v", o)
	}
	o = c.raw(pdu.LoginRequestFields{CSG: operational, NSG: full, Transit: true}, whole[50:])
	if o.State != Established || keys(t, o)["MaxBurstLength"] != "4096" {
		t.Errorf("%+v", o)
	}
	c = newClient(t)
	for range 3 {
		o = c.raw(pdu.LoginRequestFields{CSG: operational, Continue: true}, bytes.Repeat([]byte{'a'}, 8192))
	}
	if o.State != Failed {
		t.Error("endless text is taken")
	}
}

// libiscsi and QEMU with a password in the URL say their names in each stage.
func TestNamesAgain(t *testing.T) {
	c := newClient(t)
	c.send(security, operational, true, "InitiatorName=iqn.c:1", "TargetName=iqn.t:open", "AuthMethod=CHAP,None")
	if o := c.send(operational, full, true, "InitiatorName=iqn.c:1", "TargetName=iqn.t:open"); o.State != Established {
		t.Errorf("%+v", o)
	}
	c = newClient(t)
	c.send(security, operational, true, "InitiatorName=iqn.c:1", "TargetName=iqn.t:open", "AuthMethod=None")
	if o := c.send(operational, full, true, "InitiatorName=iqn.c:2"); o.State != Failed {
		t.Error("another name is taken in the middle of the login")
	}
}

var hashes = map[string]func() hash.Hash{
	"5": md5.New, "6": sha1.New, "7": sha256.New, "8": func() hash.Hash { return sha3.New256() },
}

// chapTo brings a login to the point where the answer to the challenge is due.
func chapTo(t *testing.T, algs string) (c *client, alg string, id byte, challenge []byte) {
	t.Helper()
	c = newClient(t)
	c.send(security, operational, false, "InitiatorName=iqn.c:1", "TargetName=iqn.t:chap", "AuthMethod=CHAP,None")
	got := keys(t, c.send(security, operational, false, "CHAP_A="+algs))
	n, ok := text.Number(got["CHAP_I"])
	challenge, okC := text.Binary(got["CHAP_C"])
	if !ok || !okC || len(challenge) < 16 {
		t.Fatalf("challenge %v", got)
	}
	return c, got["CHAP_A"], byte(n), challenge
}

func TestCHAP(t *testing.T) {
	for algs, want := range map[string]string{"5": "5", "6": "6", "7": "7", "8": "8", "5,6,7,8": "5", "8,6": "8", "99,7,5": "7"} {
		t.Run(algs, func(t *testing.T) {
			c, alg, id, challenge := chapTo(t, algs)
			if alg != want {
				t.Fatalf("CHAP_A=%s, want %s", alg, want)
			}
			right := respond(hashes[alg], id, []byte(secret), challenge)
			mine := bytes.Repeat([]byte{7}, 16)
			o := c.send(security, full, true, "CHAP_N=alice", "CHAP_R=0b"+base64.StdEncoding.EncodeToString(right),
				"CHAP_I=200", "CHAP_C="+text.FormatBinary(mine))
			got := keys(t, o)
			proof := text.FormatBinary(respond(hashes[alg], 200, []byte(otherSecret), mine))
			if o.State != Established || got["CHAP_N"] != "bob" || got["CHAP_R"] != proof {
				t.Errorf("%+v %v", o, got)
			}
		})
	}
}

func TestCHAPRefusals(t *testing.T) {
	c, alg, id, challenge := chapTo(t, "7")
	right := text.FormatBinary(respond(hashes[alg], id, []byte(secret), challenge))
	for name, pairs := range map[string][]string{
		"wrong name":   {"CHAP_N=Alice", "CHAP_R=" + right},
		"wrong secret": {"CHAP_N=alice", "CHAP_R=" + text.FormatBinary(respond(hashes[alg], id, []byte("wonderland-lookinG"), challenge))},
		"too long":     {"CHAP_N=alice", "CHAP_R=" + right + "00"},
		"too short":    {"CHAP_N=alice", "CHAP_R=" + right[:len(right)-2]},
		"empty":        {"CHAP_N=alice", "CHAP_R=0x"},
		"no binary":    {"CHAP_N=alice", "CHAP_R=" + right[2:]},
		"no name":      {"CHAP_R=" + right},
		"oversize":     {"CHAP_N=alice", "CHAP_R=0b" + strings.Repeat("A", 8000)},
		"reflection":   {"CHAP_N=alice", "CHAP_R=" + right, "CHAP_I=1", "CHAP_C=" + text.FormatBinary(challenge)},
		"bad id":       {"CHAP_N=alice", "CHAP_R=" + right, "CHAP_I=256", "CHAP_C=0x0102"},
	} {
		t.Run(name, func(t *testing.T) {
			c, _, _, _ := chapTo(t, "7")
			if o := c.send(security, full, true, pairs...); o.State != Failed || o.Response.Status != pdu.LoginAuthenticationFailure {
				t.Errorf("%+v", o)
			}
		})
	}
	for _, algs := range []string{"56", "", "0x7"} {
		c := newClient(t)
		c.send(security, operational, false, "InitiatorName=iqn.c:1", "TargetName=iqn.t:chap", "AuthMethod=CHAP")
		if o := c.send(security, operational, false, "CHAP_A="+algs); o.State != Failed {
			t.Errorf("CHAP_A=%s is taken", algs)
		}
	}
	if o := c.send(security, full, true); o.State == Established { // RFC 7143 §11.12.3: auth pending
		t.Error("established with the challenge unanswered")
	}
}

// FuzzStep sends requests of anybody's making: nobody gets in without the secret.
func FuzzStep(f *testing.F) {
	f.Add(byte(security), byte(operational), true, join("InitiatorName=iqn.c:1", "TargetName=iqn.t:chap", "AuthMethod=CHAP"), join("CHAP_A=5"))
	f.Add(byte(operational), byte(full), true, join("InitiatorName=iqn.c:1", "TargetName=iqn.t:chap"), []byte{})
	f.Add(byte(security), byte(full), false, join("InitiatorName=iqn.c:1", "TargetName=iqn.t:chap", "AuthMethod=CHAP", "CHAP_A=7"), join("CHAP_N=alice", "CHAP_R=0x00"))
	f.Fuzz(func(t *testing.T, csg, nsg byte, transit bool, first, second []byte) {
		c := newClient(t)
		for _, data := range [][]byte{first, second, first, second} {
			o := c.raw(pdu.LoginRequestFields{Transit: transit, CSG: pdu.Stage(csg & 3), NSG: pdu.Stage(nsg & 3)}, data)
			if len(o.Data) > maxAnswer {
				t.Fatalf("an answer of %d bytes", len(o.Data))
			}
			if o.State == Established && c.l.TargetName() == "iqn.t:chap" && !c.l.Discovery() {
				t.Fatal("in without the secret")
			}
			if o.State != Continue {
				return
			}
		}
	})
}

// respond is RFC 1994 §4.1, written down once more.
func respond(h func() hash.Hash, id byte, secret, challenge []byte) []byte {
	d := h()
	d.Write(append(append([]byte{id}, secret...), challenge...))
	return d.Sum(nil)
}

// A login is bounded as a whole: in requests, in bytes, and in keys, whatever each request holds.
func TestEndlessLogin(t *testing.T) {
	for name, pairs := range map[string]func(i int) []string{
		"requests": func(int) []string { return nil },
		"bytes":    func(i int) []string { return []string{fmt.Sprintf("X-%d=%s", i, strings.Repeat("v", 4000))} },
		"keys": func(i int) (list []string) {
			for k := range 10 {
				list = append(list, fmt.Sprintf("X-%d-%d=v", i, k))
			}
			return list
		},
	} {
		c := newClient(t)
		if o := c.send(operational, 0, false, "InitiatorName=iqn.2026-11.c:1", "TargetName=iqn.t:open"); o.State != Continue {
			t.Fatalf("%s: %v", name, o.Err)
		}
		i := 0
		for ; i < 1000; i++ {
			if o := c.send(operational, 0, false, pairs(i)...); o.State == Failed {
				break
			}
		}
		held := 0
		for k, v := range c.l.seen {
			held += len(k) + len(v)
		}
		if i > 100 || len(c.l.seen) > 200 || held > 64<<10 {
			t.Errorf("%s: %d requests are taken, %d keys and %d bytes remembered", name, i, len(c.l.seen), held)
		}
	}
}

// A login is refused if its InitiatorName is none (RFC 7143 §4.2.7): what follows a comma would be
// taken for a part of the name of a SCSI port, another initiator's for example.
func TestInitiatorNames(t *testing.T) {
	for name, want := range map[string]pdu.LoginStatus{
		"iqn.2026-11.example:a":                  pdu.LoginSuccess,
		"iqn.2026-11.example:A_b":                pdu.LoginSuccess,
		"eui.02004567A425678D":                   pdu.LoginSuccess,
		"":                                       pdu.LoginMissingParameter,
		"iqn.2026-11.example:a,i,0x800000000000": pdu.LoginInitiatorError,
		"a":                                      pdu.LoginInitiatorError,
		"iqn.2026-11.example:a\nlevel=info":      pdu.LoginInitiatorError,
		"iqn.2026-11.example:" + strings.Repeat("a", 300):     pdu.LoginInitiatorError,
		"iqn.2026-11.example:" + strings.Repeat("\u212a", 90): pdu.LoginSuccess, // a Kelvin sign is a k
	} {
		c := newClient(t)
		o := c.send(operational, full, true, "InitiatorName="+name, "TargetName=iqn.t:open")
		if o.Response.Status != want {
			t.Errorf("%.60q: %v, want %v (%v)", name, o.Response.Status, want, o.Err)
		}
		if want == pdu.LoginSuccess && c.l.Initiator() != strings.ToLower(name) {
			t.Errorf("%q is %q", name, c.l.Initiator())
		}
	}
}
