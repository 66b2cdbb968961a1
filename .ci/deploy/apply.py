"""Applies the rendered k8s/ to a Kubernetes API server, and checks requirements that no schema expresses.

    apply.py manifests FORM DIRECTORY [CRDS...]     without controllers: nothing else changes the applied objects
    apply.py controllers FORM DIRECTORY [CRDS...]   with kube-controller-manager, in place of nodes a stand-in that reports every
                                                    pod as ready, and every pod of a Job as succeeded

FORM is `all`, or `short` for each overlay alone and with all of its components. `kubectl` is the one on the PATH, KUBECONFIG names
the server, and DIRECTORY is for files. CRDS are directories with definitions of kinds. Exits with 1 at the first check that fails.
"""

import copy
import http.client
import json
import os
import pathlib
import re
import shutil
import ssl
import subprocess
import sys
import threading
import time
import urllib.parse

import yaml

import renders

NAMESPACE = "waybill"
# Other namespaces with objects, which Waybill does not create.
OTHERS = ["kafka", "scylla"]
WORKLOADS = ("Deployment", "StatefulSet", "Job")
STRICT = ["--validate=strict", "--warnings-as-errors"]
SERVER_SIDE = ["apply", "--server-side", "--field-manager=check", *STRICT]
# Longer than any step takes on a busy machine.
WAIT_SECONDS_MAX = 120


class Failure(Exception):
    """A check failed."""


def main():
    part, form, directory, *crds = sys.argv[1:]
    began = time.monotonic()
    try:
        if part == "manifests":
            check_manifests(form, pathlib.Path(directory), crds)
        else:
            check_controllers(pathlib.Path(directory), crds)
    except Failure as failure:
        print(f"FAILED: {failure}", file=sys.stderr)
        sys.exit(1)
    print(f"k8s: {part}: {time.monotonic() - began:.0f} s", flush=True)


def kubectl(*arguments, stdin=None, check=True):
    """Runs kubectl and returns its output, both streams in one. With `check` off, also its exit code."""
    if isinstance(stdin, list):
        stdin = yaml.safe_dump_all(stdin)
    command = ["kubectl", *map(str, arguments)]
    ran = subprocess.run(command, input=stdin, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=300)
    if not check:
        return ran.returncode, ran.stdout
    if ran.returncode:
        raise Failure(f"`{' '.join(command)}` ended with {ran.returncode}:\n{ran.stdout}")
    return ran.stdout


def refused(why, *arguments, stdin=None):
    """Runs a command that the server must refuse for this reason, and returns kubectl's output."""
    code, said = kubectl(*arguments, stdin=stdin, check=False)
    expect(code != 0 and why in said, f"`kubectl {' '.join(arguments)}` must fail with '{why}', and ended with {code}:\n{said}")
    return said


def expect(condition, failure):
    if not condition:
        raise Failure(failure)


def report(text):
    print(f"k8s: {text}", flush=True)


# Without controllers


def check_manifests(form, directory, crds):
    known = install_kinds(crds)
    for name in OTHERS:
        kubectl("create", "namespace", name)
    templates, skipped, count, changes = set(), set(), 0, 0
    for overlay, components in renders.choices() if form == "all" else extremes():
        objects, missing = rendered(directory, overlay, components, known)
        skipped |= missing
        changes += apply_twice(renders.name_of(overlay, components), objects)
        for workload in workloads(objects):
            text = json.dumps(workload["spec"]["template"], sort_keys=True)
            if text not in templates:
                templates.add(text)
                admit_pod(workload)
        remove(objects)
        count += 1
    report(f"{count} renderings applied twice, {changes} objects; the second time changed nothing")
    report(f"{len(templates)} different pod templates admitted in a namespace that enforces `restricted`")
    for kind in sorted(skipped):
        print(f"SKIPPED: objects of {kind} were NOT applied: its definition is not there: set CRDS", flush=True)
    check_refusals(directory, known)
    check_documented_changes(directory, known)
    check_other_managers(directory, known)
    check_client_side(directory, known)


