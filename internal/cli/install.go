package cli

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"

	"stationmaster.dev/stationmaster/internal/install"
	"stationmaster.dev/stationmaster/internal/platform/kube/oci"
)

func newInstall(std IO) *cobra.Command {
	o := install.Defaults()
	o.Image = os.Getenv("STATIONMASTER_IMAGE")
	cmd := &cobra.Command{
		Use:   "install --image IMAGE",
		Short: "Print the manifest that brings Stationmaster onto a Kubernetes cluster",
		Long: `Print the manifest that brings Stationmaster onto a Kubernetes cluster: its kinds and KServe's,
the operator and the gateway. The kinds are too large for client-side apply, so:

  stationmaster install --image registry.example.com/stationmaster:1 | kubectl apply --server-side -f -

Applying it again upgrades; engines go on. To remove all but the kinds and what users made with
them, give it to 'kubectl delete -f -' with --crds=false; without, it removes the kinds, too: delete
the InferenceServices first then, which the operator has to let go.`,
		Args: noArgs,
		RunE: func(*cobra.Command, []string) error {
			if o.Image == "" {
				return usageError{errors.New("--image is missing: name the image that holds stationmaster (see docs/kubernetes.md for how to make one)")}
			}
			if namespace, name, ok := strings.Cut(o.ParentGateway, "/"); o.ParentGateway != "" && (!ok || namespace == "" || name == "") {
				return usageError{fmt.Errorf("--gateway-api %q: want namespace/name of a Gateway", o.ParentGateway)}
			}
			if namespace, name, ok := strings.Cut(o.DirectGateway, "/"); o.DirectGateway != "" && (!ok || namespace == "" || name == "") {
				return usageError{fmt.Errorf("--direct-gateway %q: want namespace/name of a Gateway", o.DirectGateway)}
			}
			for _, p := range o.EndpointPickers {
				if namespace, name, ok := strings.Cut(p, "/"); !ok || namespace == "" || name == "" || strings.Contains(name, "/") {
					return usageError{fmt.Errorf("--endpoint-picker %q: want namespace/name of an InferencePool", p)}
				}
			}
			if _, err := oci.Parse(o.OCIDelivery); err != nil {
				return usageError{fmt.Errorf("--oci-delivery: %w", err)}
			}
			switch corev1.ServiceType(o.ServiceType) {
			case corev1.ServiceTypeLoadBalancer, corev1.ServiceTypeNodePort, corev1.ServiceTypeClusterIP:
			default:
				return usageError{fmt.Errorf("--service-type %q: want LoadBalancer, NodePort or ClusterIP", o.ServiceType)}
			}
			raw, err := install.Manifest(o)
			if err != nil {
				return fmt.Errorf("install: %w", err)
			}
			_, err = std.Out.Write(raw)
			return err
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.Image, "image", o.Image, "image that holds stationmaster as its entrypoint")
	f.StringVar(&o.PullPolicy, "image-pull-policy", o.PullPolicy, "Always, IfNotPresent or Never; Kubernetes' default when empty")
	f.StringVar(&o.Namespace, "namespace", o.Namespace, "where operator and gateway run")
	f.StringVar(&o.Domain, "domain", o.Domain, "domain of service hosts")
	f.StringVar(&o.OpenAIPrefix, "openai-prefix", o.OpenAIPrefix, "what may stand before /v1 in paths of the OpenAI API; / for nothing")
	f.StringVar(&o.OCIDelivery, "oci-delivery", o.OCIDelivery, "how models of oci:// reach pods: image-volume, modelcar or fetch")
	f.Int32Var(&o.Gateways, "gateways", o.Gateways, "replicas of the gateway")
	f.Int32Var(&o.Operators, "operators", o.Operators, "replicas of the operator; one works, the others wait")
	f.StringVar(&o.ServiceType, "service-type", o.ServiceType, "type of the gateway's Service: LoadBalancer, NodePort or ClusterIP")
	f.StringVar(&o.ParentGateway, "gateway-api", "", "namespace/name of a Gateway (Gateway API) that is to hand *.<domain> to our gateway")
	f.StringVar(&o.DirectGateway, "direct-gateway", "", "namespace/name of a Gateway (Gateway API) that services may ask to lead to them past our gateway")
	f.StringVar(&o.DirectFrom, "direct-from", "", "namespace of the pods that make up that Gateway (default the Gateway's)")
	f.StringVar(&o.IngressClass, "ingress-class", "", "class of an Ingress that is to hand *.<domain> to our gateway")
	f.StringArrayVar(&o.EndpointPickers, "endpoint-picker", nil, "namespace/name of an InferencePool whose endpoints are to be picked; repeatable")
	f.BoolVar(&o.CRDs, "crds", o.CRDs, "print the custom resource definitions too")
	return cmd
}
