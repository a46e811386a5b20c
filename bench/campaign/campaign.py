#!/usr/bin/env python3
"""Other projects' own test suites, without and with Outrider, on cold files of a slow disk.

    bench/campaign/campaign.py [--state DIR] [--only NAME,…] [--list] [--save DIR] …

Each suite runs twice as a whole, once as it is and once below `outrider run`, as an unprivileged
user, on an emulated disk with the latency of network storage (`outrider-lab disk`, model `remote`),
cold at the beginning and with all that it has in the page cache thrown out every five seconds.
What passes without and not with Outrider is repeated twice in each way; what passes both times
without is a new failure: a fault of Outrider's. The fuzzer of crates/outrider/tests/fuzz.rs is run
until it has made --operations in each mode.

It takes hours and goes on where it was interrupted: each suite and side has a file of results in
the state directory (`results/`, logs beside in `logs/`), and what has one is not run again, unless
--again names it. Outrider is copied into the state directory at first; --new-build takes the
present build and runs everything with it again. What was found with an older one stays in the table,
which names each row's build, until its turn comes.

Needs root, Linux with FUSE and loop devices (otherwise the trees lie in a plain directory and are
evicted), and Debian's apt-get. Only Python's standard library is used. Exit code 1 if there is a
new failure, 2 for a wrong argument or if nothing could be run.
"""

import argparse
import fnmatch
import hashlib
import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import machine
import parsers
from machine import Stop
from parsers import FAIL, PASS, SKIP, unit_of

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
WITHOUT, WITH = "without", "with"
SIDES = (WITHOUT, WITH)
REPEATS = 2
# Operations of the fuzzer that one of its files of results stands for: minutes. Its last sequences
# leave processors idle, so it isn't less.
FUZZ_STEP = 250_000


def say(text):
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


# ---------------------------------------------------------------------------------------------
# What was found


def write_json(path, value):
    """Whole or not at all: an interrupted campaign must not find half a result."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    part.write_text(json.dumps(value, indent=0, sort_keys=True) + "\n", encoding="utf-8")
    part.replace(path)


def read_json(path):
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None


def counts(cases):
    outcomes = [outcome for outcome, _ in cases.values()]
    return {word: outcomes.count(word) for word in (PASS, FAIL, SKIP)}


def outcome(result, name):
    return result["cases"].get(name, ["missing", ""])[0]


def suspects(without, with_):
    """Cases that pass without and don't with Outrider: they fail, are left out or never come."""
    return sorted(
        name
        for name, (found, _) in without["cases"].items()
        if found == PASS and outcome(with_, name) != PASS
    )


def judged(without, with_, repeats):
    """New failures and what is unsteady without Outrider, too. A suspect that wasn't repeated yet
    is in neither."""
    new, unsteady = [], []
    rounds = [turn for turn in (repeats or {}).get("rounds", []) if set(turn) == set(SIDES)]
    for name in suspects(without, with_):
        if len(rounds) < REPEATS:
            continue
        plain = [outcome(turn[WITHOUT], name) for turn in rounds]
        ours = [outcome(with_, name), *(outcome(turn[WITH], name) for turn in rounds)]
        bad = sum(found != PASS for found in ours)
        row = {
            "case": name,
            "without": [PASS, *plain],
            "with": ours,
            "detail": with_["cases"].get(name, ["", ""])[1],
            "failed": f"{bad} of {len(ours)}",
        }
        (new if all(found == PASS for found in plain) else unsteady).append(row)
    return new, unsteady


class State:
    """The state directory: one file for each suite and side."""

    def __init__(self, base):
        self.base = base

    def __truediv__(self, name):
        return self.base / name

    def result_path(self, suite, side):
        return self.base / "results" / f"{suite}.{side}.json"

    def result(self, suite, side):
        return read_json(self.result_path(suite, side))

    def forget(self, suite):
        for path in (self.base / "results").glob(f"{suite}.*.json"):
            path.unlink()

    def log(self, name):
        path = self.base / "logs" / f"{name}.log"
        path.parent.mkdir(parents=True, exist_ok=True)
        return path


# ---------------------------------------------------------------------------------------------
# Running


