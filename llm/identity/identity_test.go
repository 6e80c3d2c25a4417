package identity_test

import (
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/llm-stage/stage/internal/lab/cloudtest"
	"github.com/llm-stage/stage/internal/stagetest/must"
	"github.com/llm-stage/stage/llm"
	"github.com/llm-stage/stage/llm/identity"
	"github.com/llm-stage/stage/llm/redact"
)

// source is one of the places where a credential comes from.
type source struct {
	name string
	aws  bool // it signs
	env  func(file func(text string) (path string)) map[string]string
	auth func(ids *identity.Identities) (llm.Authorizer, error)
}

const region = "eu-central-1"

func withAWS(ids *identity.Identities) (llm.Authorizer, error) {
	auth, _, err := ids.AWS(region, "")
	return auth, err
}

func withGoogle(ids *identity.Identities) (llm.Authorizer, error) {
	auth, _, err := ids.Google("")
	return auth, err
}

func withEntra(ids *identity.Identities) (llm.Authorizer, error) {
	return ids.Entra("https://name.openai.azure.com"), nil
}

const (
	plain  = "http://" + cloudtest.Host
	secure = "https://" + cloudtest.Host
)

var sources = []source{
	{name: "aws web identity", aws: true, auth: withAWS, env: func(file func(string) string) map[string]string {
		return map[string]string{
			"AWS_ROLE_ARN": "arn:aws:iam::123456789012:role/stage", "AWS_ROLE_SESSION_NAME": "test",
			"AWS_WEB_IDENTITY_TOKEN_FILE": file(cloudtest.Assertion), "AWS_ENDPOINT_URL_STS": plain,
		}
	}},
	{name: "aws profile with a role", aws: true, auth: withAWS, env: func(file func(string) string) map[string]string {
		return map[string]string{
			"AWS_PROFILE": "stage", "AWS_ENDPOINT_URL_STS": plain, "AWS_CONFIG_FILE": file("[profile stage]\nregion = eu-west-1\n" +
				"role_arn = arn:aws:iam::123456789012:role/stage\nweb_identity_token_file = " + file(cloudtest.Assertion) + "\n"),
		}
	}},
	{name: "aws pod identity", aws: true, auth: withAWS, env: func(file func(string) string) map[string]string {
		return map[string]string{
			"AWS_CONTAINER_CREDENTIALS_FULL_URI":     "http://169.254.170.23/v1/credentials",
			"AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE": file(cloudtest.AgentToken),
		}
	}},
	{name: "aws instance profile", aws: true, auth: withAWS, env: func(func(string) string) map[string]string {
		return map[string]string{"AWS_EC2_METADATA_DISABLED": "false", "AWS_EC2_METADATA_SERVICE_ENDPOINT": plain}
	}},
	{name: "google metadata server", auth: withGoogle, env: func(func(string) string) map[string]string {
		return map[string]string{"GCE_METADATA_HOST": cloudtest.Host}
	}},
	{name: "google service account", auth: withGoogle, env: func(file func(string) string) map[string]string {
		return map[string]string{"GOOGLE_APPLICATION_CREDENTIALS": file(string(cloudtest.ServiceAccount(secure + "/token")))}
	}},
	{name: "google workload identity federation", auth: withGoogle, env: func(file func(string) string) map[string]string {
		path := file(cloudtest.Assertion)
		return map[string]string{"GOOGLE_APPLICATION_CREDENTIALS": file(string(cloudtest.ExternalAccount(secure+"/v1/token", path)))}
	}},
	{name: "entra workload identity", auth: withEntra, env: func(file func(string) string) map[string]string {
		return map[string]string{
			"AZURE_AUTHORITY_HOST": secure + "/", "AZURE_TENANT_ID": cloudtest.Tenant, "AZURE_CLIENT_ID": "an-application",
			"AZURE_FEDERATED_TOKEN_FILE": file(cloudtest.Assertion),
		}
	}},
	{name: "entra client secret", auth: withEntra, env: func(func(string) string) map[string]string {
		return map[string]string{
			"AZURE_AUTHORITY_HOST": secure + "/", "AZURE_TENANT_ID": cloudtest.Tenant, "AZURE_CLIENT_ID": "an-application",
			"AZURE_CLIENT_SECRET": cloudtest.ClientSecret,
		}
	}},
	{name: "entra managed identity", auth: withEntra, env: func(func(string) string) map[string]string {
		return map[string]string{
			"IDENTITY_ENDPOINT": plain + "/msi/token", "IDENTITY_HEADER": cloudtest.ClientSecret, "AZURE_CLIENT_ID": "an-application",
		}
	}},
}

