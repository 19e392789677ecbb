package kube_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
)

// cluster is a Kubernetes API as small as the platform's tests allow: objects that are listed,
// watched, applied and deleted, and Deployments whose pods are there at once, ready or, where
// the command is "fail", crashing. What it can't show, the suite against a real cluster does.
type cluster struct {
	*httptest.Server
	mu       sync.Mutex
	version  int
	objects  map[string]*unstructured.Unstructured // by "resource/namespace/name"
	watchers map[*watcher]bool
	// writes are the requests that change something, e.g. "PATCH deployments/default/iris-1".
	writes []string
	// refuse returns the status that an applied object is refused with; nil takes all.
	refuse func(*unstructured.Unstructured) *metav1.Status
	// warns are said of what is applied without storing it.
	warns []string
	// frozen keeps events from watchers until thaw.
	frozen bool
	held   []func()
	made   int
	// keda says that the kind ScaledObject is known.
	keda bool
	// lws says that the kind LeaderWorkerSet is.
	lws bool
	// replicasOf names who set the replicas of Deployments, by key.
	replicasOf map[string]string
}

var status = metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}

type watcher struct {
	resource string
	selector labels.Selector
	// heads says that the watcher wants metadata alone.
	heads  bool
	events chan []byte
}

func newCluster(t *testing.T) *cluster {
	t.Helper()
	c := &cluster{objects: map[string]*unstructured.Unstructured{}, watchers: map[*watcher]bool{}, replicasOf: map[string]string{}}
	c.Server = httptest.NewServer(c)
	t.Cleanup(func() {
		c.CloseClientConnections()
		c.Close()
	})
	return c
}

func (c *cluster) config() *rest.Config {
	return &rest.Config{Host: c.URL, QPS: -1, ContentConfig: rest.ContentConfig{ContentType: "application/json", AcceptContentTypes: "application/json"}}
}

// ServeHTTP answers the verbs that clients of the platform use.
func (c *cluster) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	parts := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	if len(parts) == 3 && parts[0] == "apis" {
		c.discover(w)
		return
	}
	// api/v1/…, apis/group/version/…
	if parts[0] == "api" {
		parts = parts[2:]
	} else {
		parts = parts[3:]
	}
	var namespace, name string
	if parts[0] == "namespaces" {
		namespace, parts = parts[1], parts[2:]
	}
	resource := parts[0]
	if len(parts) > 1 {
		name = parts[1]
	}
	key := resource + "/" + namespace + "/" + name
	if !c.has(resource) {
		notFound(w)
		return
	}
	switch {
	case r.Method == http.MethodGet && r.URL.Query().Get("watch") != "":
		c.watch(w, r, resource)
	case r.Method == http.MethodGet && name == "":
		c.list(w, r, resource)
	case r.Method == http.MethodGet:
		c.answer(w, key)
	case r.Method == http.MethodPatch && r.Header.Get("Content-Type") == string(types.MergePatchType):
		c.annotate(w, r, key)
	case r.Method == http.MethodPatch:
		c.apply(w, r, key)
	case r.Method == http.MethodPut:
		c.replace(w, r, key)
	case r.Method == http.MethodDelete:
		c.delete(w, key)
	default:
		http.Error(w, r.Method+" "+r.URL.Path, http.StatusNotImplemented)
	}
}

// has says whether the cluster knows a kind.
func (c *cluster) has(resource string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch resource {
	case "scaledobjects":
		return c.keda
	case "leaderworkersets":
		return c.lws
	}
	return true
}

// discover tells which of the kinds that a cluster may lack it has.
func (c *cluster) discover(w http.ResponseWriter) {
	var has metav1.APIResourceList
	for _, resource := range []string{"scaledobjects", "leaderworkersets"} {
		if c.has(resource) {
			has.APIResources = append(has.APIResources, metav1.APIResource{Name: resource, Namespaced: true})
		}
	}
	reply(w, has)
}

func (c *cluster) answer(w http.ResponseWriter, key string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if o := c.objects[key]; o != nil {
		reply(w, o.Object)
		return
	}
	notFound(w)
}

func notFound(w http.ResponseWriter) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusNotFound)
	_ = json.NewEncoder(w).Encode(metav1.Status{TypeMeta: status, Status: "Failure", Reason: metav1.StatusReasonNotFound, Code: http.StatusNotFound})
}

