"""The machine's side of the campaign: Debian's sources, the slow disk, and a suite's run as an
unprivileged user."""

import os
import pwd
import shutil
import signal
import subprocess
import threading
import time
from pathlib import Path

MIB = 1 << 20


class Stop(Exception):
    """This can't go on; the text says why."""


def run(command, **more):
    """Runs to its success; what it printed."""
    done = subprocess.run(
        [str(word) for word in command],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        **more,
    )
    if done.returncode != 0:
        text = (done.stderr.strip() or done.stdout.strip() or str(done.returncode)).splitlines()
        raise Stop(f"{command[0]} {command[1]}: {' / '.join(text[-3:])}")
    return done.stdout


def os_release():
    lines = Path("/etc/os-release").read_text(encoding="utf-8").splitlines()
    return {key: value.strip('"') for key, _, value in (line.partition("=") for line in lines)}


class Apt:
    """Debian's archive, through lists and a cache of our own: the machine's are left as they
    are."""

    def __init__(self, base):
        self.base = base
        self.options = [
            f"-oDir::Etc::SourceList={base}/sources.list",
            "-oDir::Etc::SourceParts=/dev/null",
            f"-oDir::State::Lists={base}/lists",
            f"-oDir::Cache={base}/cache",
            "-oAPT::Sandbox::User=root",
        ]

    def ready(self):
        if (self.base / "updated").exists():
            return
        if not shutil.which("apt-get") or not shutil.which("dpkg-source"):
            raise Stop(
                "the suites' sources are Debian's: apt-get and dpkg-source (dpkg-dev) are needed"
            )
        known = os_release()
        # Ubuntu and others have packages of their own; the suites are to be the same everywhere.
        codename = known["VERSION_CODENAME"] if known.get("ID") == "debian" else "bookworm"
        for part in ("lists/partial", "cache/archives/partial"):
            (self.base / part).mkdir(parents=True, exist_ok=True)
        (self.base / "sources.list").write_text(
            "".join(
                f"{kind} http://deb.debian.org/debian {codename} main\n"
                for kind in ("deb", "deb-src")
            ),
            encoding="utf-8",
        )
        run(["apt-get", "-qq", *self.options, "update"])
        (self.base / "updated").touch()

    def unpack(self, recipe, directory):
        """A recipe's source, or the binary packages that it runs from; its version."""
        if not recipe.source and not recipe.debs:
            directory.mkdir()
            return "-"
        self.ready()
        fetched = self.base / "fetched" / recipe.directory
        fetched.mkdir(parents=True, exist_ok=True)
        if recipe.source:
            run(
                ["apt-get", "-qq", *self.options, "source", "--download-only", recipe.source],
                cwd=fetched,
            )
            (control,) = sorted(fetched.glob("*.dsc"))[-1:]
            patches = [] if recipe.patched else ["--skip-patches"]
            run(["dpkg-source", "--no-check", "--no-copy", *patches, "-x", control, directory])
            return control.stem.split("_", 1)[1]
        names = [word.replace("{python}", debian_python()) for word in recipe.debs]
        run(["apt-get", "-qq", *self.options, "download", *names], cwd=fetched)
        for package in sorted(fetched.glob("*.deb")):
            run(["dpkg-deb", "-x", package, directory])
        return sorted(fetched.glob("*.deb"))[0].name.split("_")[1].replace("%3a", ":")


def debian_python():
    """The name of Debian's Python, with its version: python3.11."""
    return Path("/usr/bin/python3").resolve().name


def packages_missing(recipe):
    missing = []
    for package in recipe.packages:
        status = subprocess.run(
            ["dpkg-query", "-W", "-f${db:Status-Status}", package], capture_output=True, text=True
        )
        if status.stdout != "installed":
            missing.append(package)
    return missing


class Disk:
    """Where the suites' trees lie: an emulated disk, made anew for each run, or a directory where
    that can't be had. Its path is always the same, as builds remember it."""

    def __init__(self, binaries, mount, gigabytes=6, model="remote"):
        self.lab, self.outrider = binaries / "outrider-lab", binaries / "outrider"
        self.mount, self.gigabytes, self.model = mount, gigabytes, model
        self.emulated = model != "none"

    def up(self):
        self.down()
        self.mount.mkdir(parents=True, exist_ok=True)
        if self.emulated:
            # Fast while the tree is made.
            size = f"{self.gigabytes}G"
            run([self.lab, "disk", "up", "off", "--size", size, "--mount", self.mount])
        for name in ("home", "tmp"):
            (self.mount / name).mkdir(exist_ok=True)

    def make_cold(self):
        os.sync()
        if self.emulated:
            run([self.lab, "disk", "model", self.mount, self.model])
            run([self.lab, "disk", "cold", self.mount])
        else:
            run([self.outrider, "evict", self.mount])

    def down(self):
        if os.path.ismount(self.mount):
            try:
                run([self.lab, "disk", "down", self.mount])
            except Stop:
                run([self.lab, "disk", "down", self.mount, "--lazy"])
        elif not self.emulated and self.mount.exists():
            shutil.rmtree(self.mount)


def owned_by(user, *places):
    entry = pwd.getpwnam(user)
    run(["chown", "-R", "-h", f"{entry.pw_uid}:{entry.pw_gid}", *places])


def suite_command(user, shell, outrider, places):
    """The whole command of a suite's run: its own process ids, so that nothing outlives it, and its
    own user."""
    entry = pwd.getpwnam(user)
    ours = [outrider, "run", f"--report={places['report']}", "--"] if outrider else []
    return [
        *("unshare", "--pid", "--fork", "--kill-child", "--mount", "--mount-proc"),
        *("setpriv", f"--reuid={entry.pw_uid}", f"--regid={entry.pw_gid}", "--clear-groups"),
        *("env", "-i", "--default-signal", "--chdir", str(places["tree"])),
        *(f"{name}={value}" for name, value in places["environment"].items()),
        *map(str, ours),
        *("sh", "-c", shell),
    ]


def run_suite(command, log, seconds, evict):
    """Runs a suite with its output into a log; how it ended, and the seconds that it took. `evict`
    is called all the while."""
    began = time.monotonic()
    over = threading.Event()

    def evicting():
        while not over.wait(10):
            evict()

    thread = threading.Thread(target=evicting, daemon=True)
    with log.open("wb") as output:
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        thread.start()
        try:
            end = str(child.wait(seconds))
        except subprocess.TimeoutExpired:
            end = "timeout"
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()
        except BaseException:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()
            raise
        finally:
            over.set()
            thread.join()
    return end, time.monotonic() - began
