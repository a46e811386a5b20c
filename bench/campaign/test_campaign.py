#!/usr/bin/env python3
"""Tests of the campaign: what it makes of suites' output (samples/ is real), and that it goes on
where it stopped."""

import contextlib
import io
import json
import sys
import tempfile
import unittest
from collections import Counter
from pathlib import Path

sys.dont_write_bytecode = True
HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import campaign
import parsers
from campaign import SIDES, WITH, WITHOUT
from machine import Stop
from parsers import FAIL, PASS, SKIP
from recipes import RECIPES, Recipe


def read(parser, sample):
    cases = list(parser((HERE / "samples" / sample).read_text(encoding="utf-8", errors="replace")))
    names = [case.name for case in cases]
    assert len(names) == len(set(names)), "a name comes twice"
    return {case.name: case.outcome for case in cases}


class Parsers(unittest.TestCase):
    def check(self, parser, sample, counted, some):
        cases = read(parser, sample)
        self.assertEqual(Counter(cases.values()), Counter(counted))
        for name, outcome in some.items():
            self.assertEqual(cases.get(name), outcome, name)

    def test_automake(self):
        some = {
            "testsuite/bug32271-2.sh": FAIL,
            "testsuite/mb-bad-delim.sh": SKIP,
            "testsuite/debug.pl": PASS,
        }
        self.check(parsers.automake, "automake", {PASS: 35, FAIL: 2, SKIP: 9}, some)

    def test_tap(self):
        some = {"t0001-init.sh: 46": SKIP, "t0001-init.sh: exit": PASS, "t0020-crlf.sh: 3": PASS}
        self.check(parsers.tap, "tap", {PASS: 95, SKIP: 4}, some)

    def test_tap_todo(self):
        """What is known to fail is no failure, made good or not."""
        text = "=== begin a\n1..4\nok 1 - x # TODO y\nnot ok 2 - x # TODO y\nnot ok 3 - z\nok 4 # SKIP no tty\n=== end a 1\n"
        cases = {case.name: case.outcome for case in parsers.tap(text)}
        self.assertEqual(
            cases, {"a: 1": PASS, "a: 2": PASS, "a: 3": FAIL, "a: 4": SKIP, "a: exit": FAIL}
        )

    def test_perl(self):
        """Its harness begins a script's output on the line of its name, and counts a skipped script
        as a failure."""
        some = {"io/perlio_leaks.t: 1": PASS, "lib/cygwin.t: all": SKIP, "io/shm.t: exit": PASS}
        self.check(parsers.tap, "perl", {PASS: 35, SKIP: 1}, some)

    def test_autotest(self):
        some = {
            "3: mixing options": PASS,
            "10: --pax-option compatibility": FAIL,
            "11: --pax-option compatibility": SKIP,
            "30: files-from & recurse: toggle": PASS,
        }
        self.check(parsers.autotest, "autotest", {PASS: 26, FAIL: 2, SKIP: 3}, some)

    def test_googletest(self):
        some = {
            "arena_test: ArenaTest.Simple": PASS,
            "env_test: EnvTest.RunMany": PASS,
            "env_test: EnvTest.ReadWrite": FAIL,
            "env_test: exit": FAIL,
        }
        self.check(parsers.googletest, "googletest", {PASS: 7, FAIL: 4}, some)

    def test_util_linux(self):
        some = {
            "lsfd: directory": PASS,
            "lsfd: --pid option": SKIP,
            "misc: flock : time-check": PASS,
            "misc: flock": PASS,
            "hexdump: format-strings : 1b_char": FAIL,
            "hexdump: format-strings": FAIL,
        }
        self.check(parsers.util_linux, "util-linux", {PASS: 44, FAIL: 2, SKIP: 8}, some)

    def test_scripts(self):
        some = {"run-read": FAIL, "run-array": PASS}
        self.check(parsers.diffs, "scripts", {PASS: 2, FAIL: 2}, some)

    def test_redis(self):
        some = {
            "unit/dump: RESTORE fail with invalid payload size": FAIL,
            "unit/dump: RESTORE can set LRU": PASS,
            "unit/dump: exit": FAIL,
            "unit/type/incr: exit": PASS,
        }
        self.check(parsers.redis, "redis", {PASS: 53, FAIL: 2}, some)

    def test_redis_draws_at_random(self):
        """What is drawn or counted until the time is over makes no cases of its own, and a failure in
        any turn is one."""
        text = """=== begin integration/psync2
[ok]: PSYNC2: --- CYCLE 1 --- (0 ms)
[ok]: PSYNC2: [NEW LAYOUT] Set #0 as master (1 ms)
[ok]: PSYNC2: Set #3 to replicate from #0 (1 ms)
[ok]: PSYNC2: cluster is consistent after load (x = 12) (1 ms)
[ok]: PSYNC2: --- CYCLE 2 --- (0 ms)
[err]: PSYNC2: Set #1 to replicate from #4 in tests/integration/psync2.tcl
[ok]: PSYNC2: Set #2 to replicate from #4 (1 ms)
[ok]: PSYNC2: cluster is consistent after load (x = 32176) (1 ms)
=== end integration/psync2 1
"""
        unit = "integration/psync2: "
        self.assertEqual(
            {case.name.removeprefix(unit): case.outcome for case in parsers.redis(text)},
            {
                "PSYNC2: --- CYCLE N ---": PASS,
                "PSYNC2: [NEW LAYOUT] Set #N as master": PASS,
                "PSYNC2: Set #N to replicate from #N": FAIL,
                "PSYNC2: cluster is consistent after load (x = N)": PASS,
                "exit": FAIL,
            },
        )

    def test_sqlite(self):
        some = {
            "select1.test: select1-1.1": PASS,
            "bad.test: bad-1.1": PASS,
            "bad.test: bad-1.2": FAIL,
            "bad.test: bad-1.3": FAIL,
            "bad.test: exit": FAIL,
        }
        self.check(parsers.sqlite, "sqlite", {PASS: 31, FAIL: 3}, some)

    def test_junit(self):
        some = {
            "test_dtrace: exit": PASS,
            "test_curses: all": SKIP,
            "test_bad: test_bad.T.test_fails": FAIL,
            "test_bad: test_bad.T.test_error": FAIL,
            "test_bad: test_bad.T.test_skipped": SKIP,
            "test_bad: test_bad.T.test_expected": PASS,
        }
        self.check(parsers.junit, "junit", {PASS: 3, FAIL: 3, SKIP: 2}, some)

    def test_cut_short(self):
        """A harness that dies in the middle: the unit that it died in has failed, and nothing is
        made up."""
        text = "=== begin a\nok 1 - x\n1..1\n=== end a 0\n=== begin b\nok 1\n"
        cases = {case.name: case.outcome for case in parsers.tap(text)}
        self.assertEqual(cases, {"a: 1": PASS, "a: exit": PASS, "b: 1": PASS, "b: exit": FAIL})

    def test_fewer_than_planned(self):
        text = "=== begin a\n1..3\nok 1\nok 2\n=== end a 0\n"
        cases = {case.name: case.outcome for case in parsers.tap(text)}
        self.assertEqual(cases["a: exit"], FAIL)


