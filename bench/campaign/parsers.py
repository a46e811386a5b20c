"""What test suites print, as cases.

A parser gets the text that a suite's harness wrote (its standard output and error, and the files
that its recipe names) and yields a `Case` for each line that tells a result. A case's name begins
with the unit that can be run again alone, and goes on after ": " with the case in it, where a unit
has more than one. Names must be the same in each run, so numbers are taken where descriptions hold
process ids or times; the description is the case's detail.
"""

import re
import xml.etree.ElementTree as xml
from typing import NamedTuple

PASS, FAIL, SKIP = "pass", "fail", "skip"

# How each.py marks the begin and the end of a unit's output.
BEGIN, END = "=== begin ", "=== end "


class Case(NamedTuple):
    name: str
    outcome: str
    detail: str = ""


def unit_of(name):
    return name.split(": ", 1)[0]


def units(text):
    """The output of each unit that each.py ran: its name, its lines, and how it ended: an exit
    status, a signal, a time-out; None if its end is missing."""
    name, lines = None, []
    for line in text.splitlines():
        if line.startswith(BEGIN):
            if name is not None:
                yield name, lines, None
            name, lines = line[len(BEGIN) :], []
        elif line.startswith(END) and name is not None:
            yield name, lines, line[len(END) :].removeprefix(name).strip()
            name, lines = None, []
        elif name is not None:
            lines.append(line)
    if name is not None:
        yield name, lines, None


def ended(unit, end):
    """How the unit itself ended is a case of its own: a harness that dies tells nothing of what it
    didn't reach."""
    return Case(f"{unit}: exit", PASS if end == "0" else FAIL, f"ended: {end}")


AUTOMAKE = {
    "PASS": PASS,
    "XFAIL": PASS,
    "FAIL": FAIL,
    "XPASS": FAIL,
    "ERROR": FAIL,
    "SKIP": SKIP,
    "UNSUPPORTED": SKIP,
    "UNTESTED": SKIP,
    "UNRESOLVED": FAIL,
    "KFAIL": PASS,
}


def automake(text):
    """`PASS: name`, of Automake's parallel harness and of DejaGnu's .sum files. Each name counts
    once: the log of what failed is shown again at the end."""
    seen = set()
    for line in text.splitlines():
        found = re.fullmatch(r"([A-Z]+): (\S.*?)\s*", line)
        if found and found[1] in AUTOMAKE and found[2] not in seen:
            seen.add(found[2])
            yield Case(found[2], AUTOMAKE[found[1]])


def autotest(text):
    """` 12: sparse files      ok`, of Autotest. The number is the unit."""
    seen = set()
    for line in text.splitlines():
        found = re.fullmatch(
            r"\s*(\d+): (.*?)\s+(ok|FAILED|skipped|expected failure|UNEXPECTED PASS)\b\s*(.*)", line
        )
        if not found or found[1] in seen:
            continue
        seen.add(found[1])
        outcome = {"ok": PASS, "expected failure": PASS, "skipped": SKIP}.get(found[3], FAIL)
        yield Case(f"{found[1]}: {found[2]}", outcome, found[4])


def tap(text):
    """The Test Anything Protocol, one script a unit."""
    for unit, lines, end in units(text):
        numbers, planned, skipped = 0, None, None
        for line in lines:
            # Perl's TEST begins a script's output on the line of its name.
            plan = re.match(r"(?:\S+ \.{3,} )?1\.\.(\d+)(\s*# *skip.*)?", line, re.IGNORECASE)
            if plan:
                planned = int(plan[1])
                if plan[2]:
                    skipped = plan[2].strip()
            # A mere "ok" is TEST's, of the whole script.
            result = re.match(r"(?:\S+ \.{3,} )?(not )?ok +(\d*) *(.+|(?<=\d))$", line)
            if not result:
                continue
            numbers += 1
            number = int(result[2] or numbers)
            directive = re.search(r"# *(skip|todo)\b", result[3], re.IGNORECASE)
            # An expected failure is none; nor is one that was made good.
            if directive and directive[1].lower() == "skip":
                outcome = SKIP
            elif directive or not result[1]:
                outcome = PASS
            else:
                outcome = FAIL
            yield Case(f"{unit}: {number}", outcome, result[3].removeprefix("- "))
        if skipped and not numbers:
            yield Case(f"{unit}: all", SKIP, skipped)
            continue
        whole = planned == numbers
        yield Case(
            f"{unit}: exit",
            PASS if end == "0" and whole else FAIL,
            f"ended: {end}, {numbers} of {planned} planned",
        )


def diffs(text):
    """Scripts that compare their output with what is expected and show the difference (bash)."""
    for unit, lines, end in units(text):
        differs = [line for line in lines if line.startswith(("< ", "> "))]
        yield Case(unit, FAIL if differs or end != "0" else PASS, "; ".join(differs[:3]))


