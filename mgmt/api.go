package mgmt

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"
)

// NewAPI returns the handler of the management API.
func NewAPI(t Target) http.Handler {
	a := &api{t}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/status", a.status)
	mux.HandleFunc("GET /v1/sessions", a.sessions)
	mux.HandleFunc("DELETE /v1/sessions/{id}", dropper("session", "session IDs are 1 to 65535", 16, func(id uint64) bool { return t.DropSession(uint16(id)) }))
	mux.HandleFunc("DELETE /v1/controllers/{id}", dropper("controller", "they have numbers from 1 on", 64, t.DropController))
	mux.HandleFunc("GET /v1/access", a.access)
	mux.HandleFunc("PATCH /v1/access", a.setAccess)
	mux.HandleFunc("POST /v1/reload", a.reload)
	mux.HandleFunc("GET /v1/health", a.health)
	a.partitioner(mux)
	a.clusterer(mux)
	mirrorer(mux, t)
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		fail(w, http.StatusNotFound, fmt.Sprintf("there is no %s %s in this version of the API", r.Method, r.URL.Path))
	})
	return mux
}

type api struct{ target Target }

func (a *api) status(w http.ResponseWriter, _ *http.Request) { answer(w, a.target.Status()) }

func (a *api) sessions(w http.ResponseWriter, _ *http.Request) {
	list := Sessions{
		BoundsNS: a.target.Status().BoundsNS, Sessions: a.target.Sessions(), Controllers: a.target.Controllers(), Time: time.Now(),
	}
	if list.Sessions == nil {
		list.Sessions = []Session{} // [] rather than null
	}
	if list.Controllers == nil {
		list.Controllers = []Controller{}
	}
	answer(w, list)
}

// dropper ends what the path names by a number of so many bits; drop reports whether there was one.
func dropper(what, numbers string, bits int, drop func(uint64) bool) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if !bare(w, r) {
			return
		}
		text := r.PathValue("id")
		id, err := strconv.ParseUint(text, 10, bits)
		switch {
		case err != nil:
			fail(w, http.StatusBadRequest, fmt.Sprintf("no such %s: %q; %s", what, text, numbers))
		case !drop(id):
			fail(w, http.StatusNotFound, fmt.Sprintf("there is no %s %d", what, id))
		default:
			w.WriteHeader(http.StatusNoContent)
		}
	}
}

func (a *api) access(w http.ResponseWriter, _ *http.Request) {
	answer(w, accessStates(a.target.Access()))
}

func accessStates(list []Access) AccessStates {
	if list == nil {
		list = []Access{}
	}
	return AccessStates{Time: time.Now(), Access: list}
}

// maxRequest bounds a request, in bytes: every LUN that a target can have fits.
const maxRequest = 256 << 10

func (a *api) setAccess(w http.ResponseWriter, r *http.Request) {
	if !noQuery(w, r) {
		return
	}
	var change AccessChange
	if err := decodeOne(http.MaxBytesReader(w, r.Body, maxRequest), &change); err != nil {
		fail(w, http.StatusBadRequest, fmt.Sprintf("this is not a change of access states: %v", err))
		return
	}
	if change.State == "" && change.Preferred == nil {
		fail(w, http.StatusBadRequest, "the request changes nothing: give state or preferred")
		return
	}
	list, err := a.target.SetAccess(r.Context(), change)
	_, missing := errors.AsType[*NotFoundError](err)
	_, senseless := errors.AsType[*RequestError](err)
	switch {
	case missing:
		fail(w, http.StatusNotFound, err.Error())
	case senseless:
		fail(w, http.StatusBadRequest, err.Error())
	case err != nil:
		fail(w, http.StatusUnprocessableEntity, err.Error())
	default:
		answer(w, accessStates(list))
	}
}

func (a *api) reload(w http.ResponseWriter, r *http.Request) {
	if !bare(w, r) {
		return
	}
	done, err := a.target.Reload(r.Context())
	if err != nil {
		fail(w, http.StatusUnprocessableEntity, err.Error())
		return
	}
	if done.Done == nil {
		done.Done = []string{}
	}
	if done.Pending == nil {
		done.Pending = []string{}
	}
	answer(w, done)
}

func (a *api) health(w http.ResponseWriter, _ *http.Request) {
	if err := a.target.Health(); err != nil {
		fail(w, http.StatusServiceUnavailable, err.Error())
		return
	}
	answer(w, struct {
		OK bool `json:"ok"`
	}{true})
}

func answer(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(v) // who asked has left: nobody to tell
}

func fail(w http.ResponseWriter, status int, text string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(Problem{text})
}
