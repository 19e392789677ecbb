// Package arch keeps the map of the tree true: which room may import which, what must never
// be reached from where, and the size and manners of files. It holds tests only.
package arch

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const module = "stationmaster.dev/stationmaster"

// room is a line of the map. A package belongs to the room with the longest matching prefix.
type room struct {
	layer int
	// may lists the rooms (prefixes) that it may import besides itself.
	may []string
	// never lists packages (prefixes) that must not be reached, even through others.
	never []string
}

var pureNever = []string{"net/http", "os/exec", "k8s.io/", "sigs.k8s.io/", "database/sql"}

// rooms is the map. A package that isn't on it fails the test: put every new room here and
// in docs/ARCHITECTURE.md.
var rooms = map[string]room{
	"api":                            {layer: 0, may: []string{}},
	"config/crd":                     {layer: 0, may: []string{}},
	"config/observability":           {layer: 0, may: []string{}},
	"internal/spec":                  {layer: 0, never: pureNever},
	"internal/errdef":                {layer: 0, never: pureNever},
	"internal/state":                 {layer: 0, never: pureNever},
	"internal/evidence":              {layer: 0, never: pureNever},
	"internal/enginetls":             {layer: 1, may: []string{"internal/errdef"}, never: pureNever},
	"internal/plan":                  {layer: 1, may: []string{"internal/spec", "internal/evidence"}, never: pureNever},
	"internal/modellist":             {layer: 1, may: []string{"internal/errdef"}, never: pureNever},
	"internal/modelagent":            {layer: 3, may: []string{"internal/runtimecmd", "internal/errdef", "internal/modellist", "internal/modelstore"}, never: []string{"k8s.io/", "os/exec"}},
	"internal/modelwatch":            {layer: 3, may: []string{"internal/spec", "internal/state", "internal/modellist"}, never: []string{"k8s.io/", "os/exec"}},
	"internal/scale":                 {layer: 1, may: []string{"internal/spec", "internal/errdef"}, never: pureNever},
	"internal/demand":                {layer: 1, may: []string{"internal/spec", "internal/state", "internal/scale", "internal/evidence", "internal/enginetls"}, never: pureNever},
	"internal/route":                 {layer: 1, may: []string{"internal/spec", "internal/errdef", "internal/enginetls"}, never: pureNever},
	"internal/pick":                  {layer: 1, may: []string{"internal/errdef"}, never: pureNever},
	"internal/wire":                  {layer: 1, may: []string{"internal/errdef", "api/oip"}, never: []string{"os/exec", "k8s.io/", "sigs.k8s.io/", "database/sql"}},
	"internal/limits":                {layer: 3, may: []string{"internal/spec", "internal/errdef", "internal/engine", "internal/state", "internal/route", "internal/enginetls"}, never: []string{"k8s.io/", "os/exec"}},
	"internal/lora":                  {layer: 1, may: []string{"internal/spec", "internal/state"}, never: pureNever},
	"internal/lora/keeper":           {layer: 3, may: []string{"internal/spec", "internal/errdef", "internal/state", "internal/route", "internal/lora", "internal/enginetls", "internal/wire/openai"}, never: []string{"k8s.io/", "os/exec"}},
	"internal/engine":                {layer: 1, may: []string{"internal/spec", "internal/errdef", "internal/wire"}, never: pureNever},
	"internal/manifest":              {layer: 2, may: []string{"api", "internal/engine", "internal/spec", "internal/errdef", "internal/scale", "internal/translate", "internal/pick", "internal/enginetls"}, never: []string{"os/exec", "k8s.io/client-go/rest"}},
	"internal/catalogue":             {layer: 2, may: []string{"api", "internal/spec", "internal/errdef", "internal/manifest"}, never: []string{"os/exec", "k8s.io/client-go/rest"}},
	"internal/modelstore":            {layer: 2, may: []string{"internal/spec", "internal/errdef"}, never: []string{"os/exec", "k8s.io/"}},
	"internal/objectstore":           {layer: 2, may: []string{"internal/errdef"}, never: []string{"os/exec", "k8s.io/"}},
	"internal/modelstore/buckets":    {layer: 3, may: []string{"internal/errdef", "internal/modelstore", "internal/objectstore"}, never: []string{"os/exec", "k8s.io/"}},
	"internal/modelstore/registry":   {layer: 3, may: []string{"internal/errdef", "internal/modelstore"}, never: []string{"os/exec", "k8s.io/"}},
	"internal/probe":                 {layer: 2, may: []string{"internal/spec", "internal/errdef"}, never: []string{"os/exec", "k8s.io/"}},
	"internal/onnx":                  {layer: 2, may: []string{"internal/errdef"}, never: []string{"os/exec", "k8s.io/"}},
	"internal/platform":              {layer: 3, may: []string{"internal/spec", "internal/errdef", "internal/state"}, never: []string{"k8s.io/", "os/exec"}},
	"internal/platform/platformtest": {layer: 3, may: []string{"internal/platform", "internal/spec", "internal/errdef"}},
	"internal/platform/memory":       {layer: 3, may: []string{"internal/platform", "internal/spec", "internal/errdef"}, never: []string{"k8s.io/", "os/exec"}},
	"internal/platform/kube/lws":     {layer: 2, may: []string{"internal/spec"}, never: []string{"os/exec", "k8s.io/client-go/rest"}},
	"internal/platform/kube/oci":     {layer: 1, may: []string{}, never: []string{"os/exec", "k8s.io/client-go/rest"}},
	"internal/platform/kube":         {layer: 3, may: []string{"internal/platform/kube/lws", "internal/platform/kube/oci", "api", "internal/platform", "internal/spec", "internal/errdef", "internal/scale", "internal/manifest", "internal/foreign"}},
	"internal/platform/local":        {layer: 3, may: []string{"internal/platform", "internal/spec", "internal/errdef", "internal/plan", "internal/probe"}, never: []string{"k8s.io/"}},
	"internal/routing":               {layer: 3, may: []string{"api", "internal/spec", "internal/route", "internal/manifest", "internal/engine", "internal/enginetls"}, never: []string{"os/exec", "k8s.io/client-go/rest"}},
	"internal/kubeapi":               {layer: 3, may: []string{"internal/errdef"}},
	"internal/control":               {layer: 3, may: []string{"api", "internal/spec", "internal/errdef", "internal/state", "internal/plan", "internal/scale", "internal/demand", "internal/evidence", "internal/route", "internal/manifest", "internal/catalogue", "internal/platform", "internal/routing", "internal/graphs", "internal/direct", "internal/lora", "internal/modellist"}},
	"internal/foreign":               {layer: 1},
	"internal/direct":                {layer: 3, may: []string{"api", "internal/spec", "internal/manifest", "internal/foreign"}},
	"internal/graphs":                {layer: 3, may: []string{"api", "internal/spec", "internal/route", "internal/manifest", "internal/routing"}},
	"internal/modelserver":           {layer: 3, may: []string{"internal/runtimecmd", "api/oip", "internal/onnx", "internal/wire", "internal/errdef", "internal/modelstore", "internal/modellist", "internal/modelserver/residency"}, never: []string{"k8s.io/"}},
	"internal/runtimecmd":            {layer: 1, may: []string{}, never: pureNever},
	"internal/modelserver/residency": {layer: 1, may: []string{}, never: pureNever},
	"internal/autoscale":             {layer: 3, may: []string{"internal/spec", "internal/state", "internal/scale", "internal/demand"}, never: []string{"k8s.io/", "os/exec", "net/http"}},
	"internal/measure":               {layer: 3, may: []string{"internal/spec", "internal/errdef", "internal/scale", "internal/demand", "internal/engine", "internal/wire", "internal/route", "internal/state", "internal/enginetls"}, never: []string{"k8s.io/", "os/exec"}},
	"internal/translate":             {layer: 1, may: []string{"internal/errdef", "internal/wire"}, never: []string{"os/exec", "k8s.io/", "sigs.k8s.io/", "database/sql"}},
	"internal/gateway/convert":       {layer: 1, may: []string{"api/oip", "internal/errdef", "internal/wire"}, never: []string{"os/exec", "k8s.io/", "sigs.k8s.io/", "database/sql"}},
	"internal/gateway/compare":       {layer: 1, may: []string{"api/oip", "internal/wire"}, never: []string{"os/exec", "k8s.io/", "sigs.k8s.io/", "database/sql"}},
	"internal/gateway/fair":          {layer: 1, may: []string{}, never: pureNever},
	"internal/gateway/meter":         {layer: 2, may: []string{"internal/spec", "internal/demand", "internal/evidence"}, never: []string{"k8s.io/", "os/exec", "google.golang.org/grpc"}},
	"internal/gateway/listen":        {layer: 2, may: []string{}, never: []string{"k8s.io/", "os/exec", "google.golang.org/grpc"}},
	"internal/gateway/tunnel":        {layer: 2, may: []string{"internal/errdef"}, never: []string{"k8s.io/", "os/exec", "google.golang.org/grpc"}},
	"internal/gateway/alive":         {layer: 2, may: []string{"internal/wire"}, never: []string{"k8s.io/", "os/exec", "google.golang.org/grpc"}},
	"internal/gateway/wait":          {layer: 2, may: []string{"internal/gateway/fair"}, never: pureNever},
	"internal/gateway/frame":         {layer: 1, may: []string{}, never: []string{"os/exec", "k8s.io/", "sigs.k8s.io/", "database/sql"}},
	"internal/gateway/graph":         {layer: 2, may: []string{"internal/spec"}, never: []string{"k8s.io/", "os/exec", "google.golang.org/grpc"}},
	"internal/gateway/grpcpool":      {layer: 2, may: []string{"internal/errdef", "internal/enginetls"}, never: []string{"k8s.io/", "os/exec"}},
	"internal/gateway/upstream":      {layer: 2, may: []string{"internal/errdef", "internal/enginetls"}, never: []string{"k8s.io/", "os/exec", "google.golang.org/grpc"}},
	"internal/gateway/batch":         {layer: 1, may: []string{"internal/errdef", "internal/wire"}, never: []string{"os/exec", "k8s.io/", "sigs.k8s.io/", "database/sql"}},
	"internal/gateway/coding":        {layer: 1, may: []string{}, never: pureNever},
	"internal/gateway/parquet":       {layer: 1, may: []string{}, never: pureNever},
	"internal/gateway/payloads":      {layer: 2, may: []string{"internal/spec", "internal/errdef", "internal/objectstore", "internal/gateway/parquet"}, never: []string{"k8s.io/", "os/exec", "google.golang.org/grpc"}},
	"internal/gateway":               {layer: 3, may: []string{"api/oip", "internal/spec", "internal/errdef", "internal/state", "internal/demand", "internal/evidence", "internal/lora", "internal/route", "internal/pick", "internal/wire", "internal/translate", "internal/gateway/batch", "internal/gateway/coding", "internal/gateway/convert", "internal/gateway/fair", "internal/gateway/frame", "internal/gateway/graph", "internal/gateway/grpcpool", "internal/gateway/payloads", "internal/gateway/upstream", "internal/gateway/wait", "internal/gateway/meter", "internal/gateway/alive", "internal/gateway/listen", "internal/gateway/tunnel", "internal/enginetls", "internal/gateway/compare"}, never: []string{"k8s.io/", "os/exec"}},
	"internal/extproc/reading":       {layer: 2, may: []string{"internal/errdef", "internal/pick", "internal/wire"}, never: []string{"net/http", "os/exec", "k8s.io/", "sigs.k8s.io/", "database/sql"}},
	"internal/extproc/pool":          {layer: 2, may: []string{"internal/errdef", "internal/route", "internal/spec"}, never: pureNever},
	"internal/extproc/watch":         {layer: 4, may: []string{"internal/extproc/pool", "internal/spec", "internal/state"}},
	"internal/extproc":               {layer: 3, may: []string{"internal/errdef", "internal/state", "internal/pick", "internal/wire", "internal/extproc/reading", "internal/extproc/pool"}, never: []string{"k8s.io/", "os/exec"}},
	"internal/follow":                {layer: 4, may: []string{"api", "internal/spec", "internal/route", "internal/routing", "internal/state"}},
	"internal/adopt":                 {layer: 4, may: []string{"api", "internal/spec", "internal/errdef", "internal/manifest", "internal/catalogue", "internal/platform/kube"}},
	"internal/rollout":               {layer: 4, may: []string{"api", "internal/errdef"}},
	"internal/install":               {layer: 4, may: []string{"config/crd", "config/observability"}, never: []string{"os/exec", "k8s.io/client-go/rest"}},
	"internal/admission":             {layer: 4, may: []string{"api", "internal/errdef", "internal/manifest", "internal/admission/certificate"}},
	"internal/admission/certificate": {layer: 1, may: []string{}, never: []string{"net/http", "os/exec", "k8s.io/", "sigs.k8s.io/", "database/sql"}},
	"internal/preview":               {layer: 4, may: []string{"api", "internal/spec", "internal/manifest", "internal/catalogue", "internal/control"}},
	"internal/admin":                 {layer: 4, may: []string{"internal/spec", "internal/errdef", "internal/state", "internal/demand"}, never: []string{"os/exec"}},
	"internal/app":                   {layer: 5, may: []string{"api", "config", "internal"}},
	"internal/cli":                   {layer: 5, may: []string{"api", "config", "internal"}},
	"internal/arch":                  {layer: 9},
	"cmd":                            {layer: 6, may: []string{"internal/cli"}},
	"test":                           {layer: 9, may: []string{"api", "config", "internal", "test/cluster", "test/testkit"}},
	"test/cluster":                   {layer: 9, may: []string{}},
	"test/testkit":                   {layer: 9, may: []string{}, never: []string{"k8s.io/", "google.golang.org/grpc"}},
}

