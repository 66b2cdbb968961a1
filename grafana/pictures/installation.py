"""A running Waybill and a Prometheus that scrapes it, for as long as the pictures of the dashboards need: a growing load, a
spike, and services that fail for two minutes, so that the panels about failures show data."""

import http.server
import json
import pathlib
import shutil
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.request

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
SCRAPE_SECONDS = 5
LENGTH_SECONDS = 12 * 60
START_SECONDS = 60
# The interval of changes.
EVERY_SECONDS = 2

# When services begin to fail and when they recover, in seconds from the start.
FAULTS: list[tuple[int, str, dict[str, float]]] = [
    (360, "third-party", {"errorRate": 1.0}),
    (390, "third-party", {"errorRate": 0.05}),
    (360, "drone", {"errorRate": 0.2, "hangRate": 0.004, "refuseRate": 0.03, "latencyMs": 20, "jitterMs": 60}),
    (390, "delivery", {"refuseRate": 0.05, "doThenTimeoutRate": 0.005}),
    (420, "package", {"undoRefuseRate": 0.02}),
    (480, "third-party", {}),
    (480, "drone", {}),
    (480, "delivery", {}),
    (480, "package", {}),
]
# Undecodable records arrive for a while, some time before the faults.
POISON_AT, POISON = 280, ["run", "poison", "--rate", "20", "--seconds", "15"]


class Sink(http.server.BaseHTTPRequestHandler):
    """Accepts alerts and notices, and refuses one of four at first."""

    asked = 0

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("content-length", 0)))
        Sink.asked += 1
        self.send_response(503 if Sink.asked % 4 == 0 else 204)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


class Installation:
    """The processes. They end with it; Prometheus' data stays in the directory."""

    def __init__(self, directory: pathlib.Path) -> None:
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(parents=True)
        self.directory = directory
        self.address = {name: f"127.0.0.1:{free_port()}" for name in ("http", "admin", "broker", "services", "prometheus")}
        self.children: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> "Installation":
        sink = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Sink)
        threading.Thread(target=sink.serve_forever, daemon=True).start()
        at = f"http://127.0.0.1:{sink.server_port}/"
        receivers = {"pager": {"webhook": {"url": at, "secret": "whsec_MTIzNDU2Nzg5MDEyMzQ1Njc4OTAxMjM0"}}}
        owners = {"sms": {"url": at, "template": '{"text": "{{notice.text}}"}'}}
        config = {"dataDir": str(self.directory / "data"), "alerts": {"receivers": receivers, "owners": owners, "dedupWindow": "5s"}}
        flags = [f"--{flag}={self.address[name]}" for flag, name in LISTENERS]
        self.start("waybill", [ROOT / "target/release/waybill", "up", "--config", self.file("waybill.yaml", config), *flags])
        scraped = {"job_name": "waybill", "static_configs": [{"targets": [self.address["admin"]]}]}
        every = f"{SCRAPE_SECONDS}s"
        prometheus = {
            "global": {"scrape_interval": every, "evaluation_interval": every},
            "rule_files": [str(ROOT / "prometheus/waybill.rules.yaml")],
            "scrape_configs": [scraped],
        }
        self.start("prometheus", [
            "prometheus", f"--config.file={self.file('prometheus.yml', prometheus)}",
            f"--storage.tsdb.path={self.directory / 'prometheus'}", f"--web.listen-address={self.address['prometheus']}",
        ])
        return self

    def __exit__(self, *_: object) -> None:
        for child in reversed(self.children):
            child.terminate()
        for child in self.children:
            child.wait(timeout=60)

    def run(self) -> None:
        """Runs everything that the pictures show, to its end."""
        self.wait_until_ready()
        began = time.monotonic()
        self.loadtest("run", str(HERE / "load.yaml"))
        for second in range(0, LENGTH_SECONDS, EVERY_SECONDS):
            time.sleep(max(0.0, began + second - time.monotonic()))
            if second == POISON_AT:
                self.loadtest(*POISON)
            for at, service, faults in FAULTS:
                if at == second:
                    self.ask("PUT" if faults else "DELETE", "services", f"/faults/{service}", faults or None)
            self.visitor(second)

    def visitor(self, second: int) -> None:
        """A delivery whose owner requests a notice, and that is rescheduled immediately."""
        body = {
            "deliveryId": f"visitor-{second}", "ownerId": "ada", "pickupLocation": "12 Harbour Street",
            "dropOffLocation": "7 Hill Road", "packageInfo": {"packageId": f"p-{second}", "size": "Small", "weight": 1.5},
            # A contact gets few messages within an hour.
            "notify": [f"tel:+4917{second:08}"],
        }
        self.ask("POST", "http", "/api/deliveryrequests", body)
        self.ask("PATCH", "http", f"/api/deliveryrequests/visitor-{second}", {"deadline": "2099-01-01T00:00:00Z"})

    def wait_until_ready(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        while not (self.ask("GET", "admin", "/readyz") and self.ask("GET", "prometheus", "/-/ready")):
            if time.monotonic() > deadline:
                raise SystemExit(f"not ready in {START_SECONDS} s: {self.directory} has what the processes say")
            time.sleep(0.2)

    def ask(self, method: str, whom: str, path: str, body: object = None) -> bool:
        """Whether the request succeeded. Refusals are part of the pictures."""
        data = None if body is None else json.dumps(body).encode()
        headers = {"content-type": "application/json"}
        request = urllib.request.Request(f"http://{self.address[whom]}{path}", data, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=10) as answer:
                return bool(answer.status < 300)
        except (urllib.error.URLError, OSError):
            return False

    def loadtest(self, *arguments: str) -> None:
        where = [f"--{name}={self.address[key]}" for name, key in (("http", "http"), ("brokers", "broker"), ("services", "services"))]
        self.start(f"loadtest-{len(self.children)}", [ROOT / "target/release/waybill-loadtest", *arguments, *where])

    def start(self, name: str, command: list[object]) -> None:
        with (self.directory / f"{name}.log").open("wb") as log:
            child = subprocess.Popen([str(part) for part in command], stdout=log, stderr=log)
        self.children.append(child)

    def file(self, name: str, content: object) -> pathlib.Path:
        """JSON is also YAML."""
        path = self.directory / name
        path.write_text(json.dumps(content))
        return path


LISTENERS = [("http", "http"), ("admin", "admin"), ("broker-listen", "broker"), ("services", "services")]


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
