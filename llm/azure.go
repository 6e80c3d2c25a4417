package llm

// adviceAzure says how to fix a fatal error of Azure, most of which have the status as their
// code, so that only the sentence tells them apart. It is empty for any other error.
func adviceAzure(f *fault) string {
	switch {
	case f.Code == "PermissionDenied" && has(f.Message, "Principal"):
		return "give the identity the role Cognitive Services OpenAI User for the resource; a " +
			"new role takes some minutes"
	case f.Code == "AuthenticationTypeDisabled":
		return "the resource takes no keys: let an identity of Microsoft Entra ID authorise the " +
			"calls"
	case has(f.Message, "audience is incorrect"):
		return "check that the identity belongs to the tenant of the resource, and the clock of " +
			"this machine"
	case has(f.Message, "Virtual Network/Firewall", "approved private endpoint"):
		return "let this machine's network reach the resource"
	}
	return ""
}
