package manifest

import (
	"reflect"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"stationmaster.dev/stationmaster/api/serving/v1alpha1"
	"stationmaster.dev/stationmaster/api/serving/v1beta1"
	"stationmaster.dev/stationmaster/internal/pick"
	"stationmaster.dev/stationmaster/internal/scale"
)

// fields says of each JSON field of a type what becomes of it.
type fields map[string]effect

var (
	works  = effect{kind: inEffect}
	moot   = effect{kind: satisfied}
	inside = effect{kind: into}
)

func notYet(reason string) effect { return effect{kind: later, reason: reason} }
func onCluster(reason string) effect {
	return effect{kind: clusterOnly, reason: reason}
}

func (e effect) except(unless func(v, holder reflect.Value) bool) effect {
	e.unless = unless
	return e
}

const (
	noScheduler  = "there is one machine and nothing to schedule"
	noPod        = "processes share the machine's network, names and users; there is no pod to set this for"
	noAutoscaler = "it is an old spelling; give scaleMetric and scaleTarget"
	noWorkers    = "a replica over several nodes needs a cluster; on one machine the model must fit it"
	noVolume     = "this kind of volume needs a cluster; on one machine use emptyDir, hostPath, persistentVolumeClaim, configMap or secret"
	noModelMesh  = "engines are reached at their own ports, without ModelMesh's puller and router"
	noModelList  = "TrainedModels are served by Triton, by MLServer, and by engines that take them from " + ModelListDir + "/" + ModelListKey + ", as the runtime stationmaster-onnx-multi does; others aren't told to load and unload models"
	noRouter     = "the graph runs in the gateway; there is no router pod"
)

