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


def debian_archive():
    """Where the machine's own apt has Debian's packages from, and of which release: their sources are there, too."""
    known = os_release()
    if known.get("ID") != "debian":
        raise Stop("the suites are Debian's packages: a Debian system (or container) is needed")
    codename = known["VERSION_CODENAME"]
    listed = subprocess.run(
        ["apt-get", "indextargets", "--format", "$(REPO_URI) $(CODENAME) $(COMPONENT)"],
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    ).stdout
    for line in listed.splitlines():
        archive, *what = line.split()
        if what == [codename, "main"]:
            return archive, codename
    raise Stop(f"none of the machine's package sources has Debian's {codename}: run apt-get update")


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
        archive, codename = debian_archive()
        for part in ("lists/partial", "cache/archives/partial"):
            (self.base / part).mkdir(parents=True, exist_ok=True)
        (self.base / "sources.list").write_text(
            "".join(
                f"{kind} {archive} {codename} main\n"
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


class Cache:
    """Throws out what a suite has in the page cache, without opening anything: its processes are in
    a memory cgroup of their own, which is told to give back what it can. Where that can't be had,
    directories of the suite are evicted."""

    def __init__(self, outrider, directories):
        self.outrider, self.directories = outrider, directories
        self.group, self.file, self.word = memory_cgroup()
        self.whole = self.group is not None

    def enter(self, command):
        """The command, in the cgroup."""
        if not self.whole:
            return command
        return ["sh", "-c", f'echo $$ >"{self.group}/cgroup.procs" && exec "$@"', "sh", *command]

    def drop(self):
        if self.whole:
            try:
                (self.group / self.file).write_text(self.word, encoding="ascii")
            except OSError:
                pass  # Not all could be given back: some of it is dirty or in use.
        elif self.directories:
            subprocess.run(
                [self.outrider, "evict", *self.directories],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )

    def close(self):
        for _ in range(100):
            try:
                if self.whole:
                    self.group.rmdir()
                return
            except OSError:
                time.sleep(0.05)


def memory_cgroup():
    """A new memory cgroup, the file in it that takes the order to give back its pages, and the
    order. None if the machine has none that we may make."""
    name = f"outrider-campaign-{os.getpid()}"
    own = dict(
        line.split(":", 2)[1:]
        for line in Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    )
    with open("/proc/self/mounts", encoding="utf-8") as mounts:
        for line in mounts:
            _, place, kind, options, *_ = line.split()
            if kind == "cgroup" and "memory" in options.split(","):
                group, file, word = (
                    Path(place + own.get("memory", "")) / name,
                    "memory.force_empty",
                    "0",
                )
            elif kind == "cgroup2":
                # Below the root, as a group that has processes can't give its children a
                # controller.
                group, file, word = Path(place) / name, "memory.reclaim", f"{1 << 40}"
            else:
                continue
            try:
                group.mkdir()
                if (group / file).exists():
                    return group, file, word
                group.rmdir()
            except OSError:
                pass
    return None, None, None


def run_suite(command, log, seconds, cache, every):
    """Runs a suite with its output into a log; how it ended, and the seconds that it took. All the
    while the cache is emptied."""
    began = time.monotonic()
    over = threading.Event()

    def dropping():
        while not over.wait(every):
            cache.drop()

    thread = threading.Thread(target=dropping, daemon=True)
    with log.open("wb") as output:
        child = subprocess.Popen(
            cache.enter(command),
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
            cache.close()
    return end, time.monotonic() - began
