#!/usr/bin/env python3
"""Stand-ins for the four services of the example, on 127.0.0.1:8090.

They remember what they did by idempotency key, as services must: the same key again gets the first
answer and makes no second effect. What was undone stays undone: a late request under its key is
refused, also where the undo came first. The memory ends with the process.
"""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

answers = {}
undone = set()
lock = threading.Lock()


def perform(service, body):
    """A service's response: a status and a JSON value."""
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


def stands(key):
    """Whether an effect exists under a key and was not undone."""
    return key in answers and answers[key][0] < 300 and key not in undone


def undo(key):
    """Undoes the effect under a key. The undo is remembered even if there was no effect."""
    answer = (200, {"undone": True}) if stands(key) else (404, {"detail": "nothing to undo"})
    undone.add(key)
    return answer


def look(key):
    """Reports whether an effect exists under a key."""
    return answers[key] if stands(key) else (404, {"detail": "no such effect"})


def answer(method, service, key, body):
    """The result of a request, and whether it repeats an earlier one."""
    if method == "GET":
        return look(key), False
    if method == "DELETE" or service == "refunds":
        repeat = key in undone
        return undo(key), repeat
    if key in undone:
        return (410, {"detail": "this was undone"}), False
    repeat = key in answers
    if not repeat:
        answers[key] = perform(service, body)
    return answers[key], repeat


class Service(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def handle_request(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        body = json.loads(body) if body else None
        key = self.headers.get("Idempotency-Key")
        service = self.path.split("?")[0].split("/")[1]
        with lock:
            (status, said), repeat = answer(self.command, service, key, body)
        print(f"{self.command} {self.path} key={key} repeat={repeat} -> {status}", flush=True)
        said = json.dumps(said).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(said)))
        self.end_headers()
        self.wfile.write(said)

    do_GET = do_PUT = do_POST = do_DELETE = handle_request

    def log_message(self, *_):
        pass


if __name__ == "__main__":
    ThreadingHTTPServer(("127.0.0.1", 8090), Service).serve_forever()
