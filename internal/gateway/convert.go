package gateway

import (
	"stationmaster.dev/stationmaster/internal/errdef"
	"stationmaster.dev/stationmaster/internal/route"
)

func (x *exchange) convertToGRPC(_ *route.Endpoint) {
	x.fail(errdef.New(errdef.ErrUnsupported, "conversion"))
}

func (c *call) convertToREST(_ *route.Endpoint) error {
	return errdef.New(errdef.ErrUnsupported, "conversion")
}
