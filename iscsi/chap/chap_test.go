package chap

import (
	"encoding/hex"
	"testing"
)

// The digests are of coreutils: printf '\x17twelve-chars-secretchallenge' | md5sum.
func TestRespond(t *testing.T) {
	for list, want := range map[string]string{
		"5,6": "03f9cfcbf52d27241223250cd425e646",
		"6,5": "e263df297e0c118f97afe3bb2075b460e87ec9ce",
		"9,7": "103a54b93efe80254bc437872a562c11b020fa5bf5964fbe88f77b8f185ed3d3",
	} {
		a, ok := Choose(list)
		if !ok {
			t.Fatalf("%s: no algorithm", list)
		}
		got := a.Respond(0x17, []byte("twelve-chars-secret"), []byte("challenge"))
		if hex.EncodeToString(got) != want || len(got) != a.Size() {
			t.Errorf("algorithm %s of %s: %x, want %s", a.Number, list, got, want)
		}
	}
}

func TestChoose(t *testing.T) {
	// RFC 7143 §12.1.3: "proposed algorithms, in order of preference".
	for list, want := range map[string]string{Offer: "8", "5,6,7,8": "5", "99,7,5": "7"} {
		if a, ok := Choose(list); !ok || a.Number != want {
			t.Errorf("of %s: %s, %v; want %s", list, a.Number, ok, want)
		}
	}
	for _, list := range []string{"", "4", "55", "5 ,"} {
		if a, ok := Choose(list); ok {
			t.Errorf("%q: %s", list, a.Number)
		}
	}
}
