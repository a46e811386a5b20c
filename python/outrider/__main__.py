"""``python -m outrider run -- PROGRAM …``: the command that the package brings, or that is installed beside it."""

from __future__ import annotations

import os
import shutil
import sys
from typing import Optional

from ._library import HERE, kept


def command() -> Optional[str]:
    """The command's path. Never this script's own, which is of the same name."""
    places = [
        os.path.join(HERE, "bin", "outrider"),
        *kept(os.path.join(HERE, "..", "..", "target", "release", "outrider")),
        *kept(os.path.join(HERE, "..", "..", "..", "..", "bin", "outrider")),
        shutil.which("outrider") or "",
    ]
    for place in places:
        try:
            with open(place, "rb") as file:
                if file.read(4) == b"\x7fELF":
                    return os.path.realpath(place)
        except OSError:
            pass
    return None


def main() -> int:
    """Becomes the command; returns, with 2, only where there is none."""
    found = command()
    if found is None:
        print("outrider: the command is not installed; it comes with the wheel for Linux on x86-64", file=sys.stderr)
        return 2
    os.execv(found, ["outrider", *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main())
