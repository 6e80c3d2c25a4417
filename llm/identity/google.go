package identity

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"time"

	"cloud.google.com/go/compute/metadata"
	"golang.org/x/oauth2"
	"golang.org/x/oauth2/google"

	"github.com/llm-stage/stage/llm"
)

// googleToken is an access token, and the project that is charged for the calls; empty if
// it is the one that is called.
type googleToken struct{ token, quotaProject string }

const (
	googleScope = "https://www.googleapis.com/auth/cloud-platform"
	googleHelp  = "set GOOGLE_APPLICATION_CREDENTIALS to the path of a credential file, or run " +
		"`gcloud auth application-default login`, " +
		"or give the pod or the machine a service account"
)

// Google returns what adds access tokens of the application default credentials, and the
// project of the models: the one that is given, or that of GOOGLE_CLOUD_PROJECT, or of the
// credential file, or, on Google Cloud, of the machine. It is empty if none of them names
// one. It asks the machine's metadata server where that alone can know.
func (i *Identities) Google(project string) (auth llm.Authorizer, theProject string, err error) {
	if project == "" {
		project, err = i.googleProject()
	} else {
		_, _, err = readGoogleFile() // a file that is missing is found before the first call
	}
	if err != nil {
		return nil, "", err
	}
	return &authorizer[googleToken]{
		keeper:   i.googleKeeper(),
		describe: describeGoogle,
		account:  "google " + project,
		apply: func(_ context.Context, r *http.Request, _ []byte, t googleToken) error {
			bearer(r, t.token)
			if t.quotaProject != "" && r.Header["X-Goog-User-Project"] == nil {
				r.Header["X-Goog-User-Project"] = []string{t.quotaProject}
			}
			return nil
		},
	}, project, nil
}

func (i *Identities) googleKeeper() *keeper[googleToken] {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.google == nil {
		i.google = newKeeper[googleToken]("Google Cloud", googleHelp, i.options.Redactor)
		i.google.fetch = i.fetchGoogle
		i.google.secrets = func(t googleToken) []string { return []string{t.token} }
	}
	return i.google
}

// googleFile is what this package reads of a credential file.
type googleFile struct {
	Type         string `json:"type"`
	ProjectID    string `json:"project_id"`
	QuotaProject string `json:"quota_project_id"`
	ClientEmail  string `json:"client_email"`

	PrivateKey   string `json:"private_key"`
	ClientSecret string `json:"client_secret"`
	RefreshToken string `json:"refresh_token"`
}

// readGoogleFile returns the credential file that the SDK would use, or nil if there is
// none.
func readGoogleFile() (text []byte, f *googleFile, err error) {
	path := os.Getenv("GOOGLE_APPLICATION_CREDENTIALS")
	given := path != ""
	if !given {
		path = wellKnownFile()
	}
	text, err = os.ReadFile(path)
	if !given && (errors.Is(err, fs.ErrNotExist) || path == "") {
		return nil, nil, nil
	}
	f = new(googleFile)
	if err == nil {
		if err = json.Unmarshal(text, f); err != nil {
			err = errors.New("is no JSON of a credential") // the error could quote it
		}
	}
	if err != nil && given {
		err = fmt.Errorf("GOOGLE_APPLICATION_CREDENTIALS: %w", err)
	} else if err != nil {
		err = fmt.Errorf("%s: %w", path, err)
	}
	return text, f, err
}

// wellKnownFile is where gcloud keeps the application default credentials.
func wellKnownFile() string {
	const name = "application_default_credentials.json"
	if dir := os.Getenv("CLOUDSDK_CONFIG"); dir != "" {
		return filepath.Join(dir, name)
	}
	if runtime.GOOS == "windows" {
		return filepath.Join(os.Getenv("APPDATA"), "gcloud", name)
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return ""
	}
	return filepath.Join(home, ".config", "gcloud", name)
}

