package manifest

import (
	"testing"

	"stationmaster.dev/stationmaster/api/serving/v1beta1"
)

func TestAStorageSpecIsAURIOfItsEntry(t *testing.T) {
	for want, s := range map[string]v1beta1.StorageSpec{
		"storage://default":                 {},
		"storage://mine/models/iris":        {StorageKey: ptr("mine"), Path: ptr("models/iris")},
		"storage://default_s3/a?type=s3":    {Path: ptr("/a"), Parameters: &map[string]string{"type": "s3"}},
		"storage://mine/a?bucket=b&type=s3": {StorageKey: ptr("mine"), Path: ptr("a"), Parameters: &map[string]string{"type": "s3", "bucket": "b", "other": "x"}},
		"storage://default/a?endpoint_url=http%3A%2F%2Fstore%3A9000&region=eu": {
			StorageKey: ptr(""), Path: ptr("a"), Parameters: &map[string]string{"endpoint_url": "http://store:9000", "region": "eu"},
		},
	} {
		if got := storageURI(&s); got != want {
			t.Errorf("%+v is %s, want %s", s, got, want)
		}
	}
}
