"""How long builds of the program take: all of it, and what one changed line compiles again. Part of `.ci/structure`.

Seconds on the clock depend on what else the machine does. Seconds of CPU, user and system together, hardly do.
"""

import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CARGO = ["cargo", "build", "--release", "--locked", "--quiet", "--bin", "waybill"]
# Cargo calls it in place of rustc.
WRAPPER = Path(__file__).resolve().with_name("rustc-times")
# How many crates a table lists.
SLOWEST = 15
# Where a line changes: a file, and a function of it at whose beginning the line is added.
CHANGES = {
    "alerts": ("crates/alerts/src/email.rs", "read_mailbox"),
    "an operator command": ("crates/ops/src/operations/list.rs", "age"),
    "the command line": ("crates/waybill/src/cli/workflow.rs", "run"),
    "an API handler": ("crates/ingestion/src/service/ops/amend.rs", "as_it_is"),
}


def measure_cold():
    """Builds the program and all that it consists of in an empty directory. Returns the seconds that this took."""
    (ROOT / "target").mkdir(exist_ok=True)
    target = tempfile.mkdtemp(prefix="cold-", dir=ROOT / "target")
    try:
        seconds, cpu, crates = build({"CARGO_TARGET_DIR": target})
    finally:
        shutil.rmtree(target, ignore_errors=True)
    print(f"\ncold build of the program on {os.cpu_count()} CPUs: {seconds:.0f} s, {cpu:.0f} s of CPU, {len(crates)} crates")
    print_crates(crates)
    compiled = sum(crate_cpu for _, crate_cpu in crates.values())
    print(f"  {cpu - compiled:>7.1f}           build scripts and cargo")
    return seconds


def measure_changes():
    """Changes a line in each place, one after the other, and builds the program. Returns the seconds that the slowest build took."""
    build()
    slowest = 0
    changed = {}
    try:
        for place, (file, function) in CHANGES.items():
            path = ROOT / file
            text = path.read_text()
            changed[path] = (text, add_line(file, text, function))
            path.write_text(changed[path][1])
            seconds, cpu, crates = build()
            slowest = max(slowest, seconds)
            print(f"\na changed line in {place} ({file}): {seconds:.1f} s, {cpu:.1f} s of CPU")
            print_crates(crates)
    finally:
        for path, (text, with_line) in changed.items():
            # Not over what somebody edited meanwhile.
            if path.read_text() == with_line:
                path.write_text(text)
        build()
    return slowest


def add_line(file, text, function):
    """Adds a line at the beginning of a function, which no earlier build compiled."""
    begin = re.search(rf"(?m)^ *(?:pub(?:\(\w+\))? )?(?:async )?fn {function}\b[^{{]*\{{\n", text)
    if begin is None:
        sys.exit(f"{file} has no function {function}: change CHANGES")
    return f"{text[: begin.end()]}let _ = std::hint::black_box({time.time_ns()}_u64);\n{text[begin.end() :]}"


def build(environment=None):
    """Builds the program. Returns the seconds by the clock and of CPU, and both for each crate that was compiled."""
    with tempfile.NamedTemporaryFile("w+") as times:
        environment = {**os.environ, "RUSTC_WRAPPER": str(WRAPPER), "RUSTC_TIMES": times.name, **(environment or {})}
        cpu_before, began = cpu_of_children(), time.monotonic()
        subprocess.run(CARGO, cwd=ROOT, env=environment, check=True)
        seconds, cpu = time.monotonic() - began, cpu_of_children() - cpu_before
        crates = {}
        for line in Path(times.name).read_text().splitlines():
            wall, user, system, name = line.split()
            wall_before, crate_cpu = crates.get(name, (0, 0))
            crates[name] = (wall_before + float(wall), crate_cpu + float(user) + float(system))
        return seconds, cpu, crates


def cpu_of_children():
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def print_crates(crates):
    """The crates that took most CPU. Several are compiled at once, so that their seconds by the clock add up to more than the build's."""
    print("    s CPU     s wall")
    for name, (wall, cpu) in sorted(crates.items(), key=lambda entry: -entry[1][1])[:SLOWEST]:
        print(f"  {cpu:>7.1f}  {wall:>7.1f}  {name}")
