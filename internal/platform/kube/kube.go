// Package kube runs workloads on a Kubernetes cluster: one Deployment per revision, so that
// canary, rollback and zero are the same plan as on one machine.
package kube

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"stationmaster.dev/stationmaster/api/serving/v1beta1"
	smv1alpha1 "stationmaster.dev/stationmaster/api/stationmaster/v1alpha1"
	"stationmaster.dev/stationmaster/internal/errdef"
	"stationmaster.dev/stationmaster/internal/manifest"
	"stationmaster.dev/stationmaster/internal/platform"
	"stationmaster.dev/stationmaster/internal/platform/kube/lws"
	"stationmaster.dev/stationmaster/internal/platform/kube/oci"
	"stationmaster.dev/stationmaster/internal/spec"
)

// Config is what the platform needs to know of its surroundings. Revisions is required.
type Config struct {
	// Revisions reads a Revision; it is called once for each assignment of an Apply, so it had
	// better answer from a cache. Pods are made from its pod template, not from the workload,
	// which lacks what only Kubernetes heeds.
	Revisions func(context.Context, spec.RevisionKey) (*smv1alpha1.Revision, error)
	// Service reads a service, of which assignments whose replicas are set elsewhere need the
	// autoscaling. It may be nil where there are none.
	Service func(context.Context, spec.ServiceKey) (*v1beta1.InferenceService, error)
	// Image is our own image, whose entrypoint is the stationmaster binary. It pulls models and
	// is the built-in runtime. Empty means that neither works, which shows as a failure.
	Image string
	// Images is how models in images reach pods where their scheme is oci:// and doesn't say it; empty
	// means image volumes. Pods that run keep what they were made with.
	Images oci.Delivery
	// GatewayHost is the DNS name of the gateway's Service, to which the components' Services
	// point. Empty means that they lead to the pods themselves, past canary and activation.
	GatewayHost string
	// GatewayGRPCPort is the port of the gateway's Service for gRPC; 0 means 8081. Its port for
	// HTTP is 80, as the components' Services have it.
	GatewayGRPCPort int32
	// GatewayPods are those that may reach engines: gateways and operators. Empty means that no
	// NetworkPolicy is made.
	GatewayPods []PodSelector
	// Namespaces restricts the platform to some namespaces; empty means all.
	Namespaces []string
	// Lacked is how often the cluster is asked for kinds that it lacks; 0 means ten seconds.
	Lacked time.Duration
	// Logger tells what goes on; nil means nothing is logged.
	Logger *slog.Logger
}

// PodSelector selects pods of one namespace by their labels.
type PodSelector struct {
	Namespace string
	Labels    map[string]string
}

// Platform runs workloads as Deployments. Make it with New and drive it with Run; before that
// has read the cluster once, all methods but Changes answer errdef.ErrUnavailable.
type Platform struct {
	*Observer
	cfg    Config
	api    *rest.Config
	client client.Client
	// trial is for objects that are only tried.
	trial client.Client

	mu sync.Mutex
	// applied are the services with assignments, which the cache may not show yet.
	applied map[spec.ServiceKey]bool
	// refused holds what the cluster said to assignments that it didn't take.
	refused map[spec.ServiceKey][]spec.Replica
	// problems holds why the autoscalers of revisions couldn't be made.
	problems map[spec.RevisionKey]problem
	written  writes
	// accounts are those that were read a moment ago.
	accounts accounts
}

var _ platform.Platform = (*Platform)(nil)

// again is how often assignments that the cluster refused are tried again: quotas and policies
// change without telling.
const again = 30 * time.Second

