package identity

import (
	"context"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore/policy"
	"github.com/Azure/azure-sdk-for-go/sdk/azidentity"

	"github.com/llm-stage/stage/llm"
)

const entraHelp = "set AZURE_TENANT_ID, AZURE_CLIENT_ID and AZURE_FEDERATED_TOKEN_FILE or " +
	"AZURE_CLIENT_SECRET, " +
	"or give the pod or the machine a managed identity, or run `az login`"

// Entra returns what adds access tokens of Microsoft Entra ID to requests to the server at
// baseURL.
func (i *Identities) Entra(baseURL string) llm.Authorizer {
	return &authorizer[string]{
		keeper:   i.entraKeeper(scopeOf(baseURL)),
		describe: describeEntra,
		account:  "entra",
		apply: func(_ context.Context, r *http.Request, _ []byte, token string) error {
			bearer(r, token)
			return nil
		},
	}
}

// scopeOf returns what a token is for. All of Azure's AI endpoints of a cloud take the same.
func scopeOf(baseURL string) string {
	domain := "azure.com"
	if u, err := url.Parse(baseURL); err == nil {
		for _, other := range []string{"azure.us", "azure.cn"} {
			if strings.HasSuffix(u.Hostname(), "."+other) {
				domain = other
			}
		}
	}
	return "https://cognitiveservices." + domain + "/.default"
}

func (i *Identities) entraKeeper(scope string) *keeper[string] {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.entra[scope] == nil {
		k := newKeeper[string]("Microsoft Entra ID", entraHelp, i.options.Redactor)
		k.fetch = func(ctx context.Context) (string, time.Time, error) {
			return i.fetchEntra(ctx, scope)
		}
		k.secrets = func(token string) []string { return []string{token} }
		i.entra[scope] = k
	}
	return i.entra[scope]
}

// fetchEntra runs the chain of Azure's SDK once: client secret or certificate, workload
// identity, managed identity, and the command-line tools.
func (i *Identities) fetchEntra(ctx context.Context, scope string) (string, time.Time, error) {
	i.rememberEnv("AZURE_CLIENT_SECRET", "AZURE_CLIENT_CERTIFICATE_PASSWORD", "IDENTITY_HEADER")
	i.rememberFiles(os.Getenv("AZURE_FEDERATED_TOKEN_FILE"))
	o := &azidentity.DefaultAzureCredentialOptions{
		// The authority is the SDK's own, or what the operator's AZURE_AUTHORITY_HOST names:
		// nobody else needs to be asked whether it is one.
		DisableInstanceDiscovery: true,
	}
	o.Transport = i.client(ctx)
	o.Retry = policy.RetryOptions{MaxRetries: -1} // the keeper repeats
	c, err := azidentity.NewDefaultAzureCredential(o)
	if err != nil {
		return "", time.Time{}, err
	}
	t, err := c.GetToken(ctx, policy.TokenRequestOptions{Scopes: []string{scope}})
	if err != nil {
		return "", time.Time{}, err
	}
	return t.Token, t.ExpiresOn, nil
}
