package platform

import (
	"stationmaster.dev/stationmaster/internal/spec"
	"stationmaster.dev/stationmaster/internal/state"
)

// Feed tells any number of readers which services changed; its Subscribe implements
// Platform.Changes.
type Feed = state.Feed[spec.ServiceKey]