def googletest(text):
    """`[       OK ] Suite.Case (3 ms)`, one program a unit."""
    words = {"OK": PASS, "FAILED": FAIL, "SKIPPED": SKIP}
    for unit, lines, end in units(text):
        seen = set()
        for line in lines:
            found = re.match(r"\[ +(OK|FAILED|SKIPPED) +\] ([^ ,]+\.[^ ,]+)", line)
            if found and found[2] not in seen:
                seen.add(found[2])
                yield Case(f"{unit}: {found[2]}", words[found[1]])
        yield ended(unit, end)


def redis(text):
    """`[ok]: name (12 ms)`, one test file a unit. Some tests are repeated until their time is over,
    or on servers that are drawn at random: of a name that comes several times there is one case,
    which has failed if it ever did."""
    words = {"ok": PASS, "err": FAIL, "exception": FAIL, "skip": SKIP, "ignore": SKIP}
    for unit, lines, end in units(text):
        cases = {}
        for line in lines:
            line = re.sub(r"\x1b\[[0-9;]*m", "", line)
            found = re.match(r"\[(ok|err|exception|skip|ignore)\]: (.*)", line)
            if not found:
                continue
            name = re.sub(r" \(\d+ ms\)$", "", found[2])
            name = re.split(r" in tests/| - expected | \(expected ", name)[0]
            # Sizes, times and numbers measured or drawn by the tests are part of some names.
            name = re.sub(r"\d{3,}|(?<=#)\d+|(?<=CYCLE )\d+|(?<=x = )\d+", "N", name)
            case = Case(f"{unit}: {name}", words[found[1]], line)
            if name not in cases or case.outcome == FAIL:
                cases[name] = case
        yield from cases.values()
        yield ended(unit, end)


def sqlite(text):
    """`name... Ok`, one file a unit; a case that fails says what it expected and what it got."""
    for unit, lines, end in units(text):
        results, now = {}, None
        for line in lines:
            begun = re.match(r"(?!! )(\S+)\.\.\.", line)
            if begun:
                now = begun[1]
                omitted = re.search(r"\.\.\. *(Omitted|skip)", line)
                results.setdefault(now, SKIP if omitted else PASS)
            # One that ends with an error is named by the line before.
            failed = re.match(r"! (\S+) (?:expected|got)\b", line)
            if failed or (now and line.startswith("Error: ")):
                results[failed[1] if failed else now] = FAIL
            for name in (
                line.removeprefix("!Failures on these tests:").split()
                if line.startswith("!Fail")
                else ()
            ):
                results[name] = FAIL
        for name, outcome in results.items():
            yield Case(f"{unit}: {name}", outcome)
        yield ended(unit, end)


def util_linux(text):
    """`cal: year     ... OK`; where a test has subtests, `: name ... OK` each, and `... OK (all 2
    sub-tests PASSED)`."""
    words = {"OK": PASS, "KNOWN FAILED": PASS, "SKIPPED": SKIP, "FAILED": FAIL}
    test, count = None, {}
    for line in text.splitlines():
        found = re.match(r"\s*(.*?)\s*\.\.\.(?: (OK|KNOWN FAILED|SKIPPED|FAILED)\b *(.*))?$", line)
        if not found:
            continue
        name = re.sub(r"\s+", " ", found[1])
        if name and not name.startswith(":"):
            test = name
        elif name:
            name = f"{test} {name}"
        elif test:
            name = test
        if found[2] and name:
            count[name] = count.get(name, 0) + 1
            number = f" #{count[name]}" if count[name] > 1 else ""
            yield Case(name + number, words[found[2]], found[3].strip("()"))


def junit(text):
    """CPython's test modules: what `python -m test --junit-xml` wrote, after the module's own
    output."""
    for unit, lines, end in units(text):
        body = "\n".join(lines)
        start = body.rfind("<testsuites")
        count, skipped = {}, re.search(rf"^{re.escape(unit)} skipped", body, re.MULTILINE)
        try:
            tree = xml.fromstring(body[start:]) if start >= 0 else ()
        except xml.ParseError:
            tree = ()
        for case in tree.iter("testcase") if len(tree) else ():
            # A subtest that failed leaves one without a name; that it failed shows in how the
            # module ended.
            if not case.get("name"):
                continue
            bad = [
                found for found in (case.find("failure"), case.find("error")) if found is not None
            ]
            outcome = FAIL if bad else SKIP if case.find("skipped") is not None else PASS
            name = re.sub(r" at 0x[0-9a-f]+", "", case.get("name"))
            count[name] = count.get(name, 0) + 1
            number = f" #{count[name]}" if count[name] > 1 else ""
            yield Case(
                f"{unit}: {name}{number}", outcome, bad[0].get("message", "").strip() if bad else ""
            )
        if skipped:
            yield Case(f"{unit}: all", SKIP)
        else:
            yield ended(unit, end)
