package extproc

import (
	"errors"
	"net/http"

	"stationmaster.dev/stationmaster/internal/errdef"
	"stationmaster.dev/stationmaster/internal/extproc/reading"
	"stationmaster.dev/stationmaster/internal/wire/openai"
)

// refusal is how an error of a kind is told: as a status, and as a type of OpenAI's errors.
type refusal struct {
	status int
	word   string
}

// refusals are those of the kinds of error that an endpoint picker has.
var refusals = map[error]refusal{
	errdef.ErrInvalid:     {http.StatusBadRequest, "invalid_request_error"},
	errdef.ErrTooLarge:    {http.StatusRequestEntityTooLarge, "invalid_request_error"},
	errdef.ErrOverloaded:  {http.StatusTooManyRequests, "rate_limit_error"},
	errdef.ErrUnavailable: {http.StatusServiceUnavailable, "server_error"},
}

// refusalOf returns an error's status, and its body in OpenAI's shape.
func refusalOf(err error) (int, []byte) {
	r, ok := refusals[errdef.KindOf(err)]
	if !ok {
		r = refusal{http.StatusInternalServerError, "server_error"}
	}
	e := openai.Error{Message: err.Error(), Type: r.word}
	if errors.Is(err, reading.ErrNoModel) {
		e.Param = "model"
	}
	return r.status, e.JSON()
}
