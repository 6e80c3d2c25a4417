package llm

// Google's platform answers with its own error object whatever the model's format is. Its
// ErrorInfo has a reason, which is the code here:
//
//	{"error": {"code": 403, "status": "PERMISSION_DENIED",
//	  "message": "Permission 'aiplatform.endpoints.predict' denied on …",
//	  "details": [{"@type": "type.googleapis.com/google.rpc.ErrorInfo",
//	    "reason": "IAM_PERMISSION_DENIED", …}]}}

// refusedRow reads the sentences of Google's errors that are about one row, once other rows
// have been answered, and by their status would be about all: a file that the platform may
// not read, and a request for what a policy of the organization forbids.
func refusedRow(f *fault) bool {
	switch f.Type {
	case "PERMISSION_DENIED":
		return has(f.Message, "storage.objects.get")
	case "FAILED_PRECONDITION":
		return has(f.Message, "allowedPartnerModelFeatures")
	}
	return false
}

// adviceGoogle says how to fix a fatal error of Google's platform. It is empty for any other
// error.
func adviceGoogle(f *fault) string {
	switch f.Code {
	case "SERVICE_DISABLED":
		return "enable that API in the project"
	case "BILLING_DISABLED":
		return "enable billing for the project"
	case "CONSUMER_INVALID":
		return "check the project"
	case "ACCESS_TOKEN_SCOPE_INSUFFICIENT":
		return "the credentials lack the scope https://www.googleapis.com/auth/cloud-platform"
	case "ACCESS_TOKEN_EXPIRED", "ACCESS_TOKEN_TYPE_UNSUPPORTED", "CREDENTIALS_MISSING":
		return "check the credentials of Google Cloud, and the clock of this machine"
	case "USER_PROJECT_DENIED":
		return "give the identity the role Service Usage Consumer " +
			"(roles/serviceusage.serviceUsageConsumer) in the project"
	}
	switch {
	case f.Type == "FAILED_PRECONDITION" && has(f.Message, "billing"):
		return "enable billing for the project"
	case f.Type == "FAILED_PRECONDITION" && has(f.Message, "constraints/"):
		return "allow it in the policies of the organization, or do without it"
	case f.Type == "PERMISSION_DENIED" && has(f.Message, "storage.objects.get"):
		return "let the account read the bucket: give it the role Storage Object Viewer " +
			"(roles/storage.objectViewer)"
	case f.Type == "PERMISSION_DENIED" && has(f.Message, "Permission 'aiplatform."):
		return "give the identity the role Vertex AI User (roles/aiplatform.user) in the project"
	}
	return ""
}
