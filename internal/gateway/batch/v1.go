package batch

import (
	"bytes"
	"strconv"

	"stationmaster.dev/stationmaster/internal/errdef"
	"stationmaster.dev/stationmaster/internal/wire/brief"
	"stationmaster.dev/stationmaster/internal/wire/jsonscan"
)

// V1 is a :predict request of the V1 protocol with rows. It shares its body's memory.
type V1 struct {
	// rows are the elements of "instances" as they came, without the brackets; n is their number.
	rows []byte
	n    int
	// rest are the body's other fields, each behind a comma.
	rest  []byte
	shape string
}

// ReadV1 reads a request's body. The error, of kind errdef.ErrInvalid, says why it can't be put
// together with others: it isn't one, has no "instances", or rows of different shapes.
func ReadV1(body []byte) (*V1, error) {
	var r V1
	seen := map[string]bool{}
	s := jsonscan.New(body)
	err := s.Object(func(k []byte) error {
		key := string(k)
		if seen[key] {
			return invalid("the key %q comes twice", key)
		}
		seen[key] = true
		if key == "instances" {
			return r.instances(s, body)
		}
		value, err := s.Skip()
		r.rest = append(append(jsonscan.AppendString(append(r.rest, ','), k), ':'), value...)
		return err
	})
	switch {
	case err != nil:
		return nil, err
	case r.n == 0:
		return nil, invalid("the body has no instances")
	}
	return &r, s.End()
}

func (r *V1) instances(s *jsonscan.Scanner, body []byte) error {
	var shape []byte
	return s.Array(func(i int) error {
		s.Peek() // the value begins behind the space
		from := s.Pos()
		var err error
		if shape, err = appendShape(shape[:0], s); err != nil {
			return err
		}
		switch {
		case i == 0:
			r.shape = string(shape)
		case string(shape) != r.shape:
			return invalid("instances[%d] has another shape than those before", i)
		default:
			r.rows = append(r.rows, ',')
		}
		r.rows, r.n = append(r.rows, body[from:s.Pos()]...), i+1
		return nil
	})
}

// appendShape reads a value and appends how it nests, without its numbers and words: [n2] is a list
// of two numbers. Elements that nest alike are counted.
func appendShape(dst []byte, s *jsonscan.Scanner) ([]byte, error) {
	switch s.Peek() {
	case '[':
		dst = append(dst, '[')
		run, n := len(dst), 0 // where the shape of the elements that are counted begins, and ends
		end := run
		err := s.Array(func(int) error {
			var err error
			dst, err = appendShape(dst, s)
			switch {
			case n > 0 && bytes.Equal(dst[end:], dst[run:end]):
				dst, n = dst[:end], n+1
			case n > 0:
				shape := bytes.Clone(dst[end:])
				dst = append(append(strconv.AppendInt(dst[:end], int64(n), 10), ','), shape...)
				run, end, n = len(dst)-len(shape), len(dst), 1
			default:
				end, n = len(dst), 1
			}
			return err
		})
		return append(strconv.AppendInt(dst, int64(n), 10), ']'), err
	case '{':
		dst = append(dst, '{')
		err := s.Object(func(key []byte) error {
			var err error
			dst, err = appendShape(jsonscan.AppendString(dst, key), s)
			return err
		})
		return append(dst, '}'), err
	case '"':
		_, err := s.Skip()
		return append(dst, 's'), err
	case 't', 'f':
		_, err := s.Skip()
		return append(dst, 'b'), err
	case 'n':
		_, err := s.Skip()
		return append(dst, '0'), err
	}
	_, err := s.Skip()
	return append(dst, 'n'), err
}

// Rows is how many rows the request has, 1 or more.
func (r *V1) Rows() int { return r.n }

// Key is equal for requests that may go together: their rows have one shape, and nothing else in
// their bodies differs.
func (r *V1) Key() string { return r.shape + string(r.rest) }

// MergeV1 makes one body of those of requests with equal keys.
func MergeV1(requests []*V1) []byte {
	size := 32 + len(requests[0].rest)
	for _, r := range requests {
		size += len(r.rows) + 1
	}
	b := append(make([]byte, 0, size), `{"instances":[`...)
	for i, r := range requests {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, r.rows...)
	}
	b = append(b, ']')
	return append(append(b, requests[0].rest...), '}')
}

// SplitV1 gives each of the merged requests its part of the answer, in KServe's form: with an empty
// message and the batch's id before the predictions. What else the answer holds all of them get.
// An answer without one prediction for each row is an error of kind errdef.ErrInternal.
func SplitV1(answer []byte, requests []*V1, id string) ([][]byte, error) {
	var predictions [][]byte
	var rest []byte
	s := jsonscan.New(answer)
	err := s.Object(func(k []byte) error {
		key := string(k)
		if key == "predictions" {
			predictions = nil
			return s.Array(func(int) error {
				row, err := s.Skip()
				predictions = append(predictions, row)
				return err
			})
		}
		value, err := s.Skip()
		if key != "message" && key != "batchId" {
			rest = append(append(jsonscan.AppendString(append(rest, ','), k), ':'), value...)
		}
		return err
	})
	if err == nil {
		err = s.End()
	}
	if err != nil {
		return nil, broken("the engine's answer isn't one: %s", err.Error())
	}
	rows := 0
	for _, r := range requests {
		rows += r.n
	}
	if len(predictions) != rows {
		return nil, broken("the engine gave %d predictions for %d rows", len(predictions), rows)
	}
	out := make([][]byte, len(requests))
	for i, r := range requests {
		b := jsonscan.AppendString([]byte(`{"message":"","batchId":`), []byte(id))
		b = append(b, `,"predictions":[`...)
		for j, p := range predictions[:r.n] {
			if j > 0 {
				b = append(b, ',')
			}
			b = append(b, p...)
		}
		predictions = predictions[r.n:]
		out[i] = append(append(append(b, ']'), rest...), '}')
	}
	return out, nil
}

func invalid(format string, args ...any) error {
	return errdef.New(errdef.ErrInvalid, brief.Sprintf(format, args...))
}

func broken(format string, args ...any) error {
	return errdef.New(errdef.ErrInternal, brief.Sprintf(format, args...))
}
