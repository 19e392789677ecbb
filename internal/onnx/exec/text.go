package exec

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"stationmaster.dev/stationmaster/internal/errdef"
	"stationmaster.dev/stationmaster/internal/onnx/graph"
)

// buildStringNormalizer folds case and drops stop words. Case folding is Unicode's simple one
// whatever the locale attribute says, so that a model gives the same on every machine.
func buildStringNormalizer(n *graph.Node, _ int64) (kernel, error) {
	var fold func(string) string
	switch action := n.Text("case_change_action", "NONE"); action {
	case "NONE":
		fold = func(s string) string { return s }
	case "LOWER":
		fold = strings.ToLower
	case "UPPER":
		fold = strings.ToUpper
	default:
		return nil, errdef.New(errdef.ErrUnsupported, fmt.Sprintf("case_change_action %q isn't built in", action))
	}
	sensitive := n.Int("is_case_sensitive", 0) == 1
	stop := map[string]bool{}
	for _, w := range n.Strings("stopwords") {
		if !sensitive {
			w = strings.ToLower(w)
		}
		stop[w] = true
	}
	return func(in []*tensor) ([]*tensor, error) {
		d, ok := in[0].Data.([]string)
		if !ok {
			return nil, errdef.New(errdef.ErrInvalid, "strings are needed and "+in[0].Type.String()+" came")
		}
		if len(stop) == 0 {
			return one(like(in[0], mapped(d, fold))), nil
		}
		kept := []string{}
		for _, s := range d {
			key := s
			if !sensitive {
				key = strings.ToLower(s)
			}
			if !stop[key] {
				kept = append(kept, fold(s))
			}
		}
		if len(kept) == 0 {
			kept = []string{""} // the standard: at least one, empty, string
		}
		shape := []int64{int64(len(kept))}
		if len(in[0].Shape) == 2 {
			shape = []int64{1, int64(len(kept))}
		}
		return one(newTensor(shape, kept)), nil
	}, nil
}

// buildTokenizer splits strings into tokens: by an expression that tokens match, by
// separators, or into characters where the only separator is empty. Rows are filled up to the
// longest with pad_value.
func buildTokenizer(n *graph.Node, _ int64) (kernel, error) {
	split, err := splitter(n)
	if err != nil {
		return nil, err
	}
	pad, shortest, mark := n.Text("pad_value", ""), int(n.Int("mincharnum", 1)), n.Int("mark", 0) == 1
	return func(in []*tensor) ([]*tensor, error) {
		d, ok := in[0].Data.([]string)
		if !ok {
			return nil, errdef.New(errdef.ErrInvalid, "strings are needed and "+in[0].Type.String()+" came")
		}
		lists, width := make([][]string, len(d)), 0
		for i, s := range d {
			lists[i] = slices.DeleteFunc(split(s), func(t string) bool { return utf8.RuneCountInString(t) < shortest })
			if mark {
				lists[i] = append(append([]string{"\x02"}, lists[i]...), "\x03")
			}
			width = max(width, len(lists[i]))
		}
		out := make([]string, 0, len(d)*width)
		for _, l := range lists {
			out = append(out, l...)
			for range width - len(l) {
				out = append(out, pad)
			}
		}
		return one(newTensor(append(slices.Clone(in[0].Shape), int64(width)), out)), nil
	}, nil
}

func splitter(n *graph.Node) (func(string) []string, error) {
	if e := n.Text("tokenexp", ""); e != "" {
		token, err := regexp.Compile(e)
		if err != nil {
			return nil, errdef.New(errdef.ErrUnsupported, fmt.Sprintf("the token expression %q isn't understood: %v", e, err))
		}
		return func(s string) []string {
			return slices.DeleteFunc(token.FindAllString(s, -1), func(t string) bool { return t == "" })
		}, nil
	}
	separators := n.Strings("separators")
	if len(separators) == 1 && separators[0] == "" {
		return func(s string) []string { return strings.Split(s, "") }, nil
	}
	if len(separators) == 0 {
		return nil, errdef.New(errdef.ErrInvalid, "it has neither a token expression nor separators")
	}
	var parts []string
	for _, s := range separators {
		parts = append(parts, "(?:"+s+")")
	}
	between, err := regexp.Compile(strings.Join(parts, "|"))
	if err != nil {
		return nil, errdef.New(errdef.ErrUnsupported, fmt.Sprintf("the separators %q aren't understood: %v", separators, err))
	}
	return func(s string) []string {
		return slices.DeleteFunc(between.Split(s, -1), func(t string) bool { return t == "" })
	}, nil
}

// ngrams is a set of n-grams with the column that each counts in. They form a tree by their
// words, so that all lengths are matched in one walk from each position.
type ngrams[T comparable] struct {
	next   map[T]*ngrams[T]
	column int // -1 where no n-gram ends
}

