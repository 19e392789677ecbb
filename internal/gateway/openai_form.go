package gateway

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"mime/multipart"

	"stationmaster.dev/stationmaster/internal/errdef"
	"stationmaster.dev/stationmaster/internal/wire/openai"
)

// maxFormModel bounds a model's name in a form.
const maxFormModel = 4 << 10

// errNoName is told of a field that can't be a model's name.
var errNoName = errdef.New(errdef.ErrInvalid, `the field "model" is empty or too long`)

// errFarModel ends the reading of a form whose model doesn't come.
var errFarModel = errors.New("the model doesn't come")

// readForm reads a form up to its field "model", and on to maxForUsage for another one.
func (a *asked) readForm(body io.Reader, boundary string, most int) error {
	a.form = new(openai.Span)
	read := &formReader{r: body, left: most}
	parts := multipart.NewReader(read, boundary)
	name, err := formModel(parts)
	twice := false
	if err == nil {
		read.left = min(read.left, max(0, maxForUsage-read.b.Len()))
		_, again := formModel(parts)
		twice = again == nil || errors.Is(again, errNoName)
	}
	a.read = read.b.Bytes()
	a.whole = read.ended || int64(len(a.read)) == a.length
	var broken *brokenBodyError
	switch {
	case err == nil && read.failed != nil && !errors.Is(read.failed, errFarModel):
		return read.failed
	case twice && a.bare:
		return &apiError{errdef.New(errdef.ErrInvalid, `the form has the field "model" twice: name one`), "model", ""}
	case twice:
		return nil // its engine may judge
	case err == nil:
		a.model = name
		a.form.From, a.form.To = formSpan(a.read, boundary, name)
		if a.form.To == 0 {
			return errdef.New(errdef.ErrInvalid, `the form's field "model" can't be read`)
		}
		return nil
	case errors.As(read.failed, &broken), errors.Is(read.failed, errdef.ErrTooLarge), errors.Is(read.failed, errdef.ErrInvalid):
		return read.failed
	case !a.bare:
		return nil
	case errors.Is(read.failed, errFarModel):
		return errdef.New(errdef.ErrTooLarge, fmt.Sprintf(
			`the field "model" doesn't come within the first %d bytes of the form: put it first, or use the service's host or path prefix`, most))
	case errors.Is(err, io.EOF) && read.ended:
		return &apiError{errdef.New(errdef.ErrInvalid, `the form has no field "model": name one, as GET /v1/models lists them`), "model", ""}
	}
	return errdef.New(errdef.ErrInvalid, "the form can't be read: "+err.Error())
}

// formModel finds the value of the field "model".
func formModel(r *multipart.Reader) (string, error) {
	for {
		part, err := r.NextRawPart()
		if err != nil {
			return "", err
		}
		if part.FormName() != "model" || part.FileName() != "" {
			continue
		}
		b, err := io.ReadAll(io.LimitReader(part, maxFormModel+1))
		if err != nil {
			return "", err
		}
		if len(b) == 0 || len(b) > maxFormModel {
			return "", errNoName
		}
		return string(b), nil
	}
}

// formSpan finds where the value of the field "model" lies: behind the head of its part, and
// before the next boundary, which occurs nowhere within a part.
func formSpan(form []byte, boundary, name string) (from, to int) {
	value := []byte("\r\n\r\n" + name + "\r\n--" + boundary)
	delimiter := []byte("--" + boundary + "\r\n")
	for at := 0; ; {
		i := bytes.Index(form[at:], value)
		if i < 0 {
			return 0, 0
		}
		i += at
		if h := bytes.LastIndex(form[:i], delimiter); h >= 0 {
			part, err := multipart.NewReader(bytes.NewReader(form[h:]), boundary).NextRawPart()
			if err == nil && part.FormName() == "model" && part.FileName() == "" {
				return i + 4, i + 4 + len(name)
			}
		}
		at = i + 1
	}
}

// formReader keeps what was read of a form.
type formReader struct {
	r      io.Reader
	b      bytes.Buffer
	left   int
	ended  bool
	failed error
}

func (f *formReader) Read(p []byte) (int, error) {
	if f.left <= 0 {
		f.failed = errFarModel
		return 0, errFarModel
	}
	n, err := f.r.Read(p[:min(len(p), f.left)])
	f.left -= n
	f.b.Write(p[:n])
	switch {
	case errors.Is(err, io.EOF):
		f.ended = true
	case err != nil:
		err = bodyError(err)
		f.failed = err
	}
	return n, err
}