def extremes():
    for overlay, components in renders.offered():
        yield overlay, ()
        if components:
            yield overlay, components


def install_kinds(crds):
    """Creates the operators' kinds that k8s/ uses, and returns the kinds that the server knows."""
    used = set()
    for overlay, components in renders.offered():
        for path in [f"k8s/{overlay}", *(f"k8s/components/{component}" for component in components)]:
            for file in pathlib.Path(path).glob("*.yaml"):
                used |= set(re.findall(r"^kind: (\w+)$", file.read_text(), re.M))
    for path in (path for directory in crds for path in sorted(pathlib.Path(directory).glob("*.yaml"))):
        text = path.read_text()
        if not used & set(re.findall(r'^ +kind: "?(\w+)"?$', text, re.M)):
            continue
        for crd in renders.objects(text):
            if crd["kind"] == "CustomResourceDefinition" and crd["spec"]["names"]["kind"] in used:
                kubectl("apply", "--server-side", "-f", "-", stdin=[crd])
                kubectl("wait", "--for=condition=Established", f"crd/{crd['metadata']['name']}", "--timeout=60s")
    return known_kinds()


def known_kinds():
    lines = kubectl("api-resources", "--no-headers").splitlines()
    # Name, short names if any, version, whether it has namespaces, kind.
    return {f"{line.split()[-3]} {line.split()[-1]}" for line in lines}


def rendered(directory, overlay, components, known, **more):
    """The objects that an overlay with components renders to, and the kinds of those among them that the server lacks."""
    place = renders.write_kustomization(directory, overlay, components, **more)
    text, said = renders.render(["kubectl", "kustomize"], place)
    expect(text is not None and not said, f"kubectl kustomize {place}: {said}")
    objects = renders.objects(text)
    missing = {kind_of(thing) for thing in objects} - known
    expect(
        all("." in kind.split("/")[0] and not kind.split("/")[0].endswith(".k8s.io") for kind in missing),
        f"the server does not know {missing}",
    )
    return [thing for thing in objects if kind_of(thing) not in missing], missing


def kind_of(thing):
    return f"{thing['apiVersion']} {thing['kind']}"


def named(thing):
    return f"{thing['kind']} {thing['metadata'].get('namespace', '')}/{thing['metadata']['name']}"


def workloads(objects):
    return [thing for thing in objects if thing["kind"] in WORKLOADS]


def select(objects, kind, name):
    return next(thing for thing in objects if (thing["kind"], thing["metadata"]["name"]) == (kind, name))


def without_namespaces(objects):
    return [thing for thing in objects if thing["kind"] != "Namespace"]


def apply_twice(name, objects):
    # First, as in docs/own-workflow-kubernetes.md: the namespace determines whether the server warns about the pods.
    kubectl(*SERVER_SIDE, "-f", "-", stdin=[thing for thing in objects if thing["kind"] == "Namespace"])
    kubectl(*SERVER_SIDE, "-f", "-", stdin=objects)
    first = versions(objects)
    kubectl(*SERVER_SIDE, "-f", "-", stdin=objects)
    second = versions(objects)
    changed = [thing for thing in first if first[thing] != second[thing]]
    expect(not changed, f"{name}: applied again, it changes {', '.join(changed)}")
    expect(len(first) == len(objects), f"{name}: {len(objects)} objects were applied, and the server has {len(first)}")
    return len(first)


def versions(objects):
    """The resource version of each object, which changes with the object."""
    found = json.loads(kubectl("get", "-o", "json", "-f", "-", stdin=objects))
    return {named(thing): thing["metadata"]["resourceVersion"] for thing in found.get("items", [found])}


def remove(objects):
    # Without its controller, a namespace would never be deleted.
    kubectl("delete", "--ignore-not-found", "-f", "-", stdin=without_namespaces(objects))


