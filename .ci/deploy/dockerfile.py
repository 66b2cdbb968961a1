"""Requirements of the Dockerfile and .dockerignore that no linter expresses. Without a container: if the machine runs
the Debian of the image, the packages of the linked libraries are those that the image installs."""

import json
import pathlib
import re
import subprocess
import sys

BASE_IMAGE_HAS = {"libc6", "libgcc-s1"}
# A package that no binary links: certificates are read, not linked.
NOT_LINKED = {"ca-certificates"}

wrong = []


def main():
    binary = pathlib.Path(sys.argv[1])
    stages = stages_of(pathlib.Path("Dockerfile").read_text())
    check_stages(stages)
    check_context(binary)
    check_libraries(binary, stages)
    check_symbols(binary)
    sys.exit("\n".join(f"Dockerfile: {problem}" for problem in wrong) or 0)


def stages_of(text):
    """The stages in order: name, base, and their instructions as (word, rest)."""
    text = re.sub(r"^\s*#.*\n", "", text, flags=re.M)
    text = text.replace("\\\n", " ")
    stages, arguments = [], {}
    for line in filter(None, map(str.strip, text.splitlines())):
        word, _, rest = line.partition(" ")
        if word == "FROM":
            base, name = re.fullmatch(r"(\S+) AS (\S+)", rest).groups()
            # A build argument, with its default.
            base = re.sub(r"^\$\{(\w+)\}$", lambda argument: arguments[argument[1]], base)
            stages.append({"name": name, "base": base, "does": []})
        elif stages:
            stages[-1]["does"].append((word, re.sub(r"\s+", " ", rest)))
        elif word == "ARG":
            argument, _, default = rest.partition("=")
            arguments[argument] = default
        else:
            wrong.append(f"{word} stands before every stage")
    return stages


def lineage(stage, stages):
    """The stage and those that it is built on, the first one first."""
    parent = next((other for other in stages if other["name"] == stage["base"]), None)
    return (lineage(parent, stages) if parent else []) + [stage]


def said(stage, stages, word):
    """The values of an instruction in the stage, or in one that it is built on."""
    return [rest for one in lineage(stage, stages) for does, rest in one["does"] if does == word]


def check_stages(stages):
    names = {stage["name"] for stage in stages}
    bases = [stage["base"] for stage in stages if stage["base"] not in names]
    releases = set()
    for base in bases:
        tag = re.fullmatch(r"[\w./-]+:([\w.-]+)@sha256:[0-9a-f]{64}", base)
        dated = tag and re.search(r"-\d{8}-|\d+\.\d+\.\d+", tag[1])
        if not dated:
            wrong.append(f"{base} needs an exact tag and a digest")
        releases |= set(re.findall(r"bookworm|trixie|forky", base)) or {base}
    if len(releases) != 1:
        wrong.append(f"not all stages stand on one release of Debian, but on {', '.join(sorted(releases))}")

    final = stages[-1]
    if final["name"] != "waybill":
        wrong.append("what is built without --target is not the program")
    user = said(final, stages, "USER")[-1:]
    if not user or not re.fullmatch(r"[1-9]\d*:[1-9]\d*", user[0]):
        wrong.append(f"the user is {user}, and must be a number that is not 0")
    for word, expected in [
        ("STOPSIGNAL", "SIGTERM"),
        ("ENTRYPOINT", '["waybill"]'),
        ("VOLUME", "/var/lib/waybill"),
        ("ENV", "WAYBILL_DATA_DIR=/var/lib/waybill"),
    ]:
        if expected not in said(final, stages, word):
            wrong.append(f"{word} {expected} is missing")

    for stage in stages:
        for word, rest in stage["does"]:
            if word == "RUN" and "cargo build" in rest and "--locked" not in rest:
                wrong.append(f"stage {stage['name']} builds without --locked")
            if word == "ADD":
                wrong.append("ADD fetches and unpacks by itself; COPY does what it says")
    builds = [rest for stage in stages for word, rest in stage["does"] if word == "RUN" and "cargo build" in rest]
    if len(builds) != 1:
        wrong.append(f"cargo runs {len(builds)} times: one run compiles what both programs have in common once")
    for build in builds:
        if "--strip" not in build:
            wrong.append("the programs are not stripped")
    check_start(final, stages)

    manifest = pathlib.Path("Cargo.toml").read_text()
    oldest = re.search(r'^rust-version = "(\d+)\.(\d+)"', manifest, re.M)
    toolchain = next((re.match(r"rust:(\d+)\.(\d+)\.\d+", base) for base in bases if base.startswith("rust:")), None)
    if not toolchain or tuple(map(int, toolchain.groups())) < tuple(map(int, oldest.groups())):
        wrong.append(f"the toolchain is older than rust-version, {'.'.join(oldest.groups())}")
    version = re.search(r'^version = "([\d.]+)"', manifest, re.M)[1]
    labels = dict(re.findall(r'([\w.]+)="([^"]*)"', " ".join(said(final, stages, "LABEL"))))
    for label in ["title", "description", "licenses", "version", "revision", "base.name", "base.digest"]:
        if f"org.opencontainers.image.{label}" not in labels:
            wrong.append(f"label org.opencontainers.image.{label} is missing")
    if labels.get("org.opencontainers.image.version") != version:
        wrong.append(f"the label of the version is not {version}, as in Cargo.toml")
    base = [labels.get(f"org.opencontainers.image.base.{part}") for part in ("name", "digest")]
    if "@".join(map(str, base)) != f"docker.io/library/{lineage(final, stages)[0]['base']}":
        wrong.append("the labels of the base are not the base")


