package catalogue_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	servingv1alpha1 "stationmaster.dev/stationmaster/api/serving/v1alpha1"
	servingv1beta1 "stationmaster.dev/stationmaster/api/serving/v1beta1"
	"stationmaster.dev/stationmaster/internal/catalogue"
	"stationmaster.dev/stationmaster/internal/errdef"
)

func shipped(t testing.TB, keep func(name string) bool) []servingv1alpha1.ClusterServingRuntime {
	t.Helper()
	rs, err := catalogue.Runtimes()
	if err != nil {
		t.Fatal(err)
	}
	var out []servingv1alpha1.ClusterServingRuntime
	for _, r := range rs {
		if keep(r.Name) {
			out = append(out, *r)
		}
	}
	return out
}

// ofKServe are the runtimes of KServe's kustomization, which leaves out kserve-openvino.
func ofKServe(name string) bool {
	return strings.HasPrefix(name, "kserve-") && name != "kserve-openvino"
}

func all(string) bool { return true }

func request(format, version, protocol string) catalogue.Request {
	r := catalogue.Request{Format: servingv1beta1.ModelFormat{Name: format}, Protocol: servingv1alpha1.Protocol(protocol)}
	if version != "" {
		r.Format.Version = &version
	}
	return r
}

func noModel(r catalogue.Request) catalogue.Request {
	r.NoModel = true
	return r
}

func multiNode(r catalogue.Request) catalogue.Request { r.MultiNode = true; return r }

