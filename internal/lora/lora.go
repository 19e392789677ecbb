// Package lora holds what passes between those who list LoRA adapters, load them and route to them:
// which are wanted, and which the replicas of language models have.
package lora

import (
	"slices"

	"stationmaster.dev/stationmaster/internal/spec"
	"stationmaster.dev/stationmaster/internal/state"
)

// Board joins them. The zero Board is ready for use.
type Board struct {
	Wanted state.Topic[Wanted]
	Known  state.Topic[Known]
}

// Want is an adapter that a service lists.
type Want struct {
	// Name is that under which requests ask for it.
	Name string
	// URI is where its bytes are.
	URI string
	// Generation tells one wish of this name from the next.
	Generation int64
}

// Wanted are the adapters of services, in the order of their names. It is immutable.
type Wanted map[spec.ServiceKey][]Want

// Known is what is known of replicas, by the address ("host:port") of their engine's HTTP port. It
// is immutable. A replica that isn't in it wasn't asked yet.
type Known map[string]Replica

// Replica is what one replica's engine reported.
type Replica struct {
	Service spec.ServiceKey
	// Adapters are in the order of their names.
	Adapters []Adapter
	// Problems say why adapters that are wanted aren't loaded, by name.
	Problems map[string]string
}

// Adapter is an adapter that an engine has loaded.
type Adapter struct {
	Name string
	// Parent is the model that it adapts, as the engine calls it; Root is where the engine has the
	// adapter from, empty where it doesn't say.
	Parent, Root string
}

// Adapter returns an adapter by its name, and whether the replica has it.
func (r Replica) Adapter(name string) (Adapter, bool) {
	i := slices.IndexFunc(r.Adapters, func(a Adapter) bool { return a.Name == name })
	if i < 0 {
		return Adapter{}, false
	}
	return r.Adapters[i], true
}