// New makes a platform on the cluster that config leads to. It starts nothing.
func New(config *rest.Config, cfg Config) (*Platform, error) {
	if cfg.Revisions == nil {
		return nil, errdef.New(errdef.ErrInvalid, "the Kubernetes platform needs to know how to read revisions")
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.GatewayGRPCPort == 0 {
		cfg.GatewayGRPCPort = 8081
	}
	scheme, err := newScheme()
	if err != nil {
		return nil, err
	}
	o, err := newObserver(config, scheme, cfg.Namespaces, cfg.Logger, ownKinds()...)
	if err != nil {
		return nil, err
	}
	c, err := client.New(config, client.Options{Scheme: scheme, Mapper: mapper(scheme)})
	if err != nil {
		return nil, fmt.Errorf("make API client: %w", err)
	}
	trial, err := trialClient(config, client.Options{Scheme: scheme, Mapper: mapper(scheme)})
	if err != nil {
		return nil, fmt.Errorf("make API client: %w", err)
	}
	p := &Platform{
		Observer: o, cfg: cfg, api: config, client: c, trial: trial,
		applied: map[spec.ServiceKey]bool{}, refused: map[spec.ServiceKey][]spec.Replica{},
		problems: map[spec.RevisionKey]problem{}, written: writes{},
	}
	o.deleted = p.forget
	return p, nil
}

func newScheme() (*runtime.Scheme, error) {
	s := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		corev1.AddToScheme, appsv1.AddToScheme, policyv1.AddToScheme, networkingv1.AddToScheme, autoscalingv2.AddToScheme,
	} {
		if err := add(s); err != nil {
			return nil, fmt.Errorf("build scheme: %w", err)
		}
	}
	return s, nil
}

// mapper knows the kinds that are read and written, so that the API needn't be asked for what
// it has.
func mapper(scheme *runtime.Scheme) meta.RESTMapper {
	m := meta.NewDefaultRESTMapper(nil)
	for _, o := range append(ownKinds(), &corev1.Pod{}, &corev1.ServiceAccount{}) {
		kinds, _, err := scheme.ObjectKinds(o)
		if err != nil {
			panic(fmt.Sprintf("BUG: %v", err))
		}
		m.Add(kinds[0], meta.RESTScopeNamespace)
		m.Add(kinds[0].GroupVersion().WithKind(kinds[0].Kind+"List"), meta.RESTScopeNamespace)
	}
	m.Add(scaledObject, meta.RESTScopeNamespace)
	m.Add(lws.Kind, meta.RESTScopeNamespace)
	return m
}

// ownKinds are the kinds of object that the platform makes.
func ownKinds() []client.Object {
	return []client.Object{
		&appsv1.Deployment{}, &corev1.Service{}, &corev1.ConfigMap{}, &policyv1.PodDisruptionBudget{}, &networkingv1.NetworkPolicy{},
		&autoscalingv2.HorizontalPodAutoscaler{},
	}
}

// Run watches the cluster until ctx ends; it has joined all it started when it returns.
func (p *Platform) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() { p.retry(ctx) })
	var lost error
	wg.Go(func() { lost = p.watchForeign(ctx) })
	err := p.Observer.Run(ctx)
	cancel()
	wg.Wait()
	return errors.Join(err, lost)
}

// retry wakes the services whose assignments were refused.
func (p *Platform) retry(ctx context.Context) {
	tick := time.NewTicker(again)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			p.mu.Lock()
			for key, refused := range p.refused {
				if slices.ContainsFunc(refused, func(r spec.Replica) bool { return !r.Failure.Terminal }) {
					p.feed.Notify(key)
				}
			}
			for _, s := range p.unscaledServices() {
				p.feed.Notify(s)
			}
			p.mu.Unlock()
		case <-ctx.Done():
			return
		}
	}
}

