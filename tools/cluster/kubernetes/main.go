// Command kubernetes is a whole control plane and node in one binary, for the end-to-end tests:
// its first argument says which program of Kubernetes it is, or etcd; the rest are that
// program's own flags.
package main

import (
	"context"
	"fmt"
	"os"

	"go.etcd.io/etcd/server/v3/etcdmain"
	"k8s.io/component-base/cli"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllermanager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	proxy "k8s.io/kubernetes/cmd/kube-proxy/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"
)

func main() {
	programs := map[string]func() int{
		"etcd":               func() int { etcdmain.Main(os.Args); return 0 },
		"apiserver":          func() int { return cli.Run(apiserver.NewAPIServerCommand()) },
		"controller-manager": func() int { return cli.Run(controllermanager.NewControllerManagerCommand()) },
		"scheduler":          func() int { return cli.Run(scheduler.NewSchedulerCommand()) },
		"kubelet":            func() int { return cli.Run(kubelet.NewKubeletCommand(context.Background())) },
		"proxy":              func() int { return cli.Run(proxy.NewProxyCommand()) },
	}
	if len(os.Args) > 1 {
		if run, ok := programs[os.Args[1]]; ok {
			os.Args = append(os.Args[:1], os.Args[2:]...)
			os.Exit(run())
		}
	}
	fmt.Fprintln(os.Stderr, "usage: kubernetes etcd|apiserver|controller-manager|scheduler|kubelet|proxy FLAG...")
	os.Exit(2)
}
