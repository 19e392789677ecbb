package manifest_test

import (
	"testing"

	"stationmaster.dev/stationmaster/internal/manifest"
	"stationmaster.dev/stationmaster/internal/spec"
)

func BenchmarkCompile(b *testing.B) {
	in := input(b, service(b, "predictor: {sklearn: {protocolVersion: v2, storageUri: 'file:///m'}}"), spec.Predictor)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := manifest.Compile(in); err != nil {
			b.Fatal(err)
		}
	}
}
