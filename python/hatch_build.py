"""Puts the library and the command into the wheel, and names it after what they need.

OUTRIDER_DIST is the directory that has them, ../target/release unless told.
"""

import os
from pathlib import Path

from elftools.elf.elffile import ELFFile
from elftools.elf.gnuversions import GNUVerNeedSection
from hatchling.builders.hooks.plugin.interface import BuildHookInterface

MACHINES = {"EM_X86_64": "x86_64", "EM_AARCH64": "aarch64"}
# What PEP 600 lets a wheel count on, of what these are linked with.
LIBRARIES = {"libc.so.6", "libdl.so.2", "libm.so.6", "libpthread.so.0", "librt.so.1", "libgcc_s.so.1"}
LOADERS = ("ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1")
# The oldest C library that has the machine at all, and that a tag may name.
OLDEST = (2, 17)


def needs(path):
    """The machine of a program or library, and the version of the C library that it needs."""
    with path.open("rb") as file:
        elf = ELFFile(file)
        newest = OLDEST
        for section in elf.iter_sections():
            if isinstance(section, GNUVerNeedSection):
                for library, versions in section.iter_versions():
                    for version in versions:
                        kind, _, number = version.name.partition("_")
                        if kind == "GLIBC":
                            newest = max(newest, tuple(map(int, number.split(".")[:2])))
        dynamic = elf.get_section_by_name(".dynamic")
        for tag in dynamic.iter_tags("DT_NEEDED") if dynamic else ():
            if tag.needed not in LIBRARIES and tag.needed not in LOADERS:
                raise RuntimeError(f"{path} needs {tag.needed}, which not every system has")
        return MACHINES[elf["e_machine"]], newest


class Hook(BuildHookInterface):
    def initialize(self, version, build_data):
        if version == "editable":
            return
        built = Path(os.environ.get("OUTRIDER_DIST") or Path(self.root).parent / "target" / "release").resolve()
        files = {built / "liboutrider.so": "outrider/lib/liboutrider.so", built / "outrider": "outrider/bin/outrider"}
        for file in files:
            if not file.is_file():
                raise RuntimeError(f"{file} is not there: make build first")
        found = [needs(file) for file in files]
        machines = {machine for machine, _ in found}
        if len(machines) != 1:
            raise RuntimeError(f"{built} has binaries for {' and '.join(sorted(machines))}")
        major, minor = max(newest for _, newest in found)
        build_data["force_include"].update({str(file): place for file, place in files.items()})
        for licence in ("LICENSE-APACHE", "LICENSE-MIT"):
            build_data["force_include"][str(Path(self.root).parent / licence)] = f"outrider/{licence}"
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-manylinux_{major}_{minor}_{machines.pop()}"
