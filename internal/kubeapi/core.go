package kubeapi

import (
	"fmt"
	"maps"
	"strings"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apiserver/pkg/registry/generic"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
)

// eventTTL is how long an event is kept, as in Kubernetes.
const eventTTL = time.Hour

// newScheme knows the built-in kinds that are served. The versioned Go types serve as the
// internal ones too: each kind has one version, so there is nothing to convert.
func newScheme() *runtime.Scheme {
	s := runtime.NewScheme()
	metav1.AddToGroupVersion(s, schema.GroupVersion{Version: "v1"})
	add := func(gv schema.GroupVersion, types ...runtime.Object) {
		s.AddKnownTypes(gv, types...)
		s.AddKnownTypes(schema.GroupVersion{Group: gv.Group, Version: runtime.APIVersionInternal}, types...)
		metav1.AddToGroupVersion(s, gv)
		utilruntime.Must(s.SetVersionPriority(gv))
	}
	add(corev1.SchemeGroupVersion,
		&corev1.Namespace{}, &corev1.NamespaceList{},
		&corev1.Secret{}, &corev1.SecretList{},
		&corev1.ConfigMap{}, &corev1.ConfigMapList{},
		&corev1.ServiceAccount{}, &corev1.ServiceAccountList{},
		&corev1.Event{}, &corev1.EventList{},
		&corev1.PersistentVolumeClaim{}, &corev1.PersistentVolumeClaimList{})
	add(coordinationv1.SchemeGroupVersion, &coordinationv1.Lease{}, &coordinationv1.LeaseList{})
	add(authenticationv1.SchemeGroupVersion, &authenticationv1.SelfSubjectReview{})
	add(authorizationv1.SchemeGroupVersion, &authorizationv1.SelfSubjectAccessReview{}, &authorizationv1.SelfSubjectRulesReview{})

	s.AddTypeDefaultingFunc(&corev1.Namespace{}, func(o any) { defaultNamespace(o.(*corev1.Namespace)) })
	s.AddTypeDefaultingFunc(&corev1.Secret{}, func(o any) { defaultSecret(o.(*corev1.Secret)) })
	s.AddTypeDefaultingFunc(&corev1.PersistentVolumeClaim{}, func(o any) { defaultClaim(o.(*corev1.PersistentVolumeClaim)) })

	for kind, names := range map[string][]string{
		"Namespace": {"status.phase"},
		"Secret":    {"type"},
		"Event":     eventFields,
	} {
		utilruntime.Must(s.AddFieldLabelConversionFunc(corev1.SchemeGroupVersion.WithKind(kind), selectable(names)))
	}
	return s
}

// selectable accepts the field selectors that every kind has and the given ones.
func selectable(names []string) runtime.FieldLabelConversionFunc {
	return func(label, value string) (string, string, error) {
		if label == "metadata.name" || label == "metadata.namespace" {
			return label, value, nil
		}
		for _, n := range names {
			if label == n {
				return label, value, nil
			}
		}
		return "", "", fmt.Errorf("%q is not a field to select by: use metadata.name, metadata.namespace, %s", label, strings.Join(names, ", "))
	}
}

var eventFields = []string{
	"involvedObject.kind", "involvedObject.namespace", "involvedObject.name", "involvedObject.uid",
	"involvedObject.apiVersion", "involvedObject.resourceVersion", "involvedObject.fieldPath",
	"reason", "reportingComponent", "source", "type",
}

// attributes returns what an object can be selected by.
func attributes(o runtime.Object) (labels.Set, fields.Set, error) {
	m, ok := o.(metav1.Object)
	if !ok {
		return nil, nil, fmt.Errorf("BUG: %T has no metadata", o)
	}
	f := fields.Set{"metadata.name": m.GetName(), "metadata.namespace": m.GetNamespace()}
	switch o := o.(type) {
	case *corev1.Namespace:
		f["status.phase"] = string(o.Status.Phase)
	case *corev1.Secret:
		f["type"] = string(o.Type)
	case *corev1.Event:
		source := o.Source.Component
		if source == "" {
			source = o.ReportingController
		}
		maps.Copy(f, fields.Set{
			"involvedObject.kind":            o.InvolvedObject.Kind,
			"involvedObject.namespace":       o.InvolvedObject.Namespace,
			"involvedObject.name":            o.InvolvedObject.Name,
			"involvedObject.uid":             string(o.InvolvedObject.UID),
			"involvedObject.apiVersion":      o.InvolvedObject.APIVersion,
			"involvedObject.resourceVersion": o.InvolvedObject.ResourceVersion,
			"involvedObject.fieldPath":       o.InvolvedObject.FieldPath,
			"reason":                         o.Reason,
			"reportingComponent":             o.ReportingController,
			"source":                         source,
			"type":                           o.Type,
		})
	}
	return m.GetLabels(), f, nil
}

