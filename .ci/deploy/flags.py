"""The global flags in a container's command line: `waybill config` also accepts them, and
so shows and checks the container's effective configuration, especially its listeners."""

import functools
import re
import subprocess


def for_every_command(waybill, line):
    """The flags of `line` that `waybill config check` and `config show` interpret as the command itself does."""
    known = taken(waybill)
    # There it is an address to call, and no process listens on it.
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
    """Each such flag, and whether it has a value, as the binary reports."""
    said = subprocess.run([waybill, "config", "show", "--help"], check=True, capture_output=True, text=True, env={}).stdout
    _, found, flags = said.partition("Flags for every command:")
    if not found:
        raise SystemExit("waybill config show --help names no flags for every command")
    return {name: bool(value) for name, value in re.findall(r"^ +(?:-\w, )?(--[\w-]+)( <)?", flags, re.M)}