def pod_of(workload):
    """A pod as its controller would create it."""
    template = copy.deepcopy(workload["spec"]["template"])
    template["metadata"] |= {"name": f"{workload['metadata']['name']}-check", "namespace": NAMESPACE}
    return {"apiVersion": "v1", "kind": "Pod", **template}


def admit_pod(workload):
    kubectl("create", "--dry-run=server", *STRICT, "-f", "-", stdin=[pod_of(workload)])


def check_refusals(directory, known):
    """Checks that the server refuses invalid objects: otherwise its acceptance would prove nothing."""
    objects, _ = rendered(directory, "overlays/trial", [], known)
    kubectl(*SERVER_SIDE, "-f", "-", stdin=objects)
    workload = select(objects, "Deployment", "waybill-ingestion")
    pod = pod_of(workload)
    pod["spec"]["containers"][0]["securityContext"]["allowPrivilegeEscalation"] = True
    refused('violates PodSecurity "restricted', "create", "--dry-run=server", "-f", "-", stdin=[pod])
    warned = copy.deepcopy(workload)
    warned["spec"]["template"]["spec"]["securityContext"] = {}
    refused("would violate PodSecurity", *SERVER_SIDE, "--dry-run=server", "-f", "-", stdin=[warned])
    unknown = copy.deepcopy(workload)
    unknown["spec"]["template"]["spec"]["containers"][0]["restart"] = "no"
    refused("field not declared in schema", *SERVER_SIDE, "--dry-run=server", "-f", "-", stdin=[unknown])
    if "monitoring.coreos.com/v1 PodMonitor" in known:
        monitored, _ = rendered(directory, "overlays/trial", ["monitoring"], known)
        monitor = select(monitored, "PodMonitor", "waybill")
        monitor["spec"]["podMetricsEndpoints"][0]["paths"] = "/metrics"
        refused("unknown field", "create", "--dry-run=server", "--validate=strict", "-f", "-", stdin=[monitor])
    remove(objects)
    report("refused, as required: a pod with more rights, a template of one, and unknown fields")


def check_documented_changes(directory, known):
    """The statements of docs/deployment.md about upgrades, changed files and more partitions."""
    objects, _ = rendered(directory, "overlays/production", [], known)
    apply_twice("overlays/production", objects)

    image = [{"name": "registry.example/waybill", "newTag": "0.2.0"}]
    upgraded, _ = rendered(directory, "overlays/production", [], known, images=image)
    check_replaced_job("another image", upgraded)
    for workload in workloads(upgraded):
        found = json.loads(kubectl("get", workload["kind"], workload["metadata"]["name"], f"--namespace={NAMESPACE}", "-o", "json"))
        (container,) = found["spec"]["template"]["spec"]["containers"]
        expect(container["image"] == "registry.example/waybill:0.2.0", f"{named(workload)} has the image {container['image']}")

    file = {"name": "waybill", "namespace": NAMESPACE, "behavior": "merge", "literals": ["more=another file"]}
    changed, _ = rendered(directory, "overlays/production", [], known, images=image, configMapGenerator=[file])
    check_replaced_job("another waybill.yaml", changed)

    more = [{"name": "waybill-scheduler", "count": 24}]
    grown, _ = rendered(
        directory, "overlays/production", [], known, images=image, configMapGenerator=[file], replicas=more
    )
    apply_twice("24 schedulers", grown)
    fewer = [{"name": "waybill-scheduler", "count": 12}]
    shrunk, _ = rendered(
        directory, "overlays/production", [], known, images=image, configMapGenerator=[file], replicas=fewer
    )
    apply_twice("12 schedulers", shrunk)
    remove(objects + changed)
    report("another image, another waybill.yaml and more or fewer schedulers: all is applied, once the Job is deleted")


def check_replaced_job(change, objects):
    """Applies objects with a changed Job: all others are accepted immediately, and the Job once the old one is deleted."""
    said = refused("field is immutable", *SERVER_SIDE, "-f", "-", stdin=objects)
    failed = re.findall(r'"([\w.-]+)" is invalid', said)
    expect(set(failed) == {"waybill-prepare"}, f"{change}: the server refuses {failed}:\n{said}")
    kubectl("delete", "job", "waybill-prepare", f"--namespace={NAMESPACE}", "--ignore-not-found")
    apply_twice(change, objects)


