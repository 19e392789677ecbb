package kubeapi

import (
	"context"
	"fmt"
	"io"
	"net"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	extensions "k8s.io/apiextensions-apiserver/pkg/apiserver"
	extensionsoptions "k8s.io/apiextensions-apiserver/pkg/cmd/server/options"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	apiversion "k8s.io/apimachinery/pkg/version"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/authenticatorfactory"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizerfactory"
	"k8s.io/apiserver/pkg/endpoints/discovery/aggregated"
	openapinamer "k8s.io/apiserver/pkg/endpoints/openapi"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	basecompatibility "k8s.io/component-base/compatibility"
	baseversion "k8s.io/component-base/version"
	"k8s.io/kube-openapi/pkg/builder3"
	"k8s.io/kube-openapi/pkg/common/restfuladapter"

	"stationmaster.dev/stationmaster/internal/kubeapi/openapi"
)

// stopWithin bounds how long open watches hold up the end of the server, and then open
// connections.
const stopWithin = 2 * time.Second

// api is the two servers in one another: the outer one has the built-in kinds, discovery and the
// listener, and passes the rest on to the inner one, which serves custom resources.
type api struct {
	outer      *genericapiserver.GenericAPIServer
	inner      *extensions.CustomResourceDefinitions
	namespaces *namespaces
	loopback   *rest.Config
}

func newAPI(cfg Config, db *store, l net.Listener, creds *credentials) (*api, error) {
	s := newScheme()
	codecs := newCodecs(s)
	discovery := aggregated.NewResourceManager("apis") // one for both, or discovery has half of it
	authn := authenticatorfactory.NewFromTokens(map[string]*user.DefaultInfo{
		creds.adminToken: {Name: adminUser, Groups: []string{user.SystemPrivilegedGroup, user.AllAuthenticated}},
	}, nil)

	// The inner server.
	o, base, err := configure(extensions.Codecs, extensions.Scheme, s, db, authn, discovery)
	if err != nil {
		return nil, err
	}
	if err := serve(o, base, l, creds); err != nil {
		return nil, err
	}
	if err := o.RecommendedOptions.Etcd.ApplyTo(&base.Config); err != nil {
		return nil, fmt.Errorf("connect custom resources to etcd: %w", err)
	}
	if err := o.APIEnablement.ApplyTo(&base.Config, extensions.DefaultAPIResourceConfigSource(), extensions.Scheme); err != nil {
		return nil, fmt.Errorf("enable custom resources: %w", err)
	}

	// The outer server's configuration, made first because the inner one's admission needs the
	// namespaces.
	outerOpts, outerCfg, err := configure(codecs, s, s, db, authn, discovery)
	if err != nil {
		return nil, err
	}
	outerOpts.RecommendedOptions.Etcd.SkipHealthEndpoints = true // the inner server's are taken over
	outerOpts.RecommendedOptions.Etcd.StorageConfig.Prefix = "/registry/stationmaster"
	outerOpts.RecommendedOptions.Etcd.StorageConfig.Codec = storageCodec(codecs, s)
	if err := outerOpts.RecommendedOptions.Etcd.ApplyTo(&outerCfg.Config); err != nil {
		return nil, fmt.Errorf("connect the built-in kinds to etcd: %w", err)
	}
	outerCfg.SecureServing, outerCfg.LoopbackClientConfig = base.SecureServing, base.LoopbackClientConfig
	byGroup, ns, err := newCore(s, outerCfg.RESTOptionsGetter)
	if err != nil {
		return nil, err
	}
	checks := []admission.Interface{gate{ns}}
	outerCfg.AdmissionControl = admission.NewChainHandler(checks...)
	if cfg.Admission != nil {
		checks = append(checks, custom{cfg.Admission})
	}
	base.AdmissionControl = admission.NewChainHandler(checks...)

	ext := &extensions.Config{GenericConfig: base, ExtraConfig: extensions.ExtraConfig{
		CRDRESTOptionsGetter: extensionsoptions.NewCRDRESTOptionsGetter(*o.RecommendedOptions.Etcd, base.ResourceTransformers, base.StorageObjectCountTracker),
		MasterCount:          1,
	}}
	inner, err := ext.Complete().New(genericapiserver.NewEmptyDelegate())
	if err != nil {
		return nil, fmt.Errorf("make the custom resource server: %w", err)
	}
	outer, err := outerCfg.Complete().New("stationmaster", inner.GenericAPIServer)
	if err != nil {
		return nil, fmt.Errorf("make the API server: %w", err)
	}
	for group, storage := range byGroup {
		info := genericapiserver.NewDefaultAPIGroupInfo(group, s, metav1.ParameterCodec, codecs)
		info.VersionedResourcesStorageMap["v1"] = storage
		if group == "" {
			err = outer.InstallLegacyAPIGroup(genericapiserver.DefaultLegacyAPIPrefix, &info)
		} else {
			err = outer.InstallAPIGroup(&info)
		}
		if err != nil {
			return nil, fmt.Errorf("install API group %q: %w", group, err)
		}
	}
	outer.ShutdownTimeout = stopWithin // a watch would hold it up for its 60 s
	a := &api{outer: outer, inner: inner, namespaces: ns, loopback: outer.LoopbackClientConfig}
	return a, a.listGroups()
}