type goPackage struct {
	ImportPath string
	Name       string
	Dir        string
	Imports    []string
	Deps       []string
	GoFiles    []string
}

func TestEveryRoomImportsOnlyWhatItsLineOnTheMapAllows(t *testing.T) {
	for _, p := range packages(t) {
		rel := strings.TrimPrefix(p.ImportPath, module+"/")
		name, r, ok := roomOf(rel)
		if !ok {
			t.Errorf("%s is in no room: put it on the map in internal/arch and in docs/ARCHITECTURE.md", rel)
			continue
		}
		for _, imp := range p.Imports {
			target, ours := strings.CutPrefix(imp, module+"/")
			if !ours {
				continue
			}
			if other, _, _ := roomOf(target); other == name || allowed(r.may, target) {
				continue
			}
			t.Errorf("%s must not import %s: its room %s may import only %v", rel, target, name, r.may)
		}
		for _, dep := range p.Deps {
			if allowed(r.never, dep) {
				t.Errorf("%s reaches %s, which its room %s must never do", rel, dep, name)
			}
		}
	}
}

func TestOnlyTheLocalPlatformStartsProcesses(t *testing.T) {
	users := []string{"internal/platform/local", "internal/arch", "test"}
	for _, p := range packages(t) {
		rel := strings.TrimPrefix(p.ImportPath, module+"/")
		if slices.Contains(p.Imports, "os/exec") && !allowed(users, rel) {
			t.Errorf("%s imports os/exec: only %v may", rel, users)
		}
	}
}

