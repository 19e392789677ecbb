"""A server of the OpenAI API's audio and images paths that makes nothing of what it gets: each answer says what
came, as a digest of its very bytes, or is bytes itself. Runs in the clients' environment."""

import argparse
import hashlib
import http.server
import json

parser = argparse.ArgumentParser()
parser.add_argument("--port", type=int)
args, _ = parser.parse_known_args()
SOUND = bytes(range(256)) * 4096


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        self.answer("application/json", b"{}")

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        digest = hashlib.sha256(body).hexdigest()
        if self.path == "/v1/audio/speech":
            self.answer("audio/wav", SOUND)
        elif self.path.startswith("/v1/audio/"):
            self.answer("application/json", json.dumps({"text": digest}).encode())
        else:
            self.answer("application/json", json.dumps({"created": 1, "data": [{"b64_json": digest}]}).encode())

    def answer(self, kind, body):
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args):
        pass


if __name__ == "__main__":
    http.server.ThreadingHTTPServer(("127.0.0.1", args.port), Handler).serve_forever()
