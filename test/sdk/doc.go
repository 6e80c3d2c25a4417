// Package sdk checks what the stage says to the providers, and what their stand-in
// answers, against the providers' own SDKs, which are generated from the descriptions
// that the providers publish. It is a module of its own, so that none of them is a
// dependency of the stage.
package sdk
