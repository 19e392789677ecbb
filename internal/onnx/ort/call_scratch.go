//go:build scratch

package ort

import "errors"

// canLoad is described in call.go.
const canLoad = false

func open(string) (uintptr, error) { return 0, errors.New("this binary can't load libraries") }

func call(uintptr, ...uintptr) uintptr { panic("BUG: nothing was loaded that could be called") }