def check_other_managers(directory, known):
    """Whether applying again keeps the fields that others set, and resets Waybill's own."""
    if "keda.sh/v1alpha1 ScaledObject" not in known:
        print("SKIPPED: scaling by others was NOT checked: KEDA's definitions are not there", flush=True)
        return
    plain, _ = rendered(directory, "overlays/production", [], known)
    kubectl(*SERVER_SIDE, "-f", "-", stdin=plain)
    objects, _ = rendered(directory, "overlays/production", ["keda"], known)
    apply_twice("overlays/production + keda", objects)
    for name in ["waybill-agents", "waybill-supervisor"]:
        count = ["get", "deployment", name, f"--namespace={NAMESPACE}", "-o", "jsonpath={.spec.replicas}"]
        given = kubectl(*count)
        expect(given == "1", f"{name}: components/keda, added later, leaves {given} replicas, and docs/deployment.md says 1")
        kubectl("scale", f"deployment/{name}", f"--namespace={NAMESPACE}", "--replicas=5")
        kubectl(*SERVER_SIDE, "-f", "-", stdin=objects)
        given = kubectl(*count)
        expect(given == "5", f"{name}: KEDA set 5 replicas, and after applying again there are {given}")
    kubectl("scale", "deployment/waybill-ingestion", f"--namespace={NAMESPACE}", "--replicas=7")
    refused("conflict", *SERVER_SIDE, "-f", "-", stdin=objects)
    kubectl(*SERVER_SIDE, "--force-conflicts", "-f", "-", stdin=objects)
    remove(objects)
    report("replicas that KEDA set stay when components/keda is applied again; a change of a field of ours is a conflict")


def check_client_side(directory, known):
    """`kubectl apply -k`, as in docs/deployment.md: the second run changes nothing."""
    for overlay, components in renders.offered():
        name = renders.name_of(overlay, components)
        objects, missing = rendered(directory, overlay, components, known)
        # The directory itself, as a person passes it, if the server knows all of its kinds.
        source = ["-k", renders.write_kustomization(directory, overlay, components)] if not missing else ["-f", "-"]
        stdin = None if not missing else objects
        kubectl("apply", *STRICT, *source, stdin=stdin)
        first = versions(objects)
        # kubectl prints `configured` for Deployments and disruption budgets, whose patches are never empty.
        kubectl("apply", *STRICT, *source, stdin=stdin)
        second = versions(objects)
        changed = [thing for thing in first if first[thing] != second[thing]]
        expect(not changed, f"{name}: applied again by the client, it changes {', '.join(changed)}")
        kubectl("diff", *source, stdin=stdin)
        remove(objects)
    report(f"{len(renders.OVERLAYS)} overlays applied with `kubectl apply -k`; the second time changed nothing")


# With controllers


def check_controllers(directory, crds):
    known = install_kinds(crds)
    for name in [NAMESPACE, *OTHERS]:
        kubectl("delete", "namespace", name, "--ignore-not-found", f"--timeout={WAIT_SECONDS_MAX}s")
    for name in OTHERS:
        kubectl("create", "namespace", name)
    nodes = StandIn()
    nodes.start()
    for overlay, components in renders.offered():
        objects, _ = rendered(directory, overlay, components, known)
        check_pods(renders.name_of(overlay, components), objects)
        if overlay == "overlays/production":
            check_upgrade(directory, components, known, nodes)
            check_disruption(nodes)
            check_more_schedulers(directory, components, known, nodes)
            check_expiry_of_job()
        kubectl("delete", "--ignore-not-found", "-f", "-", f"--timeout={WAIT_SECONDS_MAX}s", stdin=objects)
    check_page(directory)
    nodes.stop()


