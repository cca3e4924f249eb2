"""The daemon and the ranks are those of the tests of the Python package."""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "integrations/python/tests"))
