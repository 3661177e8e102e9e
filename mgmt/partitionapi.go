package mgmt

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
)

func (a *api) partitioner(mux *http.ServeMux) {
	mux.HandleFunc("GET /v1/stores", a.stores)
	mux.HandleFunc("GET /v1/stores/{store}/partitions", a.partitions)
	mux.HandleFunc("POST /v1/stores/{store}/partitions", a.createPartitions)
	mux.HandleFunc("PATCH /v1/stores/{store}/partitions/{name}", a.alterPartition)
	mux.HandleFunc("DELETE /v1/stores/{store}/partitions/{name}", a.deletePartition)
	mux.HandleFunc("GET /v1/endpoints", a.endpoints)
	mux.HandleFunc("DELETE /v1/endpoints/{id}", dropper("endpoint", "they have numbers from 1 on", 64, a.target.DropEndpoint))
}

func (a *api) stores(w http.ResponseWriter, _ *http.Request) {
	answer(w, Stores{Time: time.Now(), Stores: append([]Store{}, a.target.Stores()...)})
}

func (a *api) partitions(w http.ResponseWriter, r *http.Request) {
	p, err := a.target.Partitions(r.PathValue("store"))
	a.table(w, http.StatusOK, p, err)
}

// table answers with a table, and its tag.
func (a *api) table(w http.ResponseWriter, status int, p *Partitions, err error) {
	if err != nil {
		for _, row := range statuses {
			if row.is(err) {
				fail(w, row.status, err.Error())
				return
			}
		}
		fail(w, http.StatusUnprocessableEntity, err.Error())
		return
	}
	w.Header().Set("ETag", `"`+p.Tag+`"`)
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(p) // who asked has left: nobody to tell
}

func (a *api) createPartitions(w http.ResponseWriter, r *http.Request) {
	q, ok := queryOf(w, r, "init", "force")
	match, ok2 := a.match(w, r, ok)
	if !ok2 {
		return
	}
	store := r.PathValue("store")
	if q["init"] {
		if !noBody(w, r) {
			return
		}
		p, err := a.target.InitPartitions(r.Context(), store, match, q["force"])
		a.table(w, http.StatusCreated, p, err)
		return
	}
	if q["force"] {
		fail(w, http.StatusBadRequest, "force is for ?init: to create partitions there is nothing to force")
		return
	}
	var news []NewPartition
	if !decodeList(w, r, &news) {
		return
	}
	p, err := a.target.CreatePartitions(r.Context(), store, match, news)
	a.table(w, http.StatusCreated, p, err)
}

func (a *api) alterPartition(w http.ResponseWriter, r *http.Request) {
	q, ok := queryOf(w, r, "force")
	match, ok := a.match(w, r, ok)
	var change PartitionChange
	if !ok || !decode(w, r, &change) {
		return
	}
	if change == (PartitionChange{}) {
		fail(w, http.StatusBadRequest, "the request changes nothing: give name, size, access or cache")
		return
	}
	p, err := a.target.AlterPartition(r.Context(), r.PathValue("store"), r.PathValue("name"), match, change, q["force"])
	a.table(w, http.StatusOK, p, err)
}

func (a *api) deletePartition(w http.ResponseWriter, r *http.Request) {
	q, ok := queryOf(w, r, "erase", "force")
	match, ok := a.match(w, r, ok)
	if !ok || !noBody(w, r) {
		return
	}
	p, err := a.target.DeletePartition(r.Context(), r.PathValue("store"), r.PathValue("name"), match, q["erase"], q["force"])
	a.table(w, http.StatusOK, p, err)
}

func (a *api) endpoints(w http.ResponseWriter, _ *http.Request) {
	answer(w, Endpoints{Time: time.Now(), BoundsNS: a.target.Status().BoundsNS, Endpoints: append([]Endpoint{}, a.target.Endpoints()...)})
}

// match returns the tag that a change is for; "*" is any (RFC 9110 §13.1.1). A change without one is refused, so
// that nobody overwrites by mistake what he has not seen (RFC 6585 §3).
func (a *api) match(w http.ResponseWriter, r *http.Request, ok bool) (string, bool) {
	if !ok {
		return "", false
	}
	text := strings.TrimSpace(r.Header.Get("If-Match"))
	if text == "" {
		fail(w, http.StatusPreconditionRequired, "a change needs If-Match: the ETag of the answer that shows what is to be changed, or * for whatever there is")
		return "", false
	}
	tag := strings.Trim(text, `"`)
	if text != "*" && text != `"`+tag+`"` || strings.ContainsAny(tag, `",`) {
		fail(w, http.StatusBadRequest, fmt.Sprintf("If-Match is %s, and has to be one ETag in quotation marks, or *", text))
		return "", false
	}
	return tag, true
}

