package config

import "github.com/llm-stage/stage/llm/redact"

// Secret is a password, a key, or an address that may hold one.
type Secret = redact.Secret