func TestOutcomesEqualKServes(t *testing.T) {
	kserve, ours := shipped(t, ofKServe), shipped(t, all)
	for name, tc := range map[string]struct {
		request catalogue.Request
		// want is the outcome with KServe's runtimes, wantOurs with the whole catalogue where
		// it differs. "none" is NoSupportingRuntime.
		want, wantOurs string
	}{
		"sklearn without a protocol":          {request("sklearn", "", ""), "kserve-sklearnserver", ""},
		"sklearn over v2":                     {request("sklearn", "", "v2"), "kserve-mlserver", ""},
		"sklearn 0, which only MLServer has":  {request("sklearn", "0", "v2"), "kserve-mlserver", ""},
		"sklearn 0 without a protocol":        {request("sklearn", "0", ""), "none", ""},
		"sklearn over grpc-v2":                {request("sklearn", "", "grpc-v2"), "none", ""},
		"xgboost without a protocol":          {request("xgboost", "", ""), "kserve-xgbserver", ""},
		"xgboost over v2":                     {request("xgboost", "", "v2"), "kserve-mlserver", ""},
		"lightgbm without a protocol":         {request("lightgbm", "", ""), "kserve-lgbserver", ""},
		"lightgbm over v2":                    {request("lightgbm", "", "v2"), "kserve-mlserver", ""},
		"tensorflow without a protocol":       {request("tensorflow", "", ""), "kserve-tensorflow-serving", ""},
		"tensorflow over grpc-v1":             {request("tensorflow", "2", "grpc-v1"), "kserve-tensorflow-serving", ""},
		"tensorflow over v2":                  {request("tensorflow", "", "v2"), "kserve-tritonserver", ""},
		"pytorch without a protocol":          {request("pytorch", "", ""), "kserve-torchserve", ""},
		"pytorch over v2":                     {request("pytorch", "", "v2"), "kserve-torchserve", ""},
		"predictor.onnx, defaulted to v2":     {request("onnx", "", "v2"), "kserve-tritonserver", "stationmaster-onnx"},
		"model onnx without a protocol":       {request("onnx", "", ""), "none", "stationmaster-onnx"},
		"model onnx 1 over grpc-v2":           {request("onnx", "1", "grpc-v2"), "kserve-tritonserver", "stationmaster-onnx"},
		"onnx in a version that nobody lists": {request("onnx", "2", "v2"), "none", ""},
		"mlflow without a protocol":           {request("mlflow", "", ""), "none", ""},
		"mlflow over v2":                      {request("mlflow", "", "v2"), "kserve-mlserver", ""},
		"huggingface":                         {request("huggingface", "", "v2"), "kserve-huggingfaceserver", ""},
		"huggingface without a protocol":      {request("huggingface", "", ""), "kserve-huggingfaceserver", ""},
		"huggingface with a workerSpec":       {multiNode(request("huggingface", "", "v2")), "kserve-huggingfaceserver-multinode", ""},
		"sklearn with a workerSpec":           {multiNode(request("sklearn", "", "")), "none", ""},
		"pmml":                                {request("pmml", "", ""), "kserve-pmmlserver", ""},
		"paddle":                              {request("paddle", "", ""), "kserve-paddleserver", ""},
		"autogluon":                           {request("autogluon", "", ""), "kserve-autogluonserver", ""},
		"triton, defaulted to v2":             {request("triton", "", "v2"), "kserve-tritonserver", ""},
		"tensorrt over v2":                    {request("tensorrt", "", "v2"), "kserve-tritonserver", ""},
		"vLLM, defaulted to v2":               {request("vLLM", "", "v2"), "kserve-vllmserver", ""},
		"vLLM without a protocol":             {request("vLLM", "", ""), "kserve-vllmserver", ""},
		"vllm, in the wrong case":             {request("vllm", "", ""), "none", ""},
		"openvino":                            {request("openvino", "", ""), "none", "kserve-openvino"},
		"onnx that brings no model":           {noModel(request("onnx", "", "v2")), "kserve-tritonserver", "stationmaster-onnx-multi"},
		"sklearn that brings no model":        {noModel(request("sklearn", "", "")), "kserve-sklearnserver", ""},
		"gguf":                                {request("gguf", "", ""), "none", "stationmaster-llamacpp"},
		"unknown":                             {request("spss", "", ""), "none", ""},
	} {
		t.Run(name, func(t *testing.T) {
			check := func(which, want string, runtimes []servingv1alpha1.ClusterServingRuntime) {
				t.Helper()
				got, err := catalogue.Select(tc.request, nil, runtimes)
				if want == "none" {
					var se *catalogue.SelectionError
					if !errors.As(err, &se) || se.Reason != catalogue.NoSupportingRuntime || len(se.Refused) != len(runtimes) {
						t.Errorf("with %s runtimes: %q and %v, want NoSupportingRuntime with every candidate's refusal", which, got.Name, err)
					}
					return
				}
				if err != nil || got.Name != want || got.Kind != catalogue.KindClusterServingRuntime {
					t.Errorf("with %s runtimes: %q and %v, want %s", which, got.Name, err, want)
				}
			}
			check("KServe's", tc.want, kserve)
			if tc.wantOurs == "" {
				tc.wantOurs = tc.want
			}
			check("all shipped", tc.wantOurs, ours)
		})
	}
}