// Apply implements platform.Platform. What the cluster refuses (a pod that isn't valid, a
// quota) is no error of Apply: Observe shows it as a failed replica, and the service is woken
// to try again where that may help.
func (p *Platform) Apply(ctx context.Context, key spec.ServiceKey, want []platform.Assignment) error {
	for _, a := range want {
		if len(a.Workload.Containers) == 0 || a.Replicas < 0 {
			return errdef.New(errdef.ErrInvalid, "revision "+a.Workload.Revision.String()+" has no container or a negative number of replicas")
		}
	}
	if err := p.ready(); err != nil {
		return err
	}
	if len(want) > 0 && !p.watches(key.Namespace) {
		return errdef.New(errdef.ErrInvalid, "service "+key.String()+" is in a namespace that isn't watched: name it in the operator's settings")
	}
	p.mu.Lock()
	if p.applied[key] = true; len(want) == 0 {
		delete(p.applied, key)
	}
	p.mu.Unlock()
	var objects []client.Object
	var refused []spec.Replica
	var members []member
	for _, a := range want {
		m, made, err := p.member(ctx, a)
		switch {
		case isRefusal(err):
			refused = append(refused, refusal(a.Workload, err, time.Now()))
		case err != nil:
			return err
		}
		objects, members = append(objects, made...), append(members, m)
	}
	objects = append(objects, p.cfg.serviceObjects(key, members)...)
	slices.SortStableFunc(objects, func(a, b client.Object) int { return order(a) - order(b) })
	for _, o := range objects {
		err := withoutImageVolumes(o, withoutGroups(o, p.converge(ctx, o)))
		switch {
		case err == nil:
		case isRefusal(err):
			refused = append(refused, refusal(blame(want, o), err, time.Now()))
		default:
			return err
		}
	}
	for i := range members {
		if members[i].elsewhere == nil {
			p.unscaled(&members[i], spec.Elsewhere{})
		} else if err := p.applyScaler(ctx, &members[i]); err != nil {
			return err
		}
	}
	p.refuse(key, refused)
	if err := p.nudge(ctx, key, want); err != nil {
		return err
	}
	return p.prune(ctx, key, objects, members, refused)
}

// refuse keeps what was refused of a service, once for each revision, with the time at which
// it was refused first.
func (p *Platform) refuse(key spec.ServiceKey, now []spec.Replica) {
	now = slices.CompactFunc(sorted(now), func(a, b spec.Replica) bool { return a.ID == b.ID })
	p.mu.Lock()
	defer p.mu.Unlock()
	before := p.refused[key]
	changed := len(before) != len(now)
	for i := range now {
		j := slices.IndexFunc(before, func(r spec.Replica) bool {
			return r.ID == now[i].ID && r.Hash == now[i].Hash && r.Failure.Message == now[i].Failure.Message
		})
		if j < 0 {
			changed = true
			continue
		}
		now[i] = before[j]
	}
	if p.refused[key] = now; len(now) == 0 {
		delete(p.refused, key)
	}
	if changed {
		p.feed.Notify(key)
	}
}

// blame returns the workload that an object was made for; the last one's for what is shared.
func blame(want []platform.Assignment, o client.Object) spec.Workload {
	for _, a := range want {
		if a.Workload.Revision.Name == o.GetLabels()[labelRevision] {
			return a.Workload
		}
	}
	return want[len(want)-1].Workload
}

// Observe implements platform.Platform.
func (p *Platform) Observe(ctx context.Context, key spec.ServiceKey) (spec.Observed, error) {
	pods, err := p.pods(ctx, key)
	if err != nil {
		return spec.Observed{}, err
	}
	var deployments appsv1.DeploymentList
	if err := p.list(ctx, key, &deployments); err != nil {
		return spec.Observed{}, err
	}
	p.mu.Lock()
	refused := slices.Clone(p.refused[key])
	p.mu.Unlock()
	var scalers autoscalingv2.HorizontalPodAutoscalerList
	if err := p.list(ctx, key, &scalers); err != nil {
		return spec.Observed{}, err
	}
	replicas := blocked(replicasOf(pods), deployments.Items)
	return spec.Observed{
		Replicas:  sorted(append(replicas, refused...)),
		Elsewhere: p.elsewhereOf(key, deployments.Items, scalers.Items),
	}, nil
}

