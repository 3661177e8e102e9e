package quorum

import (
	"bytes"
	"crypto"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base32"
	"encoding/hex"
	"errors"
	"fmt"
	"math/big"
	"strings"
	"time"
)

// The authority signs members: their number and name. Its key is in the state, so each member can take in another
// one. Certificates do not expire, as clocks are not relied on: who is a member any more the state says.

// newAuthority draws a key and makes its certificate.
func newAuthority(cluster string) (cert, key []byte, err error) {
	public, private, err := ed25519.GenerateKey(nil)
	if err != nil {
		return nil, nil, err
	}
	c := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "oneshot cluster " + cluster},
		NotBefore: firstDay, NotAfter: lastDay, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	if cert, err = x509.CreateCertificate(rand.Reader, c, c, public, private); err != nil {
		return nil, nil, err
	}
	key, err = x509.MarshalPKCS8PrivateKey(private)
	return cert, key, err
}

var (
	firstDay = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)
	lastDay  = time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC) // RFC 5280 §4.1.2.5: has no end
)

// sign makes the certificate of a member. publicKey is PKIX.
func sign(authority, signer []byte, number uint64, name string, publicKey []byte) ([]byte, error) {
	parent, err := x509.ParseCertificate(authority)
	if err != nil {
		return nil, err
	}
	key, err := x509.ParsePKCS8PrivateKey(signer)
	if err != nil {
		return nil, err
	}
	public, err := x509.ParsePKIXPublicKey(publicKey)
	if err != nil {
		return nil, fmt.Errorf("the public key cannot be read: %w", err)
	}
	if _, ok := public.(ed25519.PublicKey); !ok {
		return nil, errors.New("the public key is not of the kind Ed25519")
	}
	c := &x509.Certificate{
		SerialNumber: new(big.Int).SetUint64(number), Subject: pkix.Name{CommonName: name}, NotBefore: firstDay, NotAfter: lastDay,
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
	}
	return x509.CreateCertificate(rand.Reader, c, parent, public, key)
}

// newKey draws the key of a member.
func newKey() (private, public []byte, err error) {
	pub, key, err := ed25519.GenerateKey(nil)
	if err != nil {
		return nil, nil, err
	}
	if private, err = x509.MarshalPKCS8PrivateKey(key); err != nil {
		return nil, nil, err
	}
	public, err = x509.MarshalPKIXPublicKey(pub)
	return private, public, err
}

// tlsConfig is that of both ends: TLS 1.3, with the certificate of this member. A client without a certificate may
// ask to join; one with another authority's is refused in the handshake.
func (id *Identity) tlsConfig() (*tls.Config, error) {
	key, err := x509.ParsePKCS8PrivateKey(id.Key)
	if err != nil {
		return nil, fmt.Errorf("the private key of this node cannot be read: %w", err)
	}
	authority, err := x509.ParseCertificate(id.Authority)
	if err != nil {
		return nil, fmt.Errorf("the certificate of the cluster's authority cannot be read: %w", err)
	}
	return &tls.Config{
		MinVersion: tls.VersionTLS13, NextProtos: []string{protocolName}, ServerName: generationName(id.Authority),
		Certificates:           []tls.Certificate{{Certificate: [][]byte{id.Cert, id.Authority}, PrivateKey: key.(crypto.PrivateKey)}},
		ClientAuth:             tls.RequestClientCert,
		InsecureSkipVerify:     true, //nolint:gosec // verified below, without the names and the clock that the library asks for
		SessionTicketsDisabled: true,
		VerifyConnection: func(s tls.ConnectionState) error {
			if len(s.PeerCertificates) == 0 {
				return nil
			}
			return checkMember(s.PeerCertificates[0], authority)
		},
	}, nil
}

// generationName is what a client asks for: the authority that it knows. A cluster that was forced has another one than
// before, and its members prove themselves to those of the former one by the former one's.
func generationName(authority []byte) string {
	sum := sha256.Sum256(authority)
	return hex.EncodeToString(sum[:16])
}

const protocolName = "oneshot-quorum/1"

// checkMember says whether a certificate is of the authority, and not the authority itself.
func checkMember(c, authority *x509.Certificate) error {
	if c.IsCA || !c.SerialNumber.IsUint64() || c.CheckSignatureFrom(authority) != nil {
		return errors.New("the certificate is not of a member of this cluster")
	}
	return nil
}

// memberOf returns number and name of a certificate that was checked.
func memberOf(s *tls.ConnectionState) (number uint64, name string, ok bool) {
	if len(s.PeerCertificates) == 0 {
		return 0, "", false
	}
	c := s.PeerCertificates[0]
	return c.SerialNumber.Uint64(), c.Subject.CommonName, true
}

// A token is what an administrator carries from one node to another: how to recognise the cluster, and a secret that
// is good once.
type Token struct {
	authority [16]byte // the start of the SHA-256 of its certificate
	secret    [16]byte
}

var tokenText = base32.StdEncoding.WithPadding(base32.NoPadding)

func newToken(authority []byte) (t Token) {
	sum := sha256.Sum256(authority)
	copy(t.authority[:], sum[:])
	_, _ = rand.Read(t.secret[:]) // never fails
	return t
}

// String is what ParseToken reads.
func (t Token) String() string {
	return strings.ToLower(tokenText.EncodeToString(append(t.authority[:], t.secret[:]...)))
}

// ParseToken reads the text of a token.
func ParseToken(s string) (t Token, err error) {
	b, err := tokenText.DecodeString(strings.ToUpper(strings.TrimSpace(s)))
	if err != nil || len(b) != 32 {
		return t, errors.New("the token is not whole: it has 52 letters and digits, as `target ha init` or `target ha token` printed it")
	}
	copy(t.authority[:], b)
	copy(t.secret[:], b[16:])
	return t, nil
}

// tlsConfig is that of somebody who joins: the cluster is the one of the token.
func (t Token) tlsConfig(authority *[]byte) *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13, NextProtos: []string{protocolName}, ServerName: hex.EncodeToString(t.authority[:]),
		InsecureSkipVerify: true, //nolint:gosec // verified below, by the token
		VerifyConnection: func(s tls.ConnectionState) error {
			if len(s.PeerCertificates) != 2 {
				return errors.New("the node shows no certificate of a cluster")
			}
			ca := s.PeerCertificates[1]
			if sum := sha256.Sum256(ca.Raw); !bytes.Equal(sum[:16], t.authority[:]) {
				return errors.New("the node is of another cluster than the token: look at the addresses in `cluster.nodes`")
			}
			*authority = ca.Raw
			return checkMember(s.PeerCertificates[0], ca)
		},
	}
}
