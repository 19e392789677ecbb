"""A transformer as KServe's SDK makes them: it doubles what goes to the predictor and adds 1 to
the floats that come back. Runs in the clients' environment."""

import argparse

import kserve
import numpy as np


class Doubling(kserve.Model):
    def __init__(self, name):
        super().__init__(name)
        self.ready = True

    async def preprocess(self, payload, headers=None):
        x = payload.inputs[0]
        rows = (x.as_numpy() * 2).astype(np.float32)
        doubled = kserve.InferInput(x.name, list(rows.shape), "FP32")
        doubled.set_data_from_numpy(rows, binary_data=False)
        return kserve.InferRequest(model_name=self.name, infer_inputs=[doubled], request_id=payload.id)

    async def postprocess(self, response, headers=None, response_headers=None):
        outs = []
        for o in response.outputs:
            got = o.as_numpy()
            if got.dtype.kind == "f":
                got = (got + 1).astype(got.dtype)
            out = kserve.InferOutput(o.name, list(got.shape), o.datatype)
            out.set_data_from_numpy(got, binary_data=False)
            outs.append(out)
        return kserve.InferResponse(response_id=response.id, model_name=self.name, infer_outputs=outs)


parser = argparse.ArgumentParser(parents=[kserve.model_server.parser])
args, _ = parser.parse_known_args()
kserve.ModelServer().start([Doubling(args.model_name)])
