"""Requirements of docker-compose.yml that no schema expresses. Reads the output of Compose's own loader (JSON), so that
anchors and short forms are resolved; the binary checks each environment and each command line."""

import json
import os
import pathlib
import re
import subprocess
import sys

import yaml

from flags import for_every_command

LOOPBACK = "127.0.0.1"
# The image's own environment, which that of each service overrides.
IMAGE = {"WAYBILL_DATA_DIR": "/var/lib/waybill"}
ADMIN_PORT = 8081

wrong = []


def main():
    model_path, waybill, loadtest = sys.argv[1:]
    model = json.loads(pathlib.Path(model_path).read_text())
    services = model["services"]
    root = pathlib.Path.cwd()
    for name, service in services.items():
        check_any(name, service, services, root)
    ours = {name: service for name, service in services.items() if service["image"].startswith("waybill:")}
    configs = {name: check_ours(name, service, waybill) for name, service in ours.items()}
    for name, service in services.items():
        if service["image"].startswith("waybill-loadtest:"):
            check_hardened(name, service)
            # It resolves names while it parses its command line, and no container names exist here.
            known = [re.sub(rf"^({'|'.join(services)}):", f"{LOOPBACK}:", word) for word in service["command"]]
            accepts(name, loadtest, known, {})
    check_together(model, ours, {name: config for name, config in configs.items() if config})
    check_scraped(ours)
    check_grafana(services)
    sys.exit("\n".join(f"docker-compose.yml: {problem}" for problem in wrong) or 0)


def check_any(name, service, services, root):
    """The rules for every service, whatever its image."""
    image = service["image"]
    if not re.fullmatch(r"[\w./-]+:v?\d+\.\d+\.\d+", image):
        wrong.append(f"{name}: {image} is no exact version")
    for port in service.get("ports", []):
        if port.get("host_ip") != LOOPBACK:
            wrong.append(f"{name}: port {port['target']} is published beyond loopback")
    for volume in service.get("volumes", []):
        if volume["type"] != "bind":
            continue
        source = pathlib.Path(volume["source"])
        if not source.exists():
            wrong.append(f"{name}: {source.relative_to(root)} is mounted, and is not there")
        if not volume.get("read_only"):
            wrong.append(f"{name}: {source.relative_to(root)} is mounted, and may be written to")
    for other, dependency in service.get("depends_on", {}).items():
        condition = dependency["condition"]
        if other not in services:
            wrong.append(f"{name}: waits for {other}, which is not there")
            continue
        fits = "service_completed_successfully" if is_one_shot(services[other]) else "service_healthy"
        if condition != fits:
            wrong.append(f"{name}: waits for {other} to be {condition}, not {fits}")
    health = service.get("healthcheck", {})
    if is_one_shot(service):
        # `up --wait` waits for the end of services that others need to have completed; any other end is a failure.
        needed = any(
            other.get("depends_on", {}).get(name, {}).get("condition") == "service_completed_successfully"
            for other in services.values()
        )
        if not needed and not service.get("profiles"):
            wrong.append(f"{name}: ends by itself, and nobody waits for it")
    elif not health.get("test") or health.get("disable"):
        wrong.append(f"{name}: has no health check, and does not end by itself")
    if "max-size" not in service.get("logging", {}).get("options", {}):
        wrong.append(f"{name}: its logs have no bound")
    if "memory" not in service.get("deploy", {}).get("resources", {}).get("limits", {}):
        wrong.append(f"{name}: its memory has no bound")
    if "no-new-privileges:true" not in service.get("security_opt", []) and not image.startswith("scylladb/"):
        # ScyllaDB's image starts as root; running it as another user was not tried.
        wrong.append(f"{name}: may gain privileges")


def is_one_shot(service):
    return service.get("restart") == "no"


def check_hardened(name, service):
    if not service.get("read_only") or service.get("cap_drop") != ["ALL"]:
        wrong.append(f"{name}: is to be read_only and to drop all capabilities")


def check_ours(name, service, waybill):
    """Whether the binary accepts the service's environment and arguments; returns the effective configuration."""
    check_hardened(name, service)
    environment = IMAGE | service.get("environment", {})
    command = service["command"]
    accepts(name, waybill, command, environment)
    test = service.get("healthcheck", {}).get("test", [])
    if test and not service["healthcheck"].get("disable"):
        if test[:2] != ["CMD", "waybill"]:
            wrong.append(f"{name}: its health check is no command of its image: {test}")
        else:
            accepts(f"{name}, health check", waybill, test[2:], environment)
    for check in ["check", "show"]:
        ran = run([waybill, "config", check, *for_every_command(waybill, command)], environment)
        if ran.returncode:
            wrong.append(f"{name}: {ran.stderr.strip()}")
            return None
    config = yaml.safe_load(ran.stdout)
    if not is_one_shot(service) and seconds(service.get("stop_grace_period", "10s")) < seconds(config["shutdownTimeout"]) + 5:
        wrong.append(f"{name}: stop_grace_period leaves no room behind shutdownTimeout ({config['shutdownTimeout']})")
    return config


def accepts(name, program, command, environment):
    """Whether the program accepts a command line: everything before --help is parsed before help is printed."""
    ran = run([program, *command, "--help"], environment)
    if ran.returncode:
        wrong.append(f"{name}: {' '.join(command)}: {ran.stderr.strip()}")


def run(command, environment):
    return subprocess.run(command, env={"PATH": os.environ["PATH"], **environment}, capture_output=True, text=True)


