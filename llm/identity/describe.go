package identity

import (
	"cmp"
	"fmt"
	"os"
)

// describeAWS names the source of AWS's credentials that the settings lead to, in the
// order of the SDK, without any secret.
func describeAWS() string {
	env, profile, err := awsSettings()
	switch {
	case err != nil:
		return err.Error()
	case env.SharedConfigProfile == "" && env.Credentials.HasKeys():
		return "access key " + env.Credentials.AccessKeyID + " of the environment"
	case env.SharedConfigProfile == "" && env.WebIdentityTokenFilePath != "":
		return fmt.Sprintf("role %s by a web identity (AWS_WEB_IDENTITY_TOKEN_FILE)", env.RoleARN)
	case profile.RoleARN != "":
		return fmt.Sprintf("role %s of profile %s", profile.RoleARN, profile.Profile)
	case env.SharedConfigProfile != "", profile.Credentials.HasKeys(), profile.SSOStartURL != "",
		profile.SSOSessionName != "", profile.CredentialProcess != "":
		return "profile " + profile.Profile
	case env.ContainerCredentialsEndpoint != "", env.ContainerCredentialsRelativePath != "":
		return "role of the pod or the container"
	}
	return "role of the machine (instance profile)"
}

// describeGoogle names the source of Google Cloud's credentials in the same way.
func describeGoogle() string {
	_, file, err := readGoogleFile()
	switch {
	case err != nil:
		return err.Error()
	case file == nil:
		return "service account of the pod or the machine (metadata server)"
	case os.Getenv("GOOGLE_APPLICATION_CREDENTIALS") == "":
		return fmt.Sprintf("credential file of gcloud (%s)", file.Type)
	}
	return fmt.Sprintf("credential file of GOOGLE_APPLICATION_CREDENTIALS (%s)",
		cmp.Or(file.ClientEmail, file.Type))
}

// describeEntra names the source of the credentials of Microsoft Entra ID in the same way.
func describeEntra() string {
	application := "application " + os.Getenv("AZURE_CLIENT_ID")
	switch {
	case os.Getenv("AZURE_TENANT_ID") != "" && os.Getenv("AZURE_CLIENT_SECRET") != "":
		return application + " by its client secret"
	case os.Getenv("AZURE_TENANT_ID") != "" && os.Getenv("AZURE_CLIENT_CERTIFICATE_PATH") != "":
		return application + " by its certificate"
	case os.Getenv("AZURE_FEDERATED_TOKEN_FILE") != "":
		return application + " by a workload identity (AZURE_FEDERATED_TOKEN_FILE)"
	}
	return "managed identity, or that of az, azd or Azure PowerShell"
}