// effects holds every struct type whose fields are looked at, and each of its fields. A test
// walks the types and demands that none is missing, so that a new field can't be ignored in
// silence.
var effects = map[reflect.Type]fields{
	reflect.TypeFor[v1beta1.InferenceServiceSpec](): {
		"predictor": inside, "transformer": inside, "explainer": inside,
		"canary": inside,
	},
	reflect.TypeFor[v1beta1.CanarySpec](): {"predictor": inside, "trafficPercent": works},
	reflect.TypeFor[v1beta1.PredictorSpec](): join(podEffects, extensionEffects, fields{
		"name":    works,
		"sklearn": inside, "xgboost": inside, "tensorflow": inside, "pytorch": inside, "triton": inside,
		"onnx": inside, "huggingface": inside, "pmml": inside, "lightgbm": inside, "paddle": inside,
		"model":                inside,
		"workerSpec":           onCluster(noWorkers),
		"storageContainerName": notYet("ClusterStorageContainers aren't there yet; the built-in schemes fetch the model"),
	}),
	reflect.TypeFor[v1beta1.TransformerSpec](): join(podEffects, extensionEffects),
	reflect.TypeFor[v1beta1.ExplainerSpec](): join(podEffects, extensionEffects, fields{
		// What it needs on one machine, pipelineNotInEffect reports.
		"art": inside,
	}),
	reflect.TypeFor[v1beta1.ARTExplainerSpec](): join(containerEffects, fields{
		"type": works, "storageUri": works, "runtimeVersion": works, "config": works,
		"storage": notYet("storage secrets aren't there yet; give the explainer in storageUri"),
	}),
	reflect.TypeFor[v1beta1.FrameworkSpec](): join(containerEffects, modelEffects),
	reflect.TypeFor[v1beta1.ModelSpec](): join(containerEffects, modelEffects, fields{
		"modelFormat": works, "runtime": works,
	}),
	reflect.TypeFor[v1beta1.LoggerSpec](): {
		// Where url leads nowhere, and what files aren't made as it says, pipelineNotInEffect reports.
		"url": works, "mode": works, "metadataHeaders": works, "metadataAnnotations": works,
		"storage": works, "marshallerUrl": works, "batchSize": works, "batchInterval": works,
	},
	reflect.TypeFor[v1beta1.ModelStorageSpec](): {
		"path": works, "key": works,
		// storageNotInEffect looks at each.
		"parameters": works,
		"schemaPath": notYet("models have no schema here"),
	},
	reflect.TypeFor[corev1.Container](): containerEffects,

	reflect.TypeFor[v1alpha1.InferenceGraphSpec](): {
		// NotInEffectOfGraph looks at the steps.
		"nodes": works, "timeout": works, "routerTimeouts": inside,
		"resources": notYet(noRouter), "affinity": notYet(noRouter), "tolerations": notYet(noRouter), "nodeSelector": notYet(noRouter),
		"nodeName": notYet(noRouter), "serviceAccountName": notYet(noRouter), "minReplicas": notYet(noRouter), "maxReplicas": notYet(noRouter),
		"scaleTarget": notYet(noRouter), "scaleMetric": notYet(noRouter),
	},
	reflect.TypeFor[v1alpha1.InferenceGraphRouterTimeouts](): {
		"serverWrite": works, "serviceClient": works,
		"serverRead": notYet("the gateway bounds how long a client may take to send, for every service alike"),
		"serverIdle": notYet("the gateway bounds how long a connection may be unused, for every service alike"),
	},

	reflect.TypeFor[corev1.ResourceRequirements](): {
		"limits": inside, "requests": inside,
		"claims": onCluster("device claims need a cluster"),
	},
	reflect.TypeFor[corev1.ContainerPort](): {
		"name": works, "containerPort": works,
		"protocol": onCluster("only TCP is spoken").except(func(v, _ reflect.Value) bool { return v.String() == "TCP" }),
		"hostPort": onCluster("ports are allocated; clients use the gateway"),
		"hostIP":   onCluster("engines listen on loopback; clients use the gateway"),
	},
	reflect.TypeFor[corev1.EnvVar](): {"name": works, "value": works, "valueFrom": inside},
	reflect.TypeFor[corev1.EnvVarSource](): {
		"fieldRef": works, "resourceFieldRef": works, "configMapKeyRef": works, "secretKeyRef": works,
		"fileKeyRef": onCluster("variables from a file of a volume need a cluster; use value, a config map or a secret"),
	},
	reflect.TypeFor[corev1.Probe](): {
		"exec": works, "httpGet": inside, "tcpSocket": works, "grpc": inside,
		"initialDelaySeconds": works, "timeoutSeconds": works, "periodSeconds": works,
		"successThreshold": works, "failureThreshold": works,
		"terminationGracePeriodSeconds": onCluster("a failed probe stops the process within the component's terminationGracePeriodSeconds"),
	},
	reflect.TypeFor[corev1.HTTPGetAction](): {
		"path": works, "port": works, "host": works, "scheme": works, "httpHeaders": works,
		"protocol": onCluster("probes speak HTTP/1.1"),
	},
	reflect.TypeFor[corev1.GRPCAction](): {
		"port": works, "service": works,
		"mode": onCluster("gRPC probes go without TLS"),
	},
	reflect.TypeFor[corev1.Lifecycle](): {
		"postStart": inside, "preStop": inside,
		"stopSignal": onCluster("processes are stopped with SIGTERM"),
	},
	reflect.TypeFor[corev1.LifecycleHandler](): {"exec": works, "httpGet": inside, "tcpSocket": works, "sleep": works},
	reflect.TypeFor[corev1.VolumeMount](): {
		"name": works, "mountPath": works, "subPath": works, "readOnly": works,
		"subPathExpr":       onCluster("write the path out in subPath"),
		"mountPropagation":  onCluster("mounts don't propagate between processes"),
		"recursiveReadOnly": onCluster("use readOnly"),
		"bindMountOptions":  onCluster("mount options need a cluster"),
	},
	reflect.TypeFor[corev1.Volume](): {
		"name": works, "emptyDir": inside, "hostPath": inside, "persistentVolumeClaim": works,
		"configMap": inside, "secret": inside,
		"awsElasticBlockStore": onCluster(noVolume), "azureDisk": onCluster(noVolume), "azureFile": onCluster(noVolume),
		"cephfs": onCluster(noVolume), "cinder": onCluster(noVolume), "csi": onCluster(noVolume),
		"downwardAPI": onCluster(noVolume), "ephemeral": onCluster(noVolume), "fc": onCluster(noVolume),
		"flexVolume": onCluster(noVolume), "flocker": onCluster(noVolume), "gcePersistentDisk": onCluster(noVolume),
		"gitRepo": onCluster(noVolume), "glusterfs": onCluster(noVolume), "image": onCluster(noVolume),
		"iscsi": onCluster(noVolume), "nfs": onCluster(noVolume), "photonPersistentDisk": onCluster(noVolume),
		"portworxVolume": onCluster(noVolume), "projected": onCluster(noVolume), "quobyte": onCluster(noVolume),
		"rbd": onCluster(noVolume), "scaleIO": onCluster(noVolume), "storageos": onCluster(noVolume),
		"vsphereVolume": onCluster(noVolume),
	},
	reflect.TypeFor[corev1.EmptyDirVolumeSource](): {
		"medium":    onCluster("the directory is on disk"),
		"sizeLimit": onCluster("a directory has no limit of its own"),
		"mode":      onCluster("the directory has the data directory's mode"),
	},
	reflect.TypeFor[corev1.HostPathVolumeSource](): {
		"path": works,
		"type": onCluster("the path is used as it is found, whatever its type"),
	},
	reflect.TypeFor[corev1.ConfigMapVolumeSource](): {
		"name": works, "items": inside, "optional": works,
		"defaultMode": onCluster(fileMode), "defaultUser": onCluster(fileMode),
	},
	reflect.TypeFor[corev1.SecretVolumeSource](): {
		"secretName": works, "items": inside, "optional": works,
		"defaultMode": onCluster(fileMode), "defaultUser": onCluster(fileMode),
	},
	reflect.TypeFor[corev1.KeyToPath](): {"key": works, "path": works, "mode": onCluster(fileMode), "user": onCluster(fileMode)},

	reflect.TypeFor[v1alpha1.ServingRuntimeSpec](): join(runtimePodEffects, fields{
		"supportedModelFormats": works, "disabled": works, "protocolVersions": works,
		"workerSpec": onCluster(noWorkers),
		"multiModel": notYet(noModelList).except(func(v, holder reflect.Value) bool {
			s, is := holder.Interface().(v1alpha1.ServingRuntimeSpec)
			return !v.Elem().Bool() || is && (ReadsModelList(&s) || repositoryOf(&s) != "")
		}),
		"grpcEndpoint": notYet(noModelMesh), "grpcDataEndpoint": notYet(noModelMesh), "httpDataEndpoint": notYet(noModelMesh),
		"replicas": notYet(noModelMesh), "storageHelper": notYet(noModelMesh), "builtInAdapter": notYet(noModelMesh),
	}),
}

