"""Writes this example's models and their manifests. Python's standard library is all it needs.

    python examples/density/make.py              200 models and a TrainedModel for each
    python examples/density/make.py --alone 20   20 InferenceServices of one model each besides

Model k is a linear layer, y = x @ W + k, where x is FP32 of any number of rows by 32 and y has 2000
columns. W is k/1000 everywhere, so that each answer tells which model gave it: x of ones gives
32 * k/1000 + k. A model's file has 256 KB.
"""

import argparse
import pathlib
import struct
from array import array

HERE = pathlib.Path(__file__).parent
ROWS, COLUMNS = 32, 2000
FLOAT = 1  # ONNX's TensorProto.FLOAT


def varint(n):
    out = b""
    while n > 127:
        out += bytes([n & 127 | 128])
        n >>= 7
    return out + bytes([n])


def number(field, n):
    return varint(field << 3) + varint(n)


def message(field, body):
    body = body.encode() if isinstance(body, str) else body
    return varint(field << 3 | 2) + varint(len(body)) + body


def tensor(name, shape, values):
    return b"".join(number(1, d) for d in shape) + number(2, FLOAT) + message(8, name) + message(9, values.tobytes())


def value(name, *shape):
    dims = b"".join(message(1, message(2, d) if isinstance(d, str) else number(1, d)) for d in shape)
    return message(1, name) + message(2, message(1, number(1, FLOAT) + message(2, dims)))


def model(k):
    """An ONNX model in the form of its protocol buffer (onnx.proto3)."""
    weights = array("f", [k / 1000]) * (ROWS * COLUMNS)
    node = message(1, "x") + message(1, "W") + message(1, "b") + message(2, "y") + message(4, "Gemm")
    graph = (message(1, node) + message(2, f"model-{k}")
             + message(5, tensor("W", [ROWS, COLUMNS], weights)) + message(5, tensor("b", [COLUMNS], array("f", [k]) * COLUMNS))
             + message(11, value("x", "rows", ROWS)) + message(12, value("y", "rows", COLUMNS)))
    return number(1, 8) + message(7, graph) + message(8, number(2, 17))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=int, default=200, help="how many models (default 200)")
    parser.add_argument("--alone", type=int, default=0, help="how many of them as InferenceServices as well (default 0)")
    args = parser.parse_args()
    assert struct.pack("=f", 1) == struct.pack("<f", 1), "ONNX wants little-endian floats; this machine has others"
    trained, alone = [], []
    for k in range(args.models):
        path = HERE / "models" / f"model-{k}" / "model.onnx"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(model(k))
        uri = f"examples/density/models/model-{k}"
        trained.append(f"""apiVersion: serving.kserve.io/v1alpha1
kind: TrainedModel
metadata: {{name: model-{k}}}
spec:
  inferenceService: density
  model: {{framework: onnx, memory: 260Ki, storageUri: {uri}}}
""")
        alone.append(f"""apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
metadata: {{name: alone-{k}}}
spec:
  predictor:
    onnx: {{storageUri: {uri}}}
""")
    (HERE / "trainedmodels.yaml").write_text("---\n".join(trained))
    if args.alone:
        (HERE / "alone").mkdir(exist_ok=True)
        (HERE / "alone" / "services.yaml").write_text("---\n".join(alone[:args.alone]))
    print(f"wrote {args.models} models of {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
