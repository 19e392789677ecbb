package engine_test

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"stationmaster.dev/stationmaster/internal/engine"
	"stationmaster.dev/stationmaster/internal/engine/adapter"
)

func TestTheTablesInTheDocs(t *testing.T) {
	const file = "../../docs/engines.md"
	raw, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	text := between(t, string(raw), "engines", enginesTable())
	text = between(t, text, "start", startTable())
	text = between(t, text, "metrics", metricsTable())
	text = between(t, text, "untold", untoldTable())
	if *update {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	} else if text != string(raw) {
		t.Error("the tables differ from the adapters: go test ./internal/engine -update writes them anew")
	}
}

// between puts a table between the two comments of its name.
func between(t *testing.T, text, name, table string) string {
	t.Helper()
	start := strings.Index(text, "<!-- "+name+":")
	end := strings.Index(text, "<!-- /"+name+" -->")
	if start < 0 || end < start {
		t.Fatalf("no place for the table of %s", name)
	}
	start += strings.Index(text[start:], "\n") + 1
	return text[:start] + "\n" + table + "\n" + text[end:]
}

func enginesTable() string {
	var b strings.Builder
	b.WriteString("| engine | recognised by the command | or in the name of runtime or image | protocols | OpenAI | readiness | tells how many tokens it takes at | page of metrics |\n|---|---|---|---|---|---|---|---|\n")
	for _, a := range engine.All() {
		var protocols []string
		for _, p := range a.Protocols {
			protocols = append(protocols, string(p))
		}
		names := a.Known.Runtimes
		for _, i := range a.Known.Images {
			if !strings.Contains(strings.Join(names, " "), i) {
				names = append(names[:len(names):len(names)], i)
			}
		}
		page := "–"
		if a.Page.Path != "" {
			page = "`" + a.Page.Path + "`"
			if a.Page.Port != 0 {
				page += fmt.Sprintf(" on port %d", a.Page.Port)
			}
			if a.Page.Needs != "" {
				page += "; " + a.Page.Needs
			}
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s | %s | `%s` | %s | %s |\n",
			a.Name, ticked(a.Known.Commands), ticked(names), orNone(strings.Join(protocols, ", ")), ticked([]string{a.OpenAI}), a.Ready, ticked(limits(a)), page)
	}
	return b.String()
}

func limits(a *adapter.Adapter) []string {
	var paths []string
	for _, q := range a.Limits {
		paths = append(paths, q.Path)
	}
	return paths
}

// untoldTable says what of the unified set each engine doesn't tell.
func untoldTable() string {
	var b strings.Builder
	b.WriteString("| engine | what it doesn't tell |\n|---|---|\n")
	for _, a := range engine.All() {
		m := &a.Metrics
		var not []string
		for _, row := range []struct {
			name string
			told bool
		}{
			{"running", len(m.Running) > 0},
			{"waiting", len(m.Waiting) > 0},
			{"KV cache", len(m.KV) > 0},
			{"prefix hits and queries", len(m.Hits) > 0 && len(m.Queries) > 0},
			{"prompt tokens", len(m.Prompt) > 0},
			{"generated tokens", len(m.Generated) > 0},
			{"batch size", len(m.Batch) > 0},
			{"time to first token", len(m.FirstToken) > 0},
			{"time per token", len(m.PerToken) > 0},
		} {
			if !row.told {
				not = append(not, row.name)
			}
		}
		all := strings.Join(not, ", ")
		switch len(not) {
		case 0:
			all = "nothing"
		case 9:
			all = "anything"
		}
		if m.Gone != "" {
			all += "; " + m.Gone
		}
		fmt.Fprintf(&b, "| `%s` | %s |\n", a.Name, all)
	}
	return b.String()
}

func startTable() string {
	var b strings.Builder
	b.WriteString("| engine | model | name | host | port | gRPC port | environment |\n|---|---|---|---|---|---|---|\n")
	for _, a := range engine.All() {
		s := a.Start
		if s.Model+s.Name+s.Host+s.Port+s.GRPCPort == "" && len(s.Env) == 0 {
			continue
		}
		var env []string
		for _, what := range slices.Sorted(maps.Keys(s.Env)) {
			env = append(env, s.Env[what])
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s | %s | %s | %s |\n", a.Name, ticked([]string{s.Model}), ticked([]string{s.Name}),
			ticked([]string{s.Host}), ticked([]string{s.Port}), ticked([]string{s.GRPCPort}), ticked(env))
	}
	return b.String()
}

func metricsTable() string {
	var b strings.Builder
	b.WriteString("| engine | metric | its own |\n|---|---|---|\n")
	for _, a := range engine.All() {
		m := &a.Metrics
		for _, row := range []struct {
			name string
			list []adapter.Series
		}{
			{"running", m.Running}, {"waiting", m.Waiting}, {"KV cache", m.KV}, {"prefix hits", m.Hits}, {"prefix queries", m.Queries},
			{"prompt tokens", m.Prompt}, {"generated tokens", m.Generated},
		} {
			var own []string
			for _, s := range row.list {
				name := strings.Join(s.Names, " + ")
				if s.Label != "" {
					name += fmt.Sprintf("{%s=%q}", s.Label, s.Value)
				}
				own = append(own, name)
			}
			line(&b, a.Name, row.name, own)
		}
		var batch []string
		for _, s := range m.Batch {
			switch {
			case s.Now != "":
				batch = append(batch, s.Now)
			case s.Sum != "":
				batch = append(batch, s.Sum+" / "+s.Count)
			default:
				batch = append(batch, s.Mean)
			}
		}
		line(&b, a.Name, "batch size", batch)
		line(&b, a.Name, "time to first token", histograms(m.FirstToken))
		line(&b, a.Name, "time per token", histograms(m.PerToken))
	}
	return b.String()
}

func histograms(list []adapter.Histogram) []string {
	var out []string
	for _, h := range list {
		out = append(out, h.Name)
	}
	return out
}

func line(b *strings.Builder, engine, metric string, own []string) {
	if len(own) > 0 {
		fmt.Fprintf(b, "| `%s` | %s | %s |\n", engine, metric, ticked(own))
	}
}

func ticked(names []string) string {
	var out []string
	for _, n := range names {
		if n != "" {
			out = append(out, "`"+n+"`")
		}
	}
	return orNone(strings.Join(out, ", "))
}

func orNone(s string) string {
	if s == "" {
		return "–"
	}
	return s
}
