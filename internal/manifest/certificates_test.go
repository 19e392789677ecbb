package manifest

import (
	"errors"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"stationmaster.dev/stationmaster/api/serving/v1alpha1"
	"stationmaster.dev/stationmaster/api/serving/v1beta1"
	"stationmaster.dev/stationmaster/internal/enginetls"
)

// A self-signed certificate that proves nothing.
const someCertificate = `-----BEGIN CERTIFICATE-----
MIIBdTCCARugAwIBAgIUMB46wYlJYj6GrmZ/f6/5SnbI1cIwCgYIKoZIzj0EAwIw
DzENMAsGA1UEAwwEaXJpczAgFw0yNjExMzAwNzQzMDFaGA8yMTI2MTEwNjA3NDMw
MVowDzENMAsGA1UEAwwEaXJpczBZMBMGByqGSM49AgEGCCqGSM49AwEHA0IABDd6
PQ30zi6qfEyfnfKKVHAFiOXygiDFDDOONuH9LPLCis1LoNU+bXhfV35htSOIDIAG
V0svEHJHLVpv/vBTVl+jUzBRMB0GA1UdDgQWBBRSy2PhXvAzUESEzWn5ypHhspse
TTAfBgNVHSMEGDAWgBRSy2PhXvAzUESEzWn5ypHhspseTTAPBgNVHRMBAf8EBTAD
AQH/MAoGCCqGSM49BAMCA0gAMEUCIEzTRNzLU7w86K4ruMp6OSpeSHTtKJYIhRXF
6XE1+87mAiEAw/6uA6sJOPYyHkCLv/cumwQjtMJmu+D7aYsUPiRyAaQ=
-----END CERTIFICATE-----
`

func TestCertificatesComeFromWhereIsNearest(t *testing.T) {
	roots := map[string]string{"ca.crt": someCertificate, "old.pem": "", "bad": "no PEM"}
	lookup := func(name string) (map[string]string, error) {
		if name != "roots" {
			return nil, errors.New("there is no config map " + name)
		}
		return roots, nil
	}
	for name, tc := range map[string]struct {
		runtime, service, component map[string]string
		want                        string
		wantErr                     string
	}{
		"none":                          {},
		"the service's":                 {service: map[string]string{enginetls.ConfigMapAnnotation: "roots"}, want: someCertificate},
		"another key":                   {service: map[string]string{enginetls.ConfigMapAnnotation: "roots/old.pem"}},
		"a key that isn't there":        {service: map[string]string{enginetls.ConfigMapAnnotation: "roots/x"}, wantErr: "has no key x"},
		"a config map that isn't there": {service: map[string]string{enginetls.ConfigMapAnnotation: "gone"}, wantErr: "there is no config map gone"},
		"what is no certificate":        {service: map[string]string{enginetls.ConfigMapAnnotation: "roots/bad"}, wantErr: "the config map roots, key bad"},
		"written ones of a component go before": {
			service: map[string]string{enginetls.ConfigMapAnnotation: "gone"}, component: map[string]string{enginetls.RootsAnnotation: someCertificate}, want: someCertificate,
		},
		"named ones of a service go before a runtime's": {
			runtime: map[string]string{enginetls.RootsAnnotation: "the runtime's"}, service: map[string]string{enginetls.ConfigMapAnnotation: "roots"}, want: someCertificate,
		},
		"nobody looks where nothing is verified": {
			service: map[string]string{enginetls.ConfigMapAnnotation: "gone"}, component: map[string]string{enginetls.Annotation: enginetls.SkipVerify},
		},
	} {
		t.Run(name, func(t *testing.T) {
			service := with(func(s *v1beta1.InferenceService) {
				s.Annotations, s.Spec.Predictor.Annotations = tc.service, tc.component
			})
			in := Input{Service: service, Component: "predictor", RuntimeName: "r", RuntimeKind: "ServingRuntime", ConfigMap: lookup, Runtime: &v1alpha1.ServingRuntimeSpec{
				ServingRuntimePodSpec: v1alpha1.ServingRuntimePodSpec{Annotations: tc.runtime, Containers: []corev1.Container{{Name: ServerContainer, Image: "x"}}},
			}}
			got, err := Compile(in)
			if tc.wantErr != "" {
				if err == nil || !strings.Contains(err.Error(), tc.wantErr) {
					t.Fatalf("%v, want %q", err, tc.wantErr)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			a := got.PodTemplate.Annotations
			if a[enginetls.RootsAnnotation] != tc.want || a[enginetls.ConfigMapAnnotation] != "" {
				t.Errorf("the pod's annotations are %q", a)
			}
		})
	}
}
