package manifest

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	servingv1alpha1 "stationmaster.dev/stationmaster/api/serving/v1alpha1"
	smv1alpha1 "stationmaster.dev/stationmaster/api/stationmaster/v1alpha1"
)

// WorkerContainer runs the engine's part in every pod of a replica but the first, where one
// spans several nodes.
const WorkerContainer = "worker-container"

// ownDevice is what a container of a group gets that names no kind of device: one for each part
// of a layer.
const ownDevice = corev1.ResourceName("nvidia.com/gpu")

// group merges the workers of a predictor over several nodes as KServe does, and gives the head,
// which is b's server, and them the sizes and names that engines read. One node holds one part of
// the pipeline. Where the head is reached only the platform knows. Nil means that the predictor
// has no workers.
func group(in Input, b *built, dot *subject) (*smv1alpha1.RevisionWorkers, error) {
	own := in.Service.Spec.Predictor.WorkerSpec
	if own == nil {
		return nil, nil
	}
	base := &servingv1alpha1.WorkerSpec{}
	if in.Runtime != nil && in.Runtime.WorkerSpec != nil {
		base = in.Runtime.WorkerSpec
	}
	over := corev1.Container{Name: WorkerContainer}
	if len(own.Containers) > 0 {
		over = own.Containers[0]
	}
	worker := *over.DeepCopy()
	if i := slices.IndexFunc(base.Containers, named(WorkerContainer)); i >= 0 {
		worker = MergeContainer(base.Containers[i], over)
	}
	if worker.Image == "" {
		return nil, fmt.Errorf("spec.predictor.workerSpec: neither it nor the runtime has a container named %s with an image: add one", WorkerContainer)
	}
	r := renderer{dot: dot}
	var filled corev1.Container
	if err := r.value(worker.Name, worker, &filled); err != nil {
		return nil, err
	}
	b.unset = append(b.unset, r.unset...)
	nodes := firstSize(own.PipelineParallelSize, base.PipelineParallelSize)
	devices := firstSize(own.TensorParallelSize, base.TensorParallelSize)

	pod := MergePod(base.ServingRuntimePodSpec, own.PodSpec)
	pod.Containers = []corev1.Container{filled}
	name := b.modelName
	if name == "" {
		name = in.Service.Name
	}
	for _, c := range []*corev1.Container{&b.containers[0], &pod.Containers[0]} {
		count := takeDevices(c, devices)
		setEnv(c, "PIPELINE_PARALLEL_SIZE", strconv.Itoa(nodes))
		setEnv(c, "TENSOR_PARALLEL_SIZE", strconv.Itoa(devices))
		setEnv(c, "RAY_NODE_COUNT", strconv.Itoa(nodes))
		setEnv(c, "REQUEST_GPU_COUNT", count)
		setEnv(c, "MODEL_NAME", name)
		setEnv(c, "MODEL_DIR", DefaultModelPath)
	}
	setEnv(&pod.Containers[0], "ISVC_NAME", in.Service.Name)
	return &smv1alpha1.RevisionWorkers{Size: int32(nodes), PodTemplate: corev1.PodTemplateSpec{Spec: pod}}, nil
}

func firstSize(sizes ...*int) int {
	for _, n := range sizes {
		if n != nil {
			return max(*n, 1)
		}
	}
	return 1
}

// takeDevices gives a container the devices for its share of each layer, unless it names some
// itself, and returns how many it has.
func takeDevices(c *corev1.Container, devices int) string {
	for _, resources := range []corev1.ResourceList{c.Resources.Limits, c.Resources.Requests} {
		for name, q := range resources {
			if slices.Contains(gpuResources, string(name)) || strings.HasPrefix(string(name), "nvidia.com/mig") {
				return q.String()
			}
		}
	}
	count := strconv.Itoa(devices)
	for _, resources := range []*corev1.ResourceList{&c.Resources.Limits, &c.Resources.Requests} {
		if *resources == nil {
			*resources = corev1.ResourceList{}
		}
		(*resources)[ownDevice] = *resource.NewQuantity(int64(devices), resource.DecimalSI)
	}
	return count
}
