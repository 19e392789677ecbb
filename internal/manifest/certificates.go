package manifest

import (
	"fmt"

	"stationmaster.dev/stationmaster/internal/enginetls"
	"stationmaster.dev/stationmaster/internal/errdef"
)

// layAnnotations lays annotations over others. Certificates that are nearer take the place of those that
// are named elsewhere, whichever way either is given.
func layAnnotations(onto, nearer map[string]string) {
	for _, pair := range [][2]string{
		{enginetls.RootsAnnotation, enginetls.ConfigMapAnnotation}, {enginetls.ConfigMapAnnotation, enginetls.RootsAnnotation},
	} {
		if _, has := nearer[pair[0]]; has {
			delete(onto, pair[1])
		}
	}
	for key, value := range nearer {
		onto[key] = value
	}
}

// takeCertificates puts the certificates of the config map that annotations name into them. An
// engine that needn't prove itself needs none.
func takeCertificates(annotations map[string]string, configMap func(name string) (map[string]string, error)) error {
	where, has := annotations[enginetls.ConfigMapAnnotation]
	if !has {
		return nil
	}
	delete(annotations, enginetls.ConfigMapAnnotation)
	if mode := annotations[enginetls.Annotation]; mode == enginetls.SkipVerify || mode == enginetls.Off {
		return nil
	}
	name, key := enginetls.ConfigMap(where)
	if configMap == nil {
		return errdef.New(errdef.ErrUnsupported, enginetls.ConfigMapAnnotation+" can't be looked up here")
	}
	data, err := configMap(name)
	if err != nil {
		return fmt.Errorf("%s: %w", enginetls.ConfigMapAnnotation, err)
	}
	roots, has := data[key]
	if !has {
		return fmt.Errorf("%s: the config map %s has no key %s; put the certificates there, as PEM", enginetls.ConfigMapAnnotation, name, key)
	}
	annotations[enginetls.RootsAnnotation] = roots
	if err := enginetls.Check(annotations); err != nil {
		return fmt.Errorf("the config map %s, key %s: %w", name, key, err)
	}
	return nil
}
