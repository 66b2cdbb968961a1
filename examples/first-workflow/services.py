#!/usr/bin/env python3
"""Three services of a trip: seats, rooms and bills. For experiments; replace them with your own.

Each keeps the two rules that a service has to keep: the same idempotency key again gets the first answer and makes no
second effect; and what was undone stays undone, also where the undo came first. The memory ends with the process.
"""

import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

done = {}
undone = set()
away = set()
lock = threading.Lock()


def answer(method, service, key, body):
    """The status and the JSON value of a response."""
    if service == "effects":
        standing = sorted(key.split("/")[1] for key, (status, _) in done.items() if status == 201 and key not in undone)
        return 200, {"standing": standing, "undone": len(undone & done.keys())}
    if service == "away":
        away.clear()
        away.update(body)
        return 200, sorted(away)
    if service in away:
        return 503, {"detail": "come back later"}
    if method == "DELETE":
        undone.add(key)
        return (200, {}) if key in done else (404, {"detail": "there was nothing"})
    if key in undone:
        return 410, {"detail": "this was undone"}
    if key not in done:
        done[key] = perform(service, body)
    return done[key]


def perform(service, body):
    """Performs the requested action once."""
    if service == "bills" and body["card"].endswith("0000"):
        return 402, {"code": "card-declined", "detail": "the bank says no"}
    return 201, {"number": f"{service[0].upper()}-{len(done) + 1}"}


class Service(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def answer(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        service = self.path.split("/")[1]
        with lock:
            status, said = answer(self.command, service, self.headers.get("Idempotency-Key"), json.loads(body or "null"))
        said = json.dumps(said).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(said)))
        self.end_headers()
        self.wfile.write(said)

    do_GET = do_PUT = do_DELETE = answer

    def log_message(self, *_):
        pass


if __name__ == "__main__":
    server = ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1]) if len(sys.argv) > 1 else 8090), Service)
    print("listening services %s:%d" % server.server_address, flush=True)
    server.serve_forever()
