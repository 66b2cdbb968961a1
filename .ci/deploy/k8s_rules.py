"""Requirements of Waybill on Kubernetes that no schema expresses: that the rendered objects fit together, and that the binary
accepts the configuration, the variables and the arguments of each container."""

import json
import pathlib
import re
import subprocess
import tempfile
import urllib.parse

import yaml

from flags import for_every_command

NAMESPACE = "waybill"
LASTING = ("Deployment", "StatefulSet")
# From the container, the variables that kubelet sets; from the image, those of its Dockerfile.
IMAGE = {"WAYBILL_DATA_DIR": "/var/lib/waybill"}
GRACE_ROOM = 5
# On OpenShift, resolvers listen on the second port.
DNS = {(protocol, port) for protocol in ("UDP", "TCP") for port in (53, 5353)}
# The bytes that the simulated services write per delivery, and the number of deliveries that a trial must have room for.
LEDGER_BYTES, LEDGER_DELIVERIES = 640, 3_000_000
# The annotations by which GitOps tools replace a Job, whose pods cannot be changed.
REPLACED = {
    "argocd.argoproj.io/hook": "Sync",
    "argocd.argoproj.io/hook-delete-policy": "BeforeHookCreation",
    "kustomize.toolkit.fluxcd.io/force": "enabled",
}
# ScyllaDB's shards have their own port, this far above the common one.
SHARD_PORT = 10_000
# The content of a secret that the binary reads.
STAND_INS = {"tokens.yaml": "[]"}
VOLUMES = {"configMap", "emptyDir", "projected", "secret", "downwardAPI"}
TRACES = "WAYBILL_TELEMETRY__TRACES__ENDPOINT"
API_CLIENT, SERVICES = {"waybill/api-client": "true"}, {"waybill/services": "true"}


class Capacity:
    """The output of `waybill capacity`, run once for each rate."""

    def __init__(self, waybill):
        self.waybill, self.known = waybill, {}

    def cores(self, rate, part):
        if rate not in self.known:
            command = [self.waybill, "capacity", "--rate", rate, "--requests", "single", "--output", "json"]
            said = json.loads(subprocess.run(command, check=True, capture_output=True, text=True, env={}).stdout)
            self.known[rate] = {part["name"]: part["busyCores"] / 0.6 for part in said["parts"]}
        return self.known[rate][part]


