package translate

import "stationmaster.dev/stationmaster/internal/wire/oip"

func isHalf(d oip.Datatype) bool { return d == oip.FP16 || d == oip.BF16 }

// AskForHalves asks for outputs of half floats in binary form, which is the only one that REST has for them.
func AskForHalves(r *oip.InferRequest, meta *oip.ModelMetadata) {
	binary := true
	for i := range meta.Outputs {
		switch of := &meta.Outputs[i]; {
		case !isHalf(of.Datatype):
		case len(r.Outputs) == 0:
			r.BinaryOutput = true
		default:
			for j := range r.Outputs {
				if r.Outputs[j].Name == of.Name {
					r.Outputs[j].Binary = &binary
				}
			}
		}
	}
}

// widened are the tensors with half floats as FP32, which has a JSON form.
func widened(tensors []oip.Tensor) ([]oip.Tensor, error) {
	out := append([]oip.Tensor(nil), tensors...)
	for i := range out {
		t := &out[i]
		if !isHalf(t.Datatype) {
			continue
		}
		if err := t.Check(); err != nil {
			return nil, err
		}
		values, err := floats(t)
		if err != nil {
			return nil, err
		}
		*t = oip.Tensor{Name: t.Name, Datatype: oip.FP32, Shape: t.Shape, Data: values}
	}
	return out, nil
}
