"""Checks the rendered k8s/ against schemas and against the requirements of Waybill on Kubernetes.

    k8s.py KUSTOMIZE WAYBILL DIRECTORY [CRDS...]

Every overlay is rendered into DIRECTORY with every choice of the components that it supports. The binary
itself checks the configuration, the variables and the arguments of each container.
"""

import json
import pathlib
import re
import sys

import jsonschema
import kubernetes_validate
import yaml

import renders
from k8s_rules import Capacity, Rules

# The oldest version that k8s/ supports, and the newest that the validator knows.
KUBERNETES = ["1.30", "1.37"]

wrong, unknown_kinds = [], set()


def main():
    kustomize, waybill, directory, *crds = sys.argv[1:]
    looked_at = list(rendered(kustomize, directory))
    schemas = schemas_of(crds, {thing["kind"] for render in looked_at for thing in render.objects})
    triggers = triggers_of(crds)
    capacity = Capacity(waybill)
    seen = set()
    for render in looked_at:
        for thing in render.objects:
            text = json.dumps(thing, sort_keys=True)
            if text not in seen:
                seen.add(text)
                check_schema(render, thing, schemas)
    # No rule can check an object that is invalid for its kind.
    if not wrong:
        for render in looked_at:
            Rules(render, waybill, capacity, triggers).check()
    for kind in sorted(unknown_kinds):
        print(f"SKIPPED: objects of {kind} were NOT held against its schema, which is not there: set CRDS")
    # A defect of an overlay occurs with every choice of components: it is reported once.
    told = {}
    for render, problem in wrong:
        told.setdefault(problem, []).append(render)
    for problem, where in told.items():
        print(f"{where[0]}{f' and {len(where) - 1} more' if where[1:] else ''}: {problem}", file=sys.stderr)
    if wrong:
        sys.exit(1)
    print(f"k8s: {len(looked_at)} renderings, {len(seen)} different objects comply")


class Render:
    """The objects of an overlay with some components."""

    def __init__(self, name, components, text):
        self.name, self.components = name, components
        self.objects = renders.objects(text)

    def of(self, *kinds):
        return [thing for thing in self.objects if thing["kind"] in kinds]

    def wrong(self, thing, problem):
        name = thing if isinstance(thing, str) else f"{thing['kind']} {thing['metadata'].get('name')}"
        wrong.append((self.name, f"{name}: {problem}"))


def rendered(kustomize, directory):
    for overlay, components in renders.choices():
        name = renders.name_of(overlay, components)
        place = renders.write_kustomization(directory, overlay, components)
        text, said = renders.render([kustomize, "build"], place)
        # kustomize warns about features that its next version drops.
        if text is None or said:
            wrong.append((name, f"kustomize: {said}"))
        if text is not None:
            yield Render(name, components, text)


def schemas_of(crds, kinds):
    """The schemas of additional kinds, by group/version and kind."""
    schemas = {}
    for path in [path for directory in crds for path in sorted(pathlib.Path(directory).glob("*.yaml"))]:
        text = path.read_text()
        if not kinds & set(re.findall(r'^ +kind: "?(\w+)"?$', text, re.M)):
            continue
        for crd in yaml.load_all(text, Loader=renders.OnceLoader):
            if not crd or crd.get("kind") != "CustomResourceDefinition":
                continue
            for version in crd["spec"]["versions"]:
                key = f"{crd['spec']['group']}/{version['name']} {crd['spec']['names']['kind']}"
                schema = strict(version["schema"]["openAPIV3Schema"])
                schema["properties"] |= {"apiVersion": {}, "kind": {}, "metadata": {"type": "object"}}
                schemas[key] = schema
    return schemas


def strict(schema):
    """As a JSON schema that refuses unknown fields, as a server does with strict field validation."""
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
    """The settings that KEDA's own source accepts for the used kinds of triggers: name to whether it is required."""
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