class Rules:
    def __init__(self, render, waybill, capacity, triggers):
        self.render, self.waybill, self.capacity, self.triggers = render, waybill, capacity, triggers
        self.version = re.search(r'^version = "([\d.]+)"', pathlib.Path("Cargo.toml").read_text(), re.M)[1]
        self.workloads = [thing for thing in render.of(*LASTING, "Job") if namespace(thing) == NAMESPACE]
        self.configs = {}

    def check(self):
        self.check_names()
        for workload in self.workloads:
            self.check_pod(workload)
            for container in containers(workload):
                self.check_container(workload, container)
            self.check_configuration(workload)
        if len(self.configs) == len(self.workloads):
            self.check_agreement()
            self.check_access()
            self.check_scheduler()
            self.check_grace()
            self.check_flows()
            self.check_scaling()
            self.check_servers()
        self.check_selectors()
        self.check_policies()
        self.check_monitoring()
        self.check_capacity()

    def wrong(self, thing, problem):
        self.render.wrong(thing, problem)

    def check_names(self):
        names = set()
        for thing in self.render.objects:
            if thing["kind"] == "Secret":
                self.wrong(thing, "secrets are not in the tree")
            if thing["kind"] != "Namespace" and not namespace(thing):
                self.wrong(thing, "is in no namespace")
            name = thing["kind"], namespace(thing), thing["metadata"]["name"]
            if name in names:
                self.wrong(thing, "is there twice")
            names.add(name)
        spaces = self.render.of("Namespace")
        if not any(labels(space).get("pod-security.kubernetes.io/enforce") == "restricted" for space in spaces):
            self.wrong("Namespace", "the restricted pod security standard is not enforced")

    def check_pod(self, workload):
        pod = pod_of(workload)
        context = pod.get("securityContext", {})
        if not context.get("runAsNonRoot") or not context.get("runAsUser"):
            self.wrong(workload, "may run as root")
        if context.get("seccompProfile") != {"type": "RuntimeDefault"}:
            self.wrong(workload, "has no seccomp profile")
        for key in ["automountServiceAccountToken", "enableServiceLinks"]:
            if pod.get(key) is not False:
                self.wrong(workload, f"{key} is not false")
        for key in ["hostNetwork", "hostPID", "hostIPC"]:
            if pod.get(key):
                self.wrong(workload, f"{key} is set")
        account = next((one for one in self.render.of("ServiceAccount") if name_of(one) == pod.get("serviceAccountName")), None)
        if not account or account.get("automountServiceAccountToken") is not False:
            self.wrong(workload, "has no service account of its own that mounts no token")
        for volume in pod.get("volumes", []):
            if not VOLUMES & set(volume):
                self.wrong(workload, f"volume {volume['name']} is of a kind that is not restricted")
        if workload["kind"] == "Job" and "ttlSecondsAfterFinished" not in workload["spec"]:
            self.wrong(workload, "stays when it has ended, and then cannot be applied again")
        for key, value in REPLACED.items() if workload["kind"] == "Job" else []:
            if workload["metadata"].get("annotations", {}).get(key) != value:
                self.wrong(workload, f"has no annotation {key}: {value}, so that GitOps cannot apply it with another image")
        if component(workload) == "services":
            (data,) = [volume for volume in pod["volumes"] if volume["name"] == "data"]
            if size_of(data["emptyDir"]["sizeLimit"]) < LEDGER_BYTES * LEDGER_DELIVERIES:
                self.wrong(workload, f"is evicted before its ledger has {LEDGER_DELIVERIES} deliveries")
        for constraint in pod.get("topologySpreadConstraints", []):
            if not matches(constraint["labelSelector"], labels(workload["spec"]["template"])):
                self.wrong(workload, f"spread over {constraint['topologyKey']} counts other pods than its own")
        topologies = [constraint["topologyKey"] for constraint in pod.get("topologySpreadConstraints", [])]
        if component(workload) in ["ingestion", "scheduler", "supervisor", "agents"] and len(topologies) < 2:
            self.wrong(workload, "is not spread over zones and nodes")

    def check_container(self, workload, container):
        def problem(text):
            self.wrong(workload, f"container {container['name']}: {text}")

        if container.get("securityContext") != {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }:
            problem("its security context is not the restricted one")
        resources = container.get("resources", {})
        for kind in ["requests", "limits"]:
            for resource in ["cpu", "memory"]:
                if resource not in resources.get(kind, {}):
                    problem(f"{kind} no {resource}")
        image = re.fullmatch(r"(?:[\w.:/-]+/)?waybill:([\d.]+)(@sha256:[0-9a-f]{64})?", container["image"])
        if not image or image[1] != self.version:
            problem(f"its image is {container['image']}, and not version {self.version}")
        ports = {port["name"]: port["containerPort"] for port in container.get("ports", [])}
        if workload["kind"] in LASTING:
            for probe, path in [("startup", "/livez"), ("liveness", "/livez"), ("readiness", "/readyz")]:
                get = container.get(f"{probe}Probe", {}).get("httpGet", {})
                if get.get("path") != path or get.get("port") not in ports:
                    problem(f"its {probe} probe does not ask for {path} at a port that it has")

    def check_configuration(self, workload):
        """Whether the binary accepts the input of each container, with files instead of secrets."""
        for container in containers(workload):
            with tempfile.TemporaryDirectory() as root:
                environment = IMAGE | self.environment(workload, container)
                missing = self.mount(workload, container, pathlib.Path(root))
                if missing:
                    self.wrong(workload, missing)
                    continue
                config = pathlib.Path(root + environment["WAYBILL_CONFIG"])
                text = config.read_text() if config.exists() else ""
                for mount in container.get("volumeMounts", []):
                    text = text.replace(mount["mountPath"] + "/", f"{root}{mount['mountPath']}/")
                rooted = pathlib.Path(root, "config.yaml")
                rooted.write_text(text)
                environment["WAYBILL_CONFIG"] = str(rooted if config.exists() else config)
                flags = for_every_command(self.waybill, container["args"])
                for command in [[*container["args"], "--help"], ["config", "check", *flags], ["config", "show", *flags]]:
                    ran = subprocess.run([self.waybill, *command], env=environment, capture_output=True, text=True)
                    if ran.returncode:
                        said = ran.stderr.strip().replace(root, "")
                        self.wrong(workload, f"container {container['name']}: {' '.join(command)}: {said}")
                        break
                else:
                    self.configs[name_of(workload)] = yaml.safe_load(ran.stdout.replace(root, ""))

    def environment(self, workload, container):
        environment = {}
        for variable in container.get("env", []):
            field = variable.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath")
            if field == "metadata.name":
                environment[variable["name"]] = f"{name_of(workload)}-0"
            elif field == "metadata.labels['apps.kubernetes.io/pod-index']":
                environment[variable["name"]] = "0"
            elif "value" in variable:
                environment[variable["name"]] = variable["value"]
            else:
                self.wrong(workload, f"variable {variable['name']} is from what is not known here: {variable}")
        if len(environment) != len(container.get("env", [])):
            self.wrong(workload, f"container {container['name']}: a variable is set twice")
        return environment

    def mount(self, workload, container, root):
        """Creates the container's files in `root`; returns the missing ones."""
        volumes = {volume["name"]: volume for volume in pod_of(workload).get("volumes", [])}
        for mount in container.get("volumeMounts", []):
            volume = volumes.get(mount["name"])
            if not volume:
                return f"container {container['name']} mounts {mount['name']}, which is no volume"
            place = pathlib.Path(f"{root}{mount['mountPath']}")
            place.mkdir(parents=True, exist_ok=True)
            if "configMap" in volume:
                maps = [one for one in self.render.of("ConfigMap") if name_of(one) == volume["configMap"]["name"]]
                if not maps:
                    return f"ConfigMap {volume['configMap']['name']} is not there"
                for name, text in maps[0].get("data", {}).items():
                    (place / name).write_text(text)
            for source in volume.get("projected", {}).get("sources", []):
                for item in source["secret"]["items"]:
                    (place / item["path"]).parent.mkdir(parents=True, exist_ok=True)
                    (place / item["path"]).write_text(STAND_INS.get(item["key"], "secret"))
        return None

    def check_agreement(self):
        """One configuration for all, except for the login, which agents do not get, and spans, which only the roles make."""

        def in_common(config):
            scylla = config["store"]["scylla"] | {"user": None, "password": None, "passwordFile": None}
            telemetry = config["telemetry"] | {"traces": None}
            return config | {"store": config["store"] | {"scylla": scylla}, "telemetry": telemetry}

        first, *others = self.configs
        for other in others:
            if in_common(self.configs[other]) != in_common(self.configs[first]):
                self.wrong(other, f"has another configuration than {first}")
        for name, config in self.configs.items():
            for key in ["http", "admin"]:
                if not config[key]["listen"].startswith("0.0.0.0:"):
                    self.wrong(name, f"{key}.listen is {config[key]['listen']}, where nobody gets to")

    def check_access(self):
        """Production requires authentication and protects its secrets, and probes use the scheme of the admin port."""
        for workload in self.workloads:
            config = self.configs[name_of(workload)]
            asks = config["auth"]["tokensFile"] or any(
                config["auth"]["jwt"][key] for key in ("jwksFile", "jwksUrl", "discovery")
            )
            if self.render.name.startswith("overlays/production") and (config["insecure"] or not asks):
                self.wrong(workload, "does not ask who comes")
            for volume in pod_of(workload).get("volumes", []):
                if volume.get("projected", volume.get("secret", {"defaultMode": 0})).get("defaultMode", 0o644) & 0o007:
                    self.wrong(workload, f"every user may read the secrets of volume {volume['name']}")
            scheme = "HTTPS" if config["admin"]["tls"]["certFile"] else "HTTP"
            for container in containers(workload):
                for probe in ["startupProbe", "livenessProbe", "readinessProbe"]:
                    get = container.get(probe, {}).get("httpGet")
                    if get and get.get("scheme", "HTTP") != scheme:
                        self.wrong(workload, f"its {probe} speaks {get.get('scheme', 'HTTP')}, and the admin port {scheme}")

    def check_scheduler(self):
        for scheduler in [one for one in self.workloads if component(one) == "scheduler"]:
            config, spec = self.configs[name_of(scheduler)], scheduler["spec"]
            shards = config["partitions"] * config["scheduler"]["shardsPerPartition"]
            if scheduler["kind"] != "StatefulSet" or spec.get("replicas") != shards:
                self.wrong(scheduler, f"{spec.get('replicas')} replicas, and the configuration has {shards} shards")
            if config["scheduler"]["partitions"] != "auto":
                self.wrong(scheduler, "scheduler.partitions is not auto, so that pods do not go by their index")
            if spec.get("podManagementPolicy") != "Parallel":
                self.wrong(scheduler, "partitions wait for one another")
            if spec.get("ordinals", {}).get("start", 0) != 0:
                self.wrong(scheduler, "its pods do not count from 0")
            fields = {
                variable["name"]: variable.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath")
                for variable in containers(scheduler)[0].get("env", [])
            }
            if fields.get("POD_INDEX") != "metadata.labels['apps.kubernetes.io/pod-index']":
                self.wrong(scheduler, "its pods do not get their index as POD_INDEX")
            headless = [one for one in self.render.of("Service") if name_of(one) == spec.get("serviceName")]
            if not headless or headless[0]["spec"].get("clusterIP") != "None":
                self.wrong(scheduler, "its serviceName is no headless Service")

    def check_grace(self):
        for workload in self.workloads:
            if workload["kind"] not in LASTING:
                continue
            pod = pod_of(workload)
            sleep = containers(workload)[0].get("lifecycle", {}).get("preStop", {}).get("sleep", {}).get("seconds", 0)
            needed = sleep + seconds(self.configs[name_of(workload)]["shutdownTimeout"]) + GRACE_ROOM
            if pod.get("terminationGracePeriodSeconds", 30) < needed:
                self.wrong(workload, f"its grace period is less than the {needed} s that its end may take")

    def check_selectors(self):
        for workload in self.workloads:
            if workload["kind"] not in LASTING:
                continue
            selected = self.selected(workload["spec"]["selector"])
            if selected != [workload]:
                self.wrong(workload, f"its selector selects {[name_of(one) for one in selected]}")
            budgets = [one for one in self.render.of("PodDisruptionBudget") if workload in self.selected(one["spec"]["selector"])]
            if len(budgets) != 1 and component(workload) != "services":
                self.wrong(workload, f"has {len(budgets)} disruption budgets")
        for budget in self.render.of("PodDisruptionBudget"):
            if len(self.selected(budget["spec"]["selector"])) != 1:
                self.wrong(budget, "selects not just one workload")
            if "maxUnavailable" not in budget["spec"]:
                self.wrong(budget, "says how many must be there, and blocks a drain where there are no more")
        for service in self.render.of("Service"):
            selected = self.selected({"matchLabels": service["spec"].get("selector", {"": ""})})
            if len(selected) != 1:
                self.wrong(service, f"selects {[name_of(one) for one in selected]}")
            for port in service["spec"]["ports"]:
                for workload in selected:
                    if port.get("targetPort", port["port"]) not in ports_of(workload):
                        self.wrong(service, f"{name_of(workload)} has no port {port.get('targetPort')}")

    def selected(self, selector):
        return [one for one in self.workloads if matches(selector, labels(one["spec"]["template"]))]

    def check_policies(self):
        policies = [one for one in self.render.of("NetworkPolicy") if namespace(one) == NAMESPACE]
        nothing = [one for one in policies if one["spec"]["podSelector"] == {} and not one["spec"].get("ingress") and not one["spec"].get("egress")]
        if not any(set(one["spec"]["policyTypes"]) == {"Ingress", "Egress"} for one in nothing):
            self.wrong("NetworkPolicy", "what is not named is let through")
        for policy in policies:
            selected = self.selected(policy["spec"]["podSelector"])
            if not selected:
                self.wrong(policy, "selects nothing")
            for rule in policy["spec"].get("ingress", []):
                if not rule.get("from") or not rule.get("ports"):
                    self.wrong(policy, "lets everybody in, or to every port")
                for port in rule.get("ports", []):
                    for workload in selected:
                        # A Job has no ports, and no client connects to it.
                        if workload["kind"] in LASTING and port["port"] not in ports_of(workload):
                            self.wrong(policy, f"{name_of(workload)} has no port {port['port']}")
            for rule in policy["spec"].get("egress", []):
                if not (rule.get("to") and rule.get("ports")) and not is_for_names(rule):
                    self.wrong(policy, "lets pods out to everybody, or to every port")

    def check_flows(self):
        """Whether policies allow exactly the traffic that the configuration needs."""
        config = next(iter(self.configs.values()))
        brokers, nodes = config["kafka"]["brokers"], config["store"]["scylla"]["nodes"]
        needed = {role: {*brokers, *nodes} for role in ["ingestion", "scheduler", "supervisor", "prepare"]}
        services = self.services_of(config)
        needed |= {"agents": {*brokers, *services}, "services": set()}
        shards = {f"{host}:{int(port) + SHARD_PORT}" for host, _, port in (node.rpartition(":") for node in nodes)}
        for role in ["ingestion", "scheduler", "supervisor", "prepare"]:
            needed[role] |= shards
        for workload in self.workloads:
            role = component(workload)
            flows = self.flows(workload)
            wanted = needed[role] | self.collectors(workload)
            allowed_ports = {int(one.rpartition(":")[2]) for one in wanted.union(*needed.values())}
            if not any(is_for_names(rule) for rule in self.ways_out(workload)):
                self.wrong(workload, "may not ask every resolver for names, wherever the cluster has it")
            ports = {port for _, port in flows}
            for port in ports - allowed_ports:
                self.wrong(workload, f"may go to port {port}, where nothing is that the configuration names")
            for address in wanted:
                host, _, port = address.rpartition(":")
                space = (host.split(".") + [NAMESPACE])[1] if "." in host else NAMESPACE
                spaces = {space} | ({"services"} if address in services and space != NAMESPACE else set())
                if not any((space, int(port)) in flows for space in spaces):
                    self.wrong(workload, f"may not go to {address}")
            if role == "agents" and any(space == "scylla" for space, _ in flows):
                self.wrong(workload, "may go to the database, and has no business there")
        comes_in = [policy for policy in self.render.of("NetworkPolicy") if policy["spec"].get("ingress")]
        for workload in self.workloads:
            for container in containers(workload):
                for port in container.get("ports", []):
                    if port["name"] == "admin" and "monitoring" not in self.render.components:
                        continue
                    if not any(
                        workload in self.selected(policy["spec"]["podSelector"])
                        and any(one["port"] in (port["name"], port["containerPort"]) for rule in policy["spec"]["ingress"] for one in rule["ports"])
                        for policy in comes_in
                    ):
                        self.wrong(workload, f"nobody gets to its port {port['name']}")

    def collectors(self, workload):
        """The destination of a workload's spans."""
        (container,) = pod_of(workload)["containers"]
        endpoint = self.environment(workload, container).get(TRACES)
        makes_spans = component(workload) in ["ingestion", "scheduler", "supervisor", "agents"]
        if ("tracing" in self.render.components and makes_spans) != bool(endpoint):
            self.wrong(workload, f"{TRACES} is {endpoint}")
        return {urllib.parse.urlsplit(endpoint).netloc} if endpoint else set()

    def services_of(self, config):
        """The addresses that agents call: each `baseUrl` of the configured files, and services.address."""
        built_in = {config["services"]["address"]} if config["agents"]["builtIn"] else set()
        files = {name: text for one in self.render.of("ConfigMap") for name, text in one.get("data", {}).items()}
        urls = set()
        for file in config["agents"]["files"]:
            for agent in yaml.safe_load(files[pathlib.Path(file).name])["agents"]:
                urls.add(urllib.parse.urlsplit(agent["http"]["baseUrl"]))
        return built_in | {f"{url.hostname}:{url.port or (443 if url.scheme == 'https' else 80)}" for url in urls}

    def ways_out(self, workload):
        """The egress rules of a workload."""
        policies = [one for one in self.render.of("NetworkPolicy") if workload in self.selected(one["spec"]["podSelector"])]
        return [rule for policy in policies for rule in policy["spec"].get("egress", [])]

    def flows(self, workload):
        """The allowed destinations of a workload, as (namespace, port)."""
        flows = set()
        for policy in self.render.of("NetworkPolicy"):
            if workload not in self.selected(policy["spec"]["podSelector"]):
                continue
            for rule in policy["spec"].get("egress", []):
                for peer in rule.get("to", []):
                    wanted = peer.get("namespaceSelector", {}).get("matchLabels", {})
                    if "namespaceSelector" not in peer:
                        space = NAMESPACE if self.selected(peer["podSelector"]) else None
                    elif wanted == SERVICES:
                        space = "services"
                    else:
                        space = wanted.get("kubernetes.io/metadata.name")
                    if not space:
                        self.wrong(policy, f"names nobody: {peer}")
                    flows |= {(space, port["port"]) for port in rule["ports"]}
        return flows

    def check_monitoring(self):
        if "monitoring" not in self.render.components:
            return
        (monitor,) = self.render.of("PodMonitor")
        asked = self.selected(monitor["spec"]["selector"])
        for workload in self.workloads:
            if workload["kind"] in LASTING and workload not in asked:
                self.wrong(monitor, f"does not ask {name_of(workload)}")
        for endpoint in monitor["spec"]["podMetricsEndpoints"]:
            for workload in asked:
                if workload["kind"] in LASTING and endpoint["port"] not in ports_of(workload):
                    self.wrong(monitor, f"{name_of(workload)} has no port {endpoint['port']}")
        (rule,) = self.render.of("PrometheusRule")
        # Folded text gets other line breaks, which do not matter in queries.
        rules = yaml.safe_load(pathlib.Path("prometheus/waybill.rules.yaml").read_text())
        if in_words(rule["spec"]) != in_words(rules):
            self.wrong(rule, "is not prometheus/waybill.rules.yaml")

    def check_scaling(self):
        documented = pathlib.Path("docs/metrics.md").read_text()
        for scaled in self.render.of("ScaledObject"):
            spec = scaled["spec"]
            target = [one for one in self.workloads if name_of(one) == spec["scaleTargetRef"]["name"]]
            if not target or component(target[0]) not in ["agents", "supervisor"]:
                self.wrong(scaled, "may scale agents and supervisors alone")
                continue
            if "replicas" in target[0]["spec"]:
                self.wrong(target[0], "says how many there are, and so does KEDA")
            kafka = self.configs[name_of(target[0])]["kafka"]
            most = kafka["stepPartitions"] if component(target[0]) == "agents" else self.configs[name_of(target[0])]["partitions"]
            if not 2 <= spec.get("minReplicaCount", 0) <= spec["maxReplicaCount"] <= most:
                self.wrong(scaled, f"is to have at least 2, and at most the {most} that share the work")
            authentications = {name_of(one): one for one in self.render.of("TriggerAuthentication")}
            for trigger in spec["triggers"]:
                given = set(trigger["metadata"])
                if "authenticationRef" in trigger:
                    authentication = authentications[trigger["authenticationRef"]["name"]]
                    given |= {one["parameter"] for one in authentication["spec"]["secretTargetRef"]}
                known = self.triggers.get(trigger["type"])
                if known:
                    for setting in given - set(known):
                        self.wrong(scaled, f"KEDA knows no {setting} of {trigger['type']}")
                    for setting in {name for name, needed in known.items() if needed} - given:
                        self.wrong(scaled, f"KEDA needs {setting} of {trigger['type']}")
                metadata = trigger["metadata"]
                if trigger["type"] == "kafka":
                    prefix = kafka["topicPrefix"]
                    group = {"agents": f"{prefix}-agents", "supervisor": f"{prefix}.supervisors"}[component(target[0])]
                    if metadata["consumerGroup"] != group:
                        self.wrong(scaled, f"its group is not {group}")
                    if metadata["bootstrapServers"].split(",") != kafka["brokers"]:
                        self.wrong(scaled, "asks other brokers than the configuration names")
                    tls = kafka["properties"].get("security.protocol", "").endswith("SSL")
                    if tls != (metadata.get("tls") == "enable"):
                        self.wrong(scaled, "asks the brokers with TLS, or without, unlike the configuration")
                else:
                    for metric in re.findall(r"waybill_\w+", metadata["query"]):
                        if f"| `{metric}` |" not in documented:
                            self.wrong(scaled, f"{metric} is no metric of docs/metrics.md")

    def check_servers(self):
        """Whether the objects that the operators create have the names that the configuration uses."""
        config = next(iter(self.configs.values()))
        for cluster in self.render.of("ScyllaCluster"):
            host = f"{name_of(cluster)}-client.{namespace(cluster)}.svc"
            if not all(node.split(":")[0] == host for node in config["store"]["scylla"]["nodes"]):
                self.wrong(cluster, f"is reached as {host}, and the configuration has {config['store']['scylla']['nodes']}")
            members = sum(rack["members"] for rack in cluster["spec"]["datacenter"]["racks"])
            if members < config["store"]["scylla"]["replicationFactor"]:
                self.wrong(cluster, "has fewer nodes than copies")
        for topic in self.render.of("KafkaTopic"):
            host = f"{labels(topic)['strimzi.io/cluster']}-kafka-bootstrap.{namespace(topic)}.svc"
            if not all(broker.split(":")[0] == host for broker in config["kafka"]["brokers"]):
                self.wrong(topic, f"is on {host}, and the configuration has {config['kafka']['brokers']}")
            steps = topic["metadata"]["name"].removesuffix(".dlq").endswith(".requests.v1")
            partitions = config["kafka"]["stepPartitions"] if steps else config["partitions"]
            if (topic["spec"]["partitions"], topic["spec"]["replicas"]) != (partitions, config["kafka"]["replicationFactor"]):
                self.wrong(topic, f"is to have {partitions} partitions of {config['kafka']['replicationFactor']} copies")

    def check_capacity(self):
        """Whether pods request the cores that the planned rate needs when one of them is down."""
        for workload in self.workloads:
            rate = workload["metadata"].get("annotations", {}).get("waybill/planned-rate")
            if not rate or "replicas" not in workload["spec"]:
                continue
            pods = workload["spec"]["replicas"] - (workload["kind"] == "Deployment")
            needed = self.capacity.cores(rate, component(workload)) / pods
            asked = cores(containers(workload)[0]["resources"]["requests"]["cpu"])
            if asked < needed:
                self.wrong(workload, f"asks for {asked} cores, and {rate} operations a second take {needed:.2f} of each pod")


