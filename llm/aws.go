package llm

import (
	"cmp"
	"strings"
)

// The header names of AWS, as net/http spells them.
const (
	amznErrorType = "X-Amzn-Errortype"
	amznRequestID = "X-Amzn-Requestid"
)

// readAWS completes the error object of an error status by what AWS has in a header, and
// reads the sentences of the types that stand for more than one thing. A type of OpenAI or
// Anthropic, whose formats Bedrock has as well, stays. It does nothing at other servers.
//
//	HTTP/1.1 429 Too Many Requests
//	x-amzn-ErrorType: ThrottlingException:http://internal.amazon.com/coral/
//
//	{"message":"Too many tokens, please wait before trying again."}
func (o *ending) readAWS() {
	kind := o.Header.Get(amznErrorType)
	switch {
	case kind == "" && (o.Fault == nil || !o.Fault.aws):
		return
	case o.Fault == nil:
		o.Fault = new(fault)
	}
	f := o.Fault
	kind = awsType(cmp.Or(kind, f.Type))
	if f.Type == "" || f.aws {
		f.Type = kind
	}
	switch message := f.Message; kind {
	case "ThrottlingException":
		// "Too many tokens per day, please wait before trying again." has no room again
		// before the next day.
		if strings.Contains(message, " per day") {
			f.means = meansNoCredit
		}
	case "ValidationException":
		switch {
		case has(message, unknownToBedrock[:]...):
			f.means = meansUnknownModel
		case has(message, unfitForBedrock[:]...):
			f.means = meansPermanent
		}
	case "AccessDeniedException":
		// "User: … is not authorized to perform: bedrock:InvokeModel on resource: …" is
		// about one model, so once the identity has called another it is the row's
		// mistake to have named this one. Before, it may have no permission at all.
		ofRow := o.Known.Proven && o.Known.RowModel
		if ofRow && strings.Contains(message, "bedrock:InvokeModel") ||
			strings.Contains(message, "access to the model") {
			f.means = meansUnknownModel
		}
	case "ServiceQuotaExceededException":
		// It has the status 400, and passes: "You can resubmit your request later."
		f.means = meansQuota
	}
}

// Parts of what Bedrock says about an unknown model, and about a row that
// fits into no request: too long, or empty.
var (
	unknownToBedrock = [...]string{
		"model identifier is invalid",
		// There is an inference profile alone; its apostrophe varies.
		"with on-demand throughput isn",
	}
	unfitForBedrock = [...]string{
		"too long", "exceeds maximum length", "context limit", "context length",
		"is blank", "must be non-empty",
	}
)

// awsType returns the name of an error without the namespace before it and the address
// behind it.
func awsType(text string) string {
	text = text[strings.LastIndexByte(text, '#')+1:]
	text, _, _ = strings.Cut(text, ":")
	return text
}

// awsAdvices are what to do about the errors of AWS that are fatal.
var awsAdvices = map[string]string{
	"ThrottlingException": "a quota of the day is used up: " +
		"wait for the next day, or ask for a higher one in Service Quotas",
	"AccessDeniedException": "check that the identity or the API key may call " +
		"bedrock:InvokeModel " +
		"for this model, and that the account has access to it",
	"ExpiredTokenException": awsExpired, "ExpiredToken": awsExpired,
	"InvalidSignatureException": awsSecret, "SignatureDoesNotMatch": awsSecret,
	"RequestExpired": awsClock, "RequestTimeTooSkewed": awsClock,
	"UnrecognizedClientException": awsUnknown, "InvalidClientTokenId": awsUnknown,
	"IncompleteSignature":        awsUnknown,
	"MissingAuthenticationToken": awsUnknown, "MissingAuthenticationTokenException": awsUnknown,
}

const (
	awsExpired = "the AWS credentials have expired: renew them, and check the clock of this machine"
	awsSecret  = "check the AWS secret access key and the region"
	awsClock   = "the clock of this machine is wrong: set it"
	awsUnknown = "check the AWS credentials or the API key, and the region"
)

// adviceAWS says how to fix a fatal error of AWS. It is empty for any other error. A clock
// that is more than five minutes wrong makes a signature invalid, as a wrong secret does:
// "Signature expired: 20261127T171500Z is now earlier than 20261127T172100Z …".
func adviceAWS(f *fault) string {
	advice := awsAdvices[f.Type]
	if advice == awsSecret && has(f.Message, "expired", "not yet current") {
		return awsClock
	}
	return advice
}
