"""The suites: where each comes from, how it is built and run, and who reads what it prints. See
README.md."""

from dataclasses import dataclass, field

import parsers


@dataclass(frozen=True)
class Recipe:
    name: str
    # Reads the output: a function of parsers.py.
    parser: object
    # Debian's source package, or the binary packages that make the tree. {python}: Debian's Python,
    # with its version.
    source: str | None = None
    debs: tuple[str, ...] = ()
    # Whether Debian's patches are applied. Where they touch what Autotools made, the files that are
    # derived would have to be made anew.
    patched: bool = False
    # Debian's binary packages without which it can't be built or run, besides a compiler and make.
    packages: tuple[str, ...] = ()
    # For sh, in the source's directory, as root. Parts of a suite share one tree: the recipe with
    # the tree's name builds it.
    build: str = "true"
    tree: str | None = None
    # For sh, in the tree, as the unprivileged user: all of the suite, or $UNITS of it if that is
    # not empty.
    test: str | None = None
    # Or what lists the units, and what runs $UNIT of them, each marked and killed after `limit`
    # seconds.
    units: str | None = None
    each: str | None = None
    limit: int = 1800
    # Whether units would disturb each other: a port, names of files.
    serial: bool = False
    # Files in the tree (patterns) that the harness writes results to.
    files: tuple[str, ...] = ()
    # A suite that can't run single units is repeated whole.
    alone: bool = True
    # Where there is no memory cgroup to be emptied these are evicted again and again: directories of
    # the tree in which no test makes files.
    cold: tuple[str, ...] = ("src", "lib", "tests")
    environment: dict[str, str] = field(default_factory=dict)
    # Seconds for all of it.
    timeout: int = 4 * 3600

    @property
    def directory(self):
        return self.tree or self.name


CONFIGURE = """
    ./configure --quiet --disable-dependency-tracking --disable-nls
    make -s -j$JOBS
"""
CHECK = 'make -k -j$JOBS check VERBOSE= ${UNITS:+TESTS="$UNITS"}'


def gnu(name, **more):
    """A package of GNU's with Automake's test harness."""
    return Recipe(
        **{
            "name": name,
            "source": name,
            "parser": parsers.automake,
            # The tests' own programs, too: no test is named.
            "build": CONFIGURE + "make -s -j$JOBS check TESTS=",
            "test": CHECK,
            **more,
        }
    )


def git(digit):
    return Recipe(
        name=f"git-t{digit}",
        tree="git",
        source="git",
        patched=True,
        packages=("libexpat1-dev", "libssl-dev", "zlib1g-dev"),
        build="make -s -j$JOBS NO_GETTEXT=1 NO_TCLTK=1 NO_CURL=1 CFLAGS=-O1",
        units=f"cd t && ls t{digit}[0-9][0-9][0-9]-*.sh",
        each="cd t && sh ./$UNIT --no-color </dev/null",
        parser=parsers.tap,
        cold=("t/t0000", "templates", "mergetools", "git", "t/helper", "t/lib-diff", "t/perf"),
    )


def cpython(name, letters):
    """The modules of CPython's own tests that begin with some letters, with Debian's Python; it
    finds its library by where it lies."""
    parts = (
        "{python}",
        "{python}-minimal",
        "lib{python}-minimal",
        "lib{python}-stdlib",
        "lib{python}-testsuite",
    )
    return Recipe(
        name=f"cpython-{name}",
        tree="cpython",
        debs=parts,
        build="""
            cd usr/bin
            ln -sf $(ls | grep -x 'python3\.[0-9]*') python3
            # Some of the tests' files are no Python on purpose.
            ./python3 -m compileall -q ../lib >/dev/null 2>&1 || true""",
        units=f"usr/bin/python3 -m test --list-tests | grep '^test_[{letters}]'",
        each="""
            rm -f "$TMPDIR/$UNIT.xml"
            usr/bin/python3 -m test --junit-xml "$TMPDIR/$UNIT.xml" --timeout 1500 $UNIT </dev/null
            status=$?
            cat "$TMPDIR/$UNIT.xml" 2>/dev/null
            exit $status""",
        parser=parsers.junit,
        environment={"LC_ALL": "C.UTF-8"},
        cold=("usr",),
        timeout=8 * 3600,
    )


