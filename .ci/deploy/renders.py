"""The rendered k8s/: every overlay with every choice of the components that it supports."""

import itertools
import os
import pathlib
import re
import subprocess

import yaml

OVERLAYS = {
    "base": [],
    "overlays/trial": ["monitoring", "dashboards", "tracing"],
    "overlays/own-workflow": [],
    "overlays/production": ["monitoring", "dashboards", "tracing", "keda", "kafka", "scylla"],
}


class OnceLoader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
    """Refuses a key that is given twice."""

    def construct_mapping(self, node, deep=False):
        keys = [key.value for key, _ in node.value]
        if len(keys) != len(set(keys)):
            raise yaml.constructor.ConstructorError(None, None, "duplicate key", node.start_mark)
        return super().construct_mapping(node, deep)


# A lone = is a text, as in lists of operators.
OnceLoader.add_constructor("tag:yaml.org,2002:value", OnceLoader.construct_yaml_str)


def offered():
    """Each overlay, with the components that it supports."""
    for overlay, components in OVERLAYS.items():
        if not pathlib.Path("grafana/kustomization.yaml").exists() and "dashboards" in components:
            components = [name for name in components if name != "dashboards"]
            print(f"k8s: {overlay} without dashboards: there are none in grafana/dashboards")
        yield overlay, components


def choices():
    """Each overlay with each choice of its components."""
    for overlay, components in offered():
        for count in range(len(components) + 1):
            for chosen in itertools.combinations(components, count):
                yield overlay, chosen


def name_of(overlay, components):
    return " + ".join([overlay, *components])


def write_kustomization(directory, overlay, components, **more):
    """Writes a kustomization of an overlay with components, and returns its directory. `more` has additional keys."""
    place = pathlib.Path(directory) / re.sub(r"\W+", "-", name_of(overlay, components))
    place.mkdir(parents=True, exist_ok=True)
    root = os.path.relpath("k8s", place)
    kustomization = {"resources": [f"{root}/{overlay}"], **more}
    if components:
        kustomization["components"] = [f"{root}/components/{component}" for component in components]
    (place / "kustomization.yaml").write_text(yaml.safe_dump(kustomization))
    return place


def render(command, place):
    """Renders a directory. Returns the text, or none, and the command's messages."""
    ran = subprocess.run([*command, place], capture_output=True, text=True)
    if ran.returncode:
        return None, ran.stderr.strip()
    (place / "rendered.yaml").write_text(ran.stdout)
    return ran.stdout, ran.stderr.strip()


def objects(text):
    return [thing for thing in yaml.load_all(text, Loader=OnceLoader) if thing]
