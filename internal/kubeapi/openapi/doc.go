// Package openapi holds the OpenAPI definitions of the kinds that the embedded API serves,
// generated from the kinds' Go types and trimmed to what the served kinds reach: all of core/v1
// would cost start-up time and memory.
package openapi

//go:generate ./generate