// setenv makes the environment that of one source, whatever the machine's is.
func setenv(t *testing.T, env map[string]string) {
	t.Helper()
	for _, v := range os.Environ() {
		name, _, _ := strings.Cut(v, "=")
		for _, prefix := range []string{"AWS_", "GOOGLE_", "GCE_", "AZURE_", "CLOUDSDK_", "IDENTITY_", "MSI_"} {
			if strings.HasPrefix(name, prefix) {
				t.Setenv(name, "")
				_ = os.Unsetenv(name)
			}
		}
	}
	home := t.TempDir()
	t.Setenv("HOME", home)
	t.Setenv("PATH", home) // no command-line tool of a cloud
	t.Setenv("AWS_EC2_METADATA_DISABLED", "true")
	for name, value := range env {
		t.Setenv(name, value)
	}
}

// trial is one source under test.
type trial struct {
	*testing.T

	cloud  *cloudtest.Cloud
	source *source
	auth   llm.Authorizer
}

// try authorises a request, and has the cloud check it.
func (t *trial) try() (credential int, err error) {
	body := []byte(`{"messages":[]}`)
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "https://bedrock-runtime."+region+".amazonaws.com/model/a.model-v1%3A0/converse", nil)
	if err != nil {
		return 0, err
	}
	r.ContentLength = int64(len(body))
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Accept", "application/json")
	if credential, err = t.auth.Authorize(t.Context(), r, body); err != nil {
		return credential, err
	}
	if t.source.aws {
		return credential, t.cloud.VerifySignature(r, body, "bedrock", region)
	}
	return credential, t.cloud.VerifyToken(r.Header)
}

// each runs a test with each source, or with some of them, in virtual time.
func each(t *testing.T, test func(t *trial), names ...string) {
	t.Helper()
	for i := range sources {
		s := &sources[i]
		if len(names) > 0 && !slices.Contains(names, s.name) {
			continue
		}
		t.Run(s.name, func(t *testing.T) {
			env := s.env(func(text string) string {
				path := filepath.Join(t.TempDir(), "file")
				must.Do(t, os.WriteFile(path, []byte(text), 0o600))
				return path
			})
			if env["AZURE_CLIENT_ID"] != "" {
				env["AZURE_CLIENT_ID"] = t.Name() // Azure's SDK caches the tokens of managed identities for the whole process
			}
			setenv(t, env)
			synctest.Test(t, func(t *testing.T) {
				cloud := cloudtest.New()
				defer time.Sleep(time.Minute) // what closes TLS over a pipe waits 5 s for the other side
				defer cloud.Close()
				ids := identity.New(identity.Options{Redactor: new(redact.Redactor), Roots: cloud.Roots(), DialContext: cloud.DialContext})
				defer ids.Close()
				auth := must.Value(s.auth(ids))(t)
				test(&trial{t, cloud, s, auth})
			})
		})
	}
}

func TestEachSourceAuthorises(t *testing.T) {
	each(t, func(t *trial) {
		if asked, _ := t.cloud.Asked(); asked > 0 {
			t.Errorf("the cloud was asked before the first call")
		}
		for range 3 {
			if n, err := t.try(); n != 1 || err != nil {
				t.Fatalf("credential %d, error %v", n, err)
			}
		}
		if asked, _ := t.cloud.Asked(); asked != 1 {
			t.Errorf("the cloud was asked %d times for 3 calls", asked)
		}
	})
}

