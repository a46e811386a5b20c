# make build     release builds: target/release/outrider, liboutrider.so beside it, outrider-lab
# make demo      real programs on cold files, without and with Outrider (DIR=… for a real disk; ARGS=… for demo/run.py)
# make test      all tests, on the release build; the last line is the sum
# make kernel    the kernel modules, for the running kernel (KDIR=… for another): see kernel/README.md
# make test-kernel   the kernel modules' tests: boots Debian's kernels in QEMU (ARGS=… for kernel/test/machine)
# make test-all  both: what CI runs
# make bench     measures Outrider on emulated devices and writes the report: about half an hour, as root
#                (ARGS=… for `outrider-lab run`: rows, --device …; ARGS='--all --minutes 0' for everything)
# make bench-real  measures real programs with packages from PyPI: about half an hour, as root (ARGS=… for bench/real/run.py)
# make campaign  other projects' own test suites without and with Outrider, and the fuzzer for long: hours, as root, goes on where
#                it stopped (STATE=… for the state directory, ARGS=… for bench/campaign/campaign.py, e.g. ARGS=--list)
# make cost      what a cached read and a start of a program cost with Outrider (ARGS=… for bench/cost.py)
# make drivers   programs of the lab that read through RocksDB, LevelDB and Snappy: target/drivers; after make build also one that reads through Debian's
#                source of LevelDB with a foreaction graph (plugins/leveldb), which is fetched once, into ~/.cache/outrider
# make lint      formatting, clippy and the pages of cargo doc
# make oldest    whether the oldest Rust that is promised takes it
# make plugins   target/plugins: outrider_sqlite.so (needs sqlite3ext.h, in Debian's libsqlite3-dev), outrider_du.so and outrider_cp.so
# make examples  target/examples: programs in C that declare what they will read, after make build
# make wheel     dist/outrider-VERSION-….whl: the Python package with the library and the command, after make build (FROM= for another
#                directory that has them; needs PyPI)
# make install   PREFIX=/usr/local DESTDIR= (LIBDIR=… for the library's directory), after make build
# make deb       target/deb: Debian's packages, after make build and make plugins (needs debhelper and dh-dkms)
# make rpm       target/rpm: RPM packages, after make build (needs cargo-generate-rpm)
# make dist      dist/: a reproducible archive of the portable build
# make deps      what the tests run besides Rust's toolchain (Debian and Ubuntu, as root; a no-op elsewhere)
# make clean

CARGO   ?= cargo
PREFIX  ?= /usr/local
LIBDIR  ?= $(PREFIX)/lib
DESTDIR ?=
INSTALL ?= install
PYTHON  ?= python3
# Arguments of the demo (`demo/run.py --help`) or of the measurements (`outrider-lab run --help`).
DIR     ?=
ARGS    ?=
# Where the campaign keeps what it has found and built; an unprivileged user must be able to get there.
STATE   ?= /var/tmp/outrider-campaign

RELEASE := $(or $(CARGO_TARGET_DIR),target)/release
DRIVERS := $(abspath $(or $(CARGO_TARGET_DIR),target))/drivers

# The one place that says it.
VERSION := $(shell sed -n '/^version = "/{s///;s/"$$//p;q}' Cargo.toml)

ifneq ($(CI),)
# In CI nothing may be skipped for want of a program that a package provides.
export OUTRIDER_REQUIRE_ALL := 1
endif

.PHONY: build demo test test-kernel test-all kernel bench bench-real campaign cost drivers plugins examples wheel lint oldest fmt install deb rpm dist deps clean

build:
	@CARGO="$(CARGO)" CC="$(CC)" .ci/toolchain
	$(CARGO) build --release --locked --workspace

demo:
	@.ci/deps demo
	@CARGO="$(CARGO)" CC="$(CC)" PYTHON="$(PYTHON)" .ci/toolchain demo
	$(CARGO) build --release --locked --workspace
	$(PYTHON) demo/run.py $(if $(DIR),--dir "$(DIR)") $(ARGS)

# The tests run the release build's command; the tests themselves are built without optimisation, which is much
# quicker than linking each of them with the release profile. Both builds go on at once: much of a release build is work for one processor.
# What the tests' build says against them is said once more, and counted, when they are run.
define build_with_tests
	@$(CARGO) test --locked --workspace --no-run & tests=$$!; \
	$(CARGO) build --release --locked --workspace && $(MAKE) --no-print-directory drivers; built=$$?; \
	wait $$tests; exit $$built
endef

test:
	@.ci/deps test
	@CARGO="$(CARGO)" CC="$(CC)" .ci/toolchain
	$(build_with_tests)
	@.ci/summary $(CARGO) test --locked --workspace --no-fail-fast

