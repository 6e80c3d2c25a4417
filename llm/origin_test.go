package llm

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/llm-stage/stage/llm/redact"
)

func TestAlikeNamesTheVerdictInTheProvidersWords(t *testing.T) {
	openai := func(kind, code string) string {
		return fmt.Sprintf(`{"error":{"message":"row 17 said: hello","param":"messages[17].content","type":%q,"code":%q}}`, kind, code)
	}
	const invalid = "invalid_request_error"
	proven, rowModel := Known{Proven: true}, Known{RowModel: true}
	tests := []struct {
		name   string
		known  Known
		status int
		retry  string // x-should-retry
		body   string
		want   string
	}{
		{"type and code", Known{}, 400, "", openai(invalid, "unknown_parameter"), "400 invalid_request_error unknown_parameter"},
		{"type alone", Known{}, 400, "", openai(invalid, ""), "400 invalid_request_error"},
		{"no words", Known{}, 422, "", `{"detail":[{"loc":["body","messages"],"input":"hello"}]}`, "422"},
		{"plain text", Known{}, 405, "", "hello is not allowed", "405"},
		{"page", Known{}, 405, "", "<html><head><title>Login</title>", "405"},
		{"code that quotes the row", Known{}, 400, "", openai(invalid, "bad value: hello"), "400 invalid_request_error"},
		{"code as long as a row", Known{}, 400, "", openai(invalid, strings.Repeat("x", 1000)), "400 invalid_request_error"},
		{"long words", Known{}, 400, "", openai(strings.Repeat("x", 44), strings.Repeat("y", 44)), "400 " + strings.Repeat("x", 44) + " " + strings.Repeat("y", 44)},
		{"longer words", Known{}, 400, "", openai(strings.Repeat("x", 45), "y"), "400 y"},
		{"not implemented", Known{}, 501, "", "", "501"},
		{"captive portal", Known{}, 511, "", "<html>", "511"},
		{"unknown model after a success", proven, 404, "", openai(invalid, "model_not_found"), "404 invalid_request_error model_not_found"},
		{"unknown model of the row", rowModel, 404, "", openai(invalid, "model_not_found"), ""},
		{"inside a 200", Known{}, 200, "", `{"error":{"message":"no such parameter","code":400}}`, "400"},

		{"page in a 200", Known{}, 200, "", "\ufeff\n<!DOCTYPE html><title>Sign in</title>", "html"},
		{"text in a 200", Known{}, 200, "", "it works", "invalid_json_response"},
		{"empty body", Known{}, 200, "", "", "invalid_json_response"},
		{"no content", Known{}, 204, "", "", "invalid_json_response"},
		{"other format", Known{}, 200, "", `{"data":[]}`, "malformed_response"},
		{"no choices", Known{}, 200, "", `{"choices":[]}`, "empty_choices"},
		{"no text", Known{}, 200, "", `{"choices":[{"message":{"content":""}}]}`, "empty_content"},

		{"filtered", Known{}, 400, "", openai(invalid, "content_filter"), ""},
		{"flagged", proven, 403, "", `{"error":{"message":"flagged","metadata":{"reasons":["violence"]}}}`, ""},
		{"refused", Known{}, 200, "", `{"choices":[{"message":{"refusal":"no"}}]}`, ""},
		{"truncated", Known{}, 200, "", `{"choices":[{"message":{"content":"a"},"finish_reason":"length"}]}`, ""},
		{"too long for the context", Known{}, 400, "", openai(invalid, "context_length_exceeded"), ""},
		{"above the limit", Known{}, 429, "", `{"error":{"message":"Limit 30000, Requested 36278.","type":"tokens","code":"rate_limit_exceeded"}}`, ""},
		{"too large", Known{}, 413, "", "", ""},
		{"conflict", Known{}, 409, "", "", ""},
		{"conflict, not to be repeated", Known{}, 409, "false", "", ""},
		{"to be repeated", Known{}, 400, "true", openai(invalid, ""), ""},
		{"sick server", Known{}, 500, "", openai("server_error", ""), ""},
		{"sick server, not to be repeated", Known{}, 500, "false", openai("server_error", ""), ""},
		{"too long for the context, as a 500", Known{}, 500, "", openai("", "exceed_context_size_error"), ""},
		{"wrong key", Known{}, 401, "", openai(invalid, "invalid_api_key"), ""},
		{"limit", Known{}, 429, "", openai("requests", "rate_limit_exceeded"), ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := ParseReply(ChatCompletions{}, tt.known, now, tt.status, http.Header{"X-Should-Retry": {tt.retry}}, []byte(tt.body))
			e, _ := errors.AsType[*Error](err)
			if e.Alike != tt.want || len(e.Alike) > 100 {
				t.Errorf("got %q (%v), want %q", e.Alike, e, tt.want)
			}
		})
	}
}