func TestClientGoStaysInItsRooms(t *testing.T) {
	users := []string{"internal/control", "internal/foreign", "internal/admission", "internal/preview", "internal/graphs", "internal/direct", "internal/follow", "internal/extproc/watch", "internal/platform/kube", "internal/kubeapi", "internal/rollout", "internal/adopt", "internal/cli", "internal/app", "test"}
	for _, p := range packages(t) {
		rel := strings.TrimPrefix(p.ImportPath, module+"/")
		for _, imp := range p.Imports {
			if (strings.HasPrefix(imp, "k8s.io/client-go/") || strings.HasPrefix(imp, "sigs.k8s.io/controller-runtime")) && !allowed(users, rel) {
				t.Errorf("%s imports %s: only %v may", rel, imp, users)
			}
		}
	}
}

func TestEveryPackageHasOneSentenceOnItsDoor(t *testing.T) {
	for _, p := range packages(t) {
		if p.Name == "main" || len(p.GoFiles) == 0 {
			continue
		}
		found := 0
		for _, f := range p.GoFiles {
			file, err := parser.ParseFile(token.NewFileSet(), filepath.Join(p.Dir, f), nil, parser.ParseComments|parser.PackageClauseOnly)
			if err != nil {
				t.Fatal(err)
			}
			if file.Doc != nil && documented(file.Doc) {
				found++
			}
		}
		if found != 1 {
			t.Errorf("%s has %d package comments, want one", p.ImportPath, found)
		}
	}
}

