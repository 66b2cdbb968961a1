"""Holds what k8s/ renders to against schemas and against what must hold of Waybill on Kubernetes.

    k8s.py KUSTOMIZE WAYBILL DIRECTORY [CRDS...]

Every overlay is rendered with every choice of the components that it may be combined with, into DIRECTORY. The binary
itself says whether it takes the configuration, the variables and the arguments of each container.
"""

import itertools
import json
import os
import pathlib
import re
import subprocess
import sys

import jsonschema
import kubernetes_validate
import yaml

from k8s_rules import Capacity, Rules

# The oldest that k8s/ is for, and the newest that the validator knows.
KUBERNETES = ["1.30", "1.37"]
OVERLAYS = {
    "base": [],
    "overlays/trial": ["monitoring", "dashboards", "tracing"],
    "overlays/own-workflow": [],
    "overlays/production": ["monitoring", "dashboards", "tracing", "keda", "kafka", "scylla"],
}

wrong, unknown_kinds = [], set()


def main():
    kustomize, waybill, directory, *crds = sys.argv[1:]
    renders = list(rendered(kustomize, pathlib.Path(directory)))
    schemas = schemas_of(crds, {thing["kind"] for render in renders for thing in render.objects})
    triggers = triggers_of(crds)
    capacity = Capacity(waybill)
    seen = set()
    for render in renders:
        for thing in render.objects:
            text = json.dumps(thing, sort_keys=True)
            if text not in seen:
                seen.add(text)
                check_schema(render, thing, schemas)
    # What is not formed as its kind is, no rule can look at.
    if not wrong:
        for render in renders:
            Rules(render, waybill, capacity, triggers).check()
    for kind in sorted(unknown_kinds):
        print(f"SKIPPED: objects of {kind} were NOT held against its schema, which is not there: set CRDS")
    # What is wrong in an overlay is so with every choice of components: it is told once.
    told = {}
    for render, problem in wrong:
        told.setdefault(problem, []).append(render)
    for problem, where in told.items():
        print(f"{where[0]}{f' and {len(where) - 1} more' if where[1:] else ''}: {problem}", file=sys.stderr)
    if wrong:
        sys.exit(1)
    print(f"k8s: {len(renders)} renderings, {len(seen)} different objects are as they must be")


class Render:
    """The objects of an overlay with some components."""

    def __init__(self, name, components, text):
        self.name, self.components = name, components
        self.objects = [thing for thing in yaml.load_all(text, Loader=OnceLoader) if thing]

    def of(self, *kinds):
        return [thing for thing in self.objects if thing["kind"] in kinds]

    def wrong(self, thing, problem):
        name = thing if isinstance(thing, str) else f"{thing['kind']} {thing['metadata'].get('name')}"
        wrong.append((self.name, f"{name}: {problem}"))


class OnceLoader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
    """Refuses a key that is given twice."""

    def construct_mapping(self, node, deep=False):
        keys = [key.value for key, _ in node.value]
        if len(keys) != len(set(keys)):
            raise yaml.constructor.ConstructorError(None, None, "a key stands here twice", node.start_mark)
        return super().construct_mapping(node, deep)


# A lone = is a text, as in lists of operators.
OnceLoader.add_constructor("tag:yaml.org,2002:value", OnceLoader.construct_yaml_str)


