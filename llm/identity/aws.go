package identity

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"net/http"
	"net/url"
	"os"
	"regexp"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/credentials/endpointcreds"
	"github.com/aws/smithy-go/logging"
	"github.com/aws/smithy-go/middleware"

	"github.com/llm-stage/stage/llm"
)

// awsKeys sign requests to AWS.
type awsKeys struct{ id, secret, session string }

const awsHelp = "set AWS_PROFILE, or AWS_ROLE_ARN and AWS_WEB_IDENTITY_TOKEN_FILE, or " +
	"AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, " +
	"or give the pod or the machine a role (pod identity, instance profile)"

// ErrNoRegion is returned when nothing names the region whose name is part of each
// signature.
var ErrNoRegion = errors.New("missing; give the region of the models, such as eu-central-1, or " +
	"set AWS_REGION")

// AWS returns what signs requests to the server at baseURL, and the region that it signs
// them for: the one that is given, or the one in the name of an AWS host, or the SDK's own,
// which is that of AWS_REGION, AWS_DEFAULT_REGION or the profile. It is an error if there
// is none. baseURL may be empty if it depends on the region.
func (i *Identities) AWS(
	region, baseURL string,
) (auth llm.Authorizer, signedRegion string, err error) {
	host := ""
	if u, err := url.Parse(baseURL); err == nil {
		host = u.Hostname()
	}
	if region == "" {
		region = regionOf(host)
	}
	if region == "" {
		region, err = AWSRegion()
	} else {
		_, _, err = awsSettings() // a profile that does not exist is found before the first call
	}
	if err != nil {
		return nil, "", err
	}
	signer, service := v4.NewSigner(), serviceOf(host)
	return &authorizer[awsKeys]{
		keeper:   i.awsKeeper(region),
		describe: describeAWS,
		account: strings.Join([]string{
			"aws", region, os.Getenv("AWS_PROFILE"),
			os.Getenv("AWS_ROLE_ARN"),
		}, " "),
		apply: func(ctx context.Context, r *http.Request, body []byte, k awsKeys) error {
			return sign(ctx, signer, r, body, k, service, region, time.Now())
		},
	}, region, nil
}

// AWSRegion returns the region of AWS_REGION, AWS_DEFAULT_REGION or the profile. It makes no
// connection.
func AWSRegion() (string, error) {
	env, profile, err := awsSettings()
	if err != nil {
		return "", err
	}
	if region := cmp.Or(env.Region, profile.Region); region != "" {
		return region, nil
	}
	return "", ErrNoRegion
}

// awsSettings reads the variables and the files of AWS's SDK. It makes no connection.
func awsSettings() (env config.EnvConfig, profile config.SharedConfig, err error) {
	if env, err = config.NewEnvConfig(); err != nil {
		return env, profile, err
	}
	name := cmp.Or(env.SharedConfigProfile, config.DefaultSharedConfigProfile)
	profile, err = config.LoadSharedConfigProfile(context.Background(), name,
		func(o *config.LoadSharedConfigOptions) {
			if env.SharedConfigFile != "" {
				o.ConfigFiles = []string{env.SharedConfigFile}
			}
			if env.SharedCredentialsFile != "" {
				o.CredentialsFiles = []string{env.SharedCredentialsFile}
			}
		})
	if _, none := errors.AsType[config.SharedConfigProfileNotExistError](err); none &&
		env.SharedConfigProfile == "" {
		err = nil // nobody asked for it
	}
	return env, profile, err
}

// awsHost matches the hosts of Bedrock's endpoints, with the region in them:
// bedrock-runtime.eu-central-1.amazonaws.com, bedrock-mantle.us-east-1.api.aws, and the
// names of VPC endpoints that end so.
var awsHost = regexp.MustCompile(`(?:^|\.)(bedrock-[a-z]+(?:-fips)?)\.([a-z]{2,}(?:-[a-z]+)+-\d+)\.(?:vpce\.)?(?:amazonaws\.com(?:\.cn)?|api\.aws)$`)

func regionOf(host string) string {
	if m := awsHost.FindStringSubmatch(host); m != nil {
		return m[2]
	}
	return ""
}

// serviceOf returns the name of the service that is part of each signature. AWS signs for
// "bedrock" at bedrock-runtime, and for "bedrock-mantle" at bedrock-mantle.
func serviceOf(host string) string {
	if strings.HasPrefix(host, "bedrock-mantle.") || strings.Contains(host, ".bedrock-mantle.") {
		return "bedrock-mantle"
	}
	return "bedrock"
}

