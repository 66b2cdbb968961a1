#!/usr/bin/env python3
"""Stand-ins for the four services of the example, on 127.0.0.1:8090.

They remember what they did by idempotency key, as services must: the same key again gets the first
answer and makes no second effect. The memory ends with the process.
"""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

answers = {}
lock = threading.Lock()


def perform(service, body):
    """What a service answers: a status and a JSON value."""
    if service == "orders":
        lines = body["lines"]
        physical = any(line.get("weight", 0) > 0 for line in lines)
        total = sum(line["price"] * line["quantity"] for line in lines)
        return 201, {"physical": physical, "total": f"{total:.2f}"}
    if service == "reservations":
        return 201, {"warehouse": "WH-7"}
    if service == "payments":
        if body["method"].get("card", "").endswith("0000"):
            return 402, {"error": {"reason": "card-declined"}, "detail": "the bank says no"}
        return 201, {"receipt": f"R-{len(answers)}"}
    if service == "shipments":
        return 201, {"trackingCode": f"T-{len(answers)}"}
    return 404, {"detail": "no such service"}


class Service(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def handle_request(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        key = self.headers.get("Idempotency-Key")
        with lock:
            repeat = key in answers
            if not repeat:
                answers[key] = perform(self.path.split("/")[1], json.loads(body))
            status, answer = answers[key]
        print(f"{self.command} {self.path} key={key} repeat={repeat} -> {status}", flush=True)
        answer = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    do_PUT = do_POST = handle_request

    def log_message(self, *_):
        pass


if __name__ == "__main__":
    ThreadingHTTPServer(("127.0.0.1", 8090), Service).serve_forever()