func TestWordsAboutTheRequestOutweighA500(t *testing.T) {
	for body, want := range map[string]judgement{
		`{"error":{"code":"context_length_exceeded"}}`: callFailed(Permanent, OfRequest),
		`{"error":{"code":"content_filter"}}`:          {class: Permanent, reason: ReasonContentFiltered},
		`{"error":{"code":"server_error"}}`:            callFailed(Transient, OfServer),
	} {
		if j := judge(&ending{Status: 500, Fault: readFault([]byte(body))}); j != want {
			t.Errorf("%s: got %+v, want %+v", body, j, want)
		}
	}
}

func TestProxyThatRefusesIsNamed(t *testing.T) {
	_, err := parseReply(ChatCompletions{}, &ending{Err: &net.OpError{Op: "proxyconnect", Err: &proxyError{405}}}, now, nil)
	e, _ := errors.AsType[*Error](err)
	if e.Class != Permanent || e.Alike != "proxy 405" || !strings.Contains(e.Error(), "proxy answered 405 Method Not Allowed") {
		t.Errorf("got %v %q: %v", e.Class, e.Alike, e)
	}
}

func TestSchemaFailureIsAlike(t *testing.T) {
	_, err := ValidateReply(schemaOf(t, `{"type":"object"}`), "17")
	if e, ok := errors.AsType[*Error](err); !ok || e.Alike != "schema_validation_failed" || e.Origin != OfRequest {
		t.Errorf("got %+v", err)
	}
}

func TestShortageNamesTheRemedy(t *testing.T) {
	for errno, remedy := range map[syscall.Errno]string{
		syscall.EMFILE: "ulimit -n", syscall.ENFILE: "fs.file-max", syscall.EADDRNOTAVAIL: "net.ipv4.ip_local_port_range",
		syscall.ENOBUFS: "memory", syscall.ENOMEM: "memory", syscall.ENETUNREACH: "network", syscall.EHOSTUNREACH: "route",
	} {
		cause := &net.OpError{Op: "dial", Net: "tcp", Err: os.NewSyscallError("connect", errno)}
		_, err := parseReply(ChatCompletions{}, &ending{Err: cause}, now, nil)
		e, _ := errors.AsType[*Error](err)
		if e.Origin != OfHost || !errors.Is(e, errno) || !strings.HasPrefix(e.Error(), cause.Error()+" (") || !strings.Contains(e.Error(), remedy) {
			t.Errorf("%v: got %v, want the remedy %q", errno, e, remedy)
		}
	}
}

func TestAlikeHoldsNoKey(t *testing.T) {
	c := &Client{cfg: ProviderConfig{Redactor: new(redact.Redactor)}}
	c.cfg.Redactor.Add("sk-very-secret")
	e := &Error{Alike: "400 sk-very-secret", Err: errors.New("no")}
	if c.redactError(e); e.Alike != "400 [redacted]" {
		t.Errorf("got %q", e.Alike)
	}
}