def check_start(final, stages):
    """The defaults of the image: it listens where its ports are published, reports its health, and belongs to group 0."""
    command = json.loads((said(final, stages, "CMD") or ["[]"])[-1])
    ports = said(final, stages, "EXPOSE")[-1].split()
    if command[:1] != ["up"]:
        wrong.append(f"the default command is {command}, and not `up`")
    for port in ports:
        if f"0.0.0.0:{port}" not in command:
            wrong.append(f"port {port} is exposed, and the default command does not listen on it: {command}")
    if not any("CMD" in check and '"waybill", "ready"' in check for check in said(final, stages, "HEALTHCHECK")):
        wrong.append("HEALTHCHECK does not run `waybill ready`")
    installs = [run for run in said(final, stages, "RUN") if "install --directory" in run]
    if not any(re.search(r"--group=0 --mode=0770 /var/lib/waybill", run) for run in installs):
        wrong.append("a user of group 0 cannot write to /var/lib/waybill")


def check_context(binary):
    """Whether .dockerignore includes every file that cargo read to build the binary."""
    patterns = [
        line.strip()
        for line in pathlib.Path(".dockerignore").read_text().splitlines()
        if line.strip() and not line.startswith("#")
    ]
    if patterns[:1] != ["*"] or not all(re.fullmatch(r"![\w.-]+", pattern) for pattern in patterns[1:]):
        wrong.append(".dockerignore is to begin with *, and to name top-level entries with ! from then on")
        return
    let_through = {pattern[1:] for pattern in patterns[1:]}
    for name in sorted(let_through):
        if not pathlib.Path(name).exists():
            wrong.append(f".dockerignore lets {name} through, which is not there")
    needed = {"Cargo.toml", "Cargo.lock", ".cargo", "LICENSE"}
    members = re.findall(r'^  "([\w/-]+)",$', pathlib.Path("Cargo.toml").read_text(), re.M)
    needed |= {member.split("/")[0] for member in members}
    listed = pathlib.Path(f"{binary}.d")
    if listed.exists():
        root = pathlib.Path.cwd().resolve()
        for word in re.split(r"(?<!\\)\s+", listed.read_text().partition(":")[2].strip()):
            path = pathlib.Path(word.replace("\\ ", " ")).resolve()
            if path.is_relative_to(root) and not path.is_relative_to(root / "target"):
                needed.add(path.relative_to(root).parts[0])
    else:
        print(f"SKIPPED: what the image is built from was NOT held against {listed}, which is not there")
    for name in sorted(needed - let_through):
        wrong.append(f".dockerignore keeps {name} out, which the build needs")


def check_libraries(binary, stages):
    """Whether the image's packages are those of the libraries that the binary links, no more and no fewer."""
    runs = said(stages[-1], stages, "RUN")
    installed = set()
    for run in runs:
        for words in re.findall(r"apt-get install ([^&|;]+)", run):
            installed |= {word for word in words.split() if not word.startswith("-")}
    system = dict(re.findall(r'^(\w+)="?([^"\n]*)"?$', pathlib.Path("/etc/os-release").read_text(), re.M))
    if not stages[-1]["base"] or system.get("VERSION_CODENAME") not in lineage(stages[-1], stages)[0]["base"]:
        print(f"SKIPPED: the image's libraries were NOT held against the binary: this is {system.get('PRETTY_NAME')}")
        return
    if not binary.exists():
        print(f"SKIPPED: the image's libraries were NOT held against the binary: there is no {binary}")
        return
    linked = subprocess.run(["ldd", binary], check=True, capture_output=True, text=True).stdout
    if "not found" in linked:
        wrong.append(f"{binary} links what is not there:\n{linked}")
    packages = {package_of(path) for path in re.findall(r"(/\S+) \(0x", linked)}
    for package in sorted(packages - BASE_IMAGE_HAS - installed):
        wrong.append(f"the program links a library of {package}, which the image does not get")
    for package in sorted(installed - NOT_LINKED - packages):
        wrong.append(f"the image gets {package}, of which the program links nothing")
    print(f"libraries: {binary} links {json.dumps(sorted(packages))}; the image gets {json.dumps(sorted(installed))}")


def check_symbols(binary):
    """Whether librdkafka in the binary waits by our definition (crates/kafka/src/timed_wait.rs), not by the C library's."""
    if not binary.exists():
        print(f"SKIPPED: the symbols of the binary were NOT checked: there is no {binary}")
        return
    symbols = subprocess.run(["readelf", "--dyn-syms", "--wide", binary], check=True, capture_output=True, text=True).stdout
    if re.search(r" UND cnd_timedwait\b", symbols):
        wrong.append(f"{binary} takes cnd_timedwait from the C library")


def package_of(library):
    """The package of a library. The linker may report a path from before /lib became a link."""
    real = str(pathlib.Path(library).resolve())
    for path in [real, library, real.removeprefix("/usr"), library.removeprefix("/usr")]:
        found = subprocess.run(["dpkg-query", "--search", path], capture_output=True, text=True).stdout
        if found:
            return found.split(":")[0]
    wrong.append(f"{library} is of no package")
    return library


main()
