package control

import (
	"context"
	"reflect"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"stationmaster.dev/stationmaster/api/serving/v1alpha1"
	"stationmaster.dev/stationmaster/internal/modellist"
	"stationmaster.dev/stationmaster/internal/spec"
	"stationmaster.dev/stationmaster/internal/state"
)

func TestWhatReplicasSayOfAModelIsItsStatus(t *testing.T) {
	is := func(s modellist.State) modellist.Entry { return modellist.Entry{Name: "m", URI: "u", State: s} }
	lost := modellist.Entry{Name: "m", URI: "u", State: modellist.Failed, Reason: modellist.NotFetched, Message: "nothing there"}
	update := lost
	update.Serves = true
	broken := modellist.Entry{Name: "m", URI: "u", State: modellist.Failed, Reason: modellist.NotLoaded, Message: "no graph"}
	large := modellist.Entry{Name: "m", URI: "u", State: modellist.Failed, Reason: modellist.TooLarge, Message: "2 of 1"}
	old := modellist.Entry{Name: "m", URI: "before", State: modellist.Ready}
	status := func(conds ...v1alpha1.TrainedModelCondition) v1alpha1.TrainedModelStatus {
		return v1alpha1.TrainedModelStatus{Conditions: conds}
	}
	was := func(s corev1.ConditionStatus, reason, message string) v1alpha1.TrainedModelStatus {
		return status(v1alpha1.TrainedModelCondition{Type: v1alpha1.TrainedModelReady, Status: s, Reason: reason, Message: message})
	}
	yes := verdict{status: corev1.ConditionTrue}
	on := func(n, of string) verdict {
		return verdict{corev1.ConditionUnknown, reasonLoading, "the model is on its way; it is there on " + n + " of " + of + " replicas"}
	}
	no := func(r modellist.Reason, message string) verdict {
		return verdict{corev1.ConditionFalse, string(r), message}
	}
	for name, tc := range map[string]struct {
		said         []modellist.Entry
		was          v1alpha1.TrainedModelStatus
		rest, memory verdict
	}{
		"nothing tells":                        {nil, was(corev1.ConditionTrue, "", ""), yes, yes},
		"all have it":                          {[]modellist.Entry{is(modellist.Ready), is(modellist.Ready)}, status(), yes, yes},
		"one has it, one is on its way":        {[]modellist.Entry{is(modellist.Ready), is(modellist.Loading)}, status(), on("1", "2"), yes},
		"one that came later is on its way":    {[]modellist.Entry{is(modellist.Ready), {}}, was(corev1.ConditionTrue, "", ""), yes, yes},
		"they have what it was before":         {[]modellist.Entry{old}, was(corev1.ConditionTrue, "", ""), on("0", "1"), yes},
		"its bytes are missing":                {[]modellist.Entry{lost}, status(), no(modellist.NotFetched, "the model's bytes can't be had: nothing there"), yes},
		"its bytes are missing for one":        {[]modellist.Entry{is(modellist.Ready), lost}, status(), no(modellist.NotFetched, "on 1 of 2 replicas the model's bytes can't be had: nothing there"), yes},
		"the bytes of an update are missing":   {[]modellist.Entry{update}, status(), no(modellist.NotFetched, "the model's bytes can't be had: nothing there"+servesOn), yes},
		"it can't be loaded":                   {[]modellist.Entry{broken}, status(), no(modellist.NotLoaded, "the engine can't load the model: no graph"), yes},
		"it is too large":                      {[]modellist.Entry{large}, status(), yes, no(modellist.TooLarge, "the model is too large: 2 of 1")},
		"its bytes were missing when it slept": {nil, was(corev1.ConditionFalse, string(modellist.NotFetched), "gone"), no(modellist.NotFetched, "gone"), yes},
	} {
		t.Run(name, func(t *testing.T) {
			rest, memory := judgeModel("u", tc.said, tc.was)
			if rest != tc.rest || memory != tc.memory {
				t.Errorf("got %+v and %+v\nwant %+v and %+v", rest, memory, tc.rest, tc.memory)
			}
		})
	}
}

