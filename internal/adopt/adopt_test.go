package adopt_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/yaml"

	"stationmaster.dev/stationmaster/api/serving/v1beta1"
	smv1alpha1 "stationmaster.dev/stationmaster/api/stationmaster/v1alpha1"
	"stationmaster.dev/stationmaster/internal/adopt"
	"stationmaster.dev/stationmaster/internal/errdef"
	"stationmaster.dev/stationmaster/internal/spec"
)

func service(t *testing.T) *v1beta1.InferenceService {
	t.Helper()
	is := &v1beta1.InferenceService{}
	if err := yaml.UnmarshalStrict([]byte(`
apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
metadata: {name: iris, namespace: team, uid: "1"}
spec: {predictor: {containers: [{name: kserve-container, image: "engine:1"}]}}
`), is); err != nil {
		t.Fatal(err)
	}
	return is
}

// by makes somebody the controller of an object.
func by(kind, name string, uid types.UID) []metav1.OwnerReference {
	yes := true
	return []metav1.OwnerReference{{APIVersion: "v1", Kind: kind, Name: name, UID: uid, Controller: &yes}}
}

// deployed is what KServe makes of the service: a Deployment, its ReplicaSet and a pod.
func deployed(image string) []client.Object {
	labels := map[string]string{"app": "isvc.iris-predictor", "pod-template-hash": "abc"}
	d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "iris-predictor", UID: "2", OwnerReferences: by("InferenceService", "iris", "1")}}
	d.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": "isvc.iris-predictor"}}
	r := &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "iris-predictor-abc", UID: "3", Labels: labels, OwnerReferences: by("Deployment", d.Name, "2")}}
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "iris-predictor-abc-1", UID: "4", Labels: labels, OwnerReferences: by("ReplicaSet", r.Name, "3")}}
	p.Spec.Containers = []corev1.Container{{Name: "kserve-container", Image: image, Env: []corev1.EnvVar{{Name: "INFERENCE_SERVICE_NAME", Value: "iris"}}}}
	return []client.Object{d, r, p}
}

func run(t *testing.T, dry bool, objects ...client.Object) (client.Client, []adopt.Result, error) {
	t.Helper()
	scheme, err := adopt.Scheme()
	if err != nil {
		t.Fatal(err)
	}
	api := fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).Build()
	results, err := adopt.Run(t.Context(), adopt.Config{API: api, Namespace: "team", Image: "stationmaster:1", DryRun: dry, Every: time.Millisecond})
	return api, results, err
}

func TestVerdicts(t *testing.T) {
	rolling := deployed("engine:1")
	rolling[0].(*appsv1.Deployment).Status = appsv1.DeploymentStatus{Replicas: 2, UpdatedReplicas: 1}
	canary := service(t)
	canary.Spec.Canary = []v1beta1.CanarySpec{{}}
	made := &smv1alpha1.Revision{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "iris-predictor-00001", Labels: map[string]string{"serving.kserve.io/inferenceservice": "iris"}}}
	made.Spec.Component = "predictor"
	ready := service(t)
	ready.Status.Conditions = []v1beta1.Condition{{Type: v1beta1.ConditionReady, Status: corev1.ConditionTrue}}
	for name, tc := range map[string]struct {
		objects []client.Object
		verdict adopt.Verdict
		why     string
	}{
		"pods as they would be made here":     {append(deployed("engine:1"), service(t)), adopt.Adopted, ""},
		"pods of another image":               {append(deployed("engine:0"), service(t)), adopt.WouldRestart, "kserve-container.image"},
		"a rollout under way":                 {append(rolling, service(t)), adopt.NotPossible, "being rolled out"},
		"named canaries":                      {append(deployed("engine:1"), canary), adopt.NotPossible, "promote the canary"},
		"a service without a Deployment":      {[]client.Object{service(t)}, adopt.NotPossible, "no Deployment"},
		"one that the operator serves":        {[]client.Object{service(t), made}, adopt.Ours, ""},
		"one that the operator just rolls":    {append(deployed("engine:0"), service(t), made), adopt.NotPossible, "isn't Ready"},
		"one that the operator has replaced":  {append(deployed("engine:0"), ready, made), adopt.CleanedUp, "isn't needed"},
		"a Deployment that isn't of KServe's": {append(unowned(), service(t)), adopt.NotPossible, "no Deployment"},
	} {
		t.Run(name, func(t *testing.T) {
			api, results, err := run(t, true, tc.objects...)
			if err != nil || len(results) != 1 {
				t.Fatalf("%v, %v", results, err)
			}
			r := results[0]
			if r.Service != "iris" || r.Component != spec.Predictor || r.Verdict != tc.verdict || !strings.Contains(strings.Join(r.Why, ", "), tc.why) {
				t.Errorf("it is %+v", r)
			}
			for _, o := range tc.objects {
				before := o.GetResourceVersion()
				if err := api.Get(t.Context(), client.ObjectKeyFromObject(o), o); err != nil || (before != "" && o.GetResourceVersion() != before) {
					t.Errorf("a dry run changed %T %s (%v)", o, o.GetName(), err)
				}
			}
		})
	}
}

func unowned() []client.Object {
	objects := deployed("engine:1")
	objects[0].SetOwnerReferences(nil)
	return objects
}