class StandIn:
    """Replaces the nodes of a cluster: reports each pod as running and ready, and each pod of a Job as succeeded."""

    def __init__(self):
        config = yaml.safe_load(pathlib.Path(os.environ["KUBECONFIG"]).read_text())
        cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
        self.address = urllib.parse.urlsplit(cluster["server"]).netloc
        self.tls = ssl.create_default_context(cafile=cluster["certificate-authority"])
        self.headers = {"Authorization": f"Bearer {user['token']}"}
        self.thread = threading.Thread(target=self.run, name="stand-in", daemon=True)
        self.ended, self.failures = threading.Event(), []
        # The pods that it does not report, and the names of those that it reported.
        self.withholds, self.reported = lambda name: False, []

    def start(self):
        self.thread.start()

    def stop(self):
        self.ended.set()
        self.thread.join(10)
        for failure in self.failures:
            report(f"a request of the stand-in for nodes failed: {failure}")

    def run(self):
        while not self.ended.wait(0.2):
            try:
                for pod in self.ask("GET", f"/api/v1/namespaces/{NAMESPACE}/pods")[1].get("items", []):
                    self.look_at(pod)
            except (OSError, http.client.HTTPException) as failure:
                self.failures.append(failure)

    def look_at(self, pod):
        name = pod["metadata"]["name"]
        if pod["status"].get("phase") == "Pending" and "deletionTimestamp" not in pod["metadata"] and not self.withholds(name):
            owner = pod["metadata"].get("ownerReferences", [{}])[0].get("kind")
            self.report(name, "Succeeded" if owner == "Job" else "Running")

    def report(self, name, phase):
        conditions = [{"type": kind, "status": "True"} for kind in ["PodScheduled", "Initialized", "ContainersReady", "Ready"]]
        status = {"phase": phase, "conditions": conditions if phase == "Running" else conditions[:2]}
        if self.ask("PATCH", f"/api/v1/namespaces/{NAMESPACE}/pods/{name}/status", {"status": status})[0] == 200:
            self.reported.append(name)

    def ask(self, method, path, body=None):
        connection = http.client.HTTPSConnection(self.address, context=self.tls, timeout=30)
        try:
            headers = self.headers | ({"Content-Type": "application/merge-patch+json"} if body else {})
            connection.request(method, path, json.dumps(body) if body else None, headers)
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())
        finally:
            connection.close()


def check_pods(name, objects):
    """Whether the controllers can create all pods, under a quota with room only for the pods that rolling updates add."""
    began = time.monotonic()
    kubectl(*SERVER_SIDE, "-f", "-", stdin=[thing for thing in objects if thing["kind"] == "Namespace"])
    quota, limits = quota_of(objects), {"default": {"cpu": "9", "memory": "9Gi"}, "defaultRequest": {"cpu": "8", "memory": "8Gi"}}
    bounds = [
        {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "check"}, "spec": {"hard": quota}},
        {"apiVersion": "v1", "kind": "LimitRange", "metadata": {"name": "check"}, "spec": {"limits": [{"type": "Container", **limits}]}},
    ]
    kubectl("create", f"--namespace={NAMESPACE}", "-f", "-", stdin=bounds)
    kubectl(*SERVER_SIDE, "-f", "-", stdin=objects)
    await_rollout(objects)
    kubectl("wait", f"--namespace={NAMESPACE}", "--for=condition=complete", "job/waybill-prepare", f"--timeout={WAIT_SECONDS_MAX}s")
    pods = json.loads(kubectl("get", "pods", f"--namespace={NAMESPACE}", "-o", "json"))["items"]
    for workload in workloads(objects):
        selector = workload["spec"]["template"]["metadata"]["labels"]
        made = [pod for pod in pods if selector.items() <= pod["metadata"]["labels"].items()]
        expect(len(made) == replicas_of(workload), f"{name}: {named(workload)} has {len(made)} pods, and wants {replicas_of(workload)}")
        for pod in made:
            for kind in ["initContainers", "containers"]:
                wanted = [container["resources"] for container in workload["spec"]["template"]["spec"].get(kind, [])]
                given = [container["resources"] for container in pod["spec"].get(kind, [])]
                expect(same_quantities(wanted, given), f"{name}: the namespace's defaults changed {named(pod)}: {given}")
            for volume in pod["spec"]["volumes"]:
                expect("kube-api-access" not in volume["name"], f"{name}: {named(pod)} has a token")
    running = [pod for pod in pods if pod["status"]["phase"] == "Running"]
    used = total(running)
    report(
        f"{name}: {len(running)} pods made and admitted in {time.monotonic() - began:.0f} s, which request {used['requests.cpu']:g} cores "
        f"and {used['requests.memory'] / (1 << 30):g} GiB, with limits of {used['limits.cpu']:g} cores and "
        f"{used['limits.memory'] / (1 << 30):g} GiB"
    )
    events = json.loads(kubectl("get", "events", f"--namespace={NAMESPACE}", "--field-selector=reason=FailedCreate", "-o", "json"))["items"]
    expect(not events, f"{name}: {events and events[0]['message']}")


