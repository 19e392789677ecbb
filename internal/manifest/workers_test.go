package manifest

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	servingv1alpha1 "stationmaster.dev/stationmaster/api/serving/v1alpha1"
	"stationmaster.dev/stationmaster/api/serving/v1beta1"
	"stationmaster.dev/stationmaster/internal/spec"
)

func overNodes(change func(*v1beta1.InferenceService, *servingv1alpha1.ServingRuntimeSpec)) Input {
	uri, two := "pvc://weights/llama", 2
	is := &v1beta1.InferenceService{}
	is.Name, is.Namespace = "llama", "team"
	is.Spec.Predictor.Model = &v1beta1.ModelSpec{ModelFormat: v1beta1.ModelFormat{Name: "huggingface"}}
	is.Spec.Predictor.Model.StorageURI = &uri
	is.Spec.Predictor.WorkerSpec = &v1beta1.WorkerSpec{}
	runtime := &servingv1alpha1.ServingRuntimeSpec{WorkerSpec: &servingv1alpha1.WorkerSpec{PipelineParallelSize: &two}}
	runtime.Containers = []corev1.Container{{Name: ServerContainer, Image: "engine:1", Args: []string{"--model_name={{.Name}}"}}}
	runtime.WorkerSpec.Containers = []corev1.Container{{Name: WorkerContainer, Image: "engine:1", Args: []string{"--join={{.Name}}"}}}
	if change != nil {
		change(is, runtime)
	}
	return Input{Service: is, Component: spec.Predictor, Runtime: runtime, RuntimeName: "r", RuntimeKind: "ServingRuntime"}
}

func TestWorkersAreMergedWithTheirRuntime(t *testing.T) {
	four := 4
	for name, tc := range map[string]struct {
		change func(*v1beta1.InferenceService, *servingv1alpha1.ServingRuntimeSpec)
		// head and worker are devices; env are variables of both.
		size         int32
		head, worker string
		env          map[string]string
	}{
		"sizes are the runtime's": {
			size: 2, head: "1", worker: "1",
			env: map[string]string{"PIPELINE_PARALLEL_SIZE": "2", "TENSOR_PARALLEL_SIZE": "1", "RAY_NODE_COUNT": "2", "REQUEST_GPU_COUNT": "1", "MODEL_NAME": "llama", "MODEL_DIR": "/mnt/models"},
		},
		"unless the service has its own": {
			change: func(is *v1beta1.InferenceService, _ *servingv1alpha1.ServingRuntimeSpec) {
				is.Spec.Predictor.WorkerSpec.PipelineParallelSize, is.Spec.Predictor.WorkerSpec.TensorParallelSize = &four, &four
			},
			size: 4, head: "4", worker: "4", env: map[string]string{"RAY_NODE_COUNT": "4", "TENSOR_PARALLEL_SIZE": "4"},
		},
		"devices that are named stay": {
			change: func(is *v1beta1.InferenceService, r *servingv1alpha1.ServingRuntimeSpec) {
				is.Spec.Predictor.WorkerSpec.TensorParallelSize = &four
				for _, c := range []*corev1.Container{&r.Containers[0], &r.WorkerSpec.Containers[0]} {
					c.Resources.Limits = corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("8")}
				}
			},
			size: 2, head: "8", worker: "8", env: map[string]string{"REQUEST_GPU_COUNT": "8", "TENSOR_PARALLEL_SIZE": "4"},
		},
		"without a word there is one pod, with one device": {
			change: func(_ *v1beta1.InferenceService, r *servingv1alpha1.ServingRuntimeSpec) {
				r.WorkerSpec.PipelineParallelSize = nil
			},
			size: 1, head: "1", worker: "1",
		},
	} {
		t.Run(name, func(t *testing.T) {
			c, err := Compile(overNodes(tc.change))
			if err != nil {
				t.Fatal(err)
			}
			head, worker := c.PodTemplate.Spec.Containers[0], c.Workers.PodTemplate.Spec.Containers[0]
			h, w := head.Resources.Limits["nvidia.com/gpu"], worker.Resources.Limits["nvidia.com/gpu"]
			if c.Workers.Size != tc.size || h.String() != tc.head || w.String() != tc.worker {
				t.Errorf("%d pods, %s and %s devices", c.Workers.Size, h.String(), w.String())
			}
			for k, v := range tc.env {
				if envValue(head, k) != v || envValue(worker, k) != v {
					t.Errorf("%s is %q in the head and %q in the worker", k, envValue(head, k), envValue(worker, k))
				}
			}
			if worker.Args[0] != "--join=llama" || c.Workers.PodTemplate.Labels["app"] != "isvc.llama-predictor-worker" || envValue(worker, "ISVC_NAME") != "llama" {
				t.Errorf("the worker is %+v", c.Workers.PodTemplate)
			}
			if worker.ReadinessProbe != nil {
				t.Error("a worker, which may listen nowhere, is probed")
			}
			if c.RevisionSpec().Workers.Size != tc.size {
				t.Error("the record lacks the workers")
			}
		})
	}
}

func TestWorkersCountInTheHash(t *testing.T) {
	seen := map[string]string{}
	for name, change := range map[string]func(*v1beta1.InferenceService, *servingv1alpha1.ServingRuntimeSpec){
		"plain": nil,
		"other image": func(_ *v1beta1.InferenceService, r *servingv1alpha1.ServingRuntimeSpec) {
			r.WorkerSpec.Containers[0].Image = "engine:2"
		},
		"none": func(is *v1beta1.InferenceService, _ *servingv1alpha1.ServingRuntimeSpec) {
			is.Spec.Predictor.WorkerSpec = nil
		},
	} {
		c, err := Compile(overNodes(change))
		if err != nil {
			t.Fatal(err)
		}
		if other, ok := seen[c.Workload.Hash]; ok {
			t.Errorf("%s and %s have the same hash", name, other)
		}
		seen[c.Workload.Hash] = name
	}
}

func TestWorkersNeedAnImage(t *testing.T) {
	_, err := Compile(overNodes(func(_ *v1beta1.InferenceService, r *servingv1alpha1.ServingRuntimeSpec) { r.WorkerSpec = nil }))
	if err == nil || !strings.Contains(err.Error(), "worker-container") {
		t.Errorf("answers %v", err)
	}
}