// scaleTo sets a Deployment's replicas as its scale subresource does.
func (c *cluster) scaleTo(key string, n int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	o := c.objects[key].DeepCopy()
	_ = unstructured.SetNestedField(o.Object, n, "spec", "replicas")
	c.replicasOf[key] = "scale"
	c.put(key, o)
	c.rollOut(o)
}

// ownReplicas does to a Deployment's number of replicas what server-side apply does: who applies
// without a field that it owned alone takes it away, and the default is 1. The caller holds mu.
func (c *cluster) ownReplicas(key, manager string, o *unstructured.Unstructured) {
	if _, given, _ := unstructured.NestedInt64(o.Object, "spec", "replicas"); given {
		c.replicasOf[key] = manager
		return
	}
	n := int64(1)
	if old := c.objects[key]; old != nil && c.replicasOf[key] != manager {
		n, _, _ = unstructured.NestedInt64(old.Object, "spec", "replicas")
	} else {
		delete(c.replicasOf, key)
	}
	_ = unstructured.SetNestedField(o.Object, n, "spec", "replicas")
}

func selectorOf(r *http.Request) labels.Selector {
	s, err := labels.Parse(r.URL.Query().Get("labelSelector"))
	if err != nil {
		panic(err)
	}
	return s
}

func (c *cluster) list(w http.ResponseWriter, r *http.Request, resource string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	items := []any{}
	for key, o := range c.objects {
		if strings.HasPrefix(key, resource+"/") && selectorOf(r).Matches(labels.Set(o.GetLabels())) {
			items = append(items, o.Object)
		}
	}
	reply(w, map[string]any{"kind": "List", "apiVersion": "v1", "metadata": map[string]any{"resourceVersion": strconv.Itoa(c.version)}, "items": items})
}

func reply(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(v)
}

// watch streams all objects, a bookmark that says so, and then each change.
func (c *cluster) watch(w http.ResponseWriter, r *http.Request, resource string) {
	if r.URL.Query().Get("sendInitialEvents") == "" {
		// Clients that list first don't get changes made between the two here.
		http.Error(w, "watch with sendInitialEvents", http.StatusNotImplemented)
		return
	}
	x := &watcher{resource: resource, selector: selectorOf(r), heads: strings.Contains(r.Header.Get("Accept"), "as=PartialObjectMetadata"), events: make(chan []byte, 1000)}
	c.mu.Lock()
	for key, o := range c.objects {
		if strings.HasPrefix(key, resource+"/") {
			x.send("ADDED", o)
		}
	}
	mark := &unstructured.Unstructured{Object: map[string]any{}}
	kinds := map[string][2]string{
		"pods": {"v1", "Pod"}, "services": {"v1", "Service"}, "configmaps": {"v1", "ConfigMap"}, "deployments": {"apps/v1", "Deployment"},
		"poddisruptionbudgets": {"policy/v1", "PodDisruptionBudget"}, "networkpolicies": {"networking.k8s.io/v1", "NetworkPolicy"},
		"horizontalpodautoscalers": {"autoscaling/v2", "HorizontalPodAutoscaler"},
	}
	mark.SetAPIVersion(kinds[resource][0])
	mark.SetKind(kinds[resource][1])
	mark.SetResourceVersion(strconv.Itoa(c.version))
	mark.SetAnnotations(map[string]string{metav1.InitialEventsAnnotationKey: "true"})
	x.raw("BOOKMARK", mark)
	c.watchers[x] = true
	c.mu.Unlock()
	defer func() {
		c.mu.Lock()
		delete(c.watchers, x)
		c.mu.Unlock()
	}()
	w.Header().Set("Content-Type", "application/json")
	flush := http.NewResponseController(w)
	for {
		_ = flush.Flush()
		select {
		case e := <-x.events:
			if _, err := w.Write(e); err != nil {
				return
			}
		case <-r.Context().Done():
			return
		}
	}
}

func (x *watcher) send(kind string, o *unstructured.Unstructured) {
	if x.selector.Matches(labels.Set(o.GetLabels())) {
		x.raw(kind, o)
	}
}

func (x *watcher) raw(kind string, o *unstructured.Unstructured) {
	object := o.Object
	if x.heads {
		object = map[string]any{"apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata", "metadata": o.Object["metadata"]}
	}
	text, err := json.Marshal(map[string]any{"type": kind, "object": object})
	if err != nil {
		panic(err)
	}
	x.events <- append(text, '\n')
}