func newNgrams[T comparable]() *ngrams[T] { return &ngrams[T]{next: map[T]*ngrams[T]{}, column: -1} }

func (g *ngrams[T]) add(words []T, column int) {
	at := g
	for _, w := range words {
		if at.next[w] == nil {
			at.next[w] = newNgrams[T]()
		}
		at = at.next[w]
	}
	at.column = column
}

// count adds the n-grams of one row of words. skip is the distance between neighbouring words.
func (g *ngrams[T]) count(words []T, shortest, longest, maxSkip int, into []float32) {
	for skip := 0; skip <= maxSkip; skip++ {
		for start := range words {
			at := g
			for n := 1; n <= longest; n++ {
				place := start + (n-1)*(skip+1)
				if place >= len(words) {
					break
				}
				if at = at.next[words[place]]; at == nil {
					break
				}
				// Single words have no distance: they count once, not for each skip.
				if at.column >= 0 && n >= shortest && (n > 1 || skip == 0) {
					into[at.column]++
				}
			}
		}
	}
}

func buildTfIdfVectorizer(n *graph.Node, _ int64) (kernel, error) {
	mode := n.Text("mode", "")
	if mode != "TF" && mode != "IDF" && mode != "TFIDF" {
		return nil, errdef.New(errdef.ErrUnsupported, fmt.Sprintf("mode %q isn't built in", mode))
	}
	columns := n.Ints("ngram_indexes")
	width := 0
	for _, c := range columns {
		if c < 0 || c > 1<<26 {
			return nil, errdef.New(errdef.ErrInvalid, fmt.Sprintf("an n-gram counts in column %d", c))
		}
		width = max(width, int(c)+1)
	}
	weights := n.Floats("weights")
	if len(weights) != 0 && len(weights) != len(columns) {
		return nil, errdef.New(errdef.ErrInvalid, fmt.Sprintf("%d weights for %d n-grams", len(weights), len(columns)))
	}
	v := vectorizer{width: width, mode: mode, shortest: int(n.Int("min_gram_length", 1)), longest: int(n.Int("max_gram_length", 1)), skip: int(n.Int("max_skip_count", 0))}
	v.weights = make([]float32, width)
	for i := range v.weights {
		v.weights[i] = 1
	}
	for i, w := range weights {
		v.weights[columns[i]] = w
	}
	if pool := n.Strings("pool_strings"); len(pool) > 0 {
		g, err := ngramsOf(pool, n.Ints("ngram_counts"), columns)
		return vectorize(v, g), err
	}
	g, err := ngramsOf(n.Ints("pool_int64s"), n.Ints("ngram_counts"), columns)
	return vectorize(v, g), err
}

// ngramsOf reads the pool: all 1-grams, then all 2-grams …; starts says where each length begins.
func ngramsOf[T comparable](pool []T, starts, columns []int64) (*ngrams[T], error) {
	g := newNgrams[T]()
	k := 0
	for i, start := range starts {
		end, n := int64(len(pool)), i+1
		if i+1 < len(starts) {
			end = starts[i+1]
		}
		if start < 0 || start > end || end > int64(len(pool)) || (end-start)%int64(n) != 0 {
			return nil, errdef.New(errdef.ErrInvalid, "the pool of n-grams is damaged")
		}
		for at := start; at < end; at += int64(n) {
			if k >= len(columns) {
				return nil, errdef.New(errdef.ErrInvalid, "there are more n-grams than columns")
			}
			g.add(pool[at:at+int64(n)], int(columns[k]))
			k++
		}
	}
	return g, nil
}

type vectorizer struct {
	width, shortest, longest, skip int
	mode                           string
	weights                        []float32
}

func vectorize[T comparable](v vectorizer, g *ngrams[T]) kernel {
	return func(in []*tensor) ([]*tensor, error) {
		d, ok := in[0].Data.([]T)
		if !ok {
			t, err := castTo(in[0], graph.Int64)
			if err != nil {
				return nil, err
			}
			if d, ok = t.Data.([]T); !ok {
				return nil, errdef.New(errdef.ErrInvalid, "the words are of another type than the n-grams")
			}
		}
		rows, shape := 1, []int64{int64(v.width)}
		if len(in[0].Shape) == 2 {
			rows = int(in[0].Shape[0])
			shape = []int64{int64(rows), int64(v.width)}
		}
		if _, err := limited(shape); err != nil {
			return nil, err
		}
		out := make([]float32, rows*v.width)
		for r := range rows {
			per := len(d) / max(rows, 1)
			row := out[r*v.width : (r+1)*v.width]
			g.count(d[r*per:(r+1)*per], v.shortest, v.longest, v.skip, row)
			if v.mode == "TF" {
				continue
			}
			for i, f := range row {
				if v.mode == "IDF" {
					f = min(f, 1)
				}
				row[i] = f * v.weights[i]
			}
		}
		return one(newTensor(shape, out)), nil
	}
}
