"""The flags that every command of the binary takes, of a container's command line: `waybill config` takes them, too, and
so shows and judges what applies to the container, its listeners before all."""

import functools
import re
import subprocess


def for_every_command(waybill, line):
    """Those of `line` that `waybill config check` and `config show` go by as the command itself does."""
    known = taken(waybill)
    # There it is where to call, and nobody listens by it.
    calls_services = "agents" in line or "--no-services" in line
    flags, rest = [], list(line)
    while rest:
        flag, given, value = rest.pop(0).partition("=")
        if flag not in known:
            continue
        said = [f"{flag}={value}"] if given else [flag]
        if known[flag] and not given:
            said += rest[:1]
            rest = rest[1:]
        if flag != "--services" or not calls_services:
            flags += said
    return flags


@functools.cache
def taken(waybill):
    """Each such flag, and whether it has a value, as the binary says itself."""
    said = subprocess.run([waybill, "config", "show", "--help"], check=True, capture_output=True, text=True, env={}).stdout
    _, found, flags = said.partition("Flags for every command:")
    if not found:
        raise SystemExit("waybill config show --help names no flags for every command")
    return {name: bool(value) for name, value in re.findall(r"^ +(?:-\w, )?(--[\w-]+)( <)?", flags, re.M)}