// configure makes one server's configuration: how it reaches etcd, who may use it, and what its
// documents say.
func configure(codecs serializer.CodecFactory, own, core *runtime.Scheme, db *store, authn authenticator.Request, discovery aggregated.ResourceManager) (*extensionsoptions.CustomResourceDefinitionsServerOptions, *genericapiserver.RecommendedConfig, error) {
	o := extensionsoptions.NewCustomResourceDefinitionsServerOptions(io.Discard, io.Discard)
	etcd := o.RecommendedOptions.Etcd
	etcd.StorageConfig.Transport.ServerList = []string{etcdEndpoint}
	etcd.StorageConfig.Transport.EgressLookup = db.egress
	// Objects are few and etcd is in this process: a second copy of them all would cost more than
	// it saves.
	etcd.EnableWatchCache = false
	etcd.EnableGarbageCollection = false // see docs/adr/0001: nothing here would take the finalizers away
	cfg := genericapiserver.NewRecommendedConfig(codecs)
	if err := o.ServerRunOptions.ApplyTo(&cfg.Config); err != nil {
		return nil, nil, fmt.Errorf("configure the API server: %w", err)
	}
	cfg.ShutdownWatchTerminationGracePeriod = stopWithin
	cfg.EffectiveVersion = kubeVersion{cfg.EffectiveVersion}
	cfg.EnableProfiling = false // the admin port has it
	cfg.Authentication.Authenticator = authn
	cfg.Authorization.Authorizer = authorizerfactory.NewPrivilegedGroups(user.SystemPrivilegedGroup)
	cfg.AggregatedDiscoveryGroupManager = discovery
	namer := openapinamer.NewDefinitionNamer(core, extensions.Scheme)
	if own == core {
		cfg.OpenAPIConfig = genericapiserver.DefaultOpenAPIConfig(openapi.GetOpenAPIDefinitions, namer)
		cfg.OpenAPIConfig.Info.Title = "Stationmaster"
	}
	cfg.OpenAPIV3Config = genericapiserver.DefaultOpenAPIV3Config(openapi.GetOpenAPIDefinitions, namer)
	cfg.OpenAPIV3Config.Info.Title = "Stationmaster"
	return o, cfg, nil
}

// serve gives the configuration its listener, certificates and loopback client.
func serve(o *extensionsoptions.CustomResourceDefinitionsServerOptions, cfg *genericapiserver.RecommendedConfig, l net.Listener, creds *credentials) error {
	cert, err := dynamiccertificates.NewStaticCertKeyContent("serving", creds.certPEM, creds.keyPEM)
	if err != nil {
		return fmt.Errorf("load the API's certificate: %w", err)
	}
	secure := o.RecommendedOptions.SecureServing
	secure.Listener = l
	secure.ServerCert.GeneratedCert = cert
	if err := secure.ApplyTo(&cfg.SecureServing, &cfg.LoopbackClientConfig); err != nil {
		return fmt.Errorf("configure TLS: %w", err)
	}
	cfg.LoopbackClientConfig.QPS = -1 // no limit of the client's own
	return nil
}

// storageCodec writes the built-in kinds as protobuf.
func storageCodec(codecs serializer.CodecFactory, s *runtime.Scheme) runtime.Codec {
	info, ok := runtime.SerializerInfoForMediaType(codecs.SupportedMediaTypes(), runtime.ContentTypeProtobuf)
	if !ok {
		panic("BUG: no protobuf serializer")
	}
	var versions schema.GroupVersions
	for _, gv := range s.PrioritizedVersionsAllGroups() {
		if gv.Version != runtime.APIVersionInternal {
			versions = append(versions, gv)
		}
	}
	var internal schema.GroupVersions
	for _, gv := range versions {
		internal = append(internal, schema.GroupVersion{Group: gv.Group, Version: runtime.APIVersionInternal})
	}
	return codecs.CodecForVersions(info.Serializer, codecs.UniversalDeserializer(), versions, internal)
}