def replicas_of(workload):
    # KEDA sets the fields that an overlay with components/keda omits.
    return 1 if workload["kind"] == "Job" else workload["spec"].get("replicas", 1)


def await_rollout(objects):
    for workload in workloads(objects):
        if workload["kind"] != "Job":
            kind = f"{workload['kind'].lower()}/{workload['metadata']['name']}"
            kubectl("rollout", "status", kind, f"--namespace={NAMESPACE}", f"--timeout={WAIT_SECONDS_MAX}s")


def quota_of(objects):
    """The total of all pods, with one more of each Deployment, as during a rolling update."""
    pods = []
    for workload in workloads(objects):
        pods += [pod_of(workload)] * (replicas_of(workload) + (workload["kind"] == "Deployment"))
    return {key: f"{value:g}" if key.endswith("cpu") else str(int(value)) for key, value in total(pods).items()} | {"pods": str(len(pods))}


def total(pods):
    """The sums of the requests and limits of pods, in cores and bytes, as a quota counts them."""
    sums = {}
    for pod in pods:
        for part in ["requests", "limits"]:
            for resource in ["cpu", "memory"]:
                each = [
                    [quantity(container["resources"][part][resource]) for container in pod["spec"].get(kind, [])]
                    for kind in ["containers", "initContainers"]
                ]
                key = f"{part}.{resource}"
                sums[key] = sums.get(key, 0) + max(sum(each[0]), *each[1], 0)
    return sums