// voices are replicas that say what a test has them say.
type voices struct {
	feed state.Feed[modellist.Key]
	mu   sync.Mutex
	said map[string][]modellist.Entry
	ask  map[spec.ServiceKey][]string
}

func (v *voices) Follow(s spec.ServiceKey, replicas []string, _ bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.ask == nil {
		v.ask = map[spec.ServiceKey][]string{}
	}
	v.ask[s] = replicas
}

func (v *voices) asked(s spec.ServiceKey) []string {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.ask[s]
}

func (v *voices) Of(_ spec.ServiceKey, model string) []modellist.Entry {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.said[model]
}

func (v *voices) Changes(ctx context.Context) <-chan modellist.Key { return v.feed.Subscribe(ctx) }

func (v *voices) say(namespace string, e modellist.Entry) {
	v.mu.Lock()
	if v.said == nil {
		v.said = map[string][]modellist.Entry{}
	}
	v.said[e.Name] = []modellist.Entry{e}
	v.mu.Unlock()
	v.feed.Notify(modellist.Key{Namespace: namespace, Name: e.Name})
}

func TestATrainedModelIsReadyWhenItsReplicasSayTheyHaveIt(t *testing.T) {
	v := &voices{}
	b := newBench(t, func(c *Config) { c.Models = v })
	b.multiRuntime()
	b.many("many")
	b.ready("many")
	v.say(b.ns, modellist.Entry{Name: "m", URI: "https://x/a", State: modellist.Loading})
	b.model("m", "many", "https://x/a", "onnx", "1Mi")
	b.told("m", v1alpha1.TrainedModelReady, corev1.ConditionUnknown, reasonLoading)
	b.eventually("the replica is asked", func() string {
		if got := v.asked(spec.ServiceKey{Namespace: b.ns, Name: "many"}); len(got) != 1 {
			return strings.Join(got, " ")
		}
		return ""
	})
	v.say(b.ns, modellist.Entry{Name: "m", URI: "https://x/a", State: modellist.Failed, Reason: modellist.NotFetched, Message: "404"})
	tm := b.told("m", v1alpha1.TrainedModelReady, corev1.ConditionFalse, string(modellist.NotFetched))
	v.say(b.ns, modellist.Entry{Name: "m", URI: "https://x/a", State: modellist.Ready})
	b.told("m", v1alpha1.TrainedModelReady, corev1.ConditionTrue, "")

	// One that can't be had from where it is now stays as it was.
	before := b.list("many")
	if err := b.Get(t.Context(), client.ObjectKeyFromObject(tm), tm); err != nil {
		t.Fatal(err)
	}
	tm.Spec.Model.StorageURI = "s3://bucket/a"
	if err := b.Update(t.Context(), tm); err != nil {
		t.Fatal(err)
	}
	b.eventually("its status says that it serves on", func() string {
		tm := b.told("m", v1alpha1.TrainedModelReady, corev1.ConditionFalse, reasonNoStorage)
		if c := modelCondition(tm.Status.Conditions, v1alpha1.TrainedModelReady); !strings.HasSuffix(c.Message, servesOn) {
			return c.Message
		}
		return ""
	})
	if got := b.list("many"); got != before {
		t.Errorf("the list was %s and is %s", before, got)
	}
	if _, err := b.table.Load().Model("m", "/"); err != nil {
		t.Error(err)
	}
	if err := b.Delete(t.Context(), b.get("many")); err != nil {
		t.Fatal(err)
	}
	b.eventually("nobody is asked any more", func() string {
		return strings.Join(v.asked(spec.ServiceKey{Namespace: b.ns, Name: "many"}), " ")
	})
	if got := linesOf("no list"); !reflect.DeepEqual(got, map[string]modellist.Model{}) {
		t.Errorf("of a text that is no list: %v", got)
	}
}
