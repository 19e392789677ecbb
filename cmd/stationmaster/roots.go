//go:build scratch

package main

// An image from scratch has no certificates of its own; these, Mozilla's, count where the system
// has none.
import _ "golang.org/x/crypto/x509roots/fallback"