func documented(doc *ast.CommentGroup) bool { return strings.HasPrefix(doc.Text(), "Package ") }

func TestNoShelfNames(t *testing.T) {
	shelf := []string{"util", "utils", "common", "helper", "helpers", "misc", "base", "types", "manager"}
	for _, p := range packages(t) {
		if slices.Contains(shelf, filepath.Base(p.ImportPath)) {
			t.Errorf("%s is a shelf, not a room: name it after what it is about", p.ImportPath)
		}
	}
}

func TestFilesStayReadable(t *testing.T) {
	const limit = 800
	for _, p := range packages(t) {
		for _, f := range p.GoFiles {
			if generated(f) {
				continue
			}
			raw, err := os.ReadFile(filepath.Join(p.Dir, f))
			if err != nil {
				t.Fatal(err)
			}
			if n := bytes.Count(raw, []byte("\n")); n > limit {
				t.Errorf("%s/%s has %d lines, over %d: cut it by subject", p.ImportPath, f, n, limit)
			}
		}
	}
}

// TestTheMapInTheDocsIsTheMapHere reads docs/ARCHITECTURE.md, which must name every room.
func TestTheMapInTheDocsIsTheMapHere(t *testing.T) {
	raw, err := os.ReadFile("../../docs/ARCHITECTURE.md")
	if err != nil {
		t.Fatal(err)
	}
	for name := range rooms {
		if !bytes.Contains(raw, []byte("`"+name+"`")) {
			t.Errorf("docs/ARCHITECTURE.md doesn't name the room `%s`", name)
		}
	}
	onDisk := map[string]bool{}
	for _, p := range packages(t) {
		name, _, _ := roomOf(strings.TrimPrefix(p.ImportPath, module+"/"))
		onDisk[name] = true
	}
	for name := range rooms {
		if !onDisk[name] && name != "internal/arch" && name != "test" {
			t.Errorf("the map has the room %s, and the tree doesn't", name)
		}
	}
}