// queryOf reads switches: NAME, NAME=true, NAME=1, or their contrary.
func queryOf(w http.ResponseWriter, r *http.Request, known ...string) (map[string]bool, bool) {
	values, ok := parseQuery(w, r)
	if !ok {
		return nil, false
	}
	return switchesOf(w, values, known...)
}

func parseQuery(w http.ResponseWriter, r *http.Request) (url.Values, bool) {
	values, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		fail(w, http.StatusBadRequest, err.Error())
	}
	return values, err == nil
}

func switchesOf(w http.ResponseWriter, values url.Values, known ...string) (map[string]bool, bool) {
	on := make(map[string]bool)
	for k, v := range values {
		yes, err := strconv.ParseBool(v[0])
		switch {
		case !slices.Contains(known, k):
			fail(w, http.StatusBadRequest, unknownKey(k, known...))
			return nil, false
		case len(v) > 1 || v[0] != "" && err != nil:
			fail(w, http.StatusBadRequest, fmt.Sprintf("%s is %q: write it once, without value or as true or false", k, v))
			return nil, false
		}
		on[k] = v[0] == "" || yes
	}
	return on, true
}

// valueOf reads a query that has the one key, or none; "": it is not there. A key that is not known is refused: whoever wrote it has asked for
// something else.
func valueOf(w http.ResponseWriter, r *http.Request, key string) (string, bool) {
	values, ok := parseQuery(w, r)
	if !ok {
		return "", false
	}
	for k, v := range values {
		switch {
		case k != key:
			fail(w, http.StatusBadRequest, unknownKey(k, key))
			return "", false
		case len(v) > 1:
			fail(w, http.StatusBadRequest, fmt.Sprintf("%s is %q: write it once", k, v))
			return "", false
		}
	}
	return values.Get(key), true
}

func unknownKey(key string, known ...string) string {
	text := fmt.Sprintf("there is no switch %q here", key)
	if len(known) > 0 {
		text += ": known are " + strings.Join(known, ", ")
	}
	return text
}

// bare refuses a query and a body where neither has a meaning.
func bare(w http.ResponseWriter, r *http.Request) bool { return noQuery(w, r) && noBody(w, r) }

func noQuery(w http.ResponseWriter, r *http.Request) bool {
	_, ok := queryOf(w, r)
	return ok
}

// decode reads one JSON value without unknown keys: to leave out what was asked for would do something else.
func decode(w http.ResponseWriter, r *http.Request, into any) bool {
	return decodeFrom(w, http.MaxBytesReader(w, r.Body, maxRequest), into)
}

func decodeFrom(w http.ResponseWriter, body io.Reader, into any) bool {
	err := decodeOne(body, into)
	if err != nil {
		fail(w, http.StatusBadRequest, fmt.Sprintf("the body of the request is not valid: %v", err))
	}
	return err == nil
}

// decodeOne reads one JSON value without unknown keys, and nothing behind it.
func decodeOne(body io.Reader, into any) error {
	d := json.NewDecoder(body)
	d.DisallowUnknownFields()
	if err := d.Decode(into); err == io.EOF {
		return errors.New("it is empty")
	} else if err != nil {
		return err
	}
	switch _, err := d.Token(); {
	case err == io.EOF:
		return nil
	case err == nil || isSyntax(err):
		return errors.New("something follows the value")
	default:
		return err
	}
}

func isSyntax(err error) bool {
	_, ok := errors.AsType[*json.SyntaxError](err)
	return ok
}

// decodeList reads one object or a list of them.
func decodeList[T any](w http.ResponseWriter, r *http.Request, list *[]T) bool {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxRequest))
	if err != nil {
		fail(w, http.StatusBadRequest, fmt.Sprintf("the request cannot be read: %v", err))
		return false
	}
	if body = bytes.TrimSpace(body); bytes.HasPrefix(body, []byte("[")) {
		if !decodeFrom(w, bytes.NewReader(body), list) {
			return false
		}
	} else {
		*list = make([]T, 1)
		if !decodeFrom(w, bytes.NewReader(body), &(*list)[0]) {
			return false
		}
	}
	if len(*list) == 0 {
		fail(w, http.StatusBadRequest, "the request changes nothing: its list is empty")
		return false
	}
	return true
}

// noBody refuses a body where none has a meaning. A request that ends before its body has come, or is late, is none either: whoever
// asked has given it up, or was to say more.
func noBody(w http.ResponseWriter, r *http.Request) bool {
	switch n, err := io.ReadFull(r.Body, make([]byte, 1)); {
	case n > 0:
		fail(w, http.StatusBadRequest, "the request has a body, which means nothing here: remove it")
		return false
	case err != io.EOF:
		fail(w, http.StatusBadRequest, fmt.Sprintf("the request has not come whole: %v", err))
		return false
	}
	return true
}
