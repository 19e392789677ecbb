"""An explainer as a small server of V1 and, as an extension, of V2 tensors: an output's gradient by
differences, for which it asks the predictor. Runs in the clients' environment."""

import argparse
import http.server
import json
import os

import requests

parser = argparse.ArgumentParser()
parser.add_argument("--model_name")
parser.add_argument("--predictor_host")
parser.add_argument("--http_port", type=int)
args, _ = parser.parse_known_args()
STEP = 1.0


def predict(rows):
    answer = requests.post(f"http://{args.predictor_host}/v1/models/{args.model_name}:predict", json={"instances": rows}, timeout=60)
    answer.raise_for_status()
    return [p["probabilities"] for p in answer.json()["predictions"]]


def explain(row):
    """How much each feature moves the first class's probability."""
    moved = [[v + STEP * (i == j) for j, v in enumerate(row)] for i in range(len(row))]
    base, *others = predict([row, *moved])
    return [o[0] - base[0] for o in others]


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        self.answer(200, {"status": "alive"})

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path == f"/v1/models/{args.model_name}:explain":
            self.answer(200, {"explanations": [explain(row) for row in body["instances"]]})
        elif self.path == f"/v2/models/{args.model_name}/explain":
            x = body["inputs"][0]
            width = x["shape"][1]
            rows = [x["data"][i:i + width] for i in range(0, len(x["data"]), width)]
            flat = [v for row in rows for v in explain(row)]
            self.answer(200, {"model_name": args.model_name, "outputs": [
                {"name": "explanations", "shape": x["shape"], "datatype": "FP64", "data": flat}]})
        else:
            self.answer(404, {"error": f"no {self.path}"})

    def answer(self, status, value):
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


http.server.ThreadingHTTPServer(("127.0.0.1", int(os.environ.get("PORT", args.http_port))), Handler).serve_forever()