def quantity(text):
    units = {"m": 0.001, "Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30}
    unit = next((unit for unit in units if text.endswith(unit)), "")
    return float(text.removesuffix(unit)) * units.get(unit, 1)


def same_quantities(left, right):
    def numbers(resources):
        return [{(part, key): quantity(value) for part in each for key, value in each[part].items()} for each in resources]

    return numbers(left) == numbers(right)


def check_upgrade(directory, components, known, nodes):
    """Another image, rolled out within the quota."""
    image = [{"name": "registry.example/waybill", "newTag": "0.2.0"}]
    objects, _ = rendered(directory, "overlays/production", components, known, images=image)
    began = time.monotonic()
    check_replaced_job_under_controllers(objects)
    nodes.reported.clear()
    await_rollout(objects)
    order = [int(name.rpartition("-")[2]) for name in nodes.reported if name.startswith("waybill-scheduler-")]
    expect(order == sorted(order, reverse=True), f"schedulers were replaced in the order {order}")
    pods = json.loads(kubectl("get", "pods", f"--namespace={NAMESPACE}", "-o", "json"))["items"]
    old = [named(pod) for pod in pods if not pod["spec"]["containers"][0]["image"].endswith(":0.2.0")]
    expect(not old, f"pods with the old image are left: {old}")
    report(f"another image: all pods replaced in {time.monotonic() - began:.0f} s, schedulers one by one from the last to the first")


def check_replaced_job_under_controllers(objects):
    refused("field is immutable", *SERVER_SIDE, "-f", "-", stdin=objects)
    kubectl("delete", "job", "waybill-prepare", f"--namespace={NAMESPACE}", "--ignore-not-found")
    kubectl(*SERVER_SIDE, "-f", "-", stdin=objects)
    kubectl("wait", f"--namespace={NAMESPACE}", "--for=condition=complete", "job/waybill-prepare", f"--timeout={WAIT_SECONDS_MAX}s")


def check_disruption(nodes):
    """One ready pod of a role can be evicted, a second one only once the first is ready again, and an unready one at any time."""
    nodes.withholds = lambda name: name == "waybill-scheduler-3"
    await_value(lambda: allowed_disruptions() == 1, "the disruption budget allows no eviction")
    expect(evict(nodes, "waybill-scheduler-3") == 201, "a ready scheduler cannot be evicted")
    await_value(lambda: allowed_disruptions() == 0, "the disruption budget allows a second eviction")
    code = evict(nodes, "waybill-scheduler-4")
    expect(code == 429, f"a second scheduler is evicted: {code}")
    code = evict(nodes, "waybill-scheduler-3")
    expect(code == 201, f"a scheduler that is not ready cannot be evicted: {code}")
    nodes.withholds = lambda name: False
    kubectl("rollout", "status", "statefulset/waybill-scheduler", f"--namespace={NAMESPACE}", f"--timeout={WAIT_SECONDS_MAX}s")
    report("the disruption budget admits one eviction of a ready scheduler at a time, and any of one that is not ready")


def allowed_disruptions():
    path = "jsonpath={.status.disruptionsAllowed}"
    return int(kubectl("get", "pdb", "waybill-scheduler", f"--namespace={NAMESPACE}", "-o", path) or 0)


def evict(nodes, pod):
    connection = http.client.HTTPSConnection(nodes.address, context=nodes.tls, timeout=30)
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod, "namespace": NAMESPACE}}
    headers = nodes.headers | {"Content-Type": "application/json"}
    connection.request("POST", f"/api/v1/namespaces/{NAMESPACE}/pods/{pod}/eviction", json.dumps(eviction), headers)
    status = connection.getresponse().status
    connection.close()
    return status


def await_value(condition, failure):
    deadline = time.monotonic() + WAIT_SECONDS_MAX
    while not condition():
        expect(time.monotonic() < deadline, failure)
        time.sleep(0.2)


def check_more_schedulers(directory, components, known, nodes):
    """From 12 to 24 partitions: the new pods start immediately, and the old ones are replaced when the new ones are ready."""
    file = {"name": "waybill", "namespace": NAMESPACE, "behavior": "merge", "literals": ["more=partitions"]}
    image = [{"name": "registry.example/waybill", "newTag": "0.2.0"}]
    replicas = [{"name": "waybill-scheduler", "count": 24}]
    more = {"configMapGenerator": [file], "images": image, "replicas": replicas}
    objects, _ = rendered(directory, "overlays/production", components, known, **more)
    kubectl("delete", "resourcequota", "check", f"--namespace={NAMESPACE}")
    nodes.withholds = lambda name: name.startswith("waybill-scheduler-") and int(name.rpartition("-")[2]) >= 12
    check_replaced_job_under_controllers(objects)
    await_value(lambda: len(schedulers()) == 24, "there are not 24 schedulers")
    before = {name: pod for name, pod in schedulers().items() if int(name.rpartition("-")[2]) < 12}
    # As long as a replacement would take.
    time.sleep(3)
    replaced = before.items() - schedulers().items()
    expect(not replaced, f"{dict(replaced)} were replaced before the new schedulers were ready")
    nodes.withholds = lambda name: False
    await_rollout(objects)
    kept = before.items() & schedulers().items()
    expect(not kept, f"{dict(kept)} were never replaced")
    report("from 12 to 24 schedulers: the new ones start at once, and the old ones are replaced when these are ready")


