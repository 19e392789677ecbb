package manifest

import (
	"encoding"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"stationmaster.dev/stationmaster/api/serving/v1beta1"
)

// maxFieldErrors bounds how many faults one object reports; the rest add nothing.
const maxFieldErrors = 100

// checker walks decoded JSON beside a Go type and notes where they don't fit, with the
// verdicts that an API server reaches with the full CRD made from the same type.
type checker struct {
	unknown []string
	invalid field.ErrorList
	// prune deletes unknown fields from what is walked.
	prune bool
}

// member is one JSON field of a struct.
type member struct {
	name     string
	typ      reflect.Type
	required bool
}

// members maps JSON names to the fields of a struct type, embedded ones included.
type members struct {
	byName   map[string]member
	required []string
}

var memberCache sync.Map // reflect.Type → *members; types are fixed, so it has a bound.

func membersOf(t reflect.Type) *members {
	if m, ok := memberCache.Load(t); ok {
		return m.(*members)
	}
	m := &members{byName: map[string]member{}}
	collect(t, m)
	slices.Sort(m.required)
	actual, _ := memberCache.LoadOrStore(t, m)
	return actual.(*members)
}

func collect(t reflect.Type, into *members) {
	for i := range t.NumField() {
		f := t.Field(i)
		tag, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		if tag == "-" || !f.IsExported() && !f.Anonymous {
			continue
		}
		if f.Anonymous && tag == "" {
			e := f.Type
			if e.Kind() == reflect.Pointer {
				e = e.Elem()
			}
			collect(e, into)
			continue
		}
		if tag == "" {
			tag = f.Name
		}
		optional := strings.Contains(options, "omitempty") || strings.Contains(options, "omitzero") || optionalFields[t.Name()+"."+tag]
		if _, outer := into.byName[tag]; outer {
			continue // Go's rule: the less nested field wins
		}
		into.byName[tag] = member{name: tag, typ: f.Type, required: !optional}
		if !optional {
			into.required = append(into.required, tag)
		}
	}
}

// optionalFields are fields without omitempty that their types' markers make optional.
var optionalFields = map[string]bool{
	"FieldsV1.Raw": true,
}

var (
	quantityType    = reflect.TypeFor[resource.Quantity]()
	intOrStringType = reflect.TypeFor[intstr.IntOrString]()
	timeType        = reflect.TypeFor[metav1.Time]()
	microTimeType   = reflect.TypeFor[metav1.MicroTime]()
	durationType    = reflect.TypeFor[metav1.Duration]()
	bytesType       = reflect.TypeFor[[]byte]()
	jsonUnmarshaler = reflect.TypeFor[json.Unmarshaler]()
	textUnmarshaler = reflect.TypeFor[encoding.TextUnmarshaler]()
)

// value checks v, a value as encoding/json decodes it (int64 allowed), against t.
func (c *checker) value(v any, t reflect.Type, at *field.Path) {
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	switch t {
	case quantityType:
		c.quantity(v, at)
		return
	case intOrStringType:
		switch v.(type) {
		case string:
		case int64, float64:
			c.integer(v, reflect.TypeFor[int32](), at)
		default:
			c.wrong(v, "integer or string", at)
		}
		return
	case timeType, microTimeType:
		c.parsed(v, at, "a date and time such as 2006-01-02T15:04:05Z (RFC 3339)", func(s string) error {
			_, err := time.Parse(time.RFC3339, s)
			return err
		})
		return
	case durationType:
		c.parsed(v, at, "a duration such as 10s or 1h30m", func(s string) error {
			_, err := time.ParseDuration(s)
			return err
		})
		return
	case bytesType:
		c.parsed(v, at, "base64", func(s string) error {
			_, err := base64.StdEncoding.DecodeString(s)
			return err
		})
		return
	}
	if p := reflect.PointerTo(t); p.Implements(jsonUnmarshaler) || p.Implements(textUnmarshaler) {
		return // a type that reads itself; decoding reports its faults
	}
	switch t.Kind() {
	case reflect.Struct:
		c.object(v, t, at)
	case reflect.Map:
		m, ok := v.(map[string]any)
		if !ok {
			c.wrong(v, "object", at)
			return
		}
		for key, e := range m {
			c.element(e, t.Elem(), at.Key(key))
		}
	case reflect.Slice, reflect.Array:
		list, ok := v.([]any)
		if !ok {
			c.wrong(v, "array", at)
			return
		}
		for i, e := range list {
			c.element(e, t.Elem(), at.Index(i))
		}
	case reflect.String:
		if _, ok := v.(string); !ok {
			c.wrong(v, "string", at)
		}
	case reflect.Bool:
		if _, ok := v.(bool); !ok {
			c.wrong(v, "boolean", at)
		}
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64,
		reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		c.integer(v, t, at)
	case reflect.Float32, reflect.Float64:
		if _, ok := number(v); !ok {
			c.wrong(v, "number", at)
		}
	}
}

// element checks an element of a list or map, where null isn't the same as absent.
func (c *checker) element(v any, t reflect.Type, at *field.Path) {
	if v == nil && t.Kind() != reflect.Interface && t.Kind() != reflect.Pointer {
		c.wrong(v, kindName(t), at)
		return
	}
	c.value(v, t, at)
}

