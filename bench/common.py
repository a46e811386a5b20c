"""What the programs here have in common: where the build is, how they stop, and what the programs that they measure have taken."""

import contextlib
import ctypes
import os
import resource
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RELEASE = ROOT / "target" / "release"
OUTRIDER = Path(os.environ.get("OUTRIDER_BIN", RELEASE / "outrider")).resolve()
LAB = OUTRIDER.with_name("outrider-lab")
if not LAB.exists():
    LAB = RELEASE / "outrider-lab"
VENV = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "outrider" / "venv"
PR_SET_CHILD_SUBREAPER = 36


class Stop(Exception):
    """Nothing can be measured; the text says why."""

    code = 1


def do(*command, **more):
    """Runs to the end; what it printed."""
    done = subprocess.run([str(c) for c in command], stdin=subprocess.DEVNULL, capture_output=True, text=True, **more)
    if done.returncode != 0:
        raise Stop(f"{' '.join(map(str, command))}: {done.stderr.strip() or done.returncode}")
    return done.stdout


def packages(names):
    """Has the Python of `VENV` with these packages from PyPI."""
    python = VENV / "bin" / "python"
    if not python.exists():
        do(sys.executable, "-m", "venv", VENV)
    if subprocess.run([python, "-c", f"import {', '.join(names)}"], capture_output=True).returncode != 0:
        do(python, "-m", "pip", "install", "--quiet", *names)


def adopt():
    """What a program leaves behind becomes a child of this process."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)


def processor():
    """Seconds that all processes have taken that were started here and are over."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def children():
    return set(Path(f"/proc/self/task/{os.getpid()}/children").read_text().split())


def reap(staying):
    """Waits for what a program has left behind: Outrider's service ends a little later. The servers of disks stay."""
    while children() - staying:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(-1, os.WNOHANG)
        time.sleep(0.002)


def measured(words, directory):
    """Runs a program to its end: its exit code, seconds, processor seconds of all that it started, and what it printed."""
    staying = children()
    used, start = processor(), time.perf_counter()
    program = subprocess.Popen([str(w) for w in words], cwd=directory, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
    printed = program.stdout.read()
    program.wait()
    seconds = time.perf_counter() - start
    reap(staying)
    return program.returncode, seconds, processor() - used, printed
