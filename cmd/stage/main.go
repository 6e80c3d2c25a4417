// Command stage turns rows of a JetStream stream into ordered results of an LLM. See
// stage help.
package main

import (
	"context"
	"os"

	"github.com/llm-stage/stage/cmd/stage/cli"
)

func main() { os.Exit(cli.Main(context.Background(), cli.OSEnv())) }