def rendered(kustomize, directory):
    for overlay, offered in OVERLAYS.items():
        if not pathlib.Path("grafana/kustomization.yaml").exists() and "dashboards" in offered:
            offered = [name for name in offered if name != "dashboards"]
            print(f"k8s: {overlay} without dashboards: there are none in grafana/dashboards")
        for count in range(len(offered) + 1):
            for chosen in itertools.combinations(offered, count):
                name = " + ".join([overlay, *chosen])
                place = directory / re.sub(r"\W+", "-", name)
                place.mkdir(parents=True, exist_ok=True)
                root = os.path.relpath("k8s", place)
                kustomization = {"resources": [f"{root}/{overlay}"]}
                if chosen:
                    kustomization["components"] = [f"{root}/components/{component}" for component in chosen]
                (place / "kustomization.yaml").write_text(yaml.safe_dump(kustomization))
                ran = subprocess.run([kustomize, "build", place], capture_output=True, text=True)
                # It warns of what will not work in its next version.
                if ran.returncode or ran.stderr:
                    wrong.append((name, f"kustomize: {ran.stderr.strip()}"))
                if not ran.returncode:
                    (place / "rendered.yaml").write_text(ran.stdout)
                    yield Render(name, chosen, ran.stdout)


def schemas_of(crds, kinds):
    """The schemas of further kinds, by group/version and kind."""
    schemas = {}
    for path in [path for directory in crds for path in sorted(pathlib.Path(directory).glob("*.yaml"))]:
        text = path.read_text()
        if not kinds & set(re.findall(r'^ +kind: "?(\w+)"?$', text, re.M)):
            continue
        for crd in yaml.load_all(text, Loader=OnceLoader):
            if not crd or crd.get("kind") != "CustomResourceDefinition":
                continue
            for version in crd["spec"]["versions"]:
                key = f"{crd['spec']['group']}/{version['name']} {crd['spec']['names']['kind']}"
                schema = strict(version["schema"]["openAPIV3Schema"])
                schema["properties"] |= {"apiVersion": {}, "kind": {}, "metadata": {"type": "object"}}
                schemas[key] = schema
    return schemas


def strict(schema):
    """As JSON schema, with fields that are not named refused, as a server does with strict field validation."""
    schema = dict(schema)
    schema.pop("description", None)
    if schema.get("x-kubernetes-int-or-string"):
        schema.pop("type", None)
        schema["anyOf"] = [{"type": "integer"}, {"type": "string"}]
    if schema.pop("nullable", False) and "type" in schema:
        schema["type"] = [schema["type"], "null"]
    if "properties" in schema:
        schema["properties"] = {name: strict(one) for name, one in schema["properties"].items()}
        if not schema.get("x-kubernetes-preserve-unknown-fields"):
            schema.setdefault("additionalProperties", False)
    for key in ["items", "additionalProperties"]:
        if isinstance(schema.get(key), dict):
            schema[key] = strict(schema[key])
    return schema


def check_schema(render, thing, schemas):
    kind = f"{thing['apiVersion']} {thing['kind']}"
    group = thing["apiVersion"].rpartition("/")[0]
    if kind in schemas:
        for error in jsonschema.Draft4Validator(schemas[kind]).iter_errors(thing):
            render.wrong(thing, f"{'.'.join(map(str, error.path))}: {error.message}")
    elif "." in group and not group.endswith(".k8s.io"):
        unknown_kinds.add(kind)
    else:
        for version in KUBERNETES:
            try:
                kubernetes_validate.validate(thing, version, strict=True)
            except kubernetes_validate.ValidationError as error:
                render.wrong(thing, f"{'.'.join(map(str, error.path))}: {error.message} (Kubernetes {version})")


def triggers_of(crds):
    """Which settings KEDA's own source takes for the kinds of trigger that are used: name to whether it is needed."""
    for directory in crds:
        scalers = pathlib.Path(directory).parents[2] / "pkg/scalers"
        if (scalers / "kafka_scaler.go").exists():
            return {kind: settings_of(scalers / f"{kind}_scaler.go") for kind in ["kafka", "prometheus"]}
    return {}


def settings_of(source):
    settings = {}
    for tag in re.findall(r'`keda:"([^"]*)"`', source.read_text()):
        parts = [part.strip() for part in tag.split(",")]
        names = next((part[5:] for part in parts if part.startswith("name=")), None)
        for name in (names or "").split(";"):
            settings[name] = not any(part == "optional" or part.startswith("default=") for part in parts)
    return settings


main()
