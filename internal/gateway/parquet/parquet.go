// Package parquet writes a table of strings and booleans as a file of Apache Parquet: one row
// group, plain encoding, no compression. It has no state.
package parquet

import (
	"bytes"
	"encoding/binary"
)

// Column is a column without nulls. It has Strings, or else Booleans.
type Column struct {
	Name     string
	Strings  []string
	Booleans []bool
}

func (c *Column) len() int { return max(len(c.Strings), len(c.Booleans)) }

// Numbers of the format (parquet-format, src/main/thrift/parquet.thrift).
const (
	typeBoolean, typeByteArray = 0, 6
	required                   = 0
	convertedUTF8              = 0
	encodingPlain, encodingRLE = 0, 3
	uncompressed               = 0
	dataPage                   = 0
)

const magic = "PAR1"

// File returns a file with the columns, which all have the same number of rows. root is the name of
// the schema.
func File(root string, columns []Column) []byte {
	rows := 0
	if len(columns) > 0 {
		rows = columns[0].len()
	}
	var out bytes.Buffer
	out.WriteString(magic)
	chunks := make([]chunk, len(columns))
	for i := range columns {
		c := &columns[i]
		values := c.plain()
		var head compact
		head.structure(func(f *fields) {
			f.int32(1, dataPage)
			f.int32(2, int64(len(values)))
			f.int32(3, int64(len(values)))
			f.structure(5, func(f *fields) {
				f.int32(1, int64(rows))
				f.int32(2, encodingPlain)
				f.int32(3, encodingRLE)
				f.int32(4, encodingRLE)
			})
		})
		chunks[i] = chunk{offset: int64(out.Len()), size: int64(len(head.b) + len(values))}
		out.Write(head.b)
		out.Write(values)
	}
	foot := footer(root, columns, chunks, int64(rows))
	out.Write(foot)
	out.Write(binary.LittleEndian.AppendUint32(nil, uint32(len(foot)))) //nolint:gosec // a few hundred bytes
	out.WriteString(magic)
	return out.Bytes()
}

// chunk is where a column's page is, and how long it is with its header.
type chunk struct{ offset, size int64 }

func (c *Column) kind() int64 {
	if c.Booleans != nil {
		return typeBoolean
	}
	return typeByteArray
}

// plain is the column's values in the encoding PLAIN.
func (c *Column) plain() []byte {
	var b []byte
	for _, s := range c.Strings {
		b = append(binary.LittleEndian.AppendUint32(b, uint32(len(s))), s...) //nolint:gosec // bodies are bounded far below
	}
	for i, v := range c.Booleans {
		if i%8 == 0 {
			b = append(b, 0)
		}
		if v {
			b[i/8] |= 1 << (i % 8)
		}
	}
	return b
}

// footer is the FileMetaData.
func footer(root string, columns []Column, chunks []chunk, rows int64) []byte {
	var total int64
	for _, c := range chunks {
		total += c.size
	}
	var foot compact
	foot.structure(func(f *fields) {
		f.int32(1, 1) // the format's version
		f.list(2, typeStruct, len(columns)+1, func(w *compact, i int) {
			w.structure(func(f *fields) {
				if i == 0 {
					f.text(4, root)
					f.int32(5, int64(len(columns)))
					return
				}
				c := &columns[i-1]
				f.int32(1, c.kind())
				f.int32(3, required)
				f.text(4, c.Name)
				if c.kind() == typeByteArray {
					f.int32(6, convertedUTF8)
				}
			})
		})
		f.int64(3, rows)
		f.list(4, typeStruct, 1, func(w *compact, _ int) {
			w.structure(func(f *fields) {
				f.list(1, typeStruct, len(columns), func(w *compact, i int) {
					w.structure(func(f *fields) {
						f.int64(2, chunks[i].offset)
						f.structure(3, func(f *fields) {
							f.int32(1, columns[i].kind())
							f.list(2, typeI32, 1, func(w *compact, _ int) { w.zigzag(encodingPlain) })
							f.list(3, typeBinary, 1, func(w *compact, _ int) { w.text(columns[i].Name) })
							f.int32(4, uncompressed)
							f.int64(5, rows)
							f.int64(6, chunks[i].size)
							f.int64(7, chunks[i].size)
							f.int64(9, chunks[i].offset)
						})
					})
				})
				f.int64(2, total)
				f.int64(3, rows)
			})
		})
	})
	return foot.b
}

// The types of Thrift's compact protocol (thrift-compact-protocol.md, "Struct encoding").
const (
	typeI32    = 5
	typeI64    = 6
	typeBinary = 8
	typeList   = 9
	typeStruct = 12
)

// compact writes values in Thrift's compact protocol.
type compact struct{ b []byte }

func (w *compact) zigzag(v int64) { w.b = binary.AppendVarint(w.b, v) }

func (w *compact) text(s string) {
	w.b = binary.AppendUvarint(w.b, uint64(len(s)))
	w.b = append(w.b, s...)
}

func (w *compact) structure(write func(*fields)) {
	write(&fields{w: w})
	w.b = append(w.b, 0)
}

// fields writes the fields of one structure, in the order of their numbers.
type fields struct {
	w    *compact
	last byte
}

func (f *fields) begin(number, kind byte) {
	f.w.b = append(f.w.b, (number-f.last)<<4|kind) // numbers here are less than 16 apart
	f.last = number
}

func (f *fields) int32(number byte, v int64) {
	f.begin(number, typeI32)
	f.w.zigzag(v)
}

func (f *fields) int64(number byte, v int64) {
	f.begin(number, typeI64)
	f.w.zigzag(v)
}

func (f *fields) text(number byte, s string) {
	f.begin(number, typeBinary)
	f.w.text(s)
}

func (f *fields) structure(number byte, write func(*fields)) {
	f.begin(number, typeStruct)
	f.w.structure(write)
}

func (f *fields) list(number, kind byte, n int, write func(w *compact, i int)) {
	f.begin(number, typeList)
	if n < 15 {
		f.w.b = append(f.w.b, byte(n)<<4|kind)
	} else {
		f.w.b = binary.AppendUvarint(append(f.w.b, 0xf0|kind), uint64(n))
	}
	for i := range n {
		write(f.w, i)
	}
}