# Kernels are fetched once, into ~/.cache/outrider.
test-kernel:
	@.ci/deps kernel
	$(CARGO) build --release --locked -p outrider -p liboutrider
	@.ci/summary kernel/test/machine $(ARGS)

test-all:
	@.ci/deps test
	@.ci/deps kernel
	@CARGO="$(CARGO)" CC="$(CC)" .ci/toolchain
	$(build_with_tests)
	@.ci/summary .ci/all-tests $(CARGO) test --locked --workspace --no-fail-fast

kernel:
	$(MAKE) -C kernel

# Goes on where an earlier one was interrupted.
bench:
	@.ci/deps bench
	$(CARGO) build --release --locked --workspace
	@$(MAKE) --no-print-directory drivers
	@$(MAKE) --no-print-directory plugins
	$(RELEASE)/outrider-lab run --resume --accuracy --report --minutes 25 $(ARGS)

bench-real:
	@.ci/deps bench
	$(CARGO) build --release --locked --workspace
	$(PYTHON) bench/real/run.py $(ARGS)

# Not in CI: it takes hours, and Debian's sources.
campaign:
	@.ci/deps campaign
	$(CARGO) build --release --locked --workspace
	$(PYTHON) bench/campaign/campaign.py --state "$(STATE)" --build "$(RELEASE)" $(ARGS)

cost:
	@.ci/deps bench
	$(CARGO) build --release --locked -p outrider -p liboutrider
	$(PYTHON) bench/cost.py $(ARGS)

drivers:
	@.ci/deps drivers
	@$(MAKE) --no-print-directory -C crates/outrider-lab/drivers OUT=$(DRIVERS) LIBDIR=$(abspath $(RELEASE))

lint:
	$(CARGO) fmt --all --check
	$(CARGO) clippy --locked --workspace --all-targets -- -D warnings
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --locked --workspace --no-deps

oldest:
	@.ci/oldest

fmt:
	$(CARGO) fmt --all

# Directory of sqlite3ext.h where the compiler doesn't find it.
SQLITE_INCLUDE ?=

# What can be built is; nothing may be left out where OUTRIDER_REQUIRE_ALL is set.
plugins:
	$(MAKE) -C plugins/programs OUT="$(abspath $(RELEASE)/../plugins)"
	@if echo '#include <sqlite3ext.h>' | $(CC) $(if $(SQLITE_INCLUDE),-I"$(SQLITE_INCLUDE)") -E -x c - >/dev/null 2>&1; then \
		$(MAKE) -C plugins/sqlite OUT="$(abspath $(RELEASE)/../plugins)" SQLITE_INCLUDE="$(SQLITE_INCLUDE)"; \
	else \
		echo "left out: outrider_sqlite.so, for want of sqlite3ext.h (Debian: libsqlite3-dev; or SQLITE_INCLUDE=DIR)" >&2; \
		test -z "$$OUTRIDER_REQUIRE_ALL"; \
	fi

examples:
	$(MAKE) -C examples OUT="$(abspath $(RELEASE)/../examples)" LIBDIR="$(abspath $(RELEASE))"

# The directory of the library and the command that go into the wheel, which is named after the C library that they need; and where it goes.
FROM := $(RELEASE)
DIST := dist
TOOLS := $(abspath $(RELEASE)/../wheel)

wheel:
	@test -f $(FROM)/outrider && test -f $(FROM)/liboutrider.so || { echo "nothing to pack: make build first" >&2; exit 1; }
	test -x $(TOOLS)/bin/pip || $(PYTHON) -m venv $(TOOLS)
	OUTRIDER_DIST="$(abspath $(FROM))" $(TOOLS)/bin/pip wheel --quiet --no-deps --wheel-dir "$(DIST)" ./python

COMPLETIONS := share/bash-completion/completions share/zsh/site-functions share/fish/vendor_completions.d
PLACES := bin include lib/systemd/system share/man/man1 share/man/man3 share/outrider/python/outrider $(COMPLETIONS)
PLUGIN ?= $(RELEASE)/../plugins/outrider_sqlite.so
# Those for programs, found by name (`outrider run --plugin du`). The archive leaves them out: they need as late a glibc as the machine has that built them.
PROGRAM_PLUGINS ?= $(wildcard $(RELEASE)/../plugins/outrider_du.so $(RELEASE)/../plugins/outrider_cp.so)
ROOT_PREFIX := $(DESTDIR)$(PREFIX)
ROOT_LIBDIR := $(DESTDIR)$(LIBDIR)
# With RELOCATABLE=1 what is installed may be moved: the file for pkg-config says where things are by its own place. That for CMake always does.
RELOCATABLE ?=
PKG_DIRECTORIES = -e 's|@LIBDIR@|$(if $(RELOCATABLE),$${pcfiledir}/..,$(LIBDIR))|' \
	-e 's|@INCLUDEDIR@|$(if $(RELOCATABLE),$${pcfiledir}/../../include,$(PREFIX)/include)|'
