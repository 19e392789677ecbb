package kubeapi

import (
	"context"
	"fmt"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/duration"
)

// printer makes the table that kubectl prints: columns named as kubectl names them, "Name" first
// and "Age" where the kind shows it.
type printer struct {
	columns []string
	// wide is how many columns at the end are shown with -o wide only.
	wide  int
	cells func(runtime.Object) []any
}

// ConvertToTable makes a table of an object or a list of them.
func (p printer) ConvertToTable(_ context.Context, o, opts runtime.Object) (*metav1.Table, error) {
	t := &metav1.Table{}
	if to, ok := opts.(*metav1.TableOptions); !ok || !to.NoHeaders {
		for i, c := range p.columns {
			def := metav1.TableColumnDefinition{Name: c, Type: "string", Description: metav1.ObjectMeta{}.SwaggerDoc()[strings.ToLower(c)]}
			if c == "Name" {
				def.Format = "name"
			}
			if i >= len(p.columns)-p.wide {
				def.Priority = 1
			}
			if c == "Data" || c == "Secrets" || c == "Count" {
				def.Type = "integer"
			}
			t.ColumnDefinitions = append(t.ColumnDefinitions, def)
		}
	}
	row := func(o runtime.Object) error {
		t.Rows = append(t.Rows, metav1.TableRow{Cells: p.cells(o), Object: runtime.RawExtension{Object: o}})
		return nil
	}
	if l, err := meta.ListAccessor(o); err == nil {
		t.ResourceVersion = l.GetResourceVersion()
		t.Continue = l.GetContinue()
		t.RemainingItemCount = l.GetRemainingItemCount()
		return t, meta.EachListItem(o, row)
	}
	if m, err := meta.CommonAccessor(o); err == nil {
		t.ResourceVersion = m.GetResourceVersion()
	}
	return t, row(o)
}

// columnsOf makes a printer for one Go type.
func columnsOf[T runtime.Object](cells func(T) []any, columns ...string) printer {
	return printer{columns: columns, cells: func(o runtime.Object) []any { return cells(o.(T)) }}
}

// withWide keeps the last n columns for -o wide.
func (p printer) withWide(n int) printer {
	p.wide = n
	return p
}

func age(t metav1.Time) string {
	if t.IsZero() {
		return "<unknown>"
	}
	return duration.HumanDuration(time.Since(t.Time))
}

var (
	namespaceColumns = columnsOf(func(o *corev1.Namespace) []any {
		return []any{o.Name, string(o.Status.Phase), age(o.CreationTimestamp)}
	}, "Name", "Status", "Age")
	secretColumns = columnsOf(func(o *corev1.Secret) []any {
		return []any{o.Name, string(o.Type), int64(len(o.Data)), age(o.CreationTimestamp)}
	}, "Name", "Type", "Data", "Age")
	configMapColumns = columnsOf(func(o *corev1.ConfigMap) []any {
		return []any{o.Name, int64(len(o.Data) + len(o.BinaryData)), age(o.CreationTimestamp)}
	}, "Name", "Data", "Age")
	serviceAccountColumns = columnsOf(func(o *corev1.ServiceAccount) []any {
		return []any{o.Name, int64(len(o.Secrets)), age(o.CreationTimestamp)}
	}, "Name", "Secrets", "Age")
	eventColumns = columnsOf(func(o *corev1.Event) []any {
		last := o.LastTimestamp
		if last.IsZero() {
			last = metav1.Time{Time: o.EventTime.Time}
		}
		if o.Series != nil {
			last = metav1.Time{Time: o.Series.LastObservedTime.Time}
		}
		if last.IsZero() {
			last = o.CreationTimestamp
		}
		object := strings.ToLower(o.InvolvedObject.Kind) + "/" + o.InvolvedObject.Name
		return []any{age(last), o.Type, o.Reason, object, strings.TrimSpace(o.Message), int64(max(o.Count, 1)), o.Name}
	}, "Last Seen", "Type", "Reason", "Object", "Message", "Count", "Name").withWide(2)
	claimColumns = columnsOf(func(o *corev1.PersistentVolumeClaim) []any {
		modes := make([]string, len(o.Status.AccessModes))
		for i, m := range o.Status.AccessModes {
			modes[i] = string(m)
		}
		class := ""
		if o.Spec.StorageClassName != nil {
			class = *o.Spec.StorageClassName
		}
		capacity := o.Status.Capacity[corev1.ResourceStorage]
		return []any{
			o.Name, string(o.Status.Phase), o.Spec.VolumeName, capacity.String(), strings.Join(modes, ","),
			class, age(o.CreationTimestamp),
		}
	}, "Name", "Status", "Volume", "Capacity", "Access Modes", "StorageClass", "Age")
	leaseColumns = columnsOf(func(o *coordinationv1.Lease) []any {
		holder := ""
		if o.Spec.HolderIdentity != nil {
			holder = fmt.Sprint(*o.Spec.HolderIdentity)
		}
		return []any{o.Name, holder, age(o.CreationTimestamp)}
	}, "Name", "Holder", "Age")
)