// tell sends an event to those who watch. The caller holds mu.
func (c *cluster) tell(kind, key string, o *unstructured.Unstructured) {
	o = o.DeepCopy()
	send := func() {
		for x := range c.watchers {
			if strings.HasPrefix(key, x.resource+"/") {
				x.send(kind, o)
			}
		}
	}
	if c.frozen {
		c.held = append(c.held, send)
		return
	}
	send()
}

// freeze keeps events back until thaw, as a slow API server does.
func (c *cluster) freeze() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.frozen = true
}

func (c *cluster) thaw() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.frozen = false
	for _, send := range c.held {
		send()
	}
	c.held = nil
}

// put stores an object with a new version and tells of it. The caller holds mu.
func (c *cluster) put(key string, o *unstructured.Unstructured) {
	kind := "MODIFIED"
	old := c.objects[key]
	if old == nil {
		kind = "ADDED"
		c.made++
		o.SetUID(types.UID(fmt.Sprintf("uid-%d", c.made)))
		o.SetCreationTimestamp(metav1.Now())
	}
	if old == nil || !reflect.DeepEqual(old.Object["spec"], o.Object["spec"]) {
		o.SetGeneration(o.GetGeneration() + 1)
	}
	c.version++
	o.SetResourceVersion(strconv.Itoa(c.version))
	c.objects[key] = o
	c.tell(kind, key, o)
}

// drop deletes an object and tells of it. The caller holds mu.
func (c *cluster) drop(key string) {
	o := c.objects[key]
	if o == nil {
		return
	}
	c.version++
	o.SetResourceVersion(strconv.Itoa(c.version))
	delete(c.objects, key)
	c.tell("DELETED", key, o)
}

func (c *cluster) apply(w http.ResponseWriter, r *http.Request, key string) {
	o := &unstructured.Unstructured{}
	if err := json.NewDecoder(r.Body).Decode(o); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.writes = append(c.writes, "PATCH "+key)
	if c.refuse != nil {
		if s := c.refuse(o); s != nil {
			s.TypeMeta = status
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(int(s.Code))
			_ = json.NewEncoder(w).Encode(s)
			return
		}
	}
	if r.URL.Query().Get("dryRun") != "" {
		for _, text := range c.warns {
			w.Header().Add("Warning", `299 - "`+text+`"`)
		}
		reply(w, o.Object)
		return
	}
	if old := c.objects[key]; old != nil {
		o.SetUID(old.GetUID())
		o.SetCreationTimestamp(old.GetCreationTimestamp())
		o.SetGeneration(old.GetGeneration())
		if s, ok := old.Object["status"]; ok {
			o.Object["status"] = s
		}
		// What belongs to others stays.
		if owners := old.GetManagedFields(); len(owners) > 0 {
			o.SetManagedFields(owners)
			had, _, _ := unstructured.NestedSlice(old.Object, "spec", "template", "spec", "containers")
			has, _, _ := unstructured.NestedSlice(o.Object, "spec", "template", "spec", "containers")
			_ = unstructured.SetNestedSlice(o.Object, append(has, had[len(has):]...), "spec", "template", "spec", "containers")
		}
	}
	if o.GetKind() == "Deployment" {
		manager := r.URL.Query().Get("fieldManager")
		if _, whole := o.Object["spec"].(map[string]any)["template"]; !whole && c.objects[key] != nil {
			n, _, _ := unstructured.NestedInt64(o.Object, "spec", "replicas")
			o = c.objects[key].DeepCopy()
			_ = unstructured.SetNestedField(o.Object, n, "spec", "replicas")
		}
		c.ownReplicas(key, manager, o)
		// A default, as the real API adds many.
		_ = unstructured.SetNestedField(o.Object, "Always", "spec", "template", "spec", "restartPolicy")
	}
	c.put(key, o)
	reply(w, o.Object)
	if o.GetKind() == "Deployment" {
		c.rollOut(o)
	}
}

// replace stores an object as it is sent.
func (c *cluster) replace(w http.ResponseWriter, r *http.Request, key string) {
	o := &unstructured.Unstructured{}
	if err := json.NewDecoder(r.Body).Decode(o); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.writes = append(c.writes, "PUT "+key)
	_ = unstructured.SetNestedField(o.Object, "Always", "spec", "template", "spec", "restartPolicy")
	c.put(key, o)
	reply(w, o.Object)
	c.rollOut(o)
}

