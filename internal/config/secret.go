package config

import "github.com/llm-stage/stage/llm"

// Secret is the type of all secrets: passwords, keys, and addresses that hold one.
type Secret = llm.Secret
