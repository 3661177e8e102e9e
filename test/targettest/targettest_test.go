package targettest

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestMain(m *testing.M) { Main(m) }

const oneLUN = `
stores:  {disk: {type: file, path: $DIR/disk.img, size: 8MiB}}
targets: [{iqn: iqn.2026-11.example.oneshot:t, luns: {0: disk}}]
portals: [{transport: tcp, listen: $PORTAL}]
`

func TestLives(t *testing.T) {
	tg := Start(t, oneLUN)
	first, portal := tg.PID(), tg.Portal()
	if first == 0 {
		t.Fatal("a running target has no PID")
	}
	tg.Restart()
	second := tg.PID()
	if second == first {
		t.Errorf("PID %d after Restart as before", second)
	}
	exited := tg.Exited()
	tg.Kill()
	<-exited
	if pid := tg.PID(); pid != 0 {
		t.Errorf("PID %d after Kill", pid)
	}
	if c, err := net.Dial("tcp", portal); err == nil {
		c.Close()
		t.Errorf("%s still accepts after Kill", portal)
	}
	tg.Start()
	if tg.Portal() != portal {
		t.Errorf("portal %s became %s", portal, tg.Portal())
	}
	if _, err := os.Stat(filepath.Join(tg.Dir, "disk.img")); err != nil {
		t.Error("$DIR is not where the store went: ", err)
	}
}

func TestExpand(t *testing.T) {
	tg := &Target{tb: t, Dir: "/d"}
	got, err := tg.expand("a: $DIR/x\nb: $PORTAL\nc: ${PORTAL2}\nd: $PORTAL\n")
	if err != nil {
		t.Fatal(err)
	}
	want := "a: /d/x\nb: " + tg.Portals[0] + "\nc: " + tg.Portals[1] + "\nd: " + tg.Portals[0] + "\n"
	if got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if tg.Portals[0] == tg.Portals[1] {
		t.Errorf("two portals on %s", tg.Portals[0])
	}
	if _, err := tg.expand("a: $PROTAL"); err == nil || !strings.Contains(err.Error(), "$PROTAL") {
		t.Errorf("misspelt variable: error %v", err)
	}
}

// The reservation keeps others away and lets a listener in.
func TestReserve(t *testing.T) {
	tg := &Target{tb: t}
	addr, err := tg.reserve()
	if err != nil {
		t.Fatal(err)
	}
	for range 2 { // the second listener comes after the first, as after Restart
		l, err := net.Listen("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		l.Close()
	}
}

func TestWaitLog(t *testing.T) {
	l := newLogBuffer()
	done := make(chan error)
	go func() { done <- l.wait(t.Context(), "two words") }()
	for _, s := range []string{"one\ntwo ", "words\n"} {
		if _, err := l.Write([]byte(s)); err != nil {
			t.Fatal(err)
		}
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
	ctx, cancel := context.WithDeadline(t.Context(), time.Unix(0, 0))
	defer cancel()
	if err := l.wait(ctx, "never said"); err == nil {
		t.Error("wait found what was never written")
	}
}
