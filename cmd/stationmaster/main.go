// Command stationmaster is the control plane and front door of an inference factory.
package main

import (
	"os"

	"stationmaster.dev/stationmaster/internal/cli"
)

func main() {
	os.Exit(cli.Main(os.Args[1:], cli.IO{In: os.Stdin, Out: os.Stdout, Err: os.Stderr}))
}