def schedulers():
    """The identity of each scheduler's pod."""
    path = r'jsonpath={range .items[*]}{.metadata.name} {.metadata.uid}{"\n"}{end}'
    label = "--selector=app.kubernetes.io/component=scheduler"
    return dict(line.split() for line in kubectl("get", "pods", label, f"--namespace={NAMESPACE}", "-o", path).splitlines())


def check_expiry_of_job():
    """The Job is deleted automatically: here after a second, to save a wait of ten minutes."""
    patch = '{"spec": {"ttlSecondsAfterFinished": 1}}'
    kubectl("patch", "job", "waybill-prepare", f"--namespace={NAMESPACE}", "--type=merge", f"--patch={patch}")
    kubectl("wait", "--for=delete", "job/waybill-prepare", f"--namespace={NAMESPACE}", f"--timeout={WAIT_SECONDS_MAX}s")
    report("the Job is deleted after its ttlSecondsAfterFinished")


# docs/own-workflow-kubernetes.md


def check_page(directory):
    """Runs the commands of the page that need no container, as they are printed there."""
    waybill = pathlib.Path(os.environ.get("WAYBILL", "target/release/waybill")).resolve()
    if not waybill.exists():
        print(f"SKIPPED: the commands of docs/own-workflow-kubernetes.md were NOT run: there is no {waybill}", flush=True)
        return
    page = pathlib.Path("docs/own-workflow-kubernetes.md").read_text()
    place = directory / "page"
    (place / "bin").mkdir(parents=True)
    (place / "bin/waybill").symlink_to(waybill)
    (place / "waybill").symlink_to(os.getcwd())
    for file in ["kafka.password", "kafka-ca.crt", "cql.password", "cql-ca.crt"]:
        (place / file).write_text("check")

    steps = [line for heading in ["3.", "4.", "5.", "6."] for line in commands(page, heading)]
    steps += [*commands(page, "9."), *commands(page, "Roll back")[-1:]]
    (kustomization,) = blocks(page, "3.", "yaml")
    ran = 0
    for step in steps:
        if "logs" in step.split():
            continue
        run_step(place, step)
        ran += 1
        if step.startswith("cp "):
            (place / "deploy/trips/kustomization.yaml").write_text(kustomization)
    secrets = kubectl("get", "secrets", f"--namespace={NAMESPACE}", "-o", "name").split()
    expect(secrets == [f"secret/waybill-{name}" for name in ["cql", "kafka", "tokens"]], f"there are the secrets {secrets}")
    await_value(lambda: not running_pods(), "pods are left after all was scaled to 0")
    kubectl("delete", "-k", place / "deploy/trips", f"--timeout={WAIT_SECONDS_MAX}s")
    shutil.rmtree(place)
    report(f"docs/own-workflow-kubernetes.md: {ran} commands run as they are printed")


def blocks(page, heading, language):
    section = page.split(f"\n## {heading}")[1].split("\n## ")[0]
    return re.findall(rf"```{language}\n(.*?)```", section, re.DOTALL)


def commands(page, heading):
    """The commands of a section, those of several lines in one piece."""
    text = "\n".join(blocks(page, heading, "sh")).replace("\\\n", " ")
    return [line.strip() for line in text.splitlines() if line.strip()]


def run_step(place, step):
    environment = os.environ | {"PATH": f"{place / 'bin'}:{os.environ['PATH']}"}
    ran = subprocess.run(
        ["bash", "-c", step], cwd=place, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=300
    )
    # Before the first apply, there is always a difference.
    fine = [0, 1] if step.startswith("kubectl diff") else [0]
    expect(ran.returncode in fine, f"the page's `{step}` ended with {ran.returncode}:\n{ran.stdout}")


def running_pods():
    selector = "--field-selector=status.phase=Running"
    return kubectl("get", "pods", selector, f"--namespace={NAMESPACE}", "-o", "name").split()


main()
