package sdk

import (
	"context"
	"net/http"
	"testing"
	"testing/synctest"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/bedrockruntime"
	"github.com/aws/aws-sdk-go-v2/service/bedrockruntime/types"
	"github.com/aws/smithy-go/middleware"
	smithyhttp "github.com/aws/smithy-go/transport/http"
	"github.com/llm-stage/stage/internal/lab/llmtest"
	"github.com/llm-stage/stage/internal/stagetest/must"
	"github.com/llm-stage/stage/llm"
	"github.com/llm-stage/stage/llm/identity"
)

// signedBy names the headers of a request that make up its signature.
var signedBy = [...]string{"Authorization", "X-Amz-Date", "X-Amz-Security-Token", "Content-Type"}

// pipe sends the requests of AWS's client over a connection within the process.
type pipe struct{ *http.Transport }

// RoundTrip implements [http.RoundTripper].
func (p pipe) RoundTrip(r *http.Request) (*http.Response, error) {
	r.URL.Scheme = "http" // the host, which is signed, stays
	return p.Transport.RoundTrip(r)
}

// uncounted takes the headers off by which AWS's client counts its attempts.
func uncounted(ctx context.Context, in middleware.FinalizeInput, next middleware.FinalizeHandler) (middleware.FinalizeOutput, middleware.Metadata, error) {
	if r, ok := in.Request.(*smithyhttp.Request); ok {
		r.Header.Del("Amz-Sdk-Invocation-Id")
		r.Header.Del("Amz-Sdk-Request")
	}
	return next.HandleFinalize(ctx, in)
}

// At one instant the stage signs a request as AWS's own client does, byte for byte, apart from the headers by which
// that client counts its attempts.
func TestSignaturesAreAWSsOwn(t *testing.T) {
	t.Setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY")
	t.Setenv("AWS_SESSION_TOKEN", "a-session")
	t.Setenv("AWS_CONFIG_FILE", t.TempDir()+"/none")
	t.Setenv("AWS_SHARED_CREDENTIALS_FILE", t.TempDir()+"/none")
	synctest.Test(t, func(t *testing.T) {
		stub := must.Value(llmtest.New(llmtest.Config{}))(t)
		var sent []http.Header
		var paths []string
		listener := llmtest.NewPipeListener()
		server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			sent, paths = append(sent, r.Header.Clone()), append(paths, r.Host+r.URL.EscapedPath())
			stub.ServeHTTP(w, r)
		})}
		go func() { _ = server.Serve(listener) }()
		defer func() { _ = server.Close() }()

		transport := &http.Transport{DialContext: listener.DialContext}
		defer transport.CloseIdleConnections()
		theirs := bedrockruntime.New(bedrockruntime.Options{
			Region: "eu-central-1", HTTPClient: &http.Client{Transport: pipe{transport}}, Retryer: aws.NopRetryer{},
			Credentials: aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
				return aws.Credentials{AccessKeyID: "AKIDEXAMPLE", SecretAccessKey: "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY", SessionToken: "a-session"}, nil
			}),
			APIOptions: []func(*middleware.Stack) error{func(s *middleware.Stack) error {
				return s.Finalize.Insert(middleware.FinalizeMiddlewareFunc("Uncounted", uncounted), "Signing", middleware.Before)
			}},
		})
		must.Value(theirs.Converse(t.Context(), &bedrockruntime.ConverseInput{
			ModelId: aws.String(claudeARN), Messages: []types.Message{{Role: "user", Content: []types.ContentBlock{text("hi")}}},
		}))(t)

		ids := identity.New(identity.Options{})
		defer ids.Close()
		const base = "http://bedrock-runtime.eu-central-1.amazonaws.com"
		auth, region, err := ids.AWS("", base)
		if err != nil {
			t.Fatal(err)
		}
		client := must.Value(llm.NewProvider(llm.Bedrock, llm.ProviderConfig{BaseURL: base, Region: region, Auth: auth, Model: claudeARN, DialContext: listener.DialContext}))(t)
		defer client.Close()
		p := must.Value(client.Prepare(&llm.Request{Prompt: "hi"}))(t)
		must.Value(client.Do(t.Context(), p))(t)
		if paths[0] != paths[1] {
			t.Errorf("the stage calls %s, the client %s", paths[1], paths[0])
		}
		for _, name := range signedBy {
			if ours, want := sent[1].Get(name), sent[0].Get(name); ours != want || want == "" {
				t.Errorf("%s: the stage sends\n%s\nthe client\n%s", name, ours, want)
			}
		}
	})
}