RECIPES = [
    gnu("grep"),
    gnu("sed"),
    gnu("gzip"),
    gnu("diffutils"),
    Recipe(
        name="tar",
        source="tar",
        parser=parsers.autotest,
        build=CONFIGURE + "make -s -j$JOBS check TESTSUITEFLAGS=--list",
        test='make -k check TESTSUITEFLAGS="--jobs=$JOBS $UNITS"',
        cold=("src",),
    ),
    gnu(
        "findutils",
        packages=("dejagnu",),
        files=("*/testsuite/*.sum",),
        alone=False,
        cold=("find", "xargs", "locate", "lib"),
    ),
    gnu("coreutils"),
    Recipe(
        name="leveldb",
        source="leveldb",
        patched=True,
        packages=("cmake", "libgtest-dev", "libgmock-dev", "libbenchmark-dev", "g++"),
        build="""
            cmake -S . -B build -DCMAKE_BUILD_TYPE=RelWithDebInfo -DLEVELDB_BUILD_BENCHMARKS=OFF
            make -s -C build -j$JOBS""",
        units="cd build && ls *_test*",
        each='TEST_TMPDIR=$(mktemp -d) "build/$UNIT"',
        parser=parsers.googletest,
        cold=("build",),
    ),
    Recipe(
        name="bash",
        serial=True,
        source="bash",
        patched=True,
        build="./configure --quiet && make -s -j$JOBS && make -s recho zecho printenv xcase",
        units="cd tests && ls run-* | grep -v -x -e run-all -e run-minimal -e run-gprof",
        each="""
            cd tests
            export BUILD_DIR=$PWD/.. THIS_SH=$PWD/../bash BASH_TSTOUT=$TMPDIR/$UNIT.out PATH=.:..:$PATH
            sh "./$UNIT" </dev/null""",
        parser=parsers.diffs,
        cold=("lib", "builtins", "po", "bash"),
    ),
    Recipe(
        name="sqlite",
        tree="sqlite3",
        source="sqlite3",
        patched=True,
        packages=("tcl-dev",),
        build="""
            ./configure --quiet CFLAGS=-O1
            make -s -j$JOBS testfixture
            cat >units.tcl <<'END'
set testdir [file normalize test]
set argv0 $testdir/veryquick.test
set argv {}
source $testdir/permutations.test
foreach file [dict get $::testspec(veryquick) -files] { puts [file tail $file] }
exit
END
            ./testfixture units.tcl >units
            rm -rf testdir""",
        units="sort units",
        each="""
            tree=$PWD
            mkdir -p "$TMPDIR/$UNIT" && cd "$TMPDIR/$UNIT"
            "$tree/testfixture" "$tree/test/permutations.test" veryquick "$UNIT" </dev/null""",
        parser=parsers.sqlite,
        cold=("test", "testfixture", ".libs"),
    ),
    Recipe(
        name="perl",
        serial=True,
        source="perl",
        patched=True,
        build="sh Configure -des -Dusedevel -Doptimize=-O1 && make -s -j$JOBS && make -s test_prep",
        units="cd t && ls io/*.t lib/*.t ../lib/*.t",
        each='cd t && ./perl -I../lib TEST -v "$UNIT" </dev/null',
        parser=parsers.tap,
        # Else it draws its cases anew each time.
        environment={"PERL_TEST_CHARNAMES_SEED": "1"},
        cold=("lib", "cpan", "dist", "ext"),
    ),
    Recipe(
        name="redis",
        serial=True,
        source="redis",
        patched=True,
        packages=("tcl",),
        build="make -s -j$JOBS MALLOC=libc OPTIMIZATION=-O1",
        units="./runtest --list-tests",
        each='./runtest --clients 1 --baseport 29111 --single "$UNIT" </dev/null',
        parser=parsers.redis,
        cold=("src", "tests/assets", "tests/helpers", "tests/unit"),
    ),
    Recipe(
        name="util-linux",
        source="util-linux",
        build="""
            ./configure --quiet --disable-dependency-tracking --disable-nls --disable-asciidoc --without-python
            make -s -j$JOBS && make -s -j$JOBS check-programs""",
        test='tests/run.sh --srcdir="$PWD" --builddir="$PWD" --parallel=$JOBS $UNITS',
        parser=parsers.util_linux,
        alone=False,
        cold=(".libs", "tests/ts", "tests/expected"),
    ),
    *(git(digit) for digit in range(10)),
    cpython("a-d", "a-d"),
    cpython("e-l", "e-l"),
    cpython("m-r", "m-r"),
    cpython("s-z", "s-z_0-9"),
]