// resource says how a built-in kind is served.
type resource struct {
	group           string
	plural, single  string
	short           []string
	namespaced      bool
	newFunc, newLst func() runtime.Object
	columns         printer
	ttl             uint64 // seconds that an object is kept, 0 for ever
}

var resources = []resource{
	{
		plural: "namespaces", single: "namespace", short: []string{"ns"},
		newFunc: func() runtime.Object { return &corev1.Namespace{} },
		newLst:  func() runtime.Object { return &corev1.NamespaceList{} },
		columns: namespaceColumns,
	},
	{
		plural: "secrets", single: "secret", namespaced: true,
		newFunc: func() runtime.Object { return &corev1.Secret{} },
		newLst:  func() runtime.Object { return &corev1.SecretList{} },
		columns: secretColumns,
	},
	{
		plural: "configmaps", single: "configmap", short: []string{"cm"}, namespaced: true,
		newFunc: func() runtime.Object { return &corev1.ConfigMap{} },
		newLst:  func() runtime.Object { return &corev1.ConfigMapList{} },
		columns: configMapColumns,
	},
	{
		plural: "serviceaccounts", single: "serviceaccount", short: []string{"sa"}, namespaced: true,
		newFunc: func() runtime.Object { return &corev1.ServiceAccount{} },
		newLst:  func() runtime.Object { return &corev1.ServiceAccountList{} },
		columns: serviceAccountColumns,
	},
	{
		plural: "events", single: "event", short: []string{"ev"}, namespaced: true,
		newFunc: func() runtime.Object { return &corev1.Event{} },
		newLst:  func() runtime.Object { return &corev1.EventList{} },
		columns: eventColumns, ttl: uint64(eventTTL.Seconds()),
	},
	{
		plural: "persistentvolumeclaims", single: "persistentvolumeclaim", short: []string{"pvc"}, namespaced: true,
		newFunc: func() runtime.Object { return &corev1.PersistentVolumeClaim{} },
		newLst:  func() runtime.Object { return &corev1.PersistentVolumeClaimList{} },
		columns: claimColumns,
	},
	{
		group: coordinationv1.GroupName, plural: "leases", single: "lease", namespaced: true,
		newFunc: func() runtime.Object { return &coordinationv1.Lease{} },
		newLst:  func() runtime.Object { return &coordinationv1.LeaseList{} },
		columns: leaseColumns,
	},
}

// objects serves one kind: the library's store with the kind's short names.
type objects struct {
	*genericregistry.Store
	short []string
}

// ShortNames are what kubectl users may type for the kind.
func (o *objects) ShortNames() []string { return o.short }

func newObjects(s *runtime.Scheme, getter generic.RESTOptionsGetter, r resource) (*objects, error) {
	gr := schema.GroupResource{Group: r.group, Resource: r.plural}
	st := newStrategy(s, r.namespaced)
	store := &genericregistry.Store{
		NewFunc:                   r.newFunc,
		NewListFunc:               r.newLst,
		DefaultQualifiedResource:  gr,
		SingularQualifiedResource: schema.GroupResource{Group: r.group, Resource: r.single},
		CreateStrategy:            st,
		UpdateStrategy:            st,
		DeleteStrategy:            st,
		TableConvertor:            r.columns,
	}
	if r.ttl > 0 {
		store.TTLFunc = func(runtime.Object, uint64, bool) (uint64, error) { return r.ttl, nil }
	}
	if err := store.CompleteWithOptions(&generic.StoreOptions{RESTOptions: getter, AttrFunc: attributes}); err != nil {
		return nil, fmt.Errorf("open the store of %s: %w", gr, err)
	}
	return &objects{Store: store, short: r.short}, nil
}

// newCore opens the stores of the built-in kinds and returns them by group, with the namespaces
// apart.
func newCore(s *runtime.Scheme, getter generic.RESTOptionsGetter) (byGroup map[string]map[string]rest.Storage, ns *namespaces, err error) {
	byGroup = map[string]map[string]rest.Storage{}
	for _, r := range resources {
		o, err := newObjects(s, getter, r)
		if err != nil {
			return nil, nil, err
		}
		if byGroup[r.group] == nil {
			byGroup[r.group] = map[string]rest.Storage{}
		}
		if r.plural == "namespaces" {
			ns = newNamespaces(o)
			byGroup[""]["namespaces"] = ns
			byGroup[""]["namespaces/status"] = &namespacePart{store: ns.status}
			byGroup[""]["namespaces/finalize"] = &namespacePart{store: ns.finalize}
			continue
		}
		byGroup[r.group][r.plural] = o
	}
	byGroup[authenticationv1.GroupName] = map[string]rest.Storage{"selfsubjectreviews": whoAmI{}}
	byGroup[authorizationv1.GroupName] = map[string]rest.Storage{"selfsubjectaccessreviews": canI{}}
	return byGroup, ns, nil
}

func newCodecs(s *runtime.Scheme) serializer.CodecFactory { return serializer.NewCodecFactory(s) }
