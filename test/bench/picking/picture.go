package main

import (
	"bytes"
	"fmt"
	"math"
)

// The frame of a picture, in its own units.
const (
	width, height           = 760, 300
	left, right, top, below = 64, 20, 34, 44
)

var colors = []string{"#f2a33a", "#8a8f98", "#1f5fa8"}

// picture draws the mean and the p99 of the time to the first token over the requests that are answered,
// a line for each policy; the p99's is thin. The time's scale is logarithmic.
func picture(l load, runs []outcome) []byte {
	var b bytes.Buffer
	low, high, most := math.Inf(1), 0.0, 0.0
	for _, o := range runs {
		low, high, most = min(low, o.MeanTTFT), max(high, o.P99TTFT), max(most, o.Rate)
	}
	low, high = math.Floor(math.Log10(low)), math.Ceil(math.Log10(high))
	most *= 1.05
	x := func(rate float64) float64 { return left + rate/most*(width-left-right) }
	y := func(ms float64) float64 {
		return height - below - (math.Log10(ms)-low)/(high-low)*(height-below-top)
	}
	fmt.Fprintf(&b, "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" font-family=\"sans-serif\" font-size=\"11\">\n", width, height)
	fmt.Fprintf(&b, "<title>%s: time to the first token over requests a second</title>\n<rect width=\"100%%\" height=\"100%%\" fill=\"#fff\"/>\n", l.name)
	for decade := low; decade <= high; decade++ {
		for _, part := range []float64{1, 2, 5} {
			v := part * math.Pow(10, decade)
			if decade == high && part > 1 {
				break
			}
			fmt.Fprintf(&b, "<path stroke=\"#ddd\" d=\"M%d %.1fH%d\"/><text x=\"%d\" y=\"%.1f\" text-anchor=\"end\">%s</text>\n", left, y(v), width-right, left-6, y(v)+4, ms(v))
		}
	}
	step := math.Pow(10, math.Floor(math.Log10(most/3)))
	for _, factor := range []float64{5, 2, 1} {
		if most/(step*factor) >= 4 {
			step *= factor
			break
		}
	}
	for v := 0.0; v <= most; v += step {
		fmt.Fprintf(&b, "<text x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">%g</text>\n", x(v), height-below+16, v)
	}
	fmt.Fprintf(&b, "<text x=\"%d\" y=\"%d\" text-anchor=\"middle\">requests a second</text>\n", (width+left)/2, height-8)
	at := left
	for i, policy := range policies {
		ps := points(runs, policy)
		line := func(of func(outcome) float64, style string) {
			if len(ps) == 0 {
				return
			}
			fmt.Fprintf(&b, "<path fill=\"none\" stroke=\"%s\" %s d=\"", colors[i], style)
			for j, p := range ps {
				fmt.Fprintf(&b, "%c%.1f %.1f", "ML"[min(j, 1)], x(p.Rate), y(of(p)))
			}
			b.WriteString("\"/>\n")
			for _, p := range ps {
				fmt.Fprintf(&b, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"2.5\" fill=\"%s\"/>\n", x(p.Rate), y(of(p)), colors[i])
			}
		}
		line(func(o outcome) float64 { return o.MeanTTFT }, `stroke-width="2.5"`)
		line(func(o outcome) float64 { return o.P99TTFT }, `stroke-width="1" stroke-dasharray="4 3"`)
		name := called(policy)
		fmt.Fprintf(&b, "<rect x=\"%d\" y=\"12\" width=\"14\" height=\"6\" fill=\"%s\"/><text x=\"%d\" y=\"19\">%s</text>\n", at, colors[i], at+19, name)
		at += 34 + 7*len(name)
	}
	fmt.Fprintf(&b, "<text x=\"%d\" y=\"19\" fill=\"#555\">mean broad, p99 dashed</text>\n", at+10)
	b.WriteString("</svg>\n")
	return b.Bytes()
}
