package stage_test

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"sync"
	"time"
)

// exchange is one HTTP exchange as the LLM saw it.
type exchange struct {
	At       time.Time // when the request arrived
	Key      string    // the credential that it carried
	Header   http.Header
	Request  []byte
	Status   int
	Response []byte
	Tokens   int64 // that the reply reports
}

// tap counts, between the network and the LLM, what goes over the wire: the independent record that the audit must
// agree with.
type tap struct {
	next http.Handler

	mu        sync.Mutex
	exchanges []*exchange
}

func (p *tap) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return // the client is gone before it has sent its request
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	x := &exchange{At: time.Now(), Key: r.Header.Get("Authorization"), Header: r.Header.Clone(), Request: body}
	p.mu.Lock()
	p.exchanges = append(p.exchanges, x)
	p.mu.Unlock()
	p.next.ServeHTTP(&tapWriter{ResponseWriter: w, tap: p, exchange: x}, r)
}

// seen returns what has been exchanged so far, in the order of arrival.
func (p *tap) seen() []exchange {
	p.mu.Lock()
	defer p.mu.Unlock()
	list := make([]exchange, len(p.exchanges))
	for i, x := range p.exchanges {
		list[i] = *x
		var reply struct {
			Usage struct {
				Total int64 `json:"total_tokens"`
			} `json:"usage"`
		}
		if json.Unmarshal(x.Response, &reply) == nil {
			list[i].Tokens = reply.Usage.Total
		}
	}
	return list
}

// tapWriter copies a reply.
type tapWriter struct {
	http.ResponseWriter
	tap      *tap
	exchange *exchange
}

// Unwrap lets the LLM abort the connection.
func (w *tapWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func (w *tapWriter) WriteHeader(status int) {
	w.tap.mu.Lock()
	w.exchange.Status = status
	w.tap.mu.Unlock()
	w.ResponseWriter.WriteHeader(status)
}

func (w *tapWriter) Write(p []byte) (int, error) {
	w.tap.mu.Lock()
	w.exchange.Response = append(w.exchange.Response, p...)
	w.tap.mu.Unlock()
	return w.ResponseWriter.Write(p)
}
