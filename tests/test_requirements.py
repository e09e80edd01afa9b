"""What is pinned installs on any Python 3.11, as the README promises: Debian 12 has 3.11.2."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, metadata

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from lib.paths import ROOT

PINS = [Requirement(line.split(" #")[0]) for name in ("requirements.txt", "requirements-data.txt")
        for line in (ROOT / name).read_text().splitlines() if line.strip() and line[0] not in "#-"]


@pytest.mark.parametrize("pin", PINS, ids=lambda r: r.name)
def test_the_pinned_release_is_installed_and_takes_the_first_python_3_11(pin):
    try:
        found = metadata(pin.name)
    except PackageNotFoundError:
        pytest.fail(f"{pin} is pinned and not installed")
    assert pin.specifier.contains(found["Version"]), f"{pin} is pinned, {found['Version']} installed"
    assert SpecifierSet(found["Requires-Python"] or "").contains("3.11.0"), f"{pin}: {found['Requires-Python']}"
