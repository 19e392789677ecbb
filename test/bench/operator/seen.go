package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/metadata/metadatainformer"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
)

// seen is what watches tell of the benchmark's namespace. Lists would cost the API server, which
// shares the machine with what is measured, far more than what they look at.
type seen struct {
	stores map[schema.GroupVersionResource]cache.Store
	stop   func()
}

// watch begins to watch, and returns once all was read.
func watch(config *rest.Config) (*seen, error) {
	whole, err := dynamic.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("make client: %w", err)
	}
	heads, err := metadata.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("make client: %w", err)
	}
	objects := dynamicinformer.NewFilteredDynamicSharedInformerFactory(whole, 0, namespace, nil)
	names := metadatainformer.NewFilteredSharedInformerFactory(heads, 0, namespace, nil)
	s := &seen{stores: map[schema.GroupVersionResource]cache.Store{services: objects.ForResource(services).Informer().GetStore()}}
	for _, kind := range []schema.GroupVersionResource{revisions, deployments, k8sServices, pods} {
		s.stores[kind] = names.ForResource(kind).Informer().GetStore()
	}
	end := make(chan struct{})
	objects.Start(end)
	names.Start(end)
	objects.WaitForCacheSync(end)
	names.WaitForCacheSync(end)
	s.stop = func() {
		close(end)
		objects.Shutdown()
		names.Shutdown()
	}
	return s, nil
}

// count is of those objects that belong to a service, or are one; a Service for each component
// counts once.
func (s *seen) count(what schema.GroupVersionResource) int {
	keys := s.stores[what].ListKeys()
	if what != k8sServices {
		return len(keys)
	}
	n := 0
	for _, key := range keys {
		if strings.HasSuffix(key, "-predictor") {
			n++
		}
	}
	return n
}

// second counts the Deployments of second revisions.
func (s *seen) second() int {
	n := 0
	for _, key := range s.stores[deployments].ListKeys() {
		if strings.HasSuffix(key, "-00002") {
			n++
		}
	}
	return n
}

// told counts the services whose status is about their latest manifest.
func (s *seen) told() int {
	n := 0
	for _, o := range s.stores[services].List() {
		is, ok := o.(*unstructured.Unstructured)
		if !ok {
			continue
		}
		about, _, _ := unstructured.NestedInt64(is.Object, "status", "observedGeneration")
		conditions, _, _ := unstructured.NestedSlice(is.Object, "status", "conditions")
		if about == is.GetGeneration() && len(conditions) > 0 {
			n++
		}
	}
	return n
}

// programs returns the CPU seconds of the programs of the cluster in dir, by name. Each has a path
// below it among its arguments.
func programs(dir string) map[string]float64 {
	out := map[string]float64{}
	lines, err := filepath.Glob("/proc/[0-9]*/cmdline")
	check(err)
	for _, line := range lines {
		raw, err := os.ReadFile(line)
		args := strings.Split(string(raw), "\x00")
		if err != nil || len(args) < 2 || filepath.Base(args[0]) != "kubernetes" || !strings.Contains(string(raw), dir+"/") {
			continue // it has ended, or is another
		}
		stat, err := os.ReadFile(filepath.Join(filepath.Dir(line), "stat"))
		if err != nil {
			continue
		}
		fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
		for _, ticks := range fields[11:13] { // user and system time
			n, err := strconv.ParseFloat(ticks, 64)
			check(err)
			out[args[1]] += n / 100
		}
	}
	return out
}
