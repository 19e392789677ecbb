package graph

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	"google.golang.org/protobuf/encoding/protowire"

	"stationmaster.dev/stationmaster/internal/errdef"
)

// memoryLocation is a location that onnxruntime takes for an address in its own memory
// (kTensorProtoMemoryAddressTag in its sources); no file may ask for that.
const memoryLocation = "*/_ORT_MEM_ADDR_/*"

// external reads a tensor that is kept in a file of its own.
func (d *decoder) external(r *rawTensor) ([]byte, error) {
	f, offset, length, err := d.openExternal(r)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	buf := make([]byte, length)
	if _, err := f.ReadAt(buf, offset); err != nil {
		return nil, fmt.Errorf("tensor %s in %s: %w", r.name, r.external["location"], err)
	}
	return buf, nil
}

// externalFile is an open file that can be read at places.
type externalFile interface {
	fs.File
	io.ReaderAt
}

// openExternal opens the file that a tensor is kept in and checks the range in it. The file's
// name is taken from the model, which may come from anywhere, so it is opened within the
// model's folder only. Errors are of kind errdef.ErrInvalid, but for those of the disk.
func (d *decoder) openExternal(r *rawTensor) (_ externalFile, offset, length int64, err error) {
	name := r.external["location"]
	local := filepath.ToSlash(filepath.Clean(name))
	if d.files == nil || !fs.ValidPath(local) || local == memoryLocation {
		return nil, 0, 0, errdef.New(errdef.ErrInvalid, fmt.Sprintf("tensor %s is in the file %q, which isn't within the model's folder", r.name, name))
	}
	f, err := d.files.Open(local)
	if err != nil {
		return nil, 0, 0, fmt.Errorf("tensor %s is in a file of its own: %w: %w", r.name, errdef.ErrInvalid, err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, f.Close())
		}
	}()
	info, err := f.Stat()
	if err != nil {
		return nil, 0, 0, fmt.Errorf("tensor %s: %w", r.name, err)
	}
	at, ok := f.(externalFile)
	if !ok || !info.Mode().IsRegular() {
		return nil, 0, 0, errdef.New(errdef.ErrInvalid, fmt.Sprintf("tensor %s: %s is no regular file", r.name, name))
	}
	if offset, length, err = externalRange(r.external, info.Size()); err != nil {
		return nil, 0, 0, fmt.Errorf("tensor %s in %s: %w", r.name, name, err)
	}
	return at, offset, length, nil
}

func externalRange(entries map[string]string, size int64) (offset, length int64, err error) {
	length = -1
	for key, into := range map[string]*int64{"offset": &offset, "length": &length} {
		if s, ok := entries[key]; ok {
			if *into, err = strconv.ParseInt(s, 10, 64); err != nil {
				return 0, 0, malformed(key + " is no number")
			}
		}
	}
	if length < 0 {
		length = size - offset
	}
	if offset < 0 || length < 0 || offset > size || length > size-offset {
		return 0, 0, malformed(fmt.Sprintf("bytes %d to %d are asked for and the file has %d", offset, offset+length, size))
	}
	return offset, length, nil
}

// CheckExternal looks at every tensor that the model at path keeps in a file of its own, those
// in parts that Decode passes over or doesn't support included, and holds its place to what Read
// demands. It is for models that are given to another library by their path. Errors are of kind
// errdef.ErrInvalid.
func CheckExternal(path string) error {
	raw, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("read model: %w", err)
	}
	folder, err := os.OpenRoot(filepath.Dir(path))
	if err != nil {
		return fmt.Errorf("open the model's folder: %w", err)
	}
	defer folder.Close()
	c := externalCheck{decoder{files: folder.FS()}}
	if err := c.walk(raw, modelMessage, 0); err != nil {
		return fmt.Errorf("%s: %w", filepath.Base(path), err)
	}
	return nil
}

// message is a kind of message of onnx.proto that tensors are found below.
type message uint8

const (
	modelMessage message = iota
	graphMessage
	nodeMessage
	attributeMessage
	functionMessage
	trainingMessage
	sparseMessage
	tensorMessage
)

// below lists, for each kind of message, the fields that lead to tensors.
var below = map[message]map[protowire.Number]message{
	modelMessage:     {7: graphMessage, 20: trainingMessage, 25: functionMessage},
	graphMessage:     {1: nodeMessage, 5: tensorMessage, 15: sparseMessage},
	nodeMessage:      {5: attributeMessage},
	attributeMessage: {5: tensorMessage, 6: graphMessage, 10: tensorMessage, 11: graphMessage, 22: sparseMessage, 23: sparseMessage},
	functionMessage:  {7: nodeMessage, 11: attributeMessage},
	trainingMessage:  {1: graphMessage, 2: graphMessage},
	sparseMessage:    {1: tensorMessage, 2: tensorMessage},
}

type externalCheck struct{ decoder }

func (c *externalCheck) walk(b []byte, kind message, depth int) error {
	if kind == tensorMessage {
		return c.tensor(b)
	}
	if kind == graphMessage {
		if depth++; depth > maxDepth+1 {
			return errdef.New(errdef.ErrInvalid, fmt.Sprintf("graphs are nested more than %d deep", maxDepth))
		}
	}
	return c.fields(b, func(num protowire.Number, v field) error {
		if next, ok := below[kind][num]; ok && v.typ == protowire.BytesType {
			return c.walk(v.bytes, next, depth)
		}
		return nil
	})
}

func (c *externalCheck) tensor(b []byte) error {
	var r rawTensor
	err := c.fields(b, func(num protowire.Number, v field) error {
		switch num {
		case 8:
			r.name = string(v.bytes)
		case 13:
			return c.externalEntry(v.bytes, &r)
		case 14:
			r.isExt = v.number != 0
		}
		return nil
	})
	if err != nil || (!r.isExt && r.external == nil) {
		return err
	}
	f, _, _, err := c.openExternal(&r)
	if err != nil {
		return err
	}
	return f.Close()
}
