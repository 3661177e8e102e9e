package auth

import (
	"crypto/rand"
	"math/big"
	"sync"
)

// Group is a Diffie-Hellman group: none, or one of RFC 7919.
type Group uint8

// Groups (Base 2.0 figure 447).
const (
	Null Group = iota
	FFDHE2048
	FFDHE3072
	FFDHE4096
	FFDHE6144
	FFDHE8192
)

// Groups are all there are, the strongest first. Without a group whoever has recorded an authentication can guess the secret.
var Groups = []Group{FFDHE8192, FFDHE6144, FFDHE4096, FFDHE3072, FFDHE2048, Null}

// groups has a row for each. The prime is 2^bits - 2^(bits-64) + (⌊2^(bits-130)·e⌋ + x)·2^64 - 1, and the generator is 2
// (RFC 7919 §2, appendix A); exponents of so many bits are as strong as the group (§5.2).
var groups = [...]struct {
	name     string
	bits     uint
	x        int64
	exponent uint
}{
	Null:      {name: "null"},
	FFDHE2048: {"ffdhe2048", 2048, 560316, 225},
	FFDHE3072: {"ffdhe3072", 3072, 2625351, 275},
	FFDHE4096: {"ffdhe4096", 4096, 5736041, 325},
	FFDHE6144: {"ffdhe6144", 6144, 15705020, 375},
	FFDHE8192: {"ffdhe8192", 8192, 10965728, 400},
}

// String returns the name in configurations.
func (g Group) String() string { return groups[g].name }

// known reports whether there is such a group.
func (g Group) known() bool { return int(g) < len(groups) }

// size is the length of a public value in bytes.
func (g Group) size() int { return int(groups[g].bits / 8) }

var one = big.NewInt(1)

// primes are computed when they are first needed.
var primes = func() (f [len(groups)]func() *big.Int) {
	for g := range groups {
		f[g] = sync.OnceValue(Group(g).computePrime)
	}
	return f
}()

func (g Group) computePrime() *big.Int {
	r := groups[g]
	top := r.bits - 130
	// 2^top·e is the sum of 2^top/k!; some bits more keep what is cut off away from the result.
	const spare = 64
	term, sum := new(big.Int).Lsh(one, top+spare), new(big.Int)
	for k := int64(1); term.Sign() > 0; k++ {
		sum.Add(sum, term)
		term.Quo(term, big.NewInt(k))
	}
	sum.Rsh(sum, spare)
	sum.Add(sum, big.NewInt(r.x))
	p := new(big.Int).Lsh(one, r.bits)
	p.Sub(p, new(big.Int).Lsh(one, r.bits-64))
	p.Add(p, sum.Lsh(sum, 64))
	return p.Sub(p, one)
}

// exchange is one side of a key agreement, which is used once.
type exchange struct {
	group Group
	x     *big.Int
}

// newExchange makes a secret exponent, and the public value that belongs to it, of size bytes.
func (g Group) newExchange() (*exchange, []byte) {
	if g == Null {
		return &exchange{}, nil
	}
	n := groups[g].exponent
	b := make([]byte, (n+7)/8)
	_, _ = rand.Read(b)
	x := new(big.Int).SetBytes(b)
	x.Rsh(x, uint(len(b))*8-n)
	x.SetBit(x, int(n-1), 1)
	return &exchange{g, x}, g.power(big.NewInt(2), x)
}

func (g Group) power(base, x *big.Int) []byte {
	return new(big.Int).Exp(base, x, primes[g]()).FillBytes(make([]byte, g.size()))
}

// shared returns the secret that both sides know, of size bytes, big-endian; nil without a group. False: the peer's value is none that an
// honest side has (RFC 7919 §5.1): with 0, 1 or p-1 it would know the secret beforehand.
func (e *exchange) shared(public []byte) ([]byte, bool) {
	if e.group == Null {
		return nil, len(public) == 0
	}
	y, last := new(big.Int).SetBytes(public), new(big.Int).Sub(primes[e.group](), one)
	if len(public) != e.group.size() || y.Cmp(one) <= 0 || y.Cmp(last) >= 0 {
		return nil, false
	}
	return e.group.power(y, e.x), true
}