// Services implements platform.Platform.
func (p *Platform) Services(ctx context.Context) ([]spec.ServiceKey, error) {
	if err := p.ready(); err != nil {
		return nil, err
	}
	found := map[spec.ServiceKey]bool{}
	for _, list := range []client.ObjectList{&appsv1.DeploymentList{}, &corev1.PodList{}, &corev1.ServiceList{}} {
		if err := p.cache.List(ctx, list, client.UnsafeDisableDeepCopy); err != nil {
			return nil, fmt.Errorf("list what runs: %w", err)
		}
		for _, o := range items(list) {
			found[serviceOf(o)] = true
		}
	}
	p.mu.Lock()
	for key := range p.applied {
		found[key] = true
	}
	p.mu.Unlock()
	var out []spec.ServiceKey
	for key := range found {
		out = append(out, key)
	}
	slices.SortFunc(out, func(a, b spec.ServiceKey) int { return strings.Compare(a.String(), b.String()) })
	return out, nil
}

// member is a revision among those of a service that run.
type member struct {
	revision *smv1alpha1.Revision
	workload spec.Workload
	replicas int
	// elsewhere is set where somebody else sets the number of replicas, which is the first one then.
	elsewhere *elsewhere
	// digests pin models, by URI.
	digests map[string]string
	// startup is what its engine's startup probe is sized for, in whole seconds; 0 leaves it as written.
	startup time.Duration
	// credentials are for pulling its models.
	credentials credentials
	// writesRoot leaves the root of containers of our own image writable.
	writesRoot bool
}

// runner is the object, without content, that has a revision's pods.
func runner(rev *smv1alpha1.Revision) client.Object {
	if rev.Spec.Workers != nil {
		return lws.Named(rev.Namespace, rev.Name)
	}
	return &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: rev.Namespace, Name: rev.Name}}
}

// member reads an assignment's revision and makes the objects that it alone needs. An error
// that is a refusal means that no pod can be made of it.
func (p *Platform) member(ctx context.Context, a platform.Assignment) (member, []client.Object, error) {
	m := member{workload: a.Workload, replicas: a.Replicas, digests: map[string]string{}}
	var err error
	if m.revision, err = p.cfg.Revisions(ctx, a.Workload.Revision); err != nil {
		return m, nil, fmt.Errorf("read revision %s: %w", a.Workload.Revision, err)
	}
	rev := m.revision
	if rev.Spec.Hash != a.Workload.Hash {
		return m, nil, errdef.New(errdef.ErrUnavailable, fmt.Sprintf("revision %s has the hash %q, not %q", a.Workload.Revision, rev.Spec.Hash, a.Workload.Hash))
	}
	for _, model := range a.Workload.Models {
		if model.Digest != "" {
			m.digests[model.URI] = model.Digest
		}
	}
	compiled, err := manifest.WorkloadOf(a.Workload.Revision.Namespace, a.Workload.Revision.Name, &rev.Spec)
	if err != nil {
		return m, nil, &refusedError{errdef.ErrInvalid, err, true}
	}
	m.workload = compiled
	live, err := p.live(ctx, runner(rev))
	if err != nil {
		return m, nil, err
	}
	cfg, last := p.cfg, p.lastOf(runner(rev), live)
	cfg.Image = cfg.ownImage(last, rev.Spec.Hash)
	m.startup, m.writesRoot = startupOf(last, rev.Spec.Hash, a.Startup), writesRoot(last, rev.Spec.Hash)
	deployment, _ := live.(*appsv1.Deployment)
	cfg.Images = cfg.delivery(&m, last)
	if a.Elsewhere {
		if err := p.delegate(ctx, &m, deployment); err != nil {
			return m, nil, err
		}
	}
	if deployment != nil && (m.elsewhere == nil || m.elsewhere.kind() != scaledObject.Kind) {
		if err := p.endScaledObject(ctx, deployment); err != nil {
			return m, nil, err
		}
	}
	if m.credentials, err = p.credentialsOf(ctx, &cfg, &m, live); err != nil {
		return m, nil, err
	}
	made, err := cfg.revisionObjects(m)
	if err != nil {
		return m, nil, &refusedError{errdef.ErrInvalid, err, true}
	}
	return m, made, nil
}