def result(cases, side=WITHOUT, build="b"):
    return {
        "suite": "s",
        "side": side,
        "version": "1",
        "build": build if side == WITH else None,
        "kernel": "k",
        "date": "2026-01-01",
        "end": "0",
        "told": {"prefetched_bytes": 2_000_000} if side == WITH else None,
        "cases": {name: [outcome, ""] for name, outcome in cases.items()},
    }


class Interrupted(BaseException):
    pass


class Told(campaign.Campaign):
    """Runs nothing; each run's outcome is what it is told. An outcome that is an exception
    interrupts it."""

    def __init__(self, state, outcomes, build):
        self.state, self.outcomes, self.build, self.calls = state, outcomes, build, []

    def build_hash(self):
        return self.build

    def run(self, recipe, side, units=(), label=""):
        self.calls.append((side + label, tuple(units)))
        said = self.outcomes[len(self.calls) - 1]
        if isinstance(said, type):
            raise said
        return result(said, side, self.build)


class Resuming(unittest.TestCase):
    def setUp(self):
        place = tempfile.TemporaryDirectory()
        self.addCleanup(place.cleanup)
        self.state = campaign.State(Path(place.name))
        self.recipe = Recipe(name="s", parser=parsers.automake, test="true")

    def runs(self, *outcomes, build="b"):
        told = Told(self.state, outcomes, build)
        with contextlib.suppress(Interrupted), contextlib.redirect_stderr(io.StringIO()):
            told.suite(self.recipe)
        return [name for name, _ in told.calls], told.calls

    def summary(self):
        return campaign.summary_of(self.recipe, self.state)

    def test_finished_sides_are_not_run_again(self):
        well = {"a": PASS, "b": SKIP}
        self.assertEqual(self.runs(well, Interrupted)[0], ["without", "with"])
        self.assertEqual(self.runs(Interrupted)[0], ["with"])
        self.assertEqual(self.runs(well)[0], ["with"])
        self.assertEqual(self.runs()[0], [])
        self.assertEqual((self.summary()["new"], self.summary()["cases"]), ([], 2))
        self.state.forget("s")
        self.assertEqual(self.runs(well, well)[0], ["without", "with"])

    def test_repeats_go_on_where_they_stopped(self):
        bad, well = {"a: 1": FAIL, "b": PASS}, {"a: 1": PASS, "b": PASS}
        names, calls = self.runs(well, bad, well, Interrupted)
        self.assertEqual(names, ["without", "with", "without.repeat1", "with.repeat1"])
        self.assertEqual(calls[2][1], ("a",), "the unit alone is repeated")
        self.assertEqual((self.summary()["new"], self.summary()["not_repeated"]), ([], ["a: 1"]))
        self.assertEqual(
            self.runs(bad, well, well)[0], ["with.repeat1", "without.repeat2", "with.repeat2"]
        )
        (fault,) = self.summary()["new"]
        self.assertEqual((fault["case"], fault["failed"]), ("a: 1", "2 of 3"))
        self.assertEqual(self.summary()["not_repeated"], [])
        self.assertEqual(self.runs()[0], [])

    def test_another_build_runs_again_what_ran_with_it(self):
        bad, well = {"a": FAIL}, {"a": PASS}
        self.runs(well, bad, well, bad, well, bad)
        # Until it has run, the older build's row stands, and says so.
        self.assertEqual(self.runs(Interrupted, build="c")[0], ["with"])
        self.assertEqual((self.summary()["build"], len(self.summary()["new"])), ("b", 1))
        # Of the older one's repeats nothing is left.
        names, _ = self.runs(bad, well, well, well, well, build="c")
        self.assertEqual(names[:2], ["with", "without.repeat1"])
        self.assertEqual((self.summary()["build"], self.summary()["new"][0]["failed"]), ("c", "1 of 3"))
        self.assertEqual(self.runs(build="c")[0], [])

    def test_what_is_unsteady_without_is_no_fault(self):
        bad, well = {"a": FAIL}, {"a": PASS}
        self.runs(well, bad, bad, bad, well, bad)
        self.assertEqual(self.summary()["new"], [])
        self.assertEqual([row["case"] for row in self.summary()["unsteady"]], ["a"])

    def test_a_case_that_never_comes_is_a_failure(self):
        for lost in ({"b": PASS}, {"a": SKIP, "b": PASS}):
            self.state.forget("s")
            well = {"a": PASS, "b": PASS}
            self.runs(well, lost, well, lost, well, lost)
            self.assertEqual([row["case"] for row in self.summary()["new"]], ["a"])

    def test_what_fails_without_is_not_ours(self):
        self.assertEqual(self.runs({"a": FAIL}, {"a": FAIL})[0], ["without", "with"])
        self.assertEqual(self.summary()["new"], [])

    def test_half_a_file_is_no_result(self):
        path = self.state.result_path("s", WITHOUT)
        path.parent.mkdir()
        path.with_suffix(".part").write_text("{", encoding="utf-8")
        self.assertEqual(self.runs({"a": PASS}, {"a": PASS})[0], ["without", "with"])

    def test_the_table_names_faults(self):
        bad, well = {"a": FAIL, "b": PASS}, {"a": PASS, "b": PASS}
        self.runs(well, bad, well, bad, well, bad)
        rows, text = campaign.report(self.state, [self.recipe, Recipe("t", parsers.tap)], {})
        self.assertIn("| s | 1 | 2 | 2 / 0 / 0 | 1 / 1 / 0 | 1 | 0 | 2 | b |", text)
        self.assertIn("- s: `a`, 3 of 3", text)
        self.assertIn("- t: not run yet", text)
        with tempfile.TemporaryDirectory() as place:
            campaign.save(Path(place), rows, text, None)
            self.assertIn(
                "- s: `a`, 3 of 3", (Path(place) / "summary.md").read_text(encoding="utf-8")
            )
            kept = json.loads((Path(place) / "s.json").read_text(encoding="utf-8"))
            self.assertEqual(kept["with"]["failed"], ["a"])


class Recipes(unittest.TestCase):
    def test_each_has_what_it_needs(self):
        names = [recipe.name for recipe in RECIPES]
        self.assertEqual(len(names), len(set(names)))
        for recipe in RECIPES:
            with self.subTest(recipe.name):
                self.assertTrue(recipe.source or recipe.debs)
                self.assertEqual(bool(recipe.test), not (recipe.units and recipe.each))
                if recipe.test and recipe.alone:
                    self.assertIn("$UNITS", recipe.test.replace("${UNITS:", "$UNITS"))
                if recipe.each:
                    self.assertIn("UNIT", recipe.each)

    def test_parts_of_a_tree_are_built_alike(self):
        builds = {}
        for recipe in RECIPES:
            made = (recipe.source, recipe.debs, recipe.patched, recipe.build, recipe.packages)
            self.assertEqual(builds.setdefault(recipe.directory, made), made, recipe.name)

    def test_names_are_checked(self):
        self.assertEqual(
            campaign.named(["git-t0", "git-t1", "sed"], ["git-*,sed"], "--only"),
            {"git-t0", "git-t1", "sed"},
        )
        with self.assertRaises(Stop):
            campaign.named(["sed"], ["set"], "--only")


if __name__ == "__main__":
    unittest.main()