func (c *checker) object(v any, t reflect.Type, at *field.Path) {
	obj, ok := v.(map[string]any)
	if !ok {
		c.wrong(v, "object", at)
		return
	}
	known := membersOf(t)
	for key, e := range obj {
		m, ok := known.byName[key]
		switch {
		case !ok && t == statusType:
			// The CRD keeps what it doesn't know there.
		case !ok || key == "ephemeralContainers" && isComponent(at):
			c.unknown = append(c.unknown, child(at, key).String())
			if c.prune {
				delete(obj, key)
			}
		case e == nil:
			// An API server drops nulls before it looks at required fields.
		default:
			c.value(e, m.typ, child(at, key))
		}
	}
	for _, name := range known.required {
		if obj[name] == nil && !relaxed(t, at) {
			c.invalid = append(c.invalid, field.Required(child(at, name), ""))
		}
	}
}

func child(at *field.Path, name string) *field.Path {
	if at == nil {
		return field.NewPath(name)
	}
	return at.Child(name)
}

func (c *checker) quantity(v any, at *field.Path) {
	var text string
	switch q := v.(type) {
	case string:
		text = q
	case int64:
		text = strconv.FormatInt(q, 10)
	case float64:
		if q != math.Trunc(q) {
			c.wrong(v, "integer or string; put quotes around a fraction", at)
			return
		}
		text = strconv.FormatFloat(q, 'f', -1, 64)
	default:
		c.wrong(v, "integer or string", at)
		return
	}
	if _, err := resource.ParseQuantity(text); err != nil {
		c.invalid = append(c.invalid, field.Invalid(at, v, "must be a quantity such as 500m, 2 or 4Gi"))
	}
}

func (c *checker) parsed(v any, at *field.Path, want string, parse func(string) error) {
	s, ok := v.(string)
	if !ok {
		c.wrong(v, "string", at)
		return
	}
	if parse(s) != nil {
		c.invalid = append(c.invalid, field.Invalid(at, v, "must be "+want))
	}
}

func (c *checker) integer(v any, t reflect.Type, at *field.Path) {
	n, ok := number(v)
	if !ok || n != math.Trunc(n) {
		c.wrong(v, "integer", at)
		return
	}
	// The exact value decides where a float64 can't hold it.
	var fits bool
	z := reflect.New(t).Elem()
	switch i, isInt := exact(v); {
	case !isInt:
		fits = false
	case z.CanInt():
		fits = !z.OverflowInt(i)
	default:
		fits = i >= 0 && !z.OverflowUint(uint64(i))
	}
	if !fits {
		c.invalid = append(c.invalid, field.Invalid(at, v, "must fit into "+t.Kind().String()))
	}
}

func number(v any) (float64, bool) {
	switch n := v.(type) {
	case int64:
		return float64(n), true
	case float64:
		return n, true
	}
	return 0, false
}

func exact(v any) (int64, bool) {
	switch n := v.(type) {
	case int64:
		return n, true
	case float64:
		return int64(n), n >= -1<<63 && n < 1<<63
	}
	return 0, false
}

func (c *checker) wrong(v any, want string, at *field.Path) {
	c.invalid = append(c.invalid, field.TypeInvalid(at, jsonType(v), "must be of type "+want))
}

func jsonType(v any) string {
	switch v.(type) {
	case nil:
		return "null"
	case map[string]any:
		return "object"
	case []any:
		return "array"
	case string:
		return "string"
	case bool:
		return "boolean"
	case int64:
		return "integer"
	case float64:
		return "number"
	}
	return fmt.Sprintf("%T", v)
}

func kindName(t reflect.Type) string {
	switch t.Kind() {
	case reflect.Struct, reflect.Map:
		return "object"
	case reflect.Slice, reflect.Array:
		return "array"
	case reflect.String:
		return "string"
	case reflect.Bool:
		return "boolean"
	case reflect.Float32, reflect.Float64:
		return "number"
	default:
		return "integer"
	}
}

var (
	modelType     = reflect.TypeFor[v1beta1.ModelSpec]()
	frameworkType = reflect.TypeFor[v1beta1.FrameworkSpec]()
	statusType    = reflect.TypeFor[v1beta1.InferenceServiceStatus]()
)

// isComponent reports whether at is spec.predictor, spec.transformer or spec.explainer.
func isComponent(at *field.Path) bool {
	switch at.String() {
	case "spec.predictor", "spec.transformer", "spec.explainer":
		return true
	}
	return false
}

// relaxed reports whether a field that its type requires may be left out at this place, as
// the CRD has it (tools/crdgen, relax): in the members of a component of an InferenceService,
// and for the port of a liveness or readiness probe.
func relaxed(t reflect.Type, at *field.Path) bool {
	if t == modelType || t == frameworkType {
		return true
	}
	parts := strings.Split(at.String(), ".")
	if len(parts) < 3 || parts[0] != "spec" || !isComponent(field.NewPath(parts[0], parts[1])) {
		return false
	}
	rest := parts[2:]
	if len(rest) == 1 {
		return !strings.Contains(rest[0], "[")
	}
	if len(rest) != 3 || rest[1] != "livenessProbe" && rest[1] != "readinessProbe" {
		return false
	}
	if strings.HasPrefix(rest[0], "containers[") {
		return rest[2] == "httpGet"
	}
	return !strings.Contains(rest[0], "[") && (rest[2] == "httpGet" || rest[2] == "tcpSocket")
}
