package manifest

import (
	"fmt"
	"path"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"stationmaster.dev/stationmaster/api/serving/v1beta1"
)

// validateExtension checks what every component has.
func validateExtension(e *v1beta1.ComponentExtensionSpec, is *v1beta1.InferenceService, at *field.Path) field.ErrorList {
	errs := validateScaling(e, is.Annotations[AutoscalerClassAnnotation], at)
	errs = append(errs, validateStorageURIs(e.StorageURIs, at.Child("storageUris"))...)
	errs = append(errs, validateStrategy(e.DeploymentStrategy, at.Child("deploymentStrategy"))...)
	if c := e.ContainerConcurrency; c != nil && *c < 0 {
		errs = append(errs, field.Invalid(at.Child("containerConcurrency"), *c, "must be 0 (no limit) or more"))
	}
	if s := e.TimeoutSeconds; s != nil && *s < 0 {
		errs = append(errs, field.Invalid(at.Child("timeout"), *s, "must be a number of seconds, 0 or more"))
	}
	if p := e.CanaryTrafficPercent; p != nil && (*p < 0 || *p > 100) {
		errs = append(errs, field.Invalid(at.Child("canaryTrafficPercent"), *p, "must be 0 to 100"))
	}
	if l := e.Logger; l != nil {
		modes := []v1beta1.LoggerType{v1beta1.LogAll, v1beta1.LogRequest, v1beta1.LogResponse}
		if !slices.Contains(modes, l.Mode) {
			errs = append(errs, field.NotSupported(at.Child("logger", "mode"), l.Mode, modes))
		}
		if st := l.Storage; st != nil && (st.Path == nil || st.Parameters == nil || st.StorageKey == nil) {
			errs = append(errs, field.Required(at.Child("logger", "storage"), "path, parameters and key are all needed"))
		}
		errs = append(errs, validateLogger(l, at.Child("logger"))...)
	}
	if b := e.Batcher; b != nil {
		for name, n := range map[string]*int{"maxBatchSize": b.MaxBatchSize, "maxLatency": b.MaxLatency, "timeout": b.Timeout} {
			if n != nil && *n < 0 {
				errs = append(errs, field.Invalid(at.Child("batcher", name), *n, "must be 0 or more"))
			}
		}
	}
	return errs
}

// validateScaling checks the number of replicas and what it follows; class is the
// autoscaler's.
func validateScaling(e *v1beta1.ComponentExtensionSpec, class string, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	least := int32(1)
	if e.MinReplicas != nil {
		least = *e.MinReplicas
	}
	if least < 0 {
		errs = append(errs, field.Invalid(at.Child("minReplicas"), least, "must be 0 or more"))
	}
	if e.MaxReplicas < 0 {
		errs = append(errs, field.Invalid(at.Child("maxReplicas"), e.MaxReplicas, "must be 0 (no upper bound) or more"))
	}
	if e.MaxReplicas > 0 && e.MinReplicas != nil && least > e.MaxReplicas {
		errs = append(errs, field.Invalid(at.Child("minReplicas"), least, fmt.Sprintf("must be no more than maxReplicas, %d", e.MaxReplicas)))
	}
	if m := e.ScaleMetric; m != nil {
		metrics := []v1beta1.ScaleMetric{v1beta1.MetricCPU, v1beta1.MetricMemory, v1beta1.MetricConcurrency, v1beta1.MetricRPS}
		byHPA := []v1beta1.ScaleMetric{v1beta1.MetricCPU, v1beta1.MetricMemory}
		switch {
		case !slices.Contains(metrics, *m):
			errs = append(errs, field.NotSupported(at.Child("scaleMetric"), *m, metrics))
		case class == "hpa" && !slices.Contains(byHPA, *m):
			errs = append(errs, field.NotSupported(at.Child("scaleMetric"), *m, byHPA))
		case class == "keda":
			errs = append(errs, field.Forbidden(at.Child("scaleMetric"), "keda scales by autoScaling.metrics; name the metric there"))
		}
	}
	if t := e.ScaleTarget; t != nil {
		percent := e.ScaleMetric != nil && *e.ScaleMetric == v1beta1.MetricCPU &&
			(e.ScaleMetricType == nil || *e.ScaleMetricType == v1beta1.UtilizationMetricType)
		switch {
		case *t < 1:
			errs = append(errs, field.Invalid(at.Child("scaleTarget"), *t, "must be 1 or more"))
		case percent && *t > 100:
			errs = append(errs, field.Invalid(at.Child("scaleTarget"), *t, "is a percentage of the requested CPU, so it must be 1 to 100"))
		}
	}
	if a := e.AutoScaling; a != nil {
		for i := range a.Metrics {
			errs = append(errs, validateMetric(&a.Metrics[i], class, at.Child("autoScaling", "metrics").Index(i))...)
		}
	}
	return errs
}