// annotate is a merge patch of an object's annotations.
func (c *cluster) annotate(w http.ResponseWriter, r *http.Request, key string) {
	var patch struct {
		Metadata struct{ Annotations map[string]string }
	}
	if err := json.NewDecoder(r.Body).Decode(&patch); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.writes = append(c.writes, "PATCH "+key)
	o := c.objects[key]
	if o == nil {
		notFound(w)
		return
	}
	o = o.DeepCopy()
	annotations := o.GetAnnotations()
	if annotations == nil {
		annotations = map[string]string{}
	}
	maps.Copy(annotations, patch.Metadata.Annotations)
	o.SetAnnotations(annotations)
	c.put(key, o)
	reply(w, o.Object)
}

func (c *cluster) delete(w http.ResponseWriter, key string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.writes = append(c.writes, "DELETE "+key)
	o := c.objects[key]
	if o == nil {
		notFound(w)
		return
	}
	if o.GetKind() == "Deployment" {
		o = o.DeepCopy()
		_ = unstructured.SetNestedField(o.Object, int64(0), "spec", "replicas")
		c.rollOut(o)
	}
	c.drop(key)
	reply(w, metav1.Status{TypeMeta: status, Status: "Success"})
}

// rollOut makes a Deployment's pods what it asks for. The caller holds mu.
func (c *cluster) rollOut(d *unstructured.Unstructured) {
	want, _, _ := unstructured.NestedInt64(d.Object, "spec", "replicas")
	template, _, _ := unstructured.NestedMap(d.Object, "spec", "template")
	var have []string
	for key, o := range c.objects {
		if !strings.HasPrefix(key, "pods/"+d.GetNamespace()+"/"+d.GetName()+"-") {
			continue
		}
		hash, _, _ := unstructured.NestedString(template, "metadata", "labels", "stationmaster.dev/hash")
		if o.GetLabels()["stationmaster.dev/hash"] == hash {
			have = append(have, key)
		} else {
			c.drop(key)
		}
	}
	slices.Sort(have)
	for ; int64(len(have)) > want; have = have[:len(have)-1] {
		c.drop(have[len(have)-1])
	}
	for n := int64(len(have)); n < want; n++ {
		c.made++
		p := &unstructured.Unstructured{Object: (&unstructured.Unstructured{Object: template}).DeepCopy().Object}
		p.SetAPIVersion("v1")
		p.SetKind("Pod")
		p.SetNamespace(d.GetNamespace())
		p.SetName(fmt.Sprintf("%s-%06d", d.GetName(), c.made))
		p.Object["status"] = podStatus(p)
		c.put("pods/"+p.GetNamespace()+"/"+p.GetName(), p)
	}
}

func podStatus(p *unstructured.Unstructured) map[string]any {
	containers, _, _ := unstructured.NestedSlice(p.Object, "spec", "containers")
	first, _ := containers[0].(map[string]any)
	command, _, _ := unstructured.NestedStringSlice(first, "command")
	now := time.Now().UTC().Format(time.RFC3339)
	ready, state := "True", map[string]any{"running": map[string]any{"startedAt": now}}
	if len(command) > 0 && command[0] == "fail" {
		ready, state = "False", map[string]any{"terminated": map[string]any{"exitCode": int64(3), "finishedAt": now, "reason": "Error"}}
	}
	_ = unstructured.SetNestedField(p.Object, "node", "spec", "nodeName")
	return map[string]any{
		"phase": "Running", "podIP": "10.0.0.1",
		"conditions":        []any{map[string]any{"type": "Ready", "status": ready, "lastTransitionTime": now}},
		"containerStatuses": []any{map[string]any{"name": first["name"], "image": "i", "imageID": "", "ready": ready == "True", "restartCount": int64(0), "state": state}},
	}
}

// edit changes an object behind the platform's back.
func (c *cluster) edit(key string, change func(*unstructured.Unstructured)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	o := c.objects[key].DeepCopy()
	change(o)
	c.put(key, o)
	if o.GetKind() == "Deployment" {
		c.rollOut(o)
	}
}

// get returns an object, nil when there is none.
func (c *cluster) get(key string) *unstructured.Unstructured {
	c.mu.Lock()
	defer c.mu.Unlock()
	if o := c.objects[key]; o != nil {
		return o.DeepCopy()
	}
	return nil
}

// keys lists what there is but pods, sorted.
func (c *cluster) keys() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var out []string
	for key := range c.objects {
		if !strings.HasPrefix(key, "pods/") {
			out = append(out, key)
		}
	}
	slices.Sort(out)
	return out
}

// written returns the writes since the last call.
func (c *cluster) written() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := c.writes
	c.writes = nil
	return out
}
