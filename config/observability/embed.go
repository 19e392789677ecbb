// Package observability holds what Prometheus and Grafana take: alert rules and a dashboard on the
// metrics of the admin port.
package observability

import _ "embed"

// Rules are the alert rules, a file of Prometheus' rule_files.
//
//go:embed rules.yaml
var Rules []byte

// Dashboard is Grafana's, in JSON.
//
//go:embed dashboard.json
var Dashboard []byte