def copied(source, target):
    """Not over a file that is being run."""
    part = target.with_suffix(".part")
    shutil.copy2(source, part)
    part.replace(target)


class Campaign:
    def __init__(self, state, args):
        self.state, self.args = state, args
        self.binaries = state / "bin"
        self.apt = machine.Apt(state / "apt")
        self.disk = machine.Disk(self.binaries, state / "disk", model=args.disk)

    def prepare(self):
        """Copies the build: it may change while the campaign goes on."""
        for place in (self.state.base, self.binaries):
            place.mkdir(parents=True, exist_ok=True)
            place.chmod(0o755)
        names = ["outrider", "outrider-lab", "liboutrider.so"]
        if self.args.new_build or not all((self.binaries / name).exists() for name in names):
            for name in names:
                source = self.args.build / name
                if not source.exists():
                    raise Stop(f"{source} is not there: make build first")
                copied(source, self.binaries / name)
        copied(HERE / "each.py", self.binaries / "each.py")
        reader = [
            "setpriv",
            "--reuid=65534",
            "--regid=65534",
            "--clear-groups",
            "test",
            "-r",
            self.binaries,
        ]
        if subprocess.run(list(map(str, reader))).returncode != 0:
            raise Stop(
                f"{self.state.base}: an unprivileged user can't get there; choose another --state"
            )

    def build_hash(self):
        digest = hashlib.sha256()
        for name in ("outrider", "liboutrider.so"):
            digest.update((self.binaries / name).read_bytes())
        return digest.hexdigest()[:12]

    def places(self, recipe, units=()):
        tree = self.state / "disk" / recipe.directory
        return {
            "tree": tree,
            "report": self.state / "disk" / "report",
            "environment": {
                "PATH": "/usr/bin:/bin:/usr/sbin:/sbin",
                "HOME": str(self.state / "disk" / "home"),
                "TMPDIR": str(self.state / "disk" / "tmp"),
                "LC_ALL": "C",
                "USER": self.args.user,
                "LOGNAME": self.args.user,
                "SHELL": "/bin/sh",
                "TERM": "dumb",
                "JOBS": str(self.args.jobs),
                "UNITS": " ".join(units),
                **recipe.environment,
            },
        }

    def built(self, recipe):
        """The archive of a suite's built tree, which is made if it isn't there."""
        archive = self.state / "built" / f"{recipe.directory}.tar"
        if archive.exists():
            return archive
        if missing := machine.packages_missing(recipe):
            raise Stop(f"needs {' '.join(missing)} (.ci/deps campaign)")
        say(f"{recipe.name}: building {recipe.directory}")
        archive.parent.mkdir(parents=True, exist_ok=True)
        self.disk.up()
        try:
            tree = self.disk.mount / recipe.directory
            version = self.apt.unpack(recipe, tree)
            log = self.state.log(f"{recipe.directory}.build")
            environment = {
                **os.environ,
                "LC_ALL": "C",
                "JOBS": str(self.args.jobs),
                "FORCE_UNSAFE_CONFIGURE": "1",
            }
            with log.open("wb") as output:
                done = subprocess.run(
                    ["sh", "-e", "-c", recipe.build],
                    cwd=tree,
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                )
            if done.returncode != 0:
                raise Stop(f"can't be built, see {log}")
            (tree / ".campaign-version").write_text(version, encoding="utf-8")
            machine.owned_by(self.args.user, tree)
            part = archive.with_suffix(".part")
            machine.run(
                ["tar", "--format=posix", "-C", self.disk.mount, "-cf", part, recipe.directory]
            )
            part.replace(archive)
        finally:
            self.disk.down()
        return archive

    def shell(self, recipe):
        if recipe.test:
            return recipe.test
        quoted = recipe.each.replace("'", "'\\''")
        jobs = "1" if recipe.serial else "$JOBS"
        each = f"/usr/bin/python3 {self.binaries}/each.py {jobs} {recipe.limit} '{quoted}'"
        return f'{{ if [ -n "$UNITS" ]; then echo "$UNITS"; else ({recipe.units}); fi; }} | {each}'

    def run(self, recipe, side, units=(), label=""):
        """One run of a suite, or of some units of it; its result."""
        archive = self.built(recipe)
        name = f"{recipe.name}{label}.{side}"
        log = self.state.log(name)
        self.disk.up()
        try:
            machine.run(["tar", "-C", self.disk.mount, "-xpf", archive])
            places = self.places(recipe, units)
            tree = places["tree"]
            places["report"].touch()
            machine.owned_by(
                self.args.user, *(self.disk.mount / part for part in ("home", "tmp", "report"))
            )
            self.disk.make_cold()
            outrider = self.binaries / "outrider" if side == WITH else None
            command = machine.suite_command(self.args.user, self.shell(recipe), outrider, places)
            cold = [str(tree / part) for part in recipe.cold if (tree / part).exists()]

            cache = machine.Cache(self.binaries / "outrider", cold)
            end, seconds = machine.run_suite(
                command, log, recipe.timeout, cache, self.args.cold_every
            )
            text = log.read_text(encoding="utf-8", errors="replace")
            for pattern in recipe.files:
                for path in sorted(tree.glob(pattern)):
                    text += "\n" + path.read_text(encoding="utf-8", errors="replace")
            version = (tree / ".campaign-version").read_text(encoding="utf-8")
            totals = told(places["report"]) if side == WITH else None
        finally:
            self.disk.down()
        cases = {case.name: [case.outcome, case.detail] for case in recipe.parser(text)}
        if not cases:
            raise Stop(f"no case was found in what it printed, see {log}")
        result = {
            "suite": recipe.name,
            "side": side,
            "version": version,
            "build": self.build_hash() if side == WITH else None,
            "kernel": os.uname().release,
            "date": time.strftime("%Y-%m-%d"),
            "seconds": round(seconds),
            "end": end,
            "told": totals,
            "all_cold": cache.whole,
            "cases": cases,
        }
        found = counts(cases)
        say(
            f"{name}: {found[PASS]} passed, {found[FAIL]} failed, {found[SKIP]} skipped; ended: {end}"
        )
        return result

    def suite(self, recipe):
        """Both sides and, where they differ, the repeats; only what has no result with this build
        yet."""
        results = {}
        build = {WITHOUT: None, WITH: self.build_hash()}
        for side in SIDES:
            results[side] = self.state.result(recipe.name, side)
            if results[side] is None or results[side]["build"] != build[side]:
                say(f"{recipe.name}.{side}: begins")
                results[side] = self.run(recipe, side)
                # The repeats belong to what was before.
                self.state.result_path(recipe.name, "repeats").unlink(missing_ok=True)
                write_json(self.state.result_path(recipe.name, side), results[side])
        found = suspects(results[WITHOUT], results[WITH])
        repeats = self.state.result(recipe.name, "repeats") or {"rounds": []}
        if not found:
            return
        units = sorted({unit_of(name) for name in found}) if recipe.alone else []
        while True:
            rounds = repeats["rounds"]
            if not rounds or set(rounds[-1]) == set(SIDES):
                if len(rounds) >= REPEATS:
                    return
                rounds.append({})
            side = WITHOUT if WITHOUT not in rounds[-1] else WITH
            result = self.run(recipe, side, units, f".repeat{len(rounds)}")
            result["cases"] = {
                name: case for name, case in result["cases"].items() if name in found
            }
            rounds[-1][side] = result
            write_json(self.state.result_path(recipe.name, "repeats"), repeats)

    # The fuzzer compares both sides itself.

    def fuzz(self):
        steps = -(-self.args.operations // FUZZ_STEP)
        per_step = FUZZ_STEP // 5_000
        program = None
        for step in range(steps):
            path = self.state.result_path("fuzz", f"{step * per_step + 1:05}")
            if (known := read_json(path)) and known["build"] == self.build_hash():
                continue
            if program is None:
                say("fuzz: building")
                program = self.fuzzer()
            environment = {
                **os.environ,
                "OUTRIDER_BIN": str(self.binaries / "outrider"),
                "OUTRIDER_FUZZ_SEED": str(1 + step * per_step),
                "OUTRIDER_FUZZ_OPS": str(FUZZ_STEP),
            }
            done = subprocess.run(
                [program, "random_operations_give_the_same_results", "--exact", "--nocapture"],
                cwd=ROOT,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
            )
            self.state.log(f"fuzz.{step * per_step + 1:05}").write_text(done.stdout, encoding="utf-8")
            found = fuzz_divergences(done.stdout)
            if done.returncode != 0 and not found:
                raise Stop(f"the fuzzer failed: {done.stdout[-500:]}")
            write_json(path, {"operations": FUZZ_STEP, "build": self.build_hash(), "found": found})
            say(
                f"fuzz: {(step + 1) * FUZZ_STEP} operations in each mode, {len(found)} divergences in the last {FUZZ_STEP}"
            )

    def fuzzer(self):
        built = machine.run(
            [
                "cargo",
                "test",
                "--locked",
                "-p",
                "outrider",
                "--test",
                "fuzz",
                "--no-run",
                "--message-format=json",
            ],
            cwd=ROOT,
        )
        for line in built.splitlines():
            if line.startswith("{"):
                message = json.loads(line)
                if message.get("executable") and message["target"]["name"] == "fuzz":
                    return message["executable"]
        raise Stop("cargo names no program for the test fuzz")


def told(report):
    """What a report says of the whole run: whether Outrider had anything to do. None if it wrote
    none, as when killed."""
    try:
        totals = json.loads(report.read_text(encoding="utf-8"))["totals"]
    except (OSError, ValueError, KeyError):
        return None
    return {name: totals.get(name) for name in ("events", "prefetched_bytes", "used_bytes")}


def fuzz_divergences(text):
    """The first line of each: `seed 17, mode predict, engine auto`, or what the fuzzer says of
    itself."""
    return re.findall(r"^(seed \d+[,:] .*)$", text, re.MULTILINE)


# ---------------------------------------------------------------------------------------------
# The table


def summary_of(recipe, state):
    """What is kept of a suite: numbers, and the names of what didn't pass. None if it wasn't
    run."""
    without, with_ = (state.result(recipe.name, side) for side in SIDES)
    if without is None and with_ is None:
        return None
    kept = {"suite": recipe.name}
    for side, result in ((WITHOUT, without), (WITH, with_)):
        if result is None:
            continue
        kept |= {"version": result["version"], "kernel": result["kernel"], "date": result["date"]}
        if result["build"]:
            kept |= {"build": result["build"], "told": result.get("told")}
        kept["all_cold"] = kept.get("all_cold", True) and result.get("all_cold", False)
        names = result["cases"].items()
        kept[side] = {
            **counts(result["cases"]),
            "end": result["end"],
            "failed": sorted(name for name, (found, _) in names if found == FAIL),
        }
    if without and with_:
        new, unsteady = judged(without, with_, state.result(recipe.name, "repeats"))
        told = {row["case"] for row in [*new, *unsteady]}
        kept |= {
            "cases": len(without["cases"].keys() | with_["cases"].keys()),
            "new": new,
            "unsteady": unsteady,
            "not_repeated": [name for name in suspects(without, with_) if name not in told],
        }
    return kept


def fuzz_summary(state):
    steps = [read_json(path) for path in sorted((state / "results").glob("fuzz.*.json"))]
    if not steps:
        return None
    operations = {}
    for step in steps:
        operations[step["build"]] = operations.get(step["build"], 0) + step["operations"]
    found = [line for step in steps for line in step["found"]]
    return {
        "operations_in_each_mode": sum(operations.values()),
        "operations_with_build": operations,
        "found": [line for line in found if ", mode " in line],
        "nothing_shown": [line for line in found if ", mode " not in line],
    }


def table(rows, left_out, fuzz):
    """The report, as Markdown."""

    def cells(side):
        return f"{side[PASS]} / {side[FAIL]} / {side[SKIP]}" if side else "-"

    lines = [
        "| suite | version | cases | without: passed / failed / skipped | with Outrider | new failures | unsteady | prefetched, MB | build |",
        "| --- | --- | ---: | --- | --- | ---: | ---: | ---: | --- |",
    ]
    total = {"cases": 0, "new": 0}
    for row in rows:
        both = WITHOUT in row and WITH in row
        open_ = (
            f" (+{len(row['not_repeated'])} not repeated)" if both and row["not_repeated"] else ""
        )
        ends = [
            f"{side}: {row[side]['end']}"
            for side in SIDES
            if side in row and row[side]["end"] == "timeout"
        ]
        cases = str(row["cases"]) if both else "-"
        new = f"{len(row['new'])}{open_}" if both else "-"
        unsteady = len(row["unsteady"]) if both else "-"
        name = f"{row['suite']} ({', '.join(ends)})" if ends else row["suite"]
        # That it had something to do.
        told = row.get("told")
        fetched = f"{told['prefetched_bytes'] / 1e6:.0f}" if told else "-"
        line = [
            name,
            row["version"],
            cases,
            cells(row.get(WITHOUT)),
            cells(row.get(WITH)),
            new,
            unsteady,
            fetched,
            row.get("build", "-"),
        ]
        lines.append("| " + " | ".join(map(str, line)) + " |")
        if both:
            total["cases"] += row["cases"]
            total["new"] += len(row["new"])
    lines.append(f"| **all** | | **{total['cases']}** | | | **{total['new']}** | | | |")
    faults = [(row["suite"], fault) for row in rows for fault in row.get("new", [])]
    if faults:
        lines += [
            "",
            "## New failures",
            "",
            "Passed each time without, and with Outrider failed so often:",
            "",
        ]
        for suite, fault in faults:
            detail = f" ({fault['detail'][:120]})" if fault["detail"] else ""
            lines.append(f"- {suite}: `{fault['case']}`, {fault['failed']}{detail}")
    waiting = [(row["suite"], name) for row in rows for name in row.get("not_repeated", [])]
    if waiting:
        lines += ["", "## Not repeated yet", ""]
        lines += [f"- {suite}: `{name}`" for suite, name in waiting]
    if fuzz:
        lines += ["", "## The fuzzer", ""]
        lines.append(
            f"{fuzz['operations_in_each_mode']} operations in each mode, {len(fuzz['found'])} divergences"
            f" and {len(fuzz['nothing_shown'])} sequences that differ from themselves without Outrider"
            f" (operations with each build: {', '.join(f'{build} {n}' for build, n in sorted(fuzz['operations_with_build'].items()))})."
        )
        if fuzz["found"] or fuzz["nothing_shown"]:
            lines += ["", *(f"- {line}" for line in [*fuzz["found"], *fuzz["nothing_shown"]])]
    if left_out:
        lines += ["", "## Left out", "", *(f"- {name}: {why}" for name, why in left_out.items())]
    return "\n".join(lines) + "\n"


def report(state, recipes, left_out):
    rows = [row for row in (summary_of(recipe, state) for recipe in recipes) if row]
    missing = {
        recipe.name: "not run yet"
        for recipe in recipes
        if state.result(recipe.name, WITHOUT) is None
    }
    return rows, table(rows, missing | left_out, fuzz_summary(state))


def save(directory, rows, text, fuzz):
    directory.mkdir(parents=True, exist_ok=True)
    for row in rows:
        write_json(directory / f"{row['suite']}.json", row)
    if fuzz:
        write_json(directory / "fuzz.json", fuzz)
    kernels, dates = (
        sorted({row[key] for row in rows if key in row}) for key in ("kernel", "date")
    )
    head = (
        f"# Other projects' test suites, without and with Outrider\n\n{', '.join(dates)}, Linux {', '.join(kernels)}."
        f" A build's name is the beginning of its files' SHA-256. How it is made: [bench/campaign](../../campaign/README.md).\n\n"
    )
    notes = directory / "notes.md"
    tail = "\n" + notes.read_text(encoding="utf-8") if notes.exists() else ""
    (directory / "summary.md").write_text(head + text + tail, encoding="utf-8")


# ---------------------------------------------------------------------------------------------


FUZZ = "fuzz"


def recipes_of(path):
    """The list RECIPES of a file of recipes."""
    # Not "recipes": other files take its class from there.
    spec = importlib.util.spec_from_file_location("chosen_recipes", path)
    module = importlib.util.module_from_spec(spec)
    # Data classes look for their module there.
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module.RECIPES


def named(names, patterns, option):
    """The names that an option's patterns mean; all if it wasn't given."""
    found = []
    for pattern in [word for words in patterns for word in words.split(",")]:
        matched = fnmatch.filter(names, pattern)
        if not matched:
            raise Stop(f"{option} {pattern}: no such suite; there are {', '.join(names)}")
        found += matched
    return set(found)


def arguments(words):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--state",
        type=Path,
        default=Path("/var/tmp/outrider-campaign"),
        help="the state directory (/var/tmp/outrider-campaign)",
    )
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="NAME,…",
        help="these suites (patterns are allowed; fuzz is the fuzzer)",
    )
    parser.add_argument(
        "--again",
        action="append",
        default=[],
        metavar="NAME,…",
        help="forget the results of these, and run them",
    )
    parser.add_argument(
        "--list",
        action="store_true",
        help="list the suites and what there is of them, and run nothing",
    )
    parser.add_argument(
        "--table", action="store_true", help="print the table of what there is, and run nothing"
    )
    parser.add_argument(
        "--save",
        type=Path,
        metavar="DIR",
        help="also write summaries and the table here, to be committed",
    )
    parser.add_argument(
        "--jobs", type=int, default=os.cpu_count(), help="tests of a suite at a time (the CPUs)"
    )
    parser.add_argument(
        "--build",
        type=Path,
        default=ROOT / "target" / "release",
        help="where outrider is (target/release)",
    )
    parser.add_argument(
        "--new-build",
        action="store_true",
        help="copy the build anew, and run again what was found with another one",
    )
    parser.add_argument(
        "--recipes",
        type=Path,
        default=HERE / "recipes.py",
        metavar="FILE",
        help="other suites than those of recipes.py",
    )
    parser.add_argument(
        "--disk",
        default="remote",
        metavar="MODEL",
        help="the emulated disk's model (remote), or none: a plain directory",
    )
    parser.add_argument(
        "--cold-every",
        type=float,
        default=5,
        metavar="SECONDS",
        help="how often what a suite has in the page cache is thrown out (5)",
    )
    parser.add_argument("--user", default="nobody", help="the user that the suites run as (nobody)")
    parser.add_argument(
        "--operations", type=int, default=10_000_000, help="of the fuzzer, in each mode (10000000)"
    )
    args = parser.parse_args(words)
    if args.jobs < 1:
        parser.error(f"--jobs {args.jobs}: accepted are 1 and more")
    args.state = args.state.absolute()
    return args


