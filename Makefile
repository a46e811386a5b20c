# make build     release builds: target/release/outrider, liboutrider.so beside it, outrider-lab
# make demo      real programs on cold files, without and with Outrider (DIR=… for a real disk)
# make test      all tests, on the release build; the last line is the sum
# make bench     measures Outrider on emulated devices and writes the report: about half an hour, as root
#                (ARGS=… for `outrider-lab run`: rows, --device …; ARGS='--all --minutes 0' for everything)
# make drivers   programs of the lab that read through RocksDB, LevelDB and Snappy: target/drivers
# make lint      formatting and clippy
# make install   PREFIX=/usr/local DESTDIR=
# make deps      what the tests run besides Rust's toolchain (Debian and Ubuntu, as root; a no-op elsewhere)
# make clean

CARGO   ?= cargo
PREFIX  ?= /usr/local
DESTDIR ?=
INSTALL ?= install
PYTHON  ?= python3
# Arguments of the demo (`demo/run.py --help`) or of the measurements (`outrider-lab run --help`).
DIR     ?=
ARGS    ?=

RELEASE := $(or $(CARGO_TARGET_DIR),target)/release
DRIVERS := $(abspath $(or $(CARGO_TARGET_DIR),target))/drivers

ifneq ($(CI),)
# In CI nothing may be skipped for want of a program that a package provides.
export OUTRIDER_REQUIRE_ALL := 1
endif

.PHONY: build demo test bench drivers lint fmt install deps clean

build:
	$(CARGO) build --release --locked --workspace

demo:
	@.ci/deps demo
	$(CARGO) build --release --locked --workspace
	$(PYTHON) demo/run.py $(if $(DIR),--dir "$(DIR)") $(ARGS)

# The tests run the release build's command; the tests themselves are built without optimisation, which is much
# quicker than linking each of them with the release profile.
test:
	@.ci/deps test
	@$(MAKE) --no-print-directory -C crates/outrider-lab/drivers OUT=$(DRIVERS)
	$(CARGO) build --release --locked --workspace
	@.ci/summary $(CARGO) test --locked --workspace --no-fail-fast

# Goes on where an earlier one was interrupted.
bench:
	@.ci/deps bench
	$(CARGO) build --release --locked --workspace
	@$(MAKE) --no-print-directory -C crates/outrider-lab/drivers OUT=$(DRIVERS)
	$(RELEASE)/outrider-lab run --resume --accuracy --report --minutes 25 $(ARGS)

drivers:
	@.ci/deps drivers
	@$(MAKE) --no-print-directory -C crates/outrider-lab/drivers OUT=$(DRIVERS)

lint:
	$(CARGO) fmt --all --check
	$(CARGO) clippy --locked --workspace --all-targets -- -D warnings

fmt:
	$(CARGO) fmt --all

# Does not build, so that `make build && sudo make install` leaves no files of root's behind.
install:
	@test -f $(RELEASE)/outrider && test -f $(RELEASE)/liboutrider.so || { echo "nothing to install: make build first" >&2; exit 1; }
	$(INSTALL) -d "$(DESTDIR)$(PREFIX)/bin" "$(DESTDIR)$(PREFIX)/lib" "$(DESTDIR)$(PREFIX)/include"
	$(INSTALL) -m 755 $(RELEASE)/outrider "$(DESTDIR)$(PREFIX)/bin/outrider"
	$(INSTALL) -m 644 $(RELEASE)/liboutrider.so "$(DESTDIR)$(PREFIX)/lib/liboutrider.so"
	ln -sf liboutrider.so "$(DESTDIR)$(PREFIX)/lib/liboutrider.so.0"
	$(INSTALL) -m 644 include/*.h "$(DESTDIR)$(PREFIX)/include/"

deps:
	@.ci/deps test

clean:
	$(CARGO) clean