// sign adds the signature to a request. It signs what AWS's own clients sign: the host,
// the length and the type of the body, and the headers of AWS. Any other header may be
// changed on the way.
func sign(
	ctx context.Context, s *v4.Signer, r *http.Request, body []byte, k awsKeys, service,
	region string, at time.Time,
) error {
	signed, address := *r, *r.URL
	signed.URL = &address // the signer writes to it, and other requests have the same one
	signed.Header = make(http.Header, 4)
	for name, values := range r.Header {
		if name == "Content-Type" || strings.HasPrefix(name, "X-Amz") {
			signed.Header[name] = values
		}
	}
	sum := sha256.Sum256(body)
	keys := aws.Credentials{AccessKeyID: k.id, SecretAccessKey: k.secret, SessionToken: k.session}
	if err := s.SignHTTP(ctx, keys, &signed, hex.EncodeToString(sum[:]), service, region,
		at); err != nil {
		return err
	}
	for _, name := range []string{"Authorization", "X-Amz-Date", "X-Amz-Security-Token"} {
		if values := signed.Header[name]; values != nil {
			r.Header[name] = values
		}
	}
	return nil
}

// awsKeeper returns the keeper of AWS's credentials. They are good in all regions; STS is
// asked in the first one, unless AWS_REGION names another.
func (i *Identities) awsKeeper(region string) *keeper[awsKeys] {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.aws == nil {
		i.awsRegion = region
		i.aws = newKeeper[awsKeys]("AWS", awsHelp, i.options.Redactor)
		i.aws.fetch = i.fetchAWS
		i.aws.secrets = func(k awsKeys) []string { return []string{k.secret, k.session} }
	}
	return i.aws
}

// fetchAWS runs the chain of AWS's SDK once. Its settings and files are read again each
// time, since they may have changed.
func (i *Identities) fetchAWS(ctx context.Context) (awsKeys, time.Time, error) {
	i.rememberEnv("AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_CONTAINER_AUTHORIZATION_TOKEN")
	env, profile, err := awsSettings() //nolint:contextcheck // it reads files
	if err != nil {
		return awsKeys{}, time.Time{}, err
	}
	i.rememberFiles(env.WebIdentityTokenFilePath, profile.WebIdentityTokenFile,
		os.Getenv("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE"))
	i.mu.Lock()
	region := i.awsRegion
	i.mu.Unlock()
	var client config.HTTPClient = i.client(ctx)
	if i.options.DialContext == nil {
		// The SDK changes the time-outs of this kind for some of its sources, and adds the
		// authorities of AWS_CA_BUNDLE.
		client = awshttp.NewBuildableClient().WithTransportOptions(i.prepare)
	}
	cfg, err := config.LoadDefaultConfig(ctx,
		config.WithHTTPClient(client),
		config.WithDefaultRegion(region), // of STS and SSO
		config.WithLogger(logging.Nop{}),
		config.WithRetryer(func() aws.Retryer { return aws.NopRetryer{} }), // the keeper repeats
		config.WithEndpointCredentialOptions(func(o *endpointcreds.Options) {
			o.HTTPClient = client
		}),
		// The keeper renews credentials before the SDK would.
		config.WithCredentialsCacheOptions(func(o *aws.CredentialsCacheOptions) {
			o.ExpiryWindow = 0
		}),
		config.WithAPIOptions([]func(*middleware.Stack) error{within(ctx)}),
	)
	if err != nil {
		return awsKeys{}, time.Time{}, err
	}
	c, err := cfg.Credentials.Retrieve(ctx)
	if err != nil {
		return awsKeys{}, time.Time{}, err
	}
	var expires time.Time
	if c.CanExpire {
		expires = c.Expires
	}
	return awsKeys{c.AccessKeyID, c.SecretAccessKey, c.SessionToken}, expires, nil
}

// within has the requests of the SDK end with ctx. The SDK's cache of credentials hides the
// end of the context that it gets, so that a request would go on after it.
func within(ctx context.Context) func(*middleware.Stack) error {
	bound := middleware.InitializeMiddlewareFunc("Within", func(
		hidden context.Context, in middleware.InitializeInput, next middleware.InitializeHandler,
	) (middleware.InitializeOutput, middleware.Metadata, error) {
		return next.HandleInitialize(until(hidden, ctx), in)
	})
	return func(s *middleware.Stack) error { return s.Initialize.Add(bound, middleware.Before) }
}
