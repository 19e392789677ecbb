// Package oip is the Open Inference Protocol's gRPC contract, generated from oip.proto.
package oip

//go:generate go run -C ../../tools ./protogen .. api/oip/oip.proto
