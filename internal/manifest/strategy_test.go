package manifest

import (
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"stationmaster.dev/stationmaster/api/serving/v1beta1"
)

func rollingUpdate(surge, unavailable string) *appsv1.DeploymentStrategy {
	u := &appsv1.RollingUpdateDeployment{}
	for to, text := range map[**intstr.IntOrString]string{&u.MaxSurge: surge, &u.MaxUnavailable: unavailable} {
		if text != "" {
			v := intstr.Parse(text)
			*to = &v
		}
	}
	return &appsv1.DeploymentStrategy{Type: appsv1.RollingUpdateDeploymentStrategyType, RollingUpdate: u}
}

// What the Deployment controller makes of the same numbers: maxSurge rounds up, maxUnavailable
// down (k8s.io/api/apps/v1, RollingUpdateDeployment).
func TestRollingReadsADeploymentsNumbers(t *testing.T) {
	tests := map[string]struct {
		strategy           *appsv1.DeploymentStrategy
		replicas           int
		surge, unavailable int
		not                bool
	}{
		"nothing given":               {not: true, replicas: 4},
		"type alone":                  {strategy: &appsv1.DeploymentStrategy{Type: "RollingUpdate"}, replicas: 4, not: true},
		"recreate":                    {strategy: &appsv1.DeploymentStrategy{Type: "Recreate"}, replicas: 4, not: true},
		"numbers":                     {strategy: rollingUpdate("2", "0"), replicas: 4, surge: 2},
		"a quarter by default":        {strategy: rollingUpdate("", ""), replicas: 10, surge: 3, unavailable: 2},
		"percentages of few replicas": {strategy: rollingUpdate("25%", "25%"), replicas: 2, surge: 1},
		"nothing that could move":     {strategy: rollingUpdate("0", "10%"), replicas: 4, unavailable: 1},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			surge, unavailable, ok := Rolling(tc.strategy, tc.replicas)
			if surge != tc.surge || unavailable != tc.unavailable || ok == tc.not {
				t.Errorf("%d beyond, %d missing, %v; want %d, %d, %v", surge, unavailable, ok, tc.surge, tc.unavailable, !tc.not)
			}
		})
	}
}

func TestDeploymentStrategiesThatCannotBe(t *testing.T) {
	both := rollingUpdate("1", "1")
	both.Type = appsv1.RecreateDeploymentStrategyType
	tests := map[string]struct {
		strategy *appsv1.DeploymentStrategy
		want     string
	}{
		"another type":           {&appsv1.DeploymentStrategy{Type: "BlueGreen"}, `deploymentStrategy.type: Unsupported value: "BlueGreen"`},
		"both":                   {both, "rollingUpdate: Forbidden"},
		"nothing may move":       {rollingUpdate("0", "0%"), "may not be 0 when maxSurge is 0"},
		"less than nothing":      {rollingUpdate("-1", ""), `maxSurge: Invalid value: "-1"`},
		"no number":              {rollingUpdate("", "some"), `maxUnavailable: Invalid value: "some"`},
		"more than all missing":  {rollingUpdate("", "120%"), "must be at most 100%"},
		"twice as many, allowed": {rollingUpdate("200%", "0"), ""},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			is := with(func(is *v1beta1.InferenceService) { is.Spec.Predictor.DeploymentStrategy = tc.strategy })
			var want []string
			if tc.want != "" {
				want = []string{tc.want}
			}
			checkErrors(t, Validate(is, nil), want)
		})
	}
}
