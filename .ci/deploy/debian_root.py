"""A bare Debian of its packages, in a directory, for checks that need a fresh system."""

import os
import pathlib
import shutil
import subprocess

RELEASE = "bookworm"


class Unavailable(Exception):
    """The Debian cannot be made here. The text gives the reason."""


def make_root(root):
    """Makes a minimal Debian with debootstrap. DEBIAN_MIRROR names a mirror of Debian's packages."""
    if os.geteuid() != 0:
        raise Unavailable("only root can make a Debian by debootstrap")
    if not shutil.which("debootstrap") and not succeeds("apt-get", "install", "-y", "-qq", "debootstrap"):
        raise Unavailable("there is no debootstrap, and it cannot be installed")
    remove_root(root)
    mirror = os.environ.get("DEBIAN_MIRROR")
    command = ["debootstrap", "--variant=minbase", RELEASE, str(root), *([mirror] if mirror else [])]
    made = subprocess.run(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=1800)
    if made.returncode:
        why = made.stdout.strip().splitlines()[-1:] or ["it gave no reason"]
        raise Unavailable(f"debootstrap failed: {why[0]}")


def remove_root(root):
    """Removes a directory in which debootstrap worked. A killed debootstrap leaves file systems mounted there."""

    def mounts():
        lines = pathlib.Path("/proc/self/mounts").read_text().splitlines()
        return [point for point in (line.split()[1] for line in lines) if point.startswith(f"{root}/")]

    for point in reversed(mounts()):
        succeeds("umount", point)
    if mounts():
        raise Unavailable(f"{mounts()[0]} is mounted, so {root} is not removed")
    shutil.rmtree(root, ignore_errors=True)


def succeeds(*command):
    return subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=600).returncode == 0