// validateStorageURIs checks where sets of files are put: absolute directories below the root,
// distinct, and, for those that are fetched, below one common directory, since one volume is
// mounted there.
func validateStorageURIs(uris []v1beta1.StorageURI, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	var fetched []string
	taken := map[string]bool{}
	for i, u := range uris {
		mountPath := u.MountPath
		if mountPath == "" {
			mountPath = DefaultModelPath
		}
		where := at.Index(i).Child("mountPath")
		if u.URI == "" {
			errs = append(errs, field.Required(at.Index(i).Child("uri"), "say where the files are"))
		}
		clean := path.Clean(mountPath)
		switch {
		case !path.IsAbs(mountPath):
			errs = append(errs, field.Invalid(where, mountPath, "must be an absolute path"))
			continue
		case slices.Contains(strings.Split(mountPath, "/"), ".."):
			errs = append(errs, field.Invalid(where, mountPath, "must not hold '..'"))
			continue
		case clean == "/":
			errs = append(errs, field.Invalid(where, mountPath, "must not be the root directory"))
			continue
		case taken[clean]:
			errs = append(errs, field.Duplicate(where, mountPath))
			continue
		}
		taken[clean] = true
		if !strings.HasPrefix(u.URI, "pvc://") {
			fetched = append(fetched, clean)
		}
	}
	if len(fetched) > 1 && commonParent(fetched) == "/" {
		errs = append(errs, field.Invalid(at, strings.Join(fetched, ", "), "the mount paths must share a directory below the root, such as /mnt/models/a and /mnt/models/b"))
	}
	return errs
}

// commonParent returns the deepest directory that every path is in.
func commonParent(paths []string) string {
	parent := path.Dir(paths[0])
	for _, p := range paths[1:] {
		for parent != "/" && !strings.HasPrefix(path.Dir(p)+"/", parent+"/") {
			parent = path.Dir(parent)
		}
	}
	return parent
}

// parallelEnv are set from the sizes in workerSpec, so a manifest can't set them.
var parallelEnv = []string{"PIPELINE_PARALLEL_SIZE", "TENSOR_PARALLEL_SIZE"}

// validateWorkers checks a predictor over several nodes.
func validateWorkers(is *v1beta1.InferenceService, at *field.Path) field.ErrorList {
	p := &is.Spec.Predictor
	w := p.WorkerSpec
	if w == nil {
		return nil
	}
	here := at.Child("workerSpec")
	var errs field.ErrorList
	for name, n := range map[string]*int{"pipelineParallelSize": w.PipelineParallelSize, "tensorParallelSize": w.TensorParallelSize} {
		if n != nil && *n < 1 {
			errs = append(errs, field.Invalid(here.Child(name), *n, "must be 1 or more"))
		}
	}
	switch {
	case len(w.Containers) > 1:
		errs = append(errs, field.TooMany(here.Child("containers"), len(w.Containers), 1))
	case len(w.Containers) == 1 && w.Containers[0].Name != WorkerContainer:
		errs = append(errs, field.NotSupported(here.Child("containers").Index(0).Child("name"), w.Containers[0].Name, []string{WorkerContainer}))
	}
	if class := is.Annotations[AutoscalerClassAnnotation]; class != "none" {
		errs = append(errs, field.Invalid(autoscalerPath, class, "a predictor over several nodes isn't scaled; set it to none"))
	}
	found := sources(p)
	if len(found) == 0 || !slices.ContainsFunc([]string{"pvc://", "oci://", "oci+native://", "oci+modelcar://", "oci+fetch://"}, func(s string) bool { return strings.HasPrefix(found[0], s) }) {
		errs = append(errs, field.Invalid(at.Child("model", "storageUri"), strings.Join(found, ", "), "workers share the model, so it must be on pvc:// or oci://"))
	}
	if m := modelOf(p); m != nil {
		errs = append(errs, forbidParallelEnv(m.Env, at.Child("model"))...)
	}
	for i := range w.Containers {
		errs = append(errs, forbidParallelEnv(w.Containers[i].Env, here.Child("containers").Index(i))...)
	}
	return append(errs, validatePod(&w.PodSpec, here)...)
}

