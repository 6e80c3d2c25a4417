package operator

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net"
	"net/http"
	"os"
)

const wishBytesMax = 4 << 10

// Page serves POST /api/control: the wish of somebody who looks at the page, as JSON. It
// answers with {"outcomes": […]}, 409 if a replica did not do it, or {"error": "…"}.
//
// Everyone who may open the page may ask. So no other site may make a browser ask: the
// request must be JSON, which no form sends, and of the same origin.
type Page struct {
	// Steer carries out the wish.
	Steer func(context.Context, Wish) ([]Outcome, error)
}

// Handler returns the handler.
func (p Page) Handler() http.Handler {
	return http.NewCrossOriginProtection().Handler(http.HandlerFunc(p.serve))
}

func (p Page) serve(w http.ResponseWriter, r *http.Request) {
	var wish Wish
	if kind, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type")); kind != "application/json" {
		answer(w, http.StatusUnsupportedMediaType, nil, fmt.Errorf("send what you wish with Content-Type: application/json"))
		return
	}
	err := read(http.MaxBytesReader(w, r.Body, wishBytesMax), &wish)
	if err == nil {
		err = wish.check()
	}
	if err != nil {
		answer(w, http.StatusBadRequest, nil, err)
		return
	}
	wish.By.User, wish.By.Program, wish.By.PID = "dashboard", "dashboard", os.Getpid()
	if host, _, err := net.SplitHostPort(r.RemoteAddr); err == nil {
		wish.By.Host = host
	}
	outcomes, err := p.Steer(r.Context(), wish)
	status := http.StatusOK
	for _, o := range outcomes {
		if o.Failed {
			status = http.StatusConflict
		}
	}
	if err != nil {
		status = http.StatusConflict
	}
	answer(w, status, outcomes, err)
}

// read reads a wish, and refuses members that a wish does not have. Without a partition
// or a replica it is for all of them, so a misspelt name would pause the whole stage.
func read(body io.Reader, wish *Wish) error {
	d := json.NewDecoder(body)
	d.DisallowUnknownFields()
	err := d.Decode(wish)
	if err == nil {
		if _, err = d.Token(); errors.Is(err, io.EOF) {
			return nil
		}
		err = cmp.Or(err, errors.New("more than one JSON value"))
	}
	return fmt.Errorf(`%w: send {"verb": "pause", "partition": 3, "replica": "pod-2"}; partition and replica may be left out`, err)
}

func answer(w http.ResponseWriter, status int, outcomes []Outcome, err error) {
	a := struct {
		Outcomes []Outcome `json:"outcomes,omitempty"`
		Error    string    `json:"error,omitempty"`
	}{Outcomes: outcomes}
	if err != nil {
		a.Error = err.Error()
	}
	body, err := json.Marshal(a)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	w.Write(append(body, '\n')) //nolint:errcheck // the client has gone
}
