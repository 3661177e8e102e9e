package chap

import (
	"encoding/hex"
	"testing"
)

// The digests are of coreutils: printf '\x17twelve-chars-secretchallenge' | md5sum.
func TestRespond(t *testing.T) {
	for list, want := range map[string]string{
		"5":   "03f9cfcbf52d27241223250cd425e646",
		"5,6": "e263df297e0c118f97afe3bb2075b460e87ec9ce",
		"6,7": "103a54b93efe80254bc437872a562c11b020fa5bf5964fbe88f77b8f185ed3d3",
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
	if a, ok := Choose(Offer); !ok || a.Number != "8" {
		t.Errorf("of all the strongest is %v, %v", a.Number, ok)
	}
	for _, list := range []string{"", "4", "55", "5 ,"} {
		if a, ok := Choose(list); ok {
			t.Errorf("%q: %s", list, a.Number)
		}
	}
}