func TestANamedRuntimeIsCheckedInKServesOrder(t *testing.T) {
	disabled, yes := servingv1alpha1.ServingRuntime{}, true
	disabled.Name = "off"
	disabled.Spec.Disabled = &yes
	shadow := servingv1alpha1.ServingRuntime{}
	shadow.Name = "kserve-sklearnserver"
	shadow.Spec.SupportedModelFormats = []servingv1alpha1.SupportedModelFormat{{Name: "sklearn"}}
	many := servingv1alpha1.ServingRuntime{}
	many.Name = "many"
	many.Spec.MultiModel = &yes
	many.Spec.WorkerSpec = &servingv1alpha1.WorkerSpec{}
	many.Spec.SupportedModelFormats = []servingv1alpha1.SupportedModelFormat{{Name: "sklearn"}}
	namespaced := []servingv1alpha1.ServingRuntime{disabled, shadow, many}
	cluster := shipped(t, all)

	for name, tc := range map[string]struct {
		runtime    string
		request    catalogue.Request
		wantKind   string
		wantReason catalogue.Reason
		wantText   string
	}{
		"the namespace's wins over the cluster's":  {"kserve-sklearnserver", request("sklearn", "", ""), catalogue.KindServingRuntime, "", ""},
		"the cluster's is found too":               {"kserve-mlserver", request("sklearn", "", ""), catalogue.KindClusterServingRuntime, "", ""},
		"autoSelect is ignored":                    {"kserve-predictiveserver", request("sklearn", "1", "v1"), catalogue.KindClusterServingRuntime, "", ""},
		"Triton serves onnx when it is named":      {"kserve-tritonserver", request("onnx", "", "v2"), catalogue.KindClusterServingRuntime, "", ""},
		"multiModel and workerSpec aren't checked": {"many", request("sklearn", "", ""), catalogue.KindServingRuntime, "", ""},
		"unknown":                                        {"nope", request("sklearn", "", ""), "", catalogue.RuntimeNotRecognized, "kserve-mlserver"},
		"disabled comes before the format":               {"off", request("sklearn", "", ""), "", catalogue.RuntimeDisabled, "off is disabled"},
		"the protocol comes before the format":           {"kserve-mlserver", request("spss", "", "v1"), "", catalogue.NoSupportingRuntime, "protocol version v1: set protocolVersion to one of v2"},
		"an unlisted format":                             {"kserve-mlserver", request("spss", "", "v2"), "", catalogue.NoSupportingRuntime, "serves sklearn 0, sklearn 1"},
		"an unlisted version":                            {"kserve-mlserver", request("sklearn", "3", "v2"), "", catalogue.NoSupportingRuntime, "framework/version sklearn 3"},
		"the version string is compared, not its number": {"kserve-mlserver", request("sklearn", "1.0", "v2"), "", catalogue.NoSupportingRuntime, "sklearn 1.0"},
	} {
		t.Run(name, func(t *testing.T) {
			tc.request.Runtime = tc.runtime
			got, err := catalogue.Select(tc.request, namespaced, cluster)
			if tc.wantReason == "" {
				if err != nil || got.Kind != tc.wantKind || got.Name != tc.runtime {
					t.Errorf("got %s %s, %v; want %s %s", got.Kind, got.Name, err, tc.wantKind, tc.runtime)
				}
				return
			}
			var se *catalogue.SelectionError
			if !errors.As(err, &se) || se.Reason != tc.wantReason || !strings.Contains(se.Message, tc.wantText) {
				t.Errorf("got %v, want %s with %q in it", err, tc.wantReason, tc.wantText)
			}
			if kind := errdef.KindOf(err); errors.Is(kind, errdef.ErrInternal) {
				t.Errorf("%v is of no kind", err)
			}
		})
	}
}

func TestARefusalSaysWhatToDo(t *testing.T) {
	for name, tc := range map[string]struct {
		request catalogue.Request
		want    []string
	}{
		"a protocol that isn't set":  {request("mlflow", "", ""), []string{"protocolVersion is unset, which counts as v1", "runtime kserve-mlserver supports only v2; set protocolVersion: v2"}},
		"a wrong case":               {request("vllm", "", ""), []string{"set modelFormat.name: vLLM"}},
		"an unknown format":          {request("spss", "", ""), []string{"no runtime lists the format", "sklearn", "gguf"}},
		"an unknown version":         {request("pmml", "5", ""), []string{"kserve-pmmlserver serves pmml only in version 3, 4"}},
		"one that isn't auto-chosen": {request("xgboost", "2", "grpc-v1"), []string{"kserve-predictiveserver doesn't offer itself (autoSelect is false); set model.runtime: kserve-predictiveserver"}},
		"many nodes":                 {multiNode(request("pmml", "", "")), []string{"runs on one node; remove predictor.workerSpec"}},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := catalogue.Select(tc.request, nil, shipped(t, all))
			for _, want := range tc.want {
				if err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("%v\nlacks %q", err, want)
				}
			}
		})
	}
	if _, err := catalogue.Select(request("sklearn", "", ""), nil, nil); err == nil || !strings.Contains(err.Error(), "no runtime at all") {
		t.Errorf("without any runtime: %v", err)
	}
}

