package install

import (
	"bytes"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"sigs.k8s.io/yaml"

	"stationmaster.dev/stationmaster/config/observability"
)

// Placeholders for the numbers of a chart, which can't hold a template in Go's types.
const (
	gatewaysHole  = 900_001
	operatorsHole = 900_002
)

// observabilityTemplate leaves the files as they are: they hold templates of Prometheus and Grafana.
const observabilityTemplate = `{{- if .Values.alerts }}
---
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: stationmaster
  namespace: {{ .Release.Namespace }}
  labels:
    app.kubernetes.io/part-of: stationmaster
spec:
  {{- .Files.Get "files/rules.yaml" | nindent 2 }}
{{- end }}
{{- if .Values.dashboard }}
---
apiVersion: v1
kind: ConfigMap
metadata:
  name: stationmaster-dashboard
  namespace: {{ .Release.Namespace }}
  labels:
    app.kubernetes.io/part-of: stationmaster
    grafana_dashboard: "1"
data:
  stationmaster.json: |
    {{- .Files.Get "files/dashboard.json" | nindent 4 }}
{{- end }}
`

// helpersTemplate is what others include: a line with all of it would be folded.
const helpersTemplate = `{{- define "stationmaster.image" -}}
{{ with .Values.registry }}{{ . }}/{{ end }}{{ required "image is missing: name the image that holds stationmaster" .Values.image }}
{{- end }}
`

// resourcesHole stands for the resources of a part, resourcesText is how it is written in a Deployment,
// and resourcesTemplate takes its place there.
func resourcesHole(part string) corev1.ResourceRequirements {
	return corev1.ResourceRequirements{Limits: corev1.ResourceList{corev1.ResourceName("hole." + part): resource.MustParse("1")}}
}

func resourcesText(part string) string {
	return "        resources:\n          limits:\n            hole." + part + ": \"1\"\n"
}

func resourcesTemplate(part string) string {
	return "        resources:\n          {{- toYaml .Values.resources." + part + " | nindent 10 }}\n"
}

func resourcesOfValues(text string) string {
	for _, part := range []string{"operator", "gateway"} {
		text = strings.ReplaceAll(text, resourcesText(part), resourcesTemplate(part))
	}
	return text
}

// Chart returns the files of the Helm chart but for its custom resource definitions, by their
// path within it. They are made from what Manifest prints, with the options as values.
func Chart() (map[string][]byte, error) {
	o := Options{
		Namespace: "{{ .Release.Namespace }}", Image: `{{ include "stationmaster.image" $ }}`,
		PullPolicy: "{{ .Values.imagePullPolicy }}", Domain: "{{ .Values.domain }}", OpenAIPrefix: "{{ .Values.openaiPrefix }}",
		OCIDelivery: "{{ .Values.ociDelivery }}",
		Gateways:    gatewaysHole, Operators: operatorsHole, ServiceType: "{{ .Values.serviceType }}",
		ParentGateway: "{{ .Values.gatewayApi.namespace }}/{{ .Values.gatewayApi.name }}", IngressClass: "{{ .Values.ingressClass }}",
		DirectGateway: "{{ .Values.directGateway }}", DirectFrom: "{{ .Values.directFrom }}",
	}
	o.OperatorResources, o.GatewayResources = resourcesHole("operator"), resourcesHole("gateway")
	var out bytes.Buffer
	for _, object := range Objects(o) {
		if _, ok := object.(*corev1.Namespace); ok {
			continue // Helm makes it with --create-namespace
		}
		raw, err := document(object)
		if err != nil {
			return nil, fmt.Errorf("write %T: %w", object, err)
		}
		switch object.(type) {
		case *networkingv1.Ingress:
			raw = fmt.Appendf(nil, "{{- if .Values.ingressClass }}\n---\n%s{{- end }}\n", raw)
		case map[string]any:
			raw = fmt.Appendf(nil, "{{- if .Values.gatewayApi.name }}\n---\n%s{{- end }}\n", raw)
		default:
			raw = fmt.Appendf(nil, "---\n%s", raw)
		}
		out.Write(raw)
	}
	template := strings.NewReplacer(
		fmt.Sprint(gatewaysHole), "{{ .Values.gateways }}", fmt.Sprint(operatorsHole), "{{ .Values.operators }}",
	).Replace(resourcesOfValues(out.String()))
	pickers, err := pickersTemplate(o)
	if err != nil {
		return nil, err
	}
	d := Defaults()
	resources, err := yaml.Marshal(map[string]any{"operator": d.OperatorResources, "gateway": d.GatewayResources})
	if err != nil {
		return nil, fmt.Errorf("write the resources: %w", err)
	}
	resources = append([]byte("  "), bytes.ReplaceAll(bytes.TrimSuffix(resources, []byte("\n")), []byte("\n"), []byte("\n  "))...)
	resources = append(resources, '\n')
	return map[string][]byte{
		"Chart.yaml": []byte(`apiVersion: v2
name: stationmaster
description: Serves models from KServe's manifests, with an operator and a gateway
type: application
version: 0.1.0
kubeVersion: ">=1.33.0-0"
`),
		"values.yaml": fmt.Appendf(nil, `# Made from the options of 'stationmaster install', by tools/generate.

# The image that holds stationmaster as its entrypoint; it has to be named. The registry goes before
# it, e.g. that of a mirror; empty where the image names its own.
image: ""
registry: ""
# Always, IfNotPresent or Never.
imagePullPolicy: IfNotPresent
# The last part of service hosts.
domain: %s
# What may stand before /v1 in paths of the OpenAI API; / for nothing.
openaiPrefix: %s
# How models of oci:// reach pods: image-volume, modelcar or fetch. Pods that run keep what they have.
ociDelivery: %s
# Replicas of the gateway.
gateways: %d
# Replicas of the operator; one works, the others wait.
operators: %d
# The type of the gateway's Service: LoadBalancer, NodePort or ClusterIP.
serviceType: %s
# What a pod of each asks for and may take.
resources:
%s# A Gateway of the Gateway API, or the class of an Ingress, that is to hand *.<domain> to our gateway.
gatewayApi: {namespace: "", name: ""}
ingressClass: ""
# A Gateway ("namespace/name") that services may ask to lead to them past our gateway, and the
# namespace of the pods that it is made of, where that isn't its own.
directGateway: ""
directFrom: ""
# InferencePools of the Gateway API Inference Extension whose endpoints are to be picked:
# [{namespace: team-a, pool: llama}]. Each gets a Deployment and a Service <pool>-endpoint-picker there.
endpointPickers: []
# Alert rules, as a PrometheusRule of the Prometheus Operator.
alerts: false
# The dashboard, as a ConfigMap that Grafana's sidecar picks up.
dashboard: false
`, d.Domain, d.OpenAIPrefix, d.OCIDelivery, d.Gateways, d.Operators, d.ServiceType, resources),
		"templates/_helpers.tpl":       []byte(helpersTemplate),
		"templates/stationmaster.yaml": []byte(template),
		"templates/observability.yaml": []byte(observabilityTemplate),
		"templates/pickers.yaml":       pickers,
		"files/rules.yaml":             observability.Rules,
		"files/dashboard.json":         observability.Dashboard,
	}, nil
}
