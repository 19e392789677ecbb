package local

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"

	"stationmaster.dev/stationmaster/internal/errdef"
	"stationmaster.dev/stationmaster/internal/platform/local/launch"
	"stationmaster.dev/stationmaster/internal/spec"
)

// volume makes a volume's directory ready and returns it.
func (r *instance) volume(ctx context.Context, v *spec.Volume) (string, error) {
	own := filepath.Join(r.dir, "volumes", v.Name)
	if !filepath.IsLocal(v.Name) {
		return "", errdef.New(errdef.ErrInvalid, "volume name "+v.Name+" is no plain name")
	}
	switch v.Kind {
	case spec.VolumeEmptyDir:
		return own, os.MkdirAll(own, 0o700)
	case spec.VolumeHostPath:
		if !filepath.IsAbs(v.Source) {
			return "", errdef.New(errdef.ErrInvalid, "volume "+v.Name+": host path "+v.Source+" isn't absolute")
		}
		_, err := os.Stat(v.Source)
		return filepath.Clean(v.Source), err
	case spec.VolumeClaim:
		if !filepath.IsLocal(v.Source) || !filepath.IsLocal(r.w.Service.Namespace) {
			return "", errdef.New(errdef.ErrInvalid, "volume "+v.Name+": claim "+v.Source+" leaves its directory")
		}
		dir := filepath.Join(r.p.cfg.Dir, "pvc", r.w.Service.Namespace, v.Source)
		return dir, os.MkdirAll(dir, 0o700)
	case spec.VolumeConfigMap, spec.VolumeSecret:
		kind := "configMap"
		if v.Kind == spec.VolumeSecret {
			kind = "secret"
		}
		values, err := r.object(ctx, kind, v.Source, v.Optional)
		if err != nil {
			return "", fmt.Errorf("volume %s: %w", v.Name, err)
		}
		return own, r.writeKeys(own, v, values)
	}
	return "", errdef.New(errdef.ErrUnsupported, fmt.Sprintf("volume %s is of kind %s, which one machine doesn't have", v.Name, v.Kind))
}

// refresh brings the config maps that a replica mounts up to date, as a kubelet does while a pod
// runs. What can't be read stays as it was.
func (r *instance) refresh(ctx context.Context) {
	for i := range r.w.Volumes {
		v := &r.w.Volumes[i]
		if v.Kind != spec.VolumeConfigMap || !filepath.IsLocal(v.Name) {
			continue
		}
		own := filepath.Join(r.dir, "volumes", v.Name)
		if _, err := os.Stat(own); err != nil {
			continue // the replica is still being prepared, and gets the newest then
		}
		values, err := r.object(ctx, "configMap", v.Source, v.Optional)
		if err == nil {
			err = r.writeKeys(own, v, values)
		}
		if err != nil {
			r.p.log.Warn("a config map's volume stays as it was", "replica", r.id, "volume", v.Name, "err", err)
		}
	}
}

// writeKeys makes a directory hold a config map's or secret's keys. A running process may have it
// mounted: files are replaced one by one, and those that stay the same aren't touched.
func (r *instance) writeKeys(dir string, v *spec.Volume, values map[string][]byte) error {
	r.volumes.Lock()
	defer r.volumes.Unlock()
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	paths := v.Items
	if paths == nil {
		paths = map[string]string{}
		for key := range values {
			paths[key] = key
		}
	}
	keep := map[string]bool{}
	for key, rel := range paths {
		value, ok := values[key]
		switch {
		case !ok && v.Optional:
			continue
		case !ok:
			return errdef.New(errdef.ErrNotFound, fmt.Sprintf("volume %s: %s has no key %s", v.Name, v.Source, key))
		case !filepath.IsLocal(rel):
			return errdef.New(errdef.ErrInvalid, fmt.Sprintf("volume %s: path %s leaves the volume", v.Name, rel))
		}
		file := filepath.Join(dir, rel)
		keep[file] = true
		if err := replaceFile(file, value); err != nil {
			return err
		}
	}
	return filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() || keep[path] {
			return err
		}
		return os.Remove(path)
	})
}

// replaceFile makes a file hold a value, at once for whoever reads it.
func replaceFile(file string, value []byte) error {
	if have, err := os.ReadFile(file); err == nil && bytes.Equal(have, value) {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		return err
	}
	next := file + ".stationmaster-new"
	if err := os.WriteFile(next, value, 0o600); err != nil {
		return err
	}
	return os.Rename(next, file)
}

// binds returns what a container mounts: the models, read-only, and its volumes.
func (r *instance) binds(c *spec.Container, ready *preparation) ([]launch.Mount, error) {
	var out []launch.Mount
	for _, m := range r.w.Models {
		if m.MountPath != "" && ready.models[m.URI] != "" {
			out = append(out, launch.Mount{Source: ready.models[m.URI], Target: filepath.Clean(m.MountPath), ReadOnly: true})
		}
	}
	for _, m := range c.Mounts {
		dir, ok := ready.volumes[m.Volume]
		if !ok {
			return nil, errdef.New(errdef.ErrInvalid, "container "+c.Name+" mounts volume "+m.Volume+", which there isn't")
		}
		if m.SubPath != "" {
			if !filepath.IsLocal(m.SubPath) {
				return nil, errdef.New(errdef.ErrInvalid, "container "+c.Name+": sub-path "+m.SubPath+" leaves its volume")
			}
			dir = filepath.Join(dir, m.SubPath)
			if _, err := os.Stat(dir); os.IsNotExist(err) {
				if err := os.MkdirAll(dir, 0o700); err != nil {
					return nil, err
				}
			}
		}
		if !filepath.IsAbs(m.Path) {
			return nil, errdef.New(errdef.ErrInvalid, "container "+c.Name+": mount path "+m.Path+" isn't absolute")
		}
		if target := filepath.Clean(m.Path); target != dir && target != "/" {
			out = append(out, launch.Mount{Source: dir, Target: target, ReadOnly: m.ReadOnly})
		}
	}
	return out, nil
}