func TestAnUnsetProtocolBecomesTheLowestThatTheRuntimeLists(t *testing.T) {
	for format, want := range map[string]servingv1alpha1.Protocol{"sklearn": "v1", "huggingface": "v1", "vLLM": ""} {
		got, err := catalogue.Select(request(format, "", ""), nil, shipped(t, all))
		if err != nil || got.Protocol != want {
			t.Errorf("%s: protocol %q, %v; want %q", format, got.Protocol, err, want)
		}
	}
}

// genRuntimes draws runtimes that collide a lot: few names, formats, priorities and times.
func genSpec(t *rapid.T) servingv1alpha1.ServingRuntimeSpec {
	var s servingv1alpha1.ServingRuntimeSpec
	for range rapid.IntRange(0, 3).Draw(t, "formats") {
		f := servingv1alpha1.SupportedModelFormat{Name: rapid.SampledFrom([]string{"onnx", "sklearn"}).Draw(t, "format")}
		f.Version = rapid.Ptr(rapid.SampledFrom([]string{"1", "2"}), true).Draw(t, "version")
		f.AutoSelect = rapid.Ptr(rapid.Bool(), true).Draw(t, "auto")
		f.Priority = rapid.Ptr(rapid.Int32Range(1, 3), true).Draw(t, "priority")
		s.SupportedModelFormats = append(s.SupportedModelFormats, f)
	}
	s.ProtocolVersions = rapid.SliceOfNDistinct(rapid.SampledFrom([]servingv1alpha1.Protocol{"v1", "v2", "grpc-v1", "grpc-v2"}), 0, 3, rapid.ID).Draw(t, "protocols")
	s.Disabled = rapid.Ptr(rapid.Bool(), true).Draw(t, "disabled")
	s.MultiModel = rapid.Ptr(rapid.Bool(), true).Draw(t, "multi")
	if rapid.IntRange(0, 4).Draw(t, "workers") == 0 {
		s.WorkerSpec = &servingv1alpha1.WorkerSpec{}
	}
	return s
}

func genMeta(t *rapid.T, i int) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Name:              string(rune('a' + i)),
		CreationTimestamp: metav1.NewTime(time.Unix(rapid.Int64Range(0, 2).Draw(t, "created"), 0)),
	}
}

func genRequest(t *rapid.T) catalogue.Request {
	r := request(rapid.SampledFrom([]string{"onnx", "sklearn"}).Draw(t, "want"), rapid.SampledFrom([]string{"", "1", "2"}).Draw(t, "version"),
		rapid.SampledFrom([]string{"", "v1", "v2", "grpc-v2"}).Draw(t, "protocol"))
	r.MultiNode = rapid.IntRange(0, 4).Draw(t, "nodes") == 0
	r.NoModel = rapid.Bool().Draw(t, "no model")
	r.Runtime = rapid.SampledFrom([]string{"", "", "", "a", "e"}).Draw(t, "runtime")
	return r
}

func TestTheOrderOfTheListsHasNoInfluence(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var ns []servingv1alpha1.ServingRuntime
		var cl []servingv1alpha1.ClusterServingRuntime
		for i := range rapid.IntRange(0, 5).Draw(t, "namespaced") {
			ns = append(ns, servingv1alpha1.ServingRuntime{ObjectMeta: genMeta(t, i), Spec: genSpec(t)})
		}
		for i := range rapid.IntRange(0, 5).Draw(t, "cluster") {
			cl = append(cl, servingv1alpha1.ClusterServingRuntime{ObjectMeta: genMeta(t, i), Spec: genSpec(t)})
		}
		r := genRequest(t)
		got, err := catalogue.Select(r, ns, cl)
		again, errAgain := catalogue.Select(r, rapid.Permutation(ns).Draw(t, "order"), rapid.Permutation(cl).Draw(t, "order"))
		if got.Name != again.Name || got.Kind != again.Kind || got.Protocol != again.Protocol {
			t.Fatalf("%s %s, but %s %s in another order", got.Kind, got.Name, again.Kind, again.Name)
		}
		if (err == nil) != (errAgain == nil) || (err != nil && err.Error() != errAgain.Error()) {
			t.Fatalf("%v, but %v in another order", err, errAgain)
		}
		var se *catalogue.SelectionError
		if err != nil && (!errors.As(err, &se) || se.Message == "") {
			t.Fatalf("%v is no explained refusal", err)
		}
	})
}

