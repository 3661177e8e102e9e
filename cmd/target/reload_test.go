package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"

	"oneshot/config"
	"oneshot/mgmt"
)

// applies says what a configuration is when it is applied.
type applies struct {
	fake
	apply func(*config.Config)
}

func (a *applies) ApplyFor(ctx context.Context, c *config.Config) (mgmt.Reload, error) {
	a.apply(c)
	return mgmt.Reload{}, ctx.Err()
}

// Of two reloads, by a signal and by target reload say, the one that has read the newer file comes second: what an administrator has taken
// away stays so.
func TestTwoReloads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "t.yaml")
		write := func(store string) {
			text := fmt.Sprintf("stores: {%s: {type: memory, size: 1MiB}}\ntargets: [{iqn: iqn.2026-11.example.oneshot:demo, luns: {0: %[1]s}}]\n", store)
			if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		a, applied, ended := new(applies), []string(nil), make(chan error, 1)
		r := newReloader(a, &serving{path: path}, quiet, 0, nil)
		a.apply = func(c *config.Config) {
			if c.Stores[0].Name == "old" { // it has been read, and is about to be applied
				write("new")
				go func() {
					_, err := r.reload(t.Context())
					ended <- err
				}()
				synctest.Wait()
			}
			applied = append(applied, c.Stores[0].Name)
		}
		write("old")
		if _, err := r.reload(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := <-ended; err != nil || fmt.Sprint(applied) != "[old new]" {
			t.Errorf("%v: %s are applied, one after the other", err, applied)
		}
	})
}

// A reload that waits for another one, which hangs in a store, is given up when whoever asked for it has left.
func TestReloadIsGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "t.yaml")
		if err := os.WriteFile(path, []byte("stores: {m: {type: memory, size: 1MiB}}\ntargets: [{iqn: iqn.2026-11.example.oneshot:demo, luns: {0: m}}]\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		a, release, ended, applied := new(applies), make(chan struct{}), make(chan error), 0
		a.apply = func(*config.Config) {
			applied++
			<-release
		}
		r := newReloader(a, &serving{path: path}, quiet, 0, nil)
		reload := func(ctx context.Context) {
			_, err := r.reload(ctx)
			ended <- err
		}
		go reload(t.Context())
		synctest.Wait()
		ctx, leave := context.WithCancel(t.Context())
		go reload(ctx)
		synctest.Wait()
		leave()
		synctest.Wait()
		select {
		case err := <-ended:
			if !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
		default:
			t.Error("it waits still")
		}
		close(release)
		if err := <-ended; err != nil || applied != 1 {
			t.Errorf("%v; %d reloads", err, applied)
		}
	})
}

// It is also given up when it waits for a change of another kind, for which the daemon waits.
func TestReloadIsGivenUpByTheDaemon(t *testing.T) {
	path := filepath.Join(t.TempDir(), "t.yaml")
	if err := os.WriteFile(path, []byte("stores: {m: {type: memory, size: 1MiB}}\ntargets: [{iqn: iqn.2026-11.example.oneshot:demo, luns: {0: m}}]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, leave := context.WithCancel(t.Context())
	a := new(applies)
	a.apply = func(*config.Config) { leave() }
	if _, err := newReloader(a, &serving{path: path}, quiet, 0, nil).reload(ctx); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}
