package config

import "github.com/llm-stage/stage/llm/redact"

// Secret is the type of all secrets: passwords, keys, and addresses that hold one.
type Secret = redact.Secret
