package v1beta1

import (
	corev1 "k8s.io/api/core/v1"
)

// PodSpec holds the pod fields that a component may set: those of corev1.PodSpec that KServe
// has, with containers left optional as there. Fields mean what they mean in a pod.
type PodSpec struct {
	// +optional
	Volumes []corev1.Volume `json:"volumes,omitempty" patchStrategy:"merge,retainKeys" patchMergeKey:"name"`
	// +optional
	InitContainers []corev1.Container `json:"initContainers,omitempty" patchStrategy:"merge" patchMergeKey:"name"`
	// Containers of a custom component, or sidecars of a model's.
	// +optional
	Containers []corev1.Container `json:"containers,omitempty" patchStrategy:"merge" patchMergeKey:"name"`
	// Only for workers and canaries, as KServe has it: the schema of predictor, transformer
	// and explainer lacks it.
	// +optional
	EphemeralContainers []corev1.EphemeralContainer `json:"ephemeralContainers,omitempty" patchStrategy:"merge" patchMergeKey:"name"`
	// +optional
	RestartPolicy corev1.RestartPolicy `json:"restartPolicy,omitempty"`
	// +optional
	TerminationGracePeriodSeconds *int64 `json:"terminationGracePeriodSeconds,omitempty"`
	// +optional
	ActiveDeadlineSeconds *int64 `json:"activeDeadlineSeconds,omitempty"`
	// +optional
	DNSPolicy corev1.DNSPolicy `json:"dnsPolicy,omitempty"`
	// +optional
	// +mapType=atomic
	NodeSelector map[string]string `json:"nodeSelector,omitempty"`
	// +optional
	ServiceAccountName string `json:"serviceAccountName,omitempty"`
	// +optional
	DeprecatedServiceAccount string `json:"serviceAccount,omitempty"`
	// +optional
	AutomountServiceAccountToken *bool `json:"automountServiceAccountToken,omitempty"`
	// +optional
	NodeName string `json:"nodeName,omitempty"`
	// +optional
	HostNetwork bool `json:"hostNetwork,omitempty"`
	// +optional
	HostPID bool `json:"hostPID,omitempty"`
	// +optional
	HostIPC bool `json:"hostIPC,omitempty"`
	// +optional
	ShareProcessNamespace *bool `json:"shareProcessNamespace,omitempty"`
	// +optional
	SecurityContext *corev1.PodSecurityContext `json:"securityContext,omitempty"`
	// +optional
	ImagePullSecrets []corev1.LocalObjectReference `json:"imagePullSecrets,omitempty" patchStrategy:"merge" patchMergeKey:"name"`
	// +optional
	Hostname string `json:"hostname,omitempty"`
	// +optional
	Subdomain string `json:"subdomain,omitempty"`
	// +optional
	Affinity *corev1.Affinity `json:"affinity,omitempty"`
	// +optional
	SchedulerName string `json:"schedulerName,omitempty"`
	// +optional
	Tolerations []corev1.Toleration `json:"tolerations,omitempty"`
	// +optional
	HostAliases []corev1.HostAlias `json:"hostAliases,omitempty" patchStrategy:"merge" patchMergeKey:"ip"`
	// +optional
	PriorityClassName string `json:"priorityClassName,omitempty"`
	// +optional
	Priority *int32 `json:"priority,omitempty"`
	// +optional
	DNSConfig *corev1.PodDNSConfig `json:"dnsConfig,omitempty"`
	// +optional
	ReadinessGates []corev1.PodReadinessGate `json:"readinessGates,omitempty"`
	// +optional
	RuntimeClassName *string `json:"runtimeClassName,omitempty"`
	// +optional
	EnableServiceLinks *bool `json:"enableServiceLinks,omitempty"`
	// +optional
	PreemptionPolicy *corev1.PreemptionPolicy `json:"preemptionPolicy,omitempty"`
	// +optional
	Overhead corev1.ResourceList `json:"overhead,omitempty"`
	// +optional
	// +listType=map
	// +listMapKey=topologyKey
	// +listMapKey=whenUnsatisfiable
	TopologySpreadConstraints []corev1.TopologySpreadConstraint `json:"topologySpreadConstraints,omitempty" patchStrategy:"merge" patchMergeKey:"topologyKey"`
	// +optional
	SetHostnameAsFQDN *bool `json:"setHostnameAsFQDN,omitempty"`
	// +optional
	OS *corev1.PodOS `json:"os,omitempty"`
	// +optional
	HostUsers *bool `json:"hostUsers,omitempty"`
	// +optional
	// +listType=map
	// +listMapKey=name
	SchedulingGates []corev1.PodSchedulingGate `json:"schedulingGates,omitempty" patchStrategy:"merge" patchMergeKey:"name"`
	// +optional
	// +listType=map
	// +listMapKey=name
	ResourceClaims []corev1.PodResourceClaim `json:"resourceClaims,omitempty" patchStrategy:"merge,retainKeys" patchMergeKey:"name"`
	// +optional
	Resources *corev1.ResourceRequirements `json:"resources,omitempty"`
	// +optional
	HostnameOverride *string `json:"hostnameOverride,omitempty"`
}

// Core returns the same fields as a corev1.PodSpec. It shares memory with p.
func (p *PodSpec) Core() corev1.PodSpec {
	return corev1.PodSpec{
		Volumes:                       p.Volumes,
		InitContainers:                p.InitContainers,
		Containers:                    p.Containers,
		EphemeralContainers:           p.EphemeralContainers,
		RestartPolicy:                 p.RestartPolicy,
		TerminationGracePeriodSeconds: p.TerminationGracePeriodSeconds,
		ActiveDeadlineSeconds:         p.ActiveDeadlineSeconds,
		DNSPolicy:                     p.DNSPolicy,
		NodeSelector:                  p.NodeSelector,
		ServiceAccountName:            p.ServiceAccountName,
		DeprecatedServiceAccount:      p.DeprecatedServiceAccount,
		AutomountServiceAccountToken:  p.AutomountServiceAccountToken,
		NodeName:                      p.NodeName,
		HostNetwork:                   p.HostNetwork,
		HostPID:                       p.HostPID,
		HostIPC:                       p.HostIPC,
		ShareProcessNamespace:         p.ShareProcessNamespace,
		SecurityContext:               p.SecurityContext,
		ImagePullSecrets:              p.ImagePullSecrets,
		Hostname:                      p.Hostname,
		Subdomain:                     p.Subdomain,
		Affinity:                      p.Affinity,
		SchedulerName:                 p.SchedulerName,
		Tolerations:                   p.Tolerations,
		HostAliases:                   p.HostAliases,
		PriorityClassName:             p.PriorityClassName,
		Priority:                      p.Priority,
		DNSConfig:                     p.DNSConfig,
		ReadinessGates:                p.ReadinessGates,
		RuntimeClassName:              p.RuntimeClassName,
		EnableServiceLinks:            p.EnableServiceLinks,
		PreemptionPolicy:              p.PreemptionPolicy,
		Overhead:                      p.Overhead,
		TopologySpreadConstraints:     p.TopologySpreadConstraints,
		SetHostnameAsFQDN:             p.SetHostnameAsFQDN,
		OS:                            p.OS,
		HostUsers:                     p.HostUsers,
		SchedulingGates:               p.SchedulingGates,
		ResourceClaims:                p.ResourceClaims,
		Resources:                     p.Resources,
		HostnameOverride:              p.HostnameOverride,
	}
}