const fileMode = "files are readable by the control plane's user alone"

// containerEffects are those of a container, inlined or not.
var containerEffects = fields{
	"name": works, "image": works, "command": works, "args": works, "workingDir": works,
	"ports": inside, "envFrom": works, "env": inside, "resources": inside, "volumeMounts": inside,
	"livenessProbe": inside, "readinessProbe": inside, "startupProbe": inside, "lifecycle": inside,
	"volumeDevices":      onCluster("block devices need a cluster"),
	"resizePolicy":       onCluster("a changed resource makes a new revision"),
	"restartPolicy":      onCluster("every container of a replica is started again when it ends"),
	"restartPolicyRules": onCluster("every container of a replica is started again when it ends"),
	"securityContext":    onCluster("processes run as the user that runs the control plane"),
	// What a process left in its log is in the status; images, where used, are pulled once.
	"terminationMessagePath": moot, "terminationMessagePolicy": moot, "imagePullPolicy": moot,
	"stdin": onCluster(noTerminal), "stdinOnce": onCluster(noTerminal), "tty": onCluster(noTerminal),
}

const noTerminal = "processes get no standard input"

// modelEffects are those of a model, whatever its format.
var modelEffects = fields{
	"storageUri": works, "runtimeVersion": works, "protocolVersion": works,
	"storage":      inside,
	"confidential": notYet("encrypted models aren't there yet"),
}

// extensionEffects are those that every component has.
var extensionEffects = fields{
	"storageUris": works, "timeout": works, "labels": works, "annotations": works,
	"minReplicas": works, "maxReplicas": works, "containerConcurrency": works,
	// What of these has an effect depends on the others: see scalingNotInEffect.
	"scaleMetric": works, "scaleTarget": works, "scaleMetricType": works, "autoScaling": works,
	"canaryTrafficPercent": works,
	"logger":               inside,
	"batcher":              works,
	"deploymentStrategy":   works,
}

