package oip

import (
	"errors"
	"net/http"

	"google.golang.org/grpc/codes"

	"stationmaster.dev/stationmaster/internal/errdef"
)

// statuses is how an error's kind looks at the protocol's two edges. The protocol itself gives
// no mapping ("typically 400"); KServe's is kept where it has one, except that a failed or
// unsupported inference is told as such over gRPC too, where KServe says INVALID_ARGUMENT.
var statuses = []struct {
	kind error
	http int
	grpc codes.Code
}{
	{errdef.ErrInvalid, http.StatusBadRequest, codes.InvalidArgument},
	{errdef.ErrNotFound, http.StatusNotFound, codes.NotFound},
	{errdef.ErrConflict, http.StatusConflict, codes.FailedPrecondition},
	{errdef.ErrUnauthenticated, http.StatusUnauthorized, codes.Unauthenticated},
	{errdef.ErrDenied, http.StatusForbidden, codes.PermissionDenied},
	{errdef.ErrTooLarge, http.StatusRequestEntityTooLarge, codes.ResourceExhausted},
	{errdef.ErrOverloaded, http.StatusServiceUnavailable, codes.Unavailable},
	{errdef.ErrUnavailable, http.StatusServiceUnavailable, codes.Unavailable},
	{errdef.ErrTimeout, http.StatusGatewayTimeout, codes.DeadlineExceeded},
	{errdef.ErrUnsupported, http.StatusNotImplemented, codes.Unimplemented},
	{errdef.ErrUnverified, http.StatusForbidden, codes.PermissionDenied},
	{errdef.ErrNoSpace, http.StatusInsufficientStorage, codes.ResourceExhausted},
	{errdef.ErrInternal, http.StatusInternalServerError, codes.Internal},
}

// Status is the HTTP status and the gRPC code of the error's kind: 200 and OK for nil, those of
// errdef.ErrInternal for an error of no kind.
func Status(err error) (int, codes.Code) {
	kind := errdef.KindOf(err)
	if kind == nil {
		return http.StatusOK, codes.OK
	}
	for _, s := range statuses {
		if errors.Is(kind, s.kind) {
			return s.http, s.grpc
		}
	}
	return http.StatusInternalServerError, codes.Internal
}

// kinds of a gRPC code, for answers of an engine that must be told over REST.
var kindOfCode = map[codes.Code]error{
	codes.Canceled:           errdef.ErrUnavailable,
	codes.Unknown:            errdef.ErrInternal,
	codes.InvalidArgument:    errdef.ErrInvalid,
	codes.DeadlineExceeded:   errdef.ErrTimeout,
	codes.NotFound:           errdef.ErrNotFound,
	codes.AlreadyExists:      errdef.ErrConflict,
	codes.PermissionDenied:   errdef.ErrDenied,
	codes.ResourceExhausted:  errdef.ErrOverloaded,
	codes.FailedPrecondition: errdef.ErrConflict,
	codes.Aborted:            errdef.ErrConflict,
	codes.OutOfRange:         errdef.ErrInvalid,
	codes.Unimplemented:      errdef.ErrUnsupported,
	codes.Internal:           errdef.ErrInternal,
	codes.Unavailable:        errdef.ErrUnavailable,
	codes.DataLoss:           errdef.ErrInternal,
	codes.Unauthenticated:    errdef.ErrUnauthenticated,
}

// KindOfCode is the kind of error that a gRPC code means; nil for OK.
func KindOfCode(c codes.Code) error {
	if c == codes.OK {
		return nil
	}
	if kind, ok := kindOfCode[c]; ok {
		return kind
	}
	return errdef.ErrInternal
}

// KindOfStatus is the kind of error that an HTTP status means; nil below 400.
func KindOfStatus(status int) error {
	if status < http.StatusBadRequest {
		return nil
	}
	switch status {
	case http.StatusTooManyRequests:
		return errdef.ErrOverloaded
	case http.StatusBadGateway, http.StatusServiceUnavailable:
		return errdef.ErrUnavailable
	case http.StatusUnprocessableEntity:
		return errdef.ErrInvalid
	}
	for _, s := range statuses {
		if s.http == status {
			return s.kind
		}
	}
	if status < http.StatusInternalServerError {
		return errdef.ErrInvalid
	}
	return errdef.ErrInternal
}
