package cloudtest

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
)

// sts answers AssumeRoleWithWebIdentity.
func (c *Cloud) sts(w http.ResponseWriter, r *http.Request, form url.Values) {
	fail := func(status int, code, message string) {
		w.WriteHeader(status)
		_, _ = fmt.Fprintf(w, `<ErrorResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><Error><Type>Sender</Type><Code>%s</Code>`+
			`<Message>%s</Message></Error><RequestId>cloudtest</RequestId></ErrorResponse>`, code, message)
	}
	w.Header().Set("Content-Type", "text/xml")
	if got := form.Get("WebIdentityToken"); got != Assertion {
		fail(400, "InvalidIdentityToken", "Couldn't use the token "+got)
		return
	}
	n, ends, status := c.grant(r.Context())
	switch status {
	case 0:
		_, _ = fmt.Fprintf(w, `<AssumeRoleWithWebIdentityResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><AssumeRoleWithWebIdentityResult>`+
			`<Credentials><AccessKeyId>%s</AccessKeyId><SecretAccessKey>%s</SecretAccessKey><SessionToken>%s</SessionToken><Expiration>%s</Expiration></Credentials>`+
			`<AssumedRoleUser><Arn>arn:aws:sts::123456789012:assumed-role/stage/x</Arn><AssumedRoleId>AROA:x</AssumedRoleId></AssumedRoleUser>`+
			`</AssumeRoleWithWebIdentityResult><ResponseMetadata><RequestId>cloudtest</RequestId></ResponseMetadata></AssumeRoleWithWebIdentityResponse>`,
			accessKey(n), secretKey(n), session(n), ends.UTC().Format(time.RFC3339))
	case http.StatusTooManyRequests:
		fail(status, "Throttling", "Rate exceeded")
	default:
		fail(status, "AccessDenied", "Not authorized to perform sts:AssumeRoleWithWebIdentity with "+form.Get("WebIdentityToken"))
	}
}

// imds is the instance metadata service, version 2.
func (c *Cloud) imds(w http.ResponseWriter, r *http.Request) {
	if r.Header.Get("X-Aws-Ec2-Metadata-Token") != "imds-token-of-cloudtest" {
		w.WriteHeader(http.StatusUnauthorized)
		return
	}
	if !strings.HasSuffix(r.URL.Path, "/stage-role") {
		_, _ = w.Write([]byte("stage-role"))
		return
	}
	n, ends, status := c.grant(r.Context())
	if status != 0 {
		w.WriteHeader(status)
		return
	}
	credentials := keys(n, ends)
	credentials["Code"] = "Success"
	writeJSON(w, 200, credentials)
}

// agent is the agent of EKS Pod Identity, or of ECS.
func (c *Cloud) agent(w http.ResponseWriter, r *http.Request) {
	if got := r.Header.Get("Authorization"); got != AgentToken {
		writeJSON(w, 400, map[string]any{"code": "InvalidToken", "message": "unknown token " + got})
		return
	}
	n, ends, status := c.grant(r.Context())
	if status != 0 {
		writeJSON(w, status, map[string]any{"code": http.StatusText(status), "message": "the agent gives no credentials"})
		return
	}
	writeJSON(w, 200, keys(n, ends))
}

func keys(n int, ends time.Time) map[string]any {
	return map[string]any{
		"AccessKeyId": accessKey(n), "SecretAccessKey": secretKey(n), "Token": session(n), "Expiration": ends.UTC().Format(time.RFC3339),
	}
}

// Static are the access keys of a user, which never expire.
const (
	StaticKey    = "AKIACLOUDTEST0000000"
	StaticSecret = "secret-key-of-a-user-of-cloudtest"
)

// signed is a signature, taken apart.
type signed struct {
	key, day, region, service, signature string
	headers                              []string
}

