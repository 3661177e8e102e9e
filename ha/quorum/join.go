package quorum

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"crypto/ed25519"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"net"
	"time"
)

// joinRequest is what somebody with a token sends.
type joinRequest struct {
	secret    []byte
	name      string
	witness   bool
	publicKey []byte // PKIX
}

func (j *joinRequest) appendTo(b []byte) []byte {
	b = appendBytes(b, j.secret)
	b = appendBytes(b, j.name)
	b = append(b, b2u(j.witness))
	return appendBytes(b, j.publicKey)
}

func decodeJoin(b []byte) (joinRequest, error) {
	c := cursor{b: b}
	j := joinRequest{c.bytes(), c.string(), c.u8() != 0, c.bytes()}
	return j, c.end()
}

// join lets the owner of a token become a member.
func (a *acceptor) join(conn net.Conn, b []byte) error {
	j, err := decodeJoin(b)
	if err != nil {
		return err
	}
	if key, err := x509.ParsePKIXPublicKey(j.publicKey); err != nil {
		return err
	} else if _, ok := key.(ed25519.PublicKey); !ok {
		return errors.New("the public key is not of the kind Ed25519")
	}
	ctx, cancel := context.WithTimeout(a.n.ctx, handshakeIn)
	defer cancel()
	if err := a.mayJoin(ctx, sha256.Sum256(j.publicKey), HashToken(j.secret)); err != nil {
		_, err := conn.Write(refusal(err))
		return err
	}
	res := a.n.change(ctx, func(c *Core) (uint64, error) { return c.Join(j.name, j.witness, sha256.Sum256(j.publicKey), j.secret) })
	if res.Err != nil {
		_, err := conn.Write(refusal(res.Err))
		return err
	}
	var authority, signer []byte
	var cluster uint64
	a.n.do(func() {
		authority, signer, cluster = a.n.core.state.authority, a.n.core.state.signer, a.n.core.state.cluster
	})
	cert, err := sign(authority, signer, res.Member.Number, res.Member.Name, j.publicKey)
	if err != nil {
		return err
	}
	_ = conn.SetDeadline(time.Now().Add(handshakeIn))
	_, err = conn.Write(frame(frameWelcome, appendBytes(appendU64(nil, cluster, res.Member.Number), cert)))
	return err
}

// mayJoin refuses who has no token before anybody is asked to agree to that: each change is written to the disks of all voters, and strangers could have as many
// made as they like. A token that this node does not know may have been made elsewhere a moment ago.
func (a *acceptor) mayJoin(ctx context.Context, publicKey, hash [32]byte) error {
	var may bool
	look := func() { may = a.n.core.state.mayJoin(publicKey, hash) }
	if !a.n.look(look) || may {
		return nil
	}
	if _, err := a.n.Get(ctx, DrainedKey); err != nil { // what was agreed on before is known here then
		return ErrUnknown
	}
	if a.n.look(look); !may {
		return errToken
	}
	return nil
}

// Join makes a member of this machine, with a token of the cluster. conn is with any member, and Join closes it. It can
// be repeated, with whatever token, however it has ended: the key with which it asks is on the disk before, and who has
// that key is the same member. ErrMember: the directory has a state already.
func Join(ctx context.Context, fsys FS, conn net.Conn, t Token, name string, witness bool) error {
	if _, err := fsys.ReadFile(logName); !errors.Is(err, fs.ErrNotExist) {
		_ = conn.Close()
		return cmp.Or(err, ErrMember)
	}
	e, err := Enroll(ctx, fsys, conn, t, name, witness)
	if err != nil {
		return err
	}
	return e.Begin()
}

// Enrollment is a membership that a cluster has granted, and that has not begun.
type Enrollment struct {
	fsys FS
	id   Identity
}