func TestRefusalIsReportedWithoutSecrets(t *testing.T) {
	each(t, func(t *trial) {
		t.cloud.Set(cloudtest.Refuses)
		_, err := t.try()
		checkMissing(t.T, err)
		t.cloud.Set(cloudtest.Works)
		time.Sleep(time.Second)
		if _, err := t.try(); err != nil {
			t.Errorf("after the cloud's refusals ended: %v", err)
		}
	})
}

func TestCredentialThatHadExpiredOnArrivalIsReported(t *testing.T) {
	each(t, func(t *trial) {
		if t.source.name == "google service account" {
			t.Skip("Google's SDK drops a life that is not positive")
		}
		t.cloud.Set(cloudtest.Expires)
		_, err := t.try()
		checkMissing(t.T, err)
	})
}

// checkMissing checks the error of a call that got no credential: one line, what to do, no
// secret.
func checkMissing(t *testing.T, err error) {
	t.Helper()
	if err == nil {
		t.Fatal("no error")
	}
	text := err.Error()
	t.Log(text)
	for _, want := range []string{"no credential of ", "; set "} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is missing", want)
		}
	}
	for _, secret := range []string{"\n", cloudtest.Assertion, cloudtest.AgentToken, cloudtest.ClientSecret, "PRIVATE KEY"} {
		if strings.Contains(text, secret) {
			t.Errorf("shows %q", secret)
		}
	}
}

func TestThrottledSourceIsAskedAgain(t *testing.T) {
	each(t, func(t *trial) {
		t.cloud.Throttle(2)
		start := time.Now()
		if _, err := t.try(); err != nil {
			t.Fatal(err)
		}
		if waited := time.Since(start); waited > 5*time.Second {
			t.Errorf("waited %v for the third answer", waited)
		}
	})
}

func TestSourceThatHangsIsReported(t *testing.T) {
	each(t, func(t *trial) {
		t.cloud.Set(cloudtest.Hangs)
		start := time.Now()
		_, err := t.try()
		checkMissing(t.T, err)
		if waited := time.Since(start).Round(time.Second); waited != 15*time.Second {
			t.Errorf("reported after %v: %v", waited, err)
		}
		t.cloud.Set(cloudtest.Works)
		time.Sleep(time.Second)
		if _, err := t.try(); err != nil {
			t.Errorf("after it hung: %v", err)
		}
	})
}

func TestRefusedCredentialIsReplacedOnce(t *testing.T) {
	each(t, func(t *trial) {
		if strings.Contains(t.source.name, "managed") {
			t.Skip("Azure's SDK has a cache of its own, which gives the same token until it ends")
		}
		old := must.Value(t.try())(t)
		t.cloud.Revoke()
		if _, err := t.try(); err == nil {
			t.Fatal("a revoked credential passes")
		}
		if !t.auth.Outdated(old) {
			t.Fatal("the refused credential was not replaced")
		}
		if n, err := t.try(); n != old+1 || err != nil {
			t.Fatalf("credential %d, error %v", n, err)
		}
		if t.auth.Outdated(0) {
			t.Error("what was no call is outdated")
		}
		if !t.auth.Outdated(old) || t.auth.Outdated(old+1) {
			t.Error("a second refusal within seconds caused another renewal")
		}
	})
}

func TestCredentialIsRenewedBeforeItsEnd(t *testing.T) {
	each(t, func(t *trial) {
		for range 3 * 60 * 4 { // three hours
			if _, err := t.try(); err != nil {
				t.Fatal(err)
			}
			time.Sleep(15 * time.Second)
		}
		if _, issued := t.cloud.Asked(); issued < 3 || issued > 5 {
			t.Errorf("%d credentials for three hours", issued)
		}
	})
}