// podEffects are those of PodSpec.
var podEffects = fields{
	"volumes": inside, "initContainers": inside, "containers": inside,
	"terminationGracePeriodSeconds": works,
	"restartPolicy": onCluster("a replica is always started again").
		except(func(v, _ reflect.Value) bool { return v.String() == string(corev1.RestartPolicyAlways) }),
	"ephemeralContainers":   onCluster(noPod),
	"activeDeadlineSeconds": onCluster("replicas have no deadline"),
	"dnsPolicy":             onCluster(noPod), "dnsConfig": onCluster(noPod), "hostAliases": onCluster(noPod),
	"hostname": onCluster(noPod), "subdomain": onCluster(noPod), "setHostnameAsFQDN": onCluster(noPod), "hostnameOverride": onCluster(noPod),
	// Processes of one machine have its namespaces already.
	"hostNetwork": moot, "hostPID": moot, "hostIPC": moot, "shareProcessNamespace": moot,
	"hostUsers":          onCluster(noPod).except(func(v, _ reflect.Value) bool { return v.Elem().Bool() }),
	"securityContext":    onCluster("processes run as the user that runs the control plane"),
	"serviceAccountName": onCluster(noAccount), "serviceAccount": onCluster(noAccount),
	"automountServiceAccountToken": onCluster(noAccount).except(func(v, _ reflect.Value) bool { return !v.Elem().Bool() }),
	"imagePullSecrets":             onCluster("images are pulled with the credentials of the machine's own container engine"),
	"nodeSelector":                 onCluster(noScheduler), "nodeName": onCluster(noScheduler), "affinity": onCluster(noScheduler),
	"schedulerName": onCluster(noScheduler), "tolerations": onCluster(noScheduler),
	"topologySpreadConstraints": onCluster(noScheduler), "schedulingGates": onCluster(noScheduler),
	"priorityClassName": onCluster(noScheduler), "priority": onCluster(noScheduler), "preemptionPolicy": onCluster(noScheduler),
	"overhead": onCluster(noScheduler), "runtimeClassName": onCluster("there is one container runtime at most"),
	"readinessGates": onCluster(noPod), "enableServiceLinks": onCluster(noPod).except(func(v, _ reflect.Value) bool { return !v.Elem().Bool() }),
	"os": onCluster(noScheduler), "resourceClaims": onCluster("device claims need a cluster"),
	"resources": onCluster("limits are those of each container; set them there"),
}

const noAccount = "service accounts' secrets and tokens aren't given to processes"

// runtimePodEffects are those of ServingRuntimePodSpec.
var runtimePodEffects = fields{
	"containers": inside, "volumes": inside, "labels": works, "annotations": works, "hostIPC": moot,
	"nodeSelector": onCluster(noScheduler), "affinity": onCluster(noScheduler), "tolerations": onCluster(noScheduler),
	"schedulerName":    onCluster(noScheduler),
	"imagePullSecrets": podEffects["imagePullSecrets"], "resourceClaims": podEffects["resourceClaims"],
}

// resourceEffect says what becomes of a limit or request for a resource. Requests for CPU and
// memory are a scheduler's; on one machine there is none, so they are met.
func resourceEffect(name string) effect {
	switch corev1.ResourceName(name) {
	case corev1.ResourceCPU, corev1.ResourceMemory:
		return works
	case corev1.ResourceEphemeralStorage:
		return onCluster("a process has no disk of its own to limit")
	}
	return onCluster("devices aren't counted on one machine; every process sees all of them")
}

// annotationReason says why an annotation that KServe knows does nothing; empty means it does
// something, or is none of KServe's.
func annotationReason(key, value string) string {
	switch key {
	case DeploymentModeAnnotation:
		if mode := presentMode(value); mode != ModeStandard {
			return "there is one way to deploy, which serves every mode; " + mode + "'s own objects aren't made"
		}
		return ""
	case StickyAnnotation:
		if _, err := ParseSticky(value); err != nil {
			return err.Error()
		}
		return ""
	case PickingAnnotation:
		if _, err := pick.Parse(value, false); err != nil {
			return err.Error()
		}
		return ""
	case PrefillAnnotation:
		if _, err := ParsePrefill(value); err != nil {
			return err.Error()
		}
		return ""
	case MirrorAnnotation:
		if _, err := ParseMirror(value); err != nil {
			return err.Error()
		}
		return ""
	case RolloutDurationAnnotation:
		if _, err := ParseRolloutDuration(value); err != nil {
			return err.Error()
		}
		return ""
	case StopAnnotation, DisableAutoUpdateAnnotation, TagRoutingAnnotation:
		if value != "true" && value != "false" {
			return `it counts as "false": write "true" or "false"`
		}
		return ""
	case "serving.kserve.io/enable-metric-aggregation",
		"serving.kserve.io/enable-prometheus-scraping":
		if value != "true" {
			return ""
		}
	case readOnlyAnnotation:
		if value != "false" {
			return ""
		}
	}
	if reason, ok := annotations[key]; ok {
		return reason
	}
	for _, foreign := range []string{"serving.knative.dev/", "sidecar.istio.io/", "networking.knative.dev/"} {
		if strings.HasPrefix(key, foreign) {
			return "neither Knative nor Istio is used"
		}
	}
	switch {
	case strings.HasPrefix(key, "autoscaling.knative.dev/") && !scale.Knows(key):
		return "Knative's autoscaler has none of that name; it has " + strings.Join(scale.Annotations(), ", ")
	case strings.HasPrefix(key, ownPrefix) && !strings.HasPrefix(key, guardPrefix) && !slices.Contains(ownAnnotations, strings.TrimPrefix(key, ownPrefix)):
		return "there is none of that name; there are " + strings.Join(ownAnnotations, ", ") + ", and those of a guarded rollout"
	}
	return ""
}

