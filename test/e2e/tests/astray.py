"""An engine of the V2 protocol that went astray: it answers every inference with 500, or with the
class that the iris model would never choose for all rows. Runs in the clients' environment."""

import http.server
import json
import os
import sys


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def answer(self, status, body):
        raw = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)

    def do_GET(self):
        self.answer(200, {"ready": True})

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if sys.argv[1] == "fails":
            self.answer(500, {"error": "out of luck"})
            return
        rows = asked["inputs"][0]["shape"][0]
        label = {"name": sys.argv[2], "datatype": "INT64", "shape": [rows], "data": [7] * rows}
        self.answer(200, {"model_name": "iris", "outputs": [label]})

    def log_message(self, *args):
        pass


http.server.ThreadingHTTPServer(("127.0.0.1", int(os.environ["PORT"])), Handler).serve_forever()
