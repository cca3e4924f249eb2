"""The programs unreft and unreftd as commands of a Python environment.

Each becomes the program itself: signals, standard streams and the exit status are its own.
"""

import os
import pathlib
import sys


def unreft() -> None:
    _become("unreft")


def unreftd() -> None:
    _become("unreftd")


def _become(program: str) -> None:
    here = pathlib.Path(os.path.abspath(__file__))
    # In a wheel, in a build directory, in an installed tree.
    places = [base / "bin" / program for base in (here.parent, here.parents[2], here.parents[3])]
    for place in places:
        if os.access(place, os.X_OK):
            os.execv(place, [str(place), *sys.argv[1:]])
    sys.exit(
        f"{program}: the program is not with this package: looked for "
        f"{', '.join(map(str, places))}; install the wheel (`pip install .`), or run `make "
        "programs` in the source tree and set PYTHONPATH to build/release/python"
    )