def containers(workload):
    pod = pod_of(workload)
    return [*pod.get("initContainers", []), *pod["containers"]]


def pod_of(workload):
    return workload["spec"]["template"]["spec"]


def component(workload):
    return labels(workload["spec"]["template"]).get("app.kubernetes.io/component")


def labels(thing):
    return thing.get("metadata", {}).get("labels") or {}


def name_of(thing):
    return thing["metadata"]["name"]


def namespace(thing):
    return thing["metadata"].get("namespace")


def ports_of(workload):
    """Names and numbers of all ports."""
    ports = [port for container in containers(workload) for port in container.get("ports", [])]
    return {port["name"] for port in ports} | {port["containerPort"] for port in ports}


def matches(selector, given):
    """Whether a label selector matches these labels."""
    if any(given.get(key) != value for key, value in selector.get("matchLabels", {}).items()):
        return False
    for expression in selector.get("matchExpressions", []):
        if expression["operator"] != "In":
            raise ValueError(f"operator {expression['operator']} is not known here")
        if given.get(expression["key"]) not in expression["values"]:
            return False
    return True


def is_for_names(rule):
    """Whether a rule allows egress to DNS and nothing else, wherever the resolvers are."""
    return not rule.get("to") and {(port["protocol"], port["port"]) for port in rule.get("ports", [])} == DNS


def size_of(text):
    """A quantity of bytes."""
    units = {"Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30}
    return int(text[:-2]) * units[text[-2:]]


def in_words(thing):
    return " ".join(json.dumps(thing, sort_keys=True).replace("\\n", " ").split())


def seconds(text):
    return sum(int(number) * {"s": 1, "m": 60, "h": 3600}[unit] for number, unit in re.findall(r"(\d+)([smh])", text))


def cores(text):
    return int(text[:-1]) / 1000 if text.endswith("m") else float(text)