def seconds(text):
    """The seconds of 20s, 1m0s and so on."""
    return sum(int(number) * {"s": 1, "m": 60, "h": 3600}[unit] for number, unit in re.findall(r"(\d+)([smh])", text))


def check_together(model, ours, configs):
    """The settings that processes must share, and that each finds the others."""
    if set(ours) != set(configs):
        return
    services = model["services"]
    partitions = {name: config["scheduler"].pop("partitions") for name, config in configs.items()}
    first = next(iter(configs))
    for name, config in configs.items():
        if config != configs[first]:
            wrong.append(f"{name} and {first} differ by more than scheduler.partitions")
    config = configs[first]
    driven = []
    for name in ours:
        if ours[name]["command"] == ["scheduler"]:
            low, _, high = str(partitions[name]).partition("-")
            driven += range(int(low), int(high or low) + 1)
    if sorted(driven) != list(range(config["partitions"])):
        wrong.append(f"the schedulers drive partitions {driven} of {config['partitions']}")

    check_kafka(services["kafka"], config["kafka"]["brokers"])
    for address in config["store"]["scylla"]["nodes"] + [config["services"]["address"]]:
        if address.split(":")[0] not in services:
            wrong.append(f"{address} is no service")
    if config["services"]["address"].split(":")[1] != config["services"]["listen"].split(":")[1]:
        wrong.append("services.address and services.listen have different ports")
    if config["admin"]["listen"] != f"0.0.0.0:{ADMIN_PORT}":
        wrong.append(f"the admin port is {config['admin']['listen']}")

    # The load tester is given a service's name as its address.
    load = " ".join(services["load"]["command"])
    for flag, name in [("--http", "ingestion"), ("--services", "services")]:
        if f"{flag} {name}:" not in load:
            wrong.append(f"load: {flag} does not name {name}")
    for name, network in model.get("networks", {}).items():
        if network.get("ipam", {}).get("config"):
            wrong.append(f"network {name}: a fixed subnet may collide with another network of the machine")
    for name, service in services.items():
        for network, options in (service.get("networks") or {}).items():
            if (options or {}).get("ipv4_address"):
                wrong.append(f"{name}: has a fixed address in {network}")
        if "start_interval" in service.get("healthcheck", {}):
            wrong.append(f"{name}: start_interval requires Docker Engine 25, and docs/deployment.md promises 24")

    version = re.search(r'^version = "([\d.]+)"', pathlib.Path("Cargo.toml").read_text(), re.M)[1]
    tested = re.search(r"^  <version>([\d.]+)</version>$", pathlib.Path(".ci/servers/kafka/pom.xml").read_text(), re.M)
    for name, service in services.items():
        image, _, tag = service["image"].rpartition(":")
        if image in ("waybill", "waybill-loadtest") and tag != version:
            wrong.append(f"{name}: the image is {tag}, and this is version {version}")
        if image == "apache/kafka" and tag != tested[1]:
            wrong.append(f"{name}: the image is {tag}, and the tests run on {tested[1]}")


def check_kafka(service, brokers):
    """Whether both kinds of clients get addresses at which the broker listens, and clients in containers start there."""
    says = service["environment"]
    listens, advertised = (
        dict(listener.split("://") for listener in says[key].split(","))
        for key in ["KAFKA_LISTENERS", "KAFKA_ADVERTISED_LISTENERS"]
    )
    for listener, address in advertised.items():
        if listens.get(listener) != f":{address.split(':')[1]}":
            wrong.append(f"kafka: {listener} sends clients to {address}, and listens on {listens.get(listener)}")
    if brokers != [advertised["CONTAINERS"]]:
        wrong.append(f"kafka: containers ask {brokers}, and are sent to {advertised['CONTAINERS']}")
    host = {f"{port['host_ip']}:{port['published']}": port["target"] for port in service["ports"]}
    if str(host.get(advertised["HOST"])) != listens["HOST"].lstrip(":"):
        wrong.append(f"kafka: {advertised['HOST']} is not published as the port of HOST")


def check_scraped(ours):
    """Whether Prometheus scrapes every long-running process."""
    config = yaml.safe_load(pathlib.Path("prometheus/prometheus.yml").read_text())
    job = next(job for job in config["scrape_configs"] if job["job_name"] == "waybill")
    (found,) = job["dns_sd_configs"]
    lasting = {name for name, service in ours.items() if not is_one_shot(service)}
    if set(found["names"]) != lasting or found["port"] != ADMIN_PORT:
        wrong.append(f"prometheus.yml asks {sorted(found['names'])}, and there are {sorted(lasting)}")


def check_grafana(services):
    """Whether Grafana resolves the address of its data source, and uses the scrape interval."""
    given = services["grafana"].get("environment", {})
    (source,) = yaml.safe_load(pathlib.Path("grafana/provisioning/datasources/prometheus.yaml").read_text())["datasources"]
    for variable in re.findall(r"\$\{?(\w+)", json.dumps(source)):
        if variable not in given:
            wrong.append(f"grafana: its data source names {variable}, which is not set")
    url = re.sub(r"\$\{?(\w+)\}?", lambda name: given.get(name[1], ""), source["url"])
    if url != "http://prometheus:9090":
        wrong.append(f"grafana: its data source is {url}")
    scraped = yaml.safe_load(pathlib.Path("prometheus/prometheus.yml").read_text())["global"]["scrape_interval"]
    if source["jsonData"]["timeInterval"] != scraped:
        wrong.append(f"grafana: its data source goes by {source['jsonData']['timeInterval']}, and Prometheus scrapes every {scraped}")


main()
