package main

import (
	"encoding/json"
	"fmt"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"
)

// marshal returns the YAML, or indented JSON, of a CRD without the fields that only a server
// sets.
func marshal(c *apiextensionsv1.CustomResourceDefinition, asJSON bool) ([]byte, error) {
	raw, err := json.Marshal(c)
	if err != nil {
		return nil, err
	}
	var obj map[string]any
	if err := json.Unmarshal(raw, &obj); err != nil {
		return nil, err
	}
	delete(obj, "status")
	if meta, ok := obj["metadata"].(map[string]any); ok {
		delete(meta, "creationTimestamp")
	}
	if asJSON {
		out, err := json.MarshalIndent(obj, "", " ")
		return append(out, '\n'), err
	}
	out, err := yaml.Marshal(obj)
	if err != nil {
		return nil, fmt.Errorf("marshal CRD %s: %w", c.Name, err)
	}
	return append([]byte(header), out...), nil
}
