"""Asks this example's models at random and checks each answer. Standard library only.

    python examples/density/ask.py --requests 2000 --clients 8

It prints how many requests were answered rightly, how fast, and what the server says of its memory.
"""

import argparse
import http.client
import json
import random
import sys
import threading
import time

BODY = json.dumps({"inputs": [{"name": "x", "shape": [1, 32], "datatype": "FP32", "data": [1] * 32}]})


def ask(connection, k):
    """The answer's status, and whether it is model k's."""
    connection.request("POST", f"/v2/models/model-{k}/infer", BODY, {"Content-Type": "application/json"})
    response = connection.getresponse()
    text = response.read()
    if response.status != 200:
        return response.status, False, text[:200]
    [y] = json.loads(text)["outputs"]
    want = 32 * k / 1000 + k
    return 200, y["shape"] == [1, 2000] and all(abs(v - want) < 1e-3 for v in y["data"]), text[:200]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--address", default="127.0.0.1:8080", help="the gateway's (default 127.0.0.1:8080)")
    parser.add_argument("--models", type=int, default=200, help="how many models there are (default 200)")
    parser.add_argument("--requests", type=int, default=2000, help="how many requests (default 2000)")
    parser.add_argument("--clients", type=int, default=8, help="how many at once (default 8)")
    parser.add_argument("--skew", type=float, default=1, help="1 asks all models alike; larger prefers those with low numbers")
    args = parser.parse_args()
    wrong, took, lock = [], [], threading.Lock()

    def client(seed):
        rng = random.Random(seed)
        connection = http.client.HTTPConnection(args.address, timeout=60)
        for _ in range(args.requests // args.clients):
            k = int(args.models * rng.random() ** args.skew)
            start = time.perf_counter()
            status, right, text = ask(connection, k)
            with lock:
                took.append(time.perf_counter() - start)
                if not right:
                    wrong.append((k, status, text))

    start = time.perf_counter()
    threads = [threading.Thread(target=client, args=(i,)) for i in range(args.clients)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    elapsed = time.perf_counter() - start
    took.sort()
    print(f"{len(took) - len(wrong)} of {len(took)} answers are right, {len(took) / elapsed:.0f} a second; "
          f"half took less than {took[len(took) // 2] * 1000:.1f} ms, 99 % less than {took[len(took) * 99 // 100] * 1000:.1f} ms")
    for k, status, text in wrong[:5]:
        print(f"model-{k}: {status} {text!r}", file=sys.stderr)

    connection = http.client.HTTPConnection(args.address, timeout=60)
    connection.request("GET", "/metrics", headers={"Host": "density-default.localhost"})
    for line in connection.getresponse().read().decode().splitlines():
        if line.startswith(("stationmaster_runtime_model", "process_resident_memory_bytes")) and "_bucket" not in line:
            print(line)
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
