// Package kubectl runs the embedded kubectl, so that one binary is enough to drive its API.
package kubectl

import (
	"context"
	"fmt"
	"os"

	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/component-base/cli"
	"k8s.io/kubectl/pkg/cmd"
	cmdutil "k8s.io/kubectl/pkg/cmd/util"
)

// Streams are what a command reads and writes.
type Streams = genericiooptions.IOStreams

// exit carries kubectl's exit code up from where it would end the process.
type exit int

// Run runs kubectl with args (without the program's name) and returns its exit code. Without
// --kubeconfig among args and without KUBECONFIG in the environment, the kubeconfig at the given
// path applies. Plugins aren't looked for. It blocks until the command ends; ctx ends a command
// that heeds it. One call at a time: kubectl keeps state of its own in the process.
func Run(ctx context.Context, args []string, kubeconfig string, streams Streams) (code int) {
	defer cmdutil.DefaultBehaviorOnFatal()
	cmdutil.BehaviorOnFatal(func(msg string, code int) {
		if msg != "" {
			if msg[len(msg)-1] != '\n' {
				msg += "\n"
			}
			fmt.Fprint(streams.ErrOut, msg)
		}
		panic(exit(code))
	})
	defer func() {
		if r := recover(); r != nil {
			e, ok := r.(exit)
			if !ok {
				panic(r)
			}
			code = int(e)
		}
	}()

	flags := genericclioptions.NewConfigFlags(true).
		WithDeprecatedPasswordFlag().
		WithDiscoveryBurst(300).
		WithDiscoveryQPS(50).
		WithWarningPrinter(streams)
	if os.Getenv("KUBECONFIG") == "" {
		*flags.KubeConfig = kubeconfig // the flag's default, so --kubeconfig still overrides it
	}
	command := cmd.NewDefaultKubectlCommandWithArgs(cmd.KubectlOptions{
		Arguments:   append([]string{"kubectl"}, args...),
		ConfigFlags: flags,
		IOStreams:   streams,
	})
	command.SetArgs(args)
	command.SetIn(streams.In)
	command.SetOut(streams.Out)
	command.SetErr(streams.ErrOut)
	command.SetContext(ctx)
	if err := cli.RunNoErrOutput(command); err != nil {
		cmdutil.CheckErr(err)
	}
	return 0
}