func TestWhatIsChosenFitsAndNothingBetterWasLeft(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var ns []servingv1alpha1.ServingRuntime
		for i := range rapid.IntRange(1, 5).Draw(t, "namespaced") {
			ns = append(ns, servingv1alpha1.ServingRuntime{ObjectMeta: genMeta(t, i), Spec: genSpec(t)})
		}
		r := genRequest(t)
		r.Runtime = ""
		got, err := catalogue.Select(r, ns, nil)
		if err != nil {
			return
		}
		// Without the winner another may win; with only the winner it must win again, and
		// every other that fits alone must lose to it in a pair.
		i := slices.IndexFunc(ns, func(s servingv1alpha1.ServingRuntime) bool { return s.Name == got.Name })
		for _, other := range ns {
			pair, err := catalogue.Select(r, []servingv1alpha1.ServingRuntime{other, ns[i]}, nil)
			if err != nil || pair.Name != got.Name {
				t.Fatalf("%s wins over all but loses to %s: %v", got.Name, other.Name, err)
			}
		}
		if got.Spec.Disabled != nil && *got.Spec.Disabled {
			t.Fatal("a disabled runtime was chosen")
		}
	})
}

func TestTiesAreBrokenInKServesOrder(t *testing.T) {
	yes, one, two := true, int32(1), int32(2)
	mk := func(name string, priority *int32, created int64, protocols ...servingv1alpha1.Protocol) servingv1alpha1.ClusterServingRuntime {
		r := servingv1alpha1.ClusterServingRuntime{}
		r.Name, r.CreationTimestamp = name, metav1.NewTime(time.Unix(created, 0))
		r.Spec.SupportedModelFormats = []servingv1alpha1.SupportedModelFormat{{Name: "onnx", AutoSelect: &yes, Priority: priority}}
		r.Spec.ProtocolVersions = protocols
		return r
	}
	quirk := mk("first-entry-counts", &one, 9, "v2")
	quirk.Spec.SupportedModelFormats = append(quirk.Spec.SupportedModelFormats, servingv1alpha1.SupportedModelFormat{Name: "onnx", AutoSelect: &yes, Priority: &two})
	for name, tc := range map[string]struct {
		a, b servingv1alpha1.ClusterServingRuntime
		want string
	}{
		"the higher priority":                   {mk("a", &one, 9, "v2"), mk("b", &two, 1, "v2"), "b"},
		"a set priority before an unset one":    {mk("a", nil, 9, "v1", "v2"), mk("b", &one, 1, "v2"), "b"},
		"the lower protocol":                    {mk("a", &one, 9, "v2"), mk("b", &one, 1, "v2", "v1"), "b"},
		"a listed protocol before none":         {mk("a", &one, 9), mk("b", &one, 1, "grpc-v2", "v2"), "b"},
		"the newer one":                         {mk("a", &one, 1, "v2"), mk("b", &one, 2, "v2"), "b"},
		"the name":                              {mk("b", &one, 1, "v2"), mk("a", &one, 1, "v2"), "a"},
		"only the first entry's priority count": {quirk, mk("b", &two, 1, "v2"), "b"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := catalogue.Select(request("onnx", "", "v2"), nil, []servingv1alpha1.ClusterServingRuntime{tc.a, tc.b})
			if err != nil || got.Name != tc.want {
				t.Errorf("got %s, %v; want %s", got.Name, err, tc.want)
			}
		})
	}
	low := servingv1alpha1.ServingRuntime{Spec: mk("", nil, 0).Spec}
	low.Name = "low"
	got, err := catalogue.Select(request("onnx", "", "v2"), []servingv1alpha1.ServingRuntime{low}, []servingv1alpha1.ClusterServingRuntime{mk("high", &two, 9, "v1", "v2")})
	if err != nil || got.Name != "low" {
		t.Errorf("got %s, %v; the namespace's comes before every one of the cluster's", got.Name, err)
	}
}