def interrupted(_number, _frame):
    raise KeyboardInterrupt


def main(words):
    # As after Ctrl-C: the disk is taken down, the suite's processes end.
    signal.signal(signal.SIGTERM, interrupted)
    args = arguments(words)
    state = State(args.state)
    recipes = recipes_of(args.recipes)
    names = [recipe.name for recipe in recipes] + [FUZZ]
    only = named(names, args.only, "--only") or set(names)
    again = named(names, args.again, "--again")
    left_out = {}
    if args.list:
        for recipe in recipes:
            there = [side for side in SIDES if state.result(recipe.name, side)]
            print(f"{recipe.name:12} {' and '.join(there) or '-'}")
        return 0
    if not args.table:
        if os.geteuid() != 0:
            raise Stop("needs root, for the disk and to become an unprivileged user")
        campaign = Campaign(state, args)
        campaign.prepare()
        for name in again:
            state.forget(name)
        for recipe in recipes:
            if recipe.name not in only:
                continue
            try:
                campaign.suite(recipe)
            except Stop as why:
                say(f"{recipe.name}: left out: {why}")
                left_out[recipe.name] = str(why).replace(str(state.base), "the state directory")
        if FUZZ in only:
            campaign.fuzz()
    rows, text = report(state, recipes, left_out)
    print(text, end="")
    if args.save:
        save(args.save, rows, text, fuzz_summary(state))
    if not rows and not args.table and only != {FUZZ}:
        return 2
    return 1 if any(row.get("new") for row in rows) else 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except Stop as why:
        print(f"campaign: {why}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)