func TestOneRenewalServesAllCalls(t *testing.T) {
	each(t, func(t *trial) {
		all := func() {
			var calls sync.WaitGroup
			for range 100 {
				calls.Go(func() {
					if _, err := t.try(); err != nil {
						t.Error(err)
					}
				})
			}
			calls.Wait()
		}
		all()
		if asked, _ := t.cloud.Asked(); asked != 1 {
			t.Errorf("the cloud was asked %d times for the first credential", asked)
		}
		time.Sleep(49 * time.Minute) // of an hour
		t.cloud.Set(cloudtest.Hangs)
		start := time.Now()
		all()
		if waited := time.Since(start); waited != 0 {
			t.Errorf("calls with a credential that lives waited %v for the next one", waited)
		}
		synctest.Wait()
		if asked, _ := t.cloud.Asked(); asked != 2 {
			t.Errorf("the cloud was asked %d times", asked)
		}
	}, "google metadata server")
}

// TestRenewalThatFailsIsRepeatedWhileTheOldCredentialLives counts the requests of the last 12 minutes of an hour: renewals
// are 1 s, 2 s, 4 s … and then 30 s apart, and each asks three times.
func TestRenewalThatFailsIsRepeatedWhileTheOldCredentialLives(t *testing.T) {
	each(t, func(t *trial) {
		if _, err := t.try(); err != nil {
			t.Fatal(err)
		}
		t.cloud.Set(cloudtest.Refuses)
		began := time.Now()
		var err error
		for err == nil {
			time.Sleep(time.Second)
			_, err = t.try()
		}
		if lived := time.Since(began); lived < 59*time.Minute || lived > time.Hour {
			t.Errorf("the credential was used for %v of its hour", lived)
		}
		checkMissing(t.T, err)
		if asked, _ := t.cloud.Asked(); asked < 60 || asked > 100 {
			t.Errorf("the cloud was asked %d times", asked)
		}
	}, "google metadata server")
}

func TestRegionAndServiceOfTheHost(t *testing.T) {
	setenv(t, nil)
	ids := identity.New(identity.Options{})
	defer ids.Close()
	for host, want := range map[string]string{
		"bedrock-runtime.eu-west-1.amazonaws.com":                  "eu-west-1",
		"bedrock-runtime-fips.us-gov-west-1.amazonaws.com":         "us-gov-west-1",
		"bedrock-mantle.us-east-1.api.aws":                         "us-east-1",
		"vpce-1-a.bedrock-runtime.ap-south-1.vpce.amazonaws.com":   "ap-south-1",
		"bedrock-runtime.cn-north-1.amazonaws.com.cn":              "cn-north-1",
		"bedrock-runtime.eu-west-1.amazonaws.com.attacker.example": "",
		"gateway.example.com":                                      "",
	} {
		if _, got, err := ids.AWS("", "https://"+host+"/v1"); got != want || (err == nil) != (want != "") {
			t.Errorf("%s: region %q, error %v", host, got, err)
		}
	}
	t.Setenv("AWS_DEFAULT_REGION", "eu-north-1")
	if _, got, err := ids.AWS("", "https://gateway.example.com"); got != "eu-north-1" || err != nil {
		t.Errorf("region %q, error %v", got, err)
	}
	auth, _, err := ids.AWS("us-east-1", "https://bedrock-mantle.us-east-1.api.aws")
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("AWS_ACCESS_KEY_ID", cloudtest.StaticKey)
	t.Setenv("AWS_SECRET_ACCESS_KEY", cloudtest.StaticSecret)
	cloud := cloudtest.New()
	defer cloud.Close()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://bedrock-mantle.us-east-1.api.aws/v1/models?limit=2&after=a%20b", nil)
	if err == nil {
		_, err = auth.Authorize(t.Context(), r, nil)
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := cloud.VerifySignature(r, nil, "bedrock-mantle", "us-east-1"); err != nil {
		t.Error(err)
	}
	if got := r.URL.RawQuery; got != "limit=2&after=a%20b" {
		t.Errorf("the query of the URL, which other requests share, became %q", got)
	}
}
