"""Every public name is listed, says what it is, and is what static tools find."""

from __future__ import annotations

import re
from importlib import import_module
from importlib.util import find_spec

import pytest

from heldout.errors import InvalidInput
from tests.reference import PACKAGES, PAGE, ROOT, lines, public_names, summary_of


def test_the_page_lists_the_names_that_there_are() -> None:
    assert PAGE.read_text() == "\n".join(lines()) + "\n", "run: make reference"


@pytest.mark.parametrize("package", PACKAGES)
def test_every_public_name_says_what_it_is(package: str) -> None:
    silent = [name for name in public_names(package) if not summary_of(package, name)]
    assert not silent


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_offers_what_static_tools_find(package: str) -> None:
    if package == "heldout.integrations.tinker" and find_spec("tinker_cookbook") is None:
        with pytest.raises(InvalidInput, match="not installed"):  # it has an environment of its own
            import_module(package)
        return
    module = import_module(package)
    assert set(module.__all__) == set(public_names(package))
    for name in module.__all__:
        assert getattr(module, name) is not None


PAGES = [
    *(ROOT / "docs").rglob("*.md"),
    *(ROOT / "examples").rglob("*.py"),
    *(ROOT / "src" / "heldout" / "examples").glob("*.py"),
    *ROOT.glob("*.md"),
]
IMPORT = re.compile(r"^ *from (heldout[\w.]*) import (\((?:[^)]*)\)|.*)$", re.MULTILINE)


def test_documents_and_examples_import_what_is_public() -> None:
    wrong = []
    found = 0
    for page in PAGES:
        text = page.read_text()
        for package, names in IMPORT.findall(text):
            for name in re.findall(r"\w+", re.sub(r" as \w+|#.*", "", names)):
                found += 1
                if package == "heldout.examples.capitals" or f"{package}.{name}" in PACKAGES:
                    continue  # the eval that the README shows; a package
                if package not in PACKAGES or name not in public_names(package):
                    wrong.append(f"{page.relative_to(ROOT)}: from {package} import {name}")
        if page != ROOT / "docs" / "architecture.md":
            private = re.findall(r"\bheldout\._\w+[\w.]*", text)
            wrong += [f"{page.relative_to(ROOT)}: {name}" for name in private]
    assert not wrong, "\n".join(wrong)
    assert found > 100


def test_every_room_without_an_underscore_is_listed() -> None:
    source = ROOT / "src" / "heldout"
    rooms = {path.stem for path in source.iterdir() if path.is_dir() or path.suffix == ".py"}
    public = {room for room in rooms if not room.startswith("_")}
    assert public == {name.split(".")[1] for name in PACKAGES if "." in name} | {
        "examples",  # written against the public names
        "reporting",  # rows and sentences, for the command line and the viewer
    }