CMAKE_DIRECTORIES = -e "s|@INCLUDEDIR@|$$(realpath -m --relative-to='$(LIBDIR)/cmake/Outrider' '$(PREFIX)/include')|"
SAY_VERSION := -e 's|@VERSION@|$(VERSION)|'

# Does not build, so that `make build && sudo make install` leaves no files of root's behind.
install:
	@test -f $(RELEASE)/outrider && test -f $(RELEASE)/liboutrider.so || { echo "nothing to install: make build first" >&2; exit 1; }
	$(INSTALL) -d $(PLACES:%="$(ROOT_PREFIX)/%") "$(ROOT_LIBDIR)/pkgconfig" "$(ROOT_LIBDIR)/cmake/Outrider"
	$(INSTALL) -m 755 $(RELEASE)/outrider "$(ROOT_PREFIX)/bin/outrider"
	if [ -f $(RELEASE)/outrider-lab ]; then $(INSTALL) -m 755 $(RELEASE)/outrider-lab "$(ROOT_PREFIX)/bin/outrider-lab"; fi
	$(INSTALL) -m 644 $(RELEASE)/liboutrider.so "$(ROOT_LIBDIR)/liboutrider.so"
	ln -sf liboutrider.so "$(ROOT_LIBDIR)/liboutrider.so.0"
	$(INSTALL) -m 644 include/*.h include/*.hpp "$(ROOT_PREFIX)/include"
	$(INSTALL) -m 644 man/*.1 "$(ROOT_PREFIX)/share/man/man1"
	$(INSTALL) -m 644 man/*.3 "$(ROOT_PREFIX)/share/man/man3"
	$(INSTALL) -m 644 python/outrider/*.py python/outrider/py.typed "$(ROOT_PREFIX)/share/outrider/python/outrider"
	$(INSTALL) -m 644 contrib/completions/outrider.bash "$(ROOT_PREFIX)/share/bash-completion/completions/outrider"
	$(INSTALL) -m 644 contrib/completions/_outrider "$(ROOT_PREFIX)/share/zsh/site-functions/_outrider"
	$(INSTALL) -m 644 contrib/completions/outrider.fish "$(ROOT_PREFIX)/share/fish/vendor_completions.d/outrider.fish"
	$(INSTALL) -m 644 contrib/systemd/*.service "$(ROOT_PREFIX)/lib/systemd/system"
	sed $(SAY_VERSION) $(PKG_DIRECTORIES) packaging/outrider.pc.in >"$(ROOT_LIBDIR)/pkgconfig/outrider.pc"
	sed $(CMAKE_DIRECTORIES) packaging/OutriderConfig.cmake.in >"$(ROOT_LIBDIR)/cmake/Outrider/OutriderConfig.cmake"
	sed $(SAY_VERSION) packaging/OutriderConfigVersion.cmake.in >"$(ROOT_LIBDIR)/cmake/Outrider/OutriderConfigVersion.cmake"
	chmod 644 "$(ROOT_LIBDIR)/pkgconfig/outrider.pc" "$(ROOT_LIBDIR)"/cmake/Outrider/*.cmake
	if [ -f $(PLUGIN) ]; then $(INSTALL) -m 644 $(PLUGIN) "$(ROOT_LIBDIR)/outrider_sqlite.so"; fi
	if [ -n "$(PROGRAM_PLUGINS)" ]; then $(INSTALL) -d "$(ROOT_LIBDIR)/outrider" "$(ROOT_LIBDIR)/outrider/plugins" && \
		$(INSTALL) -m 644 $(PROGRAM_PLUGINS) "$(ROOT_LIBDIR)/outrider/plugins"; fi
	@[ -n "$(DESTDIR)" ] || PATH="$$PATH:/sbin:/usr/sbin" packaging/ldconfig "$(LIBDIR)"

# Paths of the machine that builds are not in it: two builds with the same compilers are equal to the byte.
PORTABLE := $(abspath $(RELEASE)/../portable)
CARGO_HOME ?= $(HOME)/.cargo
dist:
	@CARGO="$(CARGO)" CC="$(CC)" .ci/toolchain dist
	RUSTFLAGS="$(RUSTFLAGS) --remap-path-prefix=$(CURDIR)=/outrider --remap-path-prefix=$(CARGO_HOME)=/cargo" \
		$(CARGO) build --release --locked -p outrider -p liboutrider --target-dir "$(PORTABLE)"
	packaging/dist "$(VERSION)" "$(PORTABLE)/release" dist

deb:
	packaging/deb "$(VERSION)" "$(abspath $(RELEASE))"

rpm:
	packaging/rpm "$(VERSION)" "$(abspath $(RELEASE))"

deps:
	@.ci/deps test

clean:
	$(CARGO) clean
