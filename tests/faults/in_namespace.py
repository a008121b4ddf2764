"""toy_run.py in a user namespace of its own, where a shell may mount what it likes first.

    python in_namespace.py COMMAND FOLDER [options of toy_run.py]

What is in FOLDER at the end goes to stderr: a file system that was mounted there goes with the process.
"""

import ctypes
import os
import runpy
import subprocess
import sys
from pathlib import Path

NEW_MOUNTS, NEW_USER = 0x00020000, 0x10000000  # CLONE_NEWNS and CLONE_NEWUSER of sched.h


def enter() -> None:
    """Become root of a new namespace, as `unshare --map-root-user --mount` does."""
    ids = {"uid_map": f"0 {os.getuid()} 1", "gid_map": f"0 {os.getgid()} 1"}
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(NEW_MOUNTS | NEW_USER):
        raise OSError(ctypes.get_errno(), "unshare")
    for name, value in {"setgroups": "deny", **ids}.items():
        Path("/proc/self", name).write_text(value)


if __name__ == "__main__":
    _, command, folder, *words = sys.argv
    enter()
    subprocess.run(["sh", "-c", command], check=True)
    script = Path(__file__).with_name("toy_run.py")
    sys.argv = [str(script), *words]
    try:
        runpy.run_path(str(script), run_name="__main__")
    finally:
        subprocess.run(["du", "-a", folder], stdout=sys.stderr, check=True)