const ownPrefix = "stationmaster.dev/"

// ownAnnotations are ours that an InferenceService may have, without their prefix and without those
// of a guarded rollout, which has a family of its own.
var ownAnnotations = []string{
	"client-credentials", "direct-route", "engine", "engine-ca", "engine-ca-configmap", "engine-server-name", "engine-tls", "local", "mirror", "openai-root", "picking", "prefill", "sticky", "translate",
}

// readOnlyAnnotation is KServe's; "false" lets an engine write to its model, on a cluster.
const readOnlyAnnotation = "storage.kserve.io/readonly"

// podAnnotations are those that say how pods get their models: on one machine the namespace's
// secrets and the environment do.
var podAnnotations = []string{
	readOnlyAnnotation,
	"serving.kserve.io/storageSecretName",
	"serving.kserve.io/s3-endpoint", "serving.kserve.io/s3-region", "serving.kserve.io/s3-usehttps", "serving.kserve.io/s3-verifyssl",
	"serving.kserve.io/s3-usevirtualbucket", "serving.kserve.io/s3-useaccelerate", "serving.kserve.io/s3-useanoncredential",
	"serving.kserve.io/s3-cabundle", "serving.kserve.io/s3-cabundle-configmap",
}

const scrapedElsewhere = "nothing is added to pods; Prometheus finds the engines' metrics by /engines/targets of the admin port"

const ofSecretAlone = "on one machine it counts on a secret that the service account default lists"

const ofSecrets = "on one machine it counts on a secret that the service account default lists, or as a variable of the environment"

// annotations are KServe's that do nothing yet, and why.
var annotations = map[string]string{
	"serving.kserve.io/metric":                      noAutoscaler,
	"serving.kserve.io/targetUtilizationPercentage": noAutoscaler,
	"serving.kserve.io/enable-metric-aggregation":   scrapedElsewhere,
	"serving.kserve.io/enable-prometheus-scraping":  scrapedElsewhere,
	"serving.kserve.io/storageSecretName":           "on one machine the secrets count that the service account default lists, then the environment",
	"serving.kserve.io/s3-endpoint":                 ofSecrets,
	"serving.kserve.io/s3-region":                   ofSecrets,
	"serving.kserve.io/s3-usehttps":                 ofSecrets,
	"serving.kserve.io/s3-verifyssl":                ofSecrets,
	"serving.kserve.io/s3-usevirtualbucket":         ofSecrets,
	"serving.kserve.io/s3-useaccelerate":            ofSecrets,
	"serving.kserve.io/s3-useanoncredential":        ofSecrets,
	"serving.kserve.io/s3-cabundle":                 ofSecretAlone,
	"serving.kserve.io/s3-cabundle-configmap":       ofSecretAlone,
	"serving.kserve.io/nodegroup":                   "a model cache over nodes isn't there yet",
	"serving.kserve.io/disable-localmodel":          "a model cache over nodes isn't there yet",
	"serving.kserve.io/gke-accelerator":             "on a cluster name the accelerator in nodeSelector; on one machine there is nothing to schedule",
	readOnlyAnnotation:                              "models are always read-only",
}

// join puts tables together; none shares a field with another.
func join(tables ...fields) fields {
	all := fields{}
	for _, t := range tables {
		for name, e := range t {
			if _, twice := all[name]; twice {
				panic("BUG: field " + name + " stands in two tables")
			}
			all[name] = e
		}
	}
	return all
}
