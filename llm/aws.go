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
//	x-amzn-ErrorType: ThrottlingException:http://internal.amazon.com/coral/com.amazon.bedrock/
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
		case has(message, "model identifier is invalid", "with on-demand throughput isn"): // the apostrophe is typographic at times
			f.means = meansUnknownModel
		case has(message, "too long", "exceeds maximum length", "context limit", "context length", "is blank", "must be non-empty"):
			f.means = meansPermanent
		}
	case "AccessDeniedException":
		// "User: … is not authorized to perform: bedrock:InvokeModel on resource: …" names the
		// model, so once the identity has called another model it is the row's mistake to
		// have named this one. Before, the identity may have no permission at all.
		notThisModel := o.Known.Proven && o.Known.RowModel && strings.Contains(message, "bedrock:InvokeModel")
		if notThisModel || strings.Contains(message, "access to the model") {
			f.means = meansUnknownModel
		}
	case "ServiceQuotaExceededException":
		// It has the status 400, and passes: "You can resubmit your request later."
		f.means = meansQuota
	}
}

// awsType returns the name of an error without the namespace before it and the address
// behind it.
func awsType(text string) string {
	text = text[strings.LastIndexByte(text, '#')+1:]
	text, _, _ = strings.Cut(text, ":")
	return text
}

// adviceAWS says how to fix a fatal error of AWS. It is empty for any other error.
func adviceAWS(f *fault) string {
	switch f.Type {
	case "ThrottlingException":
		return "a quota of the day is used up: wait for the next day, or ask for a higher one in Service Quotas"
	case "InvalidSignatureException", "SignatureDoesNotMatch", "RequestExpired", "RequestTimeTooSkewed":
		if has(f.Message, "expired", "not yet current", "timestamp", "skew") || f.Type == "RequestTimeTooSkewed" {
			return "the clock of this machine is wrong: set it"
		}
		return "check the AWS secret access key and the region"
	case "ExpiredTokenException", "ExpiredToken":
		return "the AWS credentials have expired: renew them, and check the clock of this machine"
	case "UnrecognizedClientException", "InvalidClientTokenId", "IncompleteSignature", "MissingAuthenticationToken", "MissingAuthenticationTokenException":
		return "check the AWS credentials or the API key, and the region"
	case "AccessDeniedException":
		return "check that the identity or the API key may call bedrock:InvokeModel for this model, and that the account has access to it"
	}
	return ""
}