// TestNothingOfOneMachineIsCommitted looks for absolute paths of a developer's machine.
func TestNothingOfOneMachineIsCommitted(t *testing.T) {
	bad := []string{"/" + "root/", "/" + "work/main", "/" + "home/"}
	err := filepath.WalkDir("../..", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if name := d.Name(); name == ".git" || name == "bin" || name == ".stationmaster" || name == ".venv" || name == "node_modules" {
				return filepath.SkipDir
			}
			return nil
		}
		if ext := filepath.Ext(path); !slices.Contains([]string{".go", ".md", ".yaml", ".yml", ".sh", ".py", ".txt", ".txtar", ""}, ext) {
			return nil
		}
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		defer f.Close()
		lines := bufio.NewScanner(f)
		lines.Buffer(nil, 1<<20)
		for n := 1; lines.Scan(); n++ {
			for _, b := range bad {
				if strings.Contains(lines.Text(), b) {
					t.Errorf("%s:%d names a path of one machine (%s…)", path, n, b)
				}
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func roomOf(rel string) (string, room, bool) {
	best := ""
	for name := range rooms {
		if (rel == name || strings.HasPrefix(rel, name+"/")) && len(name) > len(best) {
			best = name
		}
	}
	return best, rooms[best], best != ""
}

func allowed(prefixes []string, pkg string) bool {
	return slices.ContainsFunc(prefixes, func(p string) bool {
		return pkg == p || strings.HasPrefix(pkg, strings.TrimSuffix(p, "/")+"/")
	})
}

func generated(file string) bool {
	return strings.HasPrefix(file, "zz_generated") || strings.HasSuffix(file, ".pb.go")
}

var listed []goPackage

func packages(t *testing.T) []goPackage {
	t.Helper()
	if listed != nil {
		return listed
	}
	cmd := exec.Command("go", "list", "-json=ImportPath,Name,Dir,Imports,Deps,GoFiles", "./...")
	cmd.Dir = "../.."
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v\n%s", err, stderr.String())
	}
	dec := json.NewDecoder(bytes.NewReader(out))
	for {
		var p goPackage
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			return listed
		} else if err != nil {
			t.Fatal(err)
		}
		listed = append(listed, p)
	}
}
