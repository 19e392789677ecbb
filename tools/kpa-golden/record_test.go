package golden

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric/noop"
	"go.uber.org/zap"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	netv1alpha1 "knative.dev/networking/pkg/apis/networking/v1alpha1"
	asapi "knative.dev/serving/pkg/apis/autoscaling"
	autoscalingv1alpha1 "knative.dev/serving/pkg/apis/autoscaling/v1alpha1"
	asconfig "knative.dev/serving/pkg/autoscaler/config"
	"knative.dev/serving/pkg/autoscaler/config/autoscalerconfig"
	"knative.dev/serving/pkg/autoscaler/metrics"
	"knative.dev/serving/pkg/autoscaler/scaling"
	knativedeployment "knative.dev/serving/pkg/deployment"
	"knative.dev/serving/pkg/reconciler/autoscaling/config"
	kparesources "knative.dev/serving/pkg/reconciler/autoscaling/kpa/resources"
	paresources "knative.dev/serving/pkg/reconciler/autoscaling/resources"
)

var (
	out    = flag.String("out", "", "folder to write the recordings to; without it nothing is written")
	random = flag.Int("random", 0, "record so many traces by chance in place of the ones that have names")
	seed   = flag.Uint64("seed", 1, "what chance starts from")
)

// recording is a trace and what Knative did with it. Load and Ready have a value a second; the
// rest a value a decision, made half a second after the second in At.
type recording struct {
	Trace                string            `json:"trace"`
	About                string            `json:"about"`
	Knative              string            `json:"knative"`
	Annotations          map[string]string `json:"annotations,omitempty"`
	ContainerConcurrency int64             `json:"containerConcurrency,omitempty"`
	StartupSeconds       int               `json:"startupSeconds"`
	InitialReplicas      int32             `json:"initialReplicas"`
	RetiredFrom          int               `json:"retiredFrom,omitempty"`
	// Load is null in a second in which nothing reported.
	Load  []*float64 `json:"load"`
	Ready []int      `json:"ready"`
	At    []int      `json:"at"`
	// Wanted is the autoscaler's own wish, -1 before the first; Replicas what the
	// reconciler made of it.
	Wanted   []int32   `json:"wanted"`
	Replicas []int32   `json:"replicas"`
	Panic    []int     `json:"panic"`
	Stable   []float64 `json:"stableValue"`
	Short    []float64 `json:"panicValue"`
	Excess   []int32   `json:"excessBurst"`
	// Proxy is 1 where all traffic goes through the activator.
	Proxy []int `json:"proxy"`
}