func parseSigned(header string) (s signed, err error) {
	rest, ok := strings.CutPrefix(header, "AWS4-HMAC-SHA256 ")
	if !ok {
		return s, fmt.Errorf("not signed: Authorization is %.20q", header)
	}
	for part := range strings.SplitSeq(rest, ", ") {
		name, value, _ := strings.Cut(part, "=")
		switch name {
		case "Credential":
			scope := strings.Split(value, "/")
			if len(scope) != 5 || scope[4] != "aws4_request" {
				return s, fmt.Errorf("scope %q", value)
			}
			s.key, s.day, s.region, s.service = scope[0], scope[1], scope[2], scope[3]
		case "SignedHeaders":
			s.headers = strings.Split(value, ";")
		case "Signature":
			s.signature = value
		}
	}
	return s, nil
}

// VerifySignature checks the signature of a request to AWS: it computes the signature of
// what has arrived, by a credential that the cloud has issued, and compares both.
func (c *Cloud) VerifySignature(r *http.Request, body []byte, service, region string) error {
	s, err := parseSigned(r.Header.Get("Authorization"))
	if err != nil {
		return err
	}
	if s.service != service || s.region != region {
		return fmt.Errorf("signed for %s in %s, this is %s in %s", s.service, s.region, service, region)
	}
	secret := StaticSecret
	if s.key != StaticKey {
		n, err := strconv.Atoi(strings.TrimPrefix(s.key, "ASIACLOUDTEST"))
		if err != nil {
			return fmt.Errorf("unknown access key %q", s.key)
		}
		if err := c.check(n); err != nil {
			return err
		}
		if r.Header.Get("X-Amz-Security-Token") != session(n) {
			return errors.New("X-Amz-Security-Token is not of this access key")
		}
		secret = secretKey(n)
	}
	at, err := time.Parse("20060102T150405Z", r.Header.Get("X-Amz-Date"))
	if err != nil || at.Format("20060102") != s.day {
		return fmt.Errorf("X-Amz-Date %q", r.Header.Get("X-Amz-Date"))
	}
	if age := time.Since(at).Abs(); age > 5*time.Minute {
		return fmt.Errorf("signature expired: %v", age)
	}
	for name := range r.Header {
		if name = strings.ToLower(name); strings.HasPrefix(name, "x-amz-") && !slices.Contains(s.headers, name) {
			return fmt.Errorf("%s is not signed", name)
		}
	}
	if !slices.Contains(s.headers, "host") || !slices.IsSorted(s.headers) {
		return fmt.Errorf("signed headers %v", s.headers)
	}
	if got := signature(r, body, secret, s); got != s.signature {
		return fmt.Errorf("the signature does not match: got %s, want %s", s.signature, got)
	}
	return nil
}

// signature computes a signature of version 4, as AWS describes it.
func signature(r *http.Request, body []byte, secret string, s signed) string {
	var headers strings.Builder
	for _, name := range s.headers {
		value := strings.Join(r.Header.Values(name), ",")
		switch name {
		case "host":
			value = r.Host
		case "content-length":
			value = strconv.Itoa(len(body))
		}
		headers.WriteString(name + ":" + strings.Join(strings.Fields(value), " ") + "\n")
	}
	query := strings.ReplaceAll(r.URL.Query().Encode(), "+", "%20")
	canonical := strings.Join([]string{
		r.Method, escapeAgain(r.URL.EscapedPath()), query, headers.String(), strings.Join(s.headers, ";"), hexSum(body),
	}, "\n")
	scope := strings.Join([]string{s.day, s.region, s.service, "aws4_request"}, "/")
	text := strings.Join([]string{"AWS4-HMAC-SHA256", r.Header.Get("X-Amz-Date"), scope, hexSum([]byte(canonical))}, "\n")
	key := []byte("AWS4" + secret)
	for _, part := range []string{s.day, s.region, s.service, "aws4_request"} {
		key = mac(key, part)
	}
	return hex.EncodeToString(mac(key, text))
}

// escapeAgain escapes a path that is escaped already, which all services but S3 ask for.
func escapeAgain(path string) string {
	var b strings.Builder
	for _, c := range []byte(path) {
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', strings.IndexByte("-._~/", c) >= 0:
			b.WriteByte(c)
		default:
			fmt.Fprintf(&b, "%%%02X", c)
		}
	}
	return b.String()
}

func mac(key []byte, text string) []byte {
	h := hmac.New(sha256.New, key)
	h.Write([]byte(text))
	return h.Sum(nil)
}

func hexSum(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}