// fetchGoogle gets an access token by the application default credentials. Files are read
// again each time, since they may have changed.
func (i *Identities) fetchGoogle(ctx context.Context) (googleToken, time.Time, error) {
	text, file, err := readGoogleFile()
	if err != nil {
		return googleToken{}, time.Time{}, err
	}
	if file == nil {
		return i.fetchMetadata(ctx)
	}
	i.options.Redactor.AddPassing(file.PrivateKey, file.ClientSecret, file.RefreshToken)
	ctx = context.WithValue(ctx, oauth2.HTTPClient, i.client(ctx))
	c, err := google.CredentialsFromJSONWithTypeAndParams(ctx, text,
		google.CredentialsType(file.Type), google.CredentialsParams{
			Scopes: []string{googleScope},
		})
	if err != nil {
		return googleToken{}, time.Time{}, err
	}
	t, err := c.TokenSource.Token()
	if err != nil {
		return googleToken{}, time.Time{}, err
	}
	if t.Expiry.IsZero() { // the answer did not say it, which is no promise that it never ends
		t.Expiry = time.Now().Add(unknownLife)
	}
	return googleToken{t.AccessToken, cmp.Or(os.Getenv("GOOGLE_CLOUD_QUOTA_PROJECT"),
		file.QuotaProject)}, t.Expiry, nil
}

// unknownLife is how long a token is taken to live where the answer does not say it.
const unknownLife = 10 * time.Minute

// fetchMetadata gets an access token of the service account that the machine or the pod
// has. The SDK's own token source would do the same, but asks once in the life of a
// process whether there is a metadata server, and can't be interrupted.
func (i *Identities) fetchMetadata(ctx context.Context) (googleToken, time.Time, error) {
	text, err := i.metadata(ctx).GetWithContext(ctx,
		"instance/service-accounts/default/token?scopes="+url.QueryEscape(googleScope))
	if err != nil {
		return googleToken{}, time.Time{}, fmt.Errorf("there is no credential file, and the "+
			"metadata server gave no token: %w", err)
	}
	var t struct {
		AccessToken string `json:"access_token"`
		ExpiresIn   int64  `json:"expires_in"`
	}
	if err := json.Unmarshal([]byte(text), &t); err != nil || t.AccessToken == "" ||
		t.ExpiresIn <= 0 {
		return googleToken{}, time.Time{}, errors.New("the metadata server's answer is no token")
	}
	return googleToken{t.AccessToken, os.Getenv("GOOGLE_CLOUD_QUOTA_PROJECT")},
		time.Now().Add(time.Duration(t.ExpiresIn) * time.Second), nil
}

func (i *Identities) metadata(ctx context.Context) *metadata.Client {
	return metadata.NewClient(i.client(ctx))
}

// projectTimeout bounds the question for the machine's project.
const projectTimeout = 3 * time.Second

// googleProject returns the project that the environment, the credential file or the
// machine names, or "".
func (i *Identities) googleProject() (string, error) {
	if project := os.Getenv("GOOGLE_CLOUD_PROJECT"); project != "" {
		return project, nil
	}
	_, file, err := readGoogleFile()
	if err != nil {
		return "", err
	}
	if file != nil {
		return file.ProjectID, nil
	}
	if !onGoogleCloud() {
		return "", nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), projectTimeout)
	defer cancel()
	project, err := i.metadata(ctx).ProjectIDWithContext(ctx)
	if err != nil {
		return "", fmt.Errorf("the metadata server does not name the project: %w", err)
	}
	return project, nil
}

// onGoogleCloud reports whether the process seems to run there, without asking anybody.
func onGoogleCloud() bool {
	if os.Getenv("GCE_METADATA_HOST") != "" || os.Getenv("K_SERVICE") != "" ||
		os.Getenv("CLOUD_RUN_JOB") != "" {
		return true
	}
	name, err := os.ReadFile("/sys/class/dmi/id/product_name")
	return err == nil && len(name) >= 6 && string(name[:6]) == "Google"
}