// run serves until ctx is done.
func (a *api) run(ctx context.Context) error {
	prepared := a.outer.PrepareRun()
	// The inner server publishes what it learns of custom resources in its own documents. Giving
	// it the outer server's makes one document of both, which kubectl explain reads.
	in := a.inner.GenericAPIServer
	services := restfuladapter.AdaptWebServices(in.Handler.GoRestfulContainer.RegisteredWebServices())
	in.StaticOpenAPISpec = a.outer.StaticOpenAPISpec
	in.OpenAPIVersionedService = a.outer.OpenAPIVersionedService
	in.OpenAPIV3VersionedService = a.outer.OpenAPIV3VersionedService
	namer := openapinamer.NewDefinitionNamer(extensions.Scheme)
	v3 := genericapiserver.DefaultOpenAPIV3Config(openapi.GetOpenAPIDefinitions, namer)
	spec, err := builder3.BuildOpenAPISpecFromRoutes(services, v3)
	if err != nil {
		return fmt.Errorf("describe custom resource definitions: %w", err)
	}
	a.outer.OpenAPIV3VersionedService.UpdateGroupVersion("apis/"+apiextensionsv1.SchemeGroupVersion.String(), spec)
	return prepared.RunWithContext(ctx)
}

// listGroups keeps the groups of custom resources in the plain list of groups at /apis, which
// clients of before aggregated discovery read.
func (a *api) listGroups() error {
	groups := a.outer.DiscoveryGroupManager
	own := apiextensionsv1.SchemeGroupVersion
	groups.AddGroup(groupOf(own.Group, []string{own.Version}))
	crds := a.inner.Informers.Apiextensions().V1().CustomResourceDefinitions()
	refresh := func(group string) {
		all := crds.Informer().GetStore().List()
		var versions []string
		for _, o := range all {
			crd, ok := o.(*apiextensionsv1.CustomResourceDefinition)
			if !ok || crd.Spec.Group != group || !established(crd) {
				continue
			}
			for _, v := range crd.Spec.Versions {
				if v.Served && !slices.Contains(versions, v.Name) {
					versions = append(versions, v.Name)
				}
			}
		}
		if len(versions) == 0 {
			groups.RemoveGroup(group)
			return
		}
		groups.AddGroup(groupOf(group, versions))
	}
	each := func(o any) {
		if d, ok := o.(cache.DeletedFinalStateUnknown); ok {
			o = d.Obj
		}
		if crd, ok := o.(*apiextensionsv1.CustomResourceDefinition); ok {
			refresh(crd.Spec.Group)
		}
	}
	_, err := crds.Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: each, DeleteFunc: each, UpdateFunc: func(_, o any) { each(o) },
	})
	return err
}

func groupOf(group string, versions []string) metav1.APIGroup {
	slices.SortFunc(versions, newestFirst)
	g := metav1.APIGroup{Name: group}
	for _, v := range versions {
		g.Versions = append(g.Versions, metav1.GroupVersionForDiscovery{GroupVersion: group + "/" + v, Version: v})
	}
	g.PreferredVersion = g.Versions[0]
	return g
}

// kubeVersion answers /version with the release of Kubernetes whose libraries serve here, which
// clients compare with their own.
type kubeVersion struct {
	basecompatibility.EffectiveVersion
}

// Info returns the version, with our name as its build metadata.
func (v kubeVersion) Info() *apiversion.Info {
	info := v.EffectiveVersion.Info()
	release := "v" + baseversion.DefaultKubeBinaryVersion + ".0"
	if build, ok := debug.ReadBuildInfo(); ok {
		for _, dep := range build.Deps {
			if minor, ok := strings.CutPrefix(dep.Version, "v0."); ok && dep.Path == "k8s.io/apiserver" {
				release = "v1." + minor
			}
		}
	}
	parts := strings.SplitN(strings.TrimPrefix(release, "v"), ".", 3)
	info.Major, info.Minor, info.GitVersion = parts[0], parts[1], release+"+stationmaster"
	return info
}