func TestRecord(t *testing.T) {
	named := traces
	if *random > 0 {
		named = randomTraces(*random, *seed)
	}
	for _, tr := range named {
		t.Run(tr.name, func(t *testing.T) {
			var r recording
			synctest.Test(t, func(t *testing.T) { r = record(t, tr) })
			if len(r.At) == 0 || len(r.Load) != tr.seconds {
				t.Fatalf("recorded %d decisions over %d seconds, want some over %d", len(r.At), len(r.Load), tr.seconds)
			}
			if *out == "" {
				return
			}
			raw, err := columns(r)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(*out, tr.name+".json"), raw, 0o644); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// cluster is one revision in virtual time.
type cluster struct {
	tr   trace
	cfg  *autoscalerconfig.Config
	key  types.NamespacedName
	dep  *deployment
	pods []int // the second in which each was asked for
	now  int

	pa      *autoscalingv1alpha1.PodAutoscaler
	sks     *netv1alpha1.ServerlessService
	ks      *scaler
	multi   *scaling.MultiScaler
	collect *metrics.MetricCollector
	uni     scaling.UniScaler
	ticks   int
}

// Scale counts and passes on; MultiScaler calls it at each tick.
func (c *cluster) Scale(l *zap.SugaredLogger, now time.Time) scaling.ScaleResult {
	c.ticks++
	return c.uni.Scale(l, now)
}
func (c *cluster) Update(s *scaling.DeciderSpec) { c.uni.Update(s) }
func (c *cluster) OnDelete()                     { c.uni.OnDelete() }

// ReadyCount is what the autoscaler and the reconciler see of the pods.
func (c *cluster) ReadyCount() (int, error) {
	n := 0
	for _, born := range c.pods {
		if c.now-born >= c.tr.startup {
			n++
		}
	}
	return n, nil
}
func (c *cluster) NotReadyCount() (int, error) {
	n, err := c.ReadyCount()
	return len(c.pods) - n, err
}

// Scrape finds nothing: samples are handed to the collector by Record.
func (c *cluster) Scrape(time.Duration) (metrics.Stat, error) { return metrics.Stat{}, nil }

func record(t *testing.T, tr trace) recording {
	cfg, err := asconfig.NewConfigFromMap(nil)
	if err != nil {
		t.Fatal(err)
	}
	if fe := asapi.ValidateAnnotations(t.Context(), cfg, tr.annotations); fe != nil {
		t.Fatalf("annotations that Knative refuses: %v", fe)
	}
	ctx := config.ToContext(t.Context(), &config.Config{
		Autoscaler: cfg,
		Deployment: &knativedeployment.Config{ProgressDeadline: knativedeployment.ProgressDeadlineDefault},
	})
	c := newCluster(tr, cfg)
	r := recording{
		Trace: tr.name, About: tr.about, Knative: knativeVersion(t), Annotations: tr.annotations,
		ContainerConcurrency: tr.containerConcurrency, StartupSeconds: tr.startup,
		InitialReplicas: c.dep.replicas, RetiredFrom: tr.retired,
	}
	stop := make(chan struct{})
	time.Sleep(500 * time.Millisecond)
	c.collect = metrics.NewMetricCollector(func(*autoscalingv1alpha1.Metric, *zap.SugaredLogger) (metrics.StatsScraper, error) {
		return c, nil
	}, zap.NewNop().Sugar())
	target := "private"
	if tr.annotations[prefix+"target-burst-capacity"] == "-1" {
		target = "" // resolveScrapeTarget: with the activator always in the path nothing is scraped
	}
	if err := c.collect.CreateOrUpdate(paresources.MakeMetric(c.pa, target, cfg)); err != nil {
		t.Fatal(err)
	}
	c.multi = scaling.NewMultiScaler(stop, func(d *scaling.Decider) (scaling.UniScaler, error) {
		c.uni = scaling.New(attribute.NewSet(), noop.NewMeterProvider(), d.Namespace, d.Name, c.collect, c, &d.Spec)
		return c, nil
	}, zap.NewNop().Sugar())
	if _, err := c.multi.Create(ctx, kparesources.MakeDecider(c.pa, cfg)); err != nil {
		t.Fatal(err)
	}
	time.Sleep(250 * time.Millisecond)
	c.pa.Status.InitializeConditions()
	c.sks.Status.MarkActivatorEndpointsPopulated()
	c.reconcile(ctx, t)
	time.Sleep(250 * time.Millisecond)

	// Second 0 has passed; samples come on the second, decisions half a second later, and
	// the reconciler right after them.
	ready, _ := c.ReadyCount()
	r.Load, r.Ready = append(r.Load, nil), append(r.Ready, ready)
	for c.now = 1; c.now < tr.seconds; c.now++ {
		c.second(ctx, t, &r)
		time.Sleep(250 * time.Millisecond)
	}
	close(stop)
	c.collect.Delete(c.key.Namespace, c.key.Name)
	synctest.Wait()
	return r
}

func newCluster(tr trace, cfg *autoscalerconfig.Config) *cluster {
	c := &cluster{tr: tr, cfg: cfg, key: types.NamespacedName{Namespace: "default", Name: tr.name}}
	c.dep = &deployment{name: tr.name + "-deployment"}
	c.pa = &autoscalingv1alpha1.PodAutoscaler{
		ObjectMeta: metav1.ObjectMeta{Namespace: c.key.Namespace, Name: c.key.Name, Annotations: tr.annotations},
		Spec: autoscalingv1alpha1.PodAutoscalerSpec{
			ContainerConcurrency: tr.containerConcurrency,
			Reachability:         autoscalingv1alpha1.ReachabilityReachable,
			ScaleTargetRef:       corev1.ObjectReference{APIVersion: "apps/v1", Kind: "Deployment", Name: c.dep.name},
		},
	}
	c.pa.Status.ServiceName = c.key.Name
	c.sks = &netv1alpha1.ServerlessService{Spec: netv1alpha1.ServerlessServiceSpec{Mode: netv1alpha1.SKSOperationModeProxy}}
	c.ks = &scaler{
		listerFactory: c.dep.lister,
		dynamicClient: client{d: c.dep},
		// The activator answers as soon as it is in the path.
		activatorProbe: func(*autoscalingv1alpha1.PodAutoscaler, http.RoundTripper) (bool, error) {
			return c.sks.Spec.Mode == netv1alpha1.SKSOperationModeProxy, nil
		},
		probeManager: noProber{},
		enqueueCB:    func(any, time.Duration) {},
	}
	// The revision's reconciler makes the deployment with the initial scale.
	c.dep.replicas = kparesources.GetInitialScale(cfg, c.pa)
	c.pods = make([]int, c.dep.replicas)
	return c
}

// second passes one second up to 0.75: sample, poke, tick, reconciliation.
func (c *cluster) second(ctx context.Context, t *testing.T, r *recording) {
	ready, _ := c.ReadyCount()
	load := c.tr.load(c.now)
	r.Ready, r.Load = append(r.Ready, ready), append(r.Load, nil)
	if c.tr.retired != 0 && c.now == c.tr.retired {
		c.pa.Spec.Reachability = autoscalingv1alpha1.ReachabilityUnreachable
		if _, err := c.multi.Update(ctx, c.decider(ctx, t)); err != nil {
			t.Fatal(err)
		}
	}
	// Pods report while they are ready, the activator while it holds something.
	reports := (ready > 0 || load > 0) && (c.tr.dark == nil || !c.tr.dark(c.now))
	if reports {
		r.Load[c.now] = &load
		c.collect.Record(c.key, time.Now(), metrics.Stat{PodName: "all", AverageConcurrentRequests: load, RequestCount: load})
	}
	time.Sleep(500 * time.Millisecond)
	synctest.Wait()
	if c.ticks == 0 && reports && load > 0 && c.now%2 == 1 {
		c.multi.Poke(c.key, metrics.Stat{AverageConcurrentRequests: load})
		synctest.Wait()
	}
	time.Sleep(250 * time.Millisecond)
	if c.ticks == 0 {
		return
	}
	c.ticks = 0
	c.reconcile(ctx, t)

	d := c.decider(ctx, t)
	stable, short, err := c.collect.StableAndPanicConcurrency(c.key, time.Now())
	if c.pa.Metric() == asapi.RPS {
		stable, short, err = c.collect.StableAndPanicRPS(c.key, time.Now())
	}
	if err != nil {
		stable, short = -1, -1
	}
	panicking := !reflect.ValueOf(c.uni).Elem().FieldByName("panicTime").IsZero()
	r.At = append(r.At, c.now)
	r.Wanted = append(r.Wanted, d.Status.DesiredScale)
	r.Replicas = append(r.Replicas, c.dep.replicas)
	r.Panic = append(r.Panic, one(panicking))
	r.Stable = append(r.Stable, stable)
	r.Short = append(r.Short, short)
	r.Excess = append(r.Excess, d.Status.ExcessBurstCapacity)
	r.Proxy = append(r.Proxy, one(c.sks.Spec.Mode == netv1alpha1.SKSOperationModeProxy))
}

// decider returns the decider with the spec that the PodAutoscaler now asks for.
func (c *cluster) decider(ctx context.Context, t *testing.T) *scaling.Decider {
	d, err := c.multi.Get(ctx, c.key.Namespace, c.key.Name)
	if err != nil {
		t.Fatal(err)
	}
	d.Spec = kparesources.MakeDecider(c.pa, c.cfg).Spec
	return d
}

// reconcile does what ReconcileKind does between its calls, until the status stays as it is:
// a changed status brings the reconciler back at once.
func (c *cluster) reconcile(ctx context.Context, t *testing.T) {
	for range 4 {
		before := c.pa.Status.DeepCopy()
		d := c.decider(ctx, t)
		want, err := scale(c.ks, ctx, c.pa, c.sks, d.Status.DesiredScale)
		if err != nil {
			t.Fatal(err)
		}
		mode := netv1alpha1.SKSOperationModeProxy
		if want > 0 && d.Status.ExcessBurstCapacity >= 0 {
			mode = netv1alpha1.SKSOperationModeServe
		}
		if mode != c.sks.Spec.Mode {
			c.sks.Spec.Mode = mode
			if mode == netv1alpha1.SKSOperationModeProxy {
				c.sks.Status.MarkActivatorEndpointsPopulated()
			} else {
				c.sks.Status.MarkActivatorEndpointsRemoved()
			}
		}
		ready, _ := c.ReadyCount()
		computeActiveCondition(ctx, c.pa, podCounts{want: int(want), ready: ready, notReady: len(c.pods) - ready})
		c.resize()
		if reflect.DeepEqual(before, &c.pa.Status) {
			return
		}
	}
	t.Fatal("the status doesn't come to rest")
}

// resize gives the deployment the pods it asks for; the youngest go first.
func (c *cluster) resize() {
	for len(c.pods) < int(c.dep.replicas) {
		c.pods = append(c.pods, c.now)
	}
	c.pods = c.pods[:c.dep.replicas]
}

func one(b bool) int {
	if b {
		return 1
	}
	return 0
}

// knativeVersion returns the version in go.mod of what was recorded.
func knativeVersion(t *testing.T) string {
	raw, err := os.ReadFile("go.mod")
	if err != nil {
		t.Fatal(err)
	}
	_, after, _ := strings.Cut(string(raw), "knative.dev/serving ")
	version, _, found := strings.Cut(after, "\n")
	if !found {
		t.Fatal("go.mod doesn't require knative.dev/serving")
	}
	return version
}

// columns renders a recording with one line a field.
func columns(r recording) ([]byte, error) {
	var b strings.Builder
	b.WriteString("{\n")
	v := reflect.ValueOf(r)
	first := true
	for i := range v.NumField() {
		name, opts, _ := strings.Cut(v.Type().Field(i).Tag.Get("json"), ",")
		if opts == "omitempty" && v.Field(i).IsZero() {
			continue
		}
		raw, err := json.Marshal(v.Field(i).Interface())
		if err != nil {
			return nil, err
		}
		if !first {
			b.WriteString(",\n")
		}
		first = false
		fmt.Fprintf(&b, "  %q: %s", name, raw)
	}
	b.WriteString("\n}\n")
	return []byte(b.String()), nil
}