// Enroll is Join of a machine that may have a state of another membership, which stays until Begin: a cluster may refuse the machine. It can be
// repeated, and so can both, or Join if the former state is gone already.
func Enroll(ctx context.Context, fsys FS, conn net.Conn, t Token, name string, witness bool) (*Enrollment, error) {
	defer func() { _ = conn.Close() }()
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	id := Identity{Name: name}
	public, err := id.joinBy(fsys)
	if err != nil {
		return nil, fmt.Errorf("the key of this node cannot be kept: %w", err)
	}
	c := tls.Client(conn, t.tlsConfig(&id.Authority))
	if err := c.HandshakeContext(ctx); err != nil {
		return nil, fmt.Errorf("the cluster cannot be joined: %w", err)
	}
	j := joinRequest{t.secret[:], name, witness, public}
	if _, err := c.Write(frame(frameJoin, j.appendTo(nil))); err != nil {
		return nil, fmt.Errorf("the cluster cannot be joined: %w", err)
	}
	kind, b, err := readFrame(bufio.NewReader(c), maxGreeting)
	switch {
	case err != nil:
		return nil, fmt.Errorf("the cluster has not answered: %w; try again, with the same token", err)
	case kind == frameRefusal:
		return nil, fmt.Errorf("the cluster refuses this node: %w", decodeRefusal(b))
	case kind != frameWelcome:
		return nil, fmt.Errorf("a frame of type %d came in place of an answer", kind)
	}
	r := cursor{b: b}
	id.Cluster, id.Number, id.Cert = r.u64(), r.u64(), r.bytes()
	return &Enrollment{fsys, id}, r.end()
}

// Begin makes the state of the member, in place of another one.
func (e *Enrollment) Begin() error {
	if _, err := e.fsys.ReadFile(logName); !errors.Is(err, fs.ErrNotExist) {
		if err := errors.Join(e.fsys.Remove(logName), e.fsys.SyncDir()); err != nil {
			return err
		}
	}
	l, err := CreateLog(e.fsys, e.id, nil, random)
	if err != nil {
		return err
	}
	return errors.Join(l.Close(), e.fsys.Remove(joiningName))
}

// joinBy takes the key with which this machine asks to join. That of the membership that it has, left by a crash, is none: with it the machine would be that
// member.
func (id *Identity) joinBy(fsys FS) (public []byte, err error) {
	if id.Key, public, err = joiningKey(fsys); err != nil {
		return nil, err
	}
	if l, err := readLog(fsys, random); err == nil && bytes.Equal(l.id.Key, id.Key) {
		if err := errors.Join(fsys.Remove(joiningName), fsys.SyncDir()); err != nil {
			return nil, err
		}
		id.Key, public, err = joiningKey(fsys)
		return public, err
	}
	return public, nil
}

// joiningName is the file with the private key of a node that is about to join (PKCS #8, and its CRC32C). The log has
// it afterwards.
const joiningName = "joining"

// joiningKey returns the key with which this machine has asked to join, or a new one, which is on the disk.
func joiningKey(fsys FS) (private, public []byte, err error) {
	b, err := fsys.ReadFile(joiningName)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, nil, err
	}
	c := cursor{b: b}
	if private, sum := c.bytes(), c.u32(); c.end() == nil && crc32.Checksum(private, castagnoli) == sum {
		key, err := x509.ParsePKCS8PrivateKey(private)
		if err != nil {
			return nil, nil, err
		}
		public, err = x509.MarshalPKIXPublicKey(key.(ed25519.PrivateKey).Public())
		return private, public, err
	}
	if private, public, err = newKey(); err != nil {
		return nil, nil, err
	}
	f, err := fsys.Create(joiningName)
	if err != nil {
		return nil, nil, err
	}
	b = binary.BigEndian.AppendUint32(appendBytes(nil, private), crc32.Checksum(private, castagnoli))
	_, err = f.WriteAt(b, 0)
	return private, public, errors.Join(err, f.Sync(), f.Close(), fsys.SyncDir())
}
