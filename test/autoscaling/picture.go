package main

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"strings"

	"stationmaster.dev/stationmaster/internal/scale/scaletest"
)

// The frame of a picture, in its own units.
const (
	width, height           = 760, 280
	left, right, top, below = 48, 56, 34, 40
)

// picture draws the load as an area, ready replicas as dots, Knative's replicas as a broad pale
// line and ours as a thin one on top of it.
func picture(t *scaletest.Trace, theirs, ours run) []byte {
	var b bytes.Buffer
	most := max(theirs.peak, ours.peak, 1)
	load := 0.0
	for _, v := range t.Load {
		if v != nil {
			load = max(load, *v)
		}
	}
	load = max(load, 0.1)
	x := func(sec int) float64 { return left + float64(sec)*(width-left-right)/float64(len(t.Load)) }
	y := func(part float64) float64 { return height - below - part*(height-below-top) }

	fmt.Fprintf(&b, "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" font-family=\"sans-serif\" font-size=\"11\">\n", width, height)
	fmt.Fprintf(&b, "<title>%s: %s</title>\n<rect width=\"100%%\" height=\"100%%\" fill=\"#fff\"/>\n", escape(t.Name), escape(t.About))

	b.WriteString("<path fill=\"#dfe7ef\" d=\"")
	for sec, v := range t.Load {
		if v == nil || *v == 0 {
			continue
		}
		fmt.Fprintf(&b, "M%.1f %.1fV%.1fH%.1fV%.1fZ", x(sec), y(0), y(*v/load), x(sec+1), y(0))
	}
	b.WriteString("\"/>\n")

	for _, part := range []float64{0, 0.5, 1} {
		fmt.Fprintf(&b, "<path stroke=\"#ccc\" d=\"M%d %.1fH%d\"/>\n", left, y(part), width-right)
		fmt.Fprintf(&b, "<text x=\"%d\" y=\"%.1f\" text-anchor=\"end\">%.3g</text>\n", left-6, y(part)+4, part*float64(most))
		fmt.Fprintf(&b, "<text x=\"%d\" y=\"%.1f\" fill=\"#678\">%.4g</text>\n", width-right+6, y(part)+4, part*load)
	}
	for sec := 0; sec < len(t.Load); sec += 60 {
		fmt.Fprintf(&b, "<text x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">%s</text>\n", x(sec), height-below+16, clock(sec))
	}

	line := func(values []int, style string) {
		fmt.Fprintf(&b, "<path fill=\"none\" %s d=\"M%.1f %.1f", style, x(0), y(float64(values[0])/float64(most)))
		for sec, n := range values {
			if sec > 0 && n != values[sec-1] {
				fmt.Fprintf(&b, "H%.1fV%.1f", x(sec), y(float64(n)/float64(most)))
			}
		}
		fmt.Fprintf(&b, "H%.1f\"/>\n", x(len(values)))
	}
	ready := make([]int, len(t.Ready))
	for i, n := range t.Ready {
		ready[i] = min(n, most)
	}
	line(ready, `stroke="#777" stroke-dasharray="1 3"`)
	line(theirs.replicas, `stroke="#f2a33a" stroke-width="5"`)
	line(ours.replicas, `stroke="#1f5fa8" stroke-width="1.6"`)

	legend := []struct{ color, text string }{
		{"#1f5fa8", "replicas, ours"}, {"#f2a33a", "replicas, Knative " + t.Knative}, {"#777", "ready"}, {"#9ab", "reported load (right)"},
	}
	at := left
	for _, l := range legend {
		fmt.Fprintf(&b, "<rect x=\"%d\" y=\"12\" width=\"14\" height=\"6\" fill=\"%s\"/><text x=\"%d\" y=\"19\">%s</text>\n", at, l.color, at+19, escape(l.text))
		at += 34 + 6*len(l.text)
	}
	b.WriteString("</svg>\n")
	return b.Bytes()
}

func settings(t *scaletest.Trace) []string {
	var s []string
	if t.ContainerConcurrency > 0 {
		s = append(s, fmt.Sprintf("`containerConcurrency: %d`", t.ContainerConcurrency))
	}
	for _, key := range slices.Sorted(maps.Keys(t.Annotations)) {
		s = append(s, fmt.Sprintf("`%s: %s`", strings.TrimPrefix(key, "autoscaling.knative.dev/"), t.Annotations[key]))
	}
	return s
}

func escape(s string) string {
	return strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;").Replace(s)
}