// check looks at what a run has left: the pod, ours, under a ReplicaSet that the operator's
// Deployment will take.
func check(t *testing.T, api client.Client) {
	t.Helper()
	var pod corev1.Pod
	if err := api.Get(t.Context(), client.ObjectKey{Namespace: "team", Name: "iris-predictor-abc-1"}, &pod); err != nil {
		t.Fatal(err)
	}
	if pod.UID != "4" || pod.Labels["stationmaster.dev/revision"] != "iris-predictor-00001" || pod.Annotations["stationmaster.dev/server"] != "kserve-container" {
		t.Errorf("the pod is %+v", pod.ObjectMeta)
	}
	var set appsv1.ReplicaSet
	if err := api.Get(t.Context(), client.ObjectKey{Namespace: "team", Name: "iris-predictor-00001-abc"}, &set); err != nil {
		t.Fatal(err)
	}
	selector, err := metav1.LabelSelectorAsSelector(set.Spec.Selector)
	if err != nil {
		t.Fatal(err)
	}
	if *set.Spec.Replicas != 1 || set.Spec.Template.Labels["pod-template-hash"] != "abc" || !selector.Matches(labels.Set(pod.Labels)) {
		t.Errorf("the ReplicaSet is %+v", set)
	}
	for _, o := range []client.Object{&appsv1.Deployment{}, &appsv1.ReplicaSet{}} {
		name := map[bool]string{true: "iris-predictor", false: "iris-predictor-abc"}[isDeployment(o)]
		if err := api.Get(t.Context(), client.ObjectKey{Namespace: "team", Name: name}, o); err == nil {
			t.Errorf("KServe's %T is there", o)
		}
	}
}

func isDeployment(o client.Object) bool { _, ok := o.(*appsv1.Deployment); return ok }

func TestPodsPassToOurReplicaSet(t *testing.T) {
	api, results, err := run(t, false, append(deployed("engine:1"), service(t))...)
	if err != nil || results[0].Verdict != adopt.Adopted {
		t.Fatalf("%v, %v", results, err)
	}
	check(t, api)
}

func TestARunThatBrokeOffIsEnded(t *testing.T) {
	api, _, err := run(t, false, append(deployed("engine:1"), service(t))...)
	if err != nil {
		t.Fatal(err)
	}
	// It got as far as to set the pods free.
	var pod corev1.Pod
	if err := api.Get(t.Context(), client.ObjectKey{Namespace: "team", Name: "iris-predictor-abc-1"}, &pod); err != nil {
		t.Fatal(err)
	}
	pod.OwnerReferences, pod.ResourceVersion = nil, ""
	api, results, err := run(t, false, &pod, service(t))
	if err != nil || results[0].Verdict != adopt.Adopted {
		t.Fatalf("%v, %v", results, err)
	}
	check(t, api)
}

func TestNothingIsTakenWhileKServeCouldTakeItBack(t *testing.T) {
	controller := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "kserve", Name: "kserve-controller-manager"}}
	hook := &admissionv1.MutatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: "inferenceservice.serving.kserve.io"}}
	hook.Webhooks = []admissionv1.MutatingWebhook{{Name: "w", ClientConfig: admissionv1.WebhookClientConfig{
		Service: &admissionv1.ServiceReference{Namespace: "kserve", Name: "kserve-webhook-server-service"},
	}}}
	for name, tc := range map[string]struct {
		object client.Object
		advice string
	}{
		"the controller": {controller, "kubectl -n kserve scale deployment kserve-controller-manager --replicas=0"},
		"a webhook":      {hook, "kubectl delete mutatingwebhookconfiguration/inferenceservice.serving.kserve.io"},
	} {
		t.Run(name, func(t *testing.T) {
			api, results, err := run(t, false, append(deployed("engine:1"), service(t), tc.object)...)
			if !errors.Is(err, errdef.ErrConflict) || !strings.Contains(err.Error(), tc.advice) || results != nil {
				t.Errorf("answers %v, %v", results, err)
			}
			if err := api.Get(t.Context(), client.ObjectKey{Namespace: "team", Name: "iris-predictor"}, &appsv1.Deployment{}); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestTheOperatorsWayWithImagesCounts has an operator whose setting nobody knows, which shows that it is read.
func TestTheOperatorsWayWithImagesCounts(t *testing.T) {
	operator := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "system", Name: "stationmaster-operator", Labels: map[string]string{"app.kubernetes.io/name": "stationmaster-operator"}}}
	operator.Spec.Template.Spec.Containers = []corev1.Container{{Name: "operator", Args: []string{"operator", "--oci-delivery=pigeon"}}}
	said := func(results []adopt.Result, err error) string { return fmt.Sprint(results, err) }
	_, results, err := run(t, true, append(deployed("engine:1"), service(t), operator)...)
	if got := said(results, err); !strings.Contains(got, `"pigeon" is no way to deliver`) {
		t.Errorf("it says %s", got)
	}
	operator.Spec.Template.Spec.Containers[0].Args[1] = "--oci-delivery=modelcar"
	_, results, err = run(t, true, append(deployed("engine:1"), service(t), operator)...)
	if got := said(results, err); strings.Contains(got, "oci-delivery") {
		t.Errorf("it says %s", got)
	}
}