func forbidParallelEnv(env []corev1.EnvVar, container *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i, e := range env {
		if slices.Contains(parallelEnv, e.Name) {
			errs = append(errs, field.Forbidden(container.Child("env").Index(i).Child("name"), e.Name+" is set from workerSpec; set the size there"))
		}
	}
	return errs
}

// validateCanaries checks the predictors that take a share of the traffic.
func validateCanaries(is *v1beta1.InferenceService, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	if len(is.Spec.Canary) == 0 {
		return nil
	}
	if mode := DeploymentMode(is, ""); mode != ModeStandard {
		errs = append(errs, field.Forbidden(at, fmt.Sprintf("canary needs deployment mode %s, not %s; use predictor.canaryTrafficPercent there", ModeStandard, mode)))
	}
	stable := &is.Spec.Predictor
	if stable.CanaryTrafficPercent != nil {
		errs = append(errs, field.Forbidden(field.NewPath("spec", "predictor", "canaryTrafficPercent"), "can't be combined with spec.canary; keep one of the two"))
	}
	names := map[string]bool{stable.Name: true}
	sum := int32(0)
	for i := range is.Spec.Canary {
		c := &is.Spec.Canary[i]
		p, here := &c.Predictor, at.Index(i).Child("predictor")
		switch {
		case p.Name == "":
			errs = append(errs, field.Required(here.Child("name"), "name the canary, differently from the stable predictor"))
		case names[p.Name]:
			errs = append(errs, field.Duplicate(here.Child("name"), p.Name))
		}
		names[p.Name] = true
		if c.TrafficPercent < 0 || c.TrafficPercent > 100 {
			errs = append(errs, field.Invalid(at.Index(i).Child("trafficPercent"), c.TrafficPercent, "must be 0 to 100"))
		}
		sum += min(max(c.TrafficPercent, 0), 100)
		if have := implementations(p); len(have) > 1 {
			errs = append(errs, validateImplementation(p, here)...)
		}
		errs = append(errs, validatePredictor(p, here)...)
		errs = append(errs, validateExtension(&p.ComponentExtensionSpec, is, here)...)
		errs = append(errs, forbidInCanary(p, stable, here)...)
	}
	if sum > 100 {
		errs = append(errs, field.Invalid(at, sum, "all canaries together may take at most 100 percent"))
	}
	return errs
}

// forbidInCanary refuses what a canary takes from the stable predictor.
func forbidInCanary(p, stable *v1beta1.PredictorSpec, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	for _, f := range []struct {
		name string
		set  bool
	}{
		{"workerSpec", p.WorkerSpec != nil},
		{"maxReplicas", p.MaxReplicas != 0},
		{"scaleTarget", p.ScaleTarget != nil},
		{"scaleMetric", p.ScaleMetric != nil},
		{"autoScaling", p.AutoScaling != nil},
		{"canaryTrafficPercent", p.CanaryTrafficPercent != nil},
	} {
		if f.set {
			errs = append(errs, field.Forbidden(at.Child(f.name), "a canary follows its share of the traffic and the stable predictor's scaling; remove it"))
		}
	}
	most := int32(1)
	if stable.MinReplicas != nil {
		most = *stable.MinReplicas
	}
	if p.MinReplicas != nil && *p.MinReplicas > most {
		errs = append(errs, field.Invalid(at.Child("minReplicas"), *p.MinReplicas, fmt.Sprintf("must be no more than the stable predictor's, %d", most)))
	}
	return errs
}
