"""Links that a model has made: none lets a check read what the model did not write."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from heldout.environments import PythonEnvironment, ShellEnvironment
from heldout.environments.links import LinkResolver
from heldout.environments.sandboxed import SandboxEnvironment
from heldout.sandbox import SandboxLimits, SandboxTree, TreeEntry
from tests.environments.test_sandboxed import talk

COMPARE = "cmp out.txt /tmp/check/expected.txt"
SEARCH = "grep -q bash report.txt || grep -q python report.txt || grep -q LANG report.txt"
COUNT = 'test -s count.txt && test "$(cat count.txt)" = 2'  # of docs/code.md
FOLDER = "cmp results/expected.txt /tmp/check/expected.txt"
TRICKS: list[tuple[str, str]] = [
    (COMPARE, "ln -s /tmp/check/expected.txt out.txt"),
    (COMPARE, "ln -s ../tmp/check/expected.txt out.txt"),
    (COMPARE, "ln -s ../../..//tmp/./check/expected.txt out.txt"),
    (COMPARE, "ln -s /tmp/check/expected.txt a; ln -s a b; ln -s $PWD/b out.txt"),
    (COMPARE, "ln -s /tmp/check d; ln -s d/expected.txt out.txt"),
    (COMPARE, "ln -s / d; ln -s d/tmp/check/expected.txt out.txt"),
    (COMPARE, "ln -s /proc/self/root/tmp/check/expected.txt out.txt"),
    (COMPARE, "ln -s /proc/self/cwd/../tmp/check/expected.txt out.txt"),
    (COMPARE, "ln -s /proc/self/root d; ln -s d/tmp/check/expected.txt out.txt"),
    (COMPARE, "ln -s /bin/../../tmp/check/expected.txt out.txt"),
    (COMPARE, "ln -s /work/../tmp/check/expected.txt out.txt"),
    (FOLDER, "ln -s /tmp/check results"),
    (f"cp /tmp/check/expected.txt given; {COMPARE}", "ln -s given out.txt"),
    (f"cp /tmp/check/expected.txt given; {COMPARE}", "touch given; ln -s given out.txt"),
    (SEARCH, "ln -s /proc/self/cmdline report.txt"),
    (SEARCH, "ln -s /proc/self/environ report.txt"),
    (SEARCH, "ln -s /proc/2/cmdline report.txt"),
    (f"echo bash | {{ {SEARCH}; }}", "ln -s /dev/fd/0 report.txt"),
    (f"echo bash | {{ {SEARCH}; }}", "ln -s /dev/stdin report.txt"),
    (SEARCH, "ln -s ../proc/self/cmdline a; ln -s a report.txt"),
    (COUNT, "for f in $(grep -lx 2 -r /proc/sys 2>/dev/null); do ln -s $f count.txt; break; done"),
]


def make(kind: type[SandboxEnvironment], check: str) -> Any:
    return kind(check=check, check_files={"expected.txt": "the answer\n"})  # type: ignore[call-arg]


def as_python(command: str) -> str:
    return f"import subprocess; subprocess.run(['bash', '-c', {command!r}])"


@pytest.mark.integration
@pytest.mark.needs("bubblewrap")
@pytest.mark.parametrize(("check", "command"), TRICKS)
def test_a_link_passes_no_check_that_reads(check: str, command: str) -> None:
    _, outcome = talk(make(ShellEnvironment, check), command)
    assert outcome["check"]["passed"] is False
    assert {record["became"] for record in outcome["links"].values()} <= {"dropped", "copy"}
    assert outcome["links"]


@pytest.mark.integration
@pytest.mark.needs("bubblewrap")
def test_an_interpreters_links_are_treated_alike() -> None:
    for check, command in (TRICKS[0], TRICKS[14]):
        _, outcome = talk(make(PythonEnvironment, check), as_python(command))
        assert outcome["check"]["passed"] is False


@pytest.mark.integration
@pytest.mark.needs("bubblewrap")
def test_links_in_work_are_copies_and_those_to_the_system_stay() -> None:
    commands = (
        "mkdir -p a/b; echo 'the answer' > a/b/answer.txt; ln -s a/b/answer.txt out.txt",
        "ln -s /work/a folder; ln -s folder/b/answer.txt chained",
        "ln -s .. a/up; ln -s nowhere gone",
        "mkdir -p venv/bin; ln -s $(command -v python) venv/bin/python",
        "ln -s python venv/bin/python3",
        "ln -s /usr/share/nonesuch dangling",
    )
    check = (
        f"{COMPARE} && cmp out.txt chained && cmp out.txt folder/b/answer.txt && test ! -h out.txt"
    )
    check += " && test -h venv/bin/python3 && venv/bin/python3 -c 'print(6 * 7)' | grep -qx 42"
    _, outcome = talk(make(ShellEnvironment, check), *commands)
    assert outcome["check"]["passed"], outcome
    assert outcome["files"]["out.txt"] == outcome["files"]["folder/b/answer.txt"] == "the answer\n"
    became = {path: record["became"] for path, record in outcome["links"].items()}
    assert became == {
        **dict.fromkeys(("out.txt", "folder", "chained"), "copy"),
        **dict.fromkeys(("a/up", "folder/up", "gone", "dangling"), "dropped"),
        **dict.fromkeys(("venv/bin/python", "venv/bin/python3"), "link"),
    }
    links = outcome["links"]
    assert links["gone"] == {
        "target": "nowhere",
        "became": "dropped",
        "why": "there is nothing where it leads",
    }
    assert (links["a/up"]["why"], links["chained"]["target"]) == (
        "it leads to a folder that it is in",
        "folder/b/answer.txt",
    )


@pytest.mark.integration
@pytest.mark.needs("bubblewrap")
def test_a_snapshot_has_links_as_they_are() -> None:
    async def main() -> dict[str, Any]:
        environment, other = ShellEnvironment(), ShellEnvironment()
        try:
            await environment.run("echo 1 > a; ln -s a b; ln -s /proc/self/cmdline c")
            await other.restore(await environment.snapshot())
            assert "b -> a" in await other.run("ls -l")
            return await other.outcome()
        finally:
            await environment.close()
            await other.close()

    outcome = anyio.run(main)
    assert (outcome["files"]["b"], outcome["links"]["c"]["became"]) == ("1\n", "dropped")


def tree_of(*given: tuple[str, str]) -> SandboxTree:
    """A tree of links, of folders (the target "") and of files (the target "=")."""
    kinds = {"": "folder", "=": "file"}
    entries = [
        TreeEntry(path, kinds.get(target, "link"), 0o644, target)  # type: ignore[arg-type]
        for path, target in given
    ]
    return SandboxTree(tuple(entries), {"=": b"12345"})


def test_copies_are_bounded_in_number_size_and_depth() -> None:
    pair = [("a", ""), ("a/f", "="), ("a/g", "=")]
    for files, size, became in ((3, 10, "copy"), (2, 10, "dropped"), (3, 9, "dropped")):
        links = LinkResolver(tree_of(*pair, ("b", "a")), files, size)
        resolved = links.resolve()
        assert links.records["b"]["became"] == became
        assert ("b/f" in resolved.paths) is (became == "copy")
    # Two links a folder double the copies with every level; and a chain is as deep as it is long.
    bomb = [(f"d{i}", "") for i in range(40)]
    bomb += [(f"d{i}/{name}", f"../d{i + 1}") for i in range(39) for name in "xy"]
    assert len(LinkResolver(tree_of(*sorted(bomb)), 1000, 1000).resolve().entries) <= 1200
    chain = [(f"d{i:05}", "") for i in range(5000)]
    chain += [(f"d{i:05}/x", f"../d{i + 1:05}") for i in range(4999)]
    resolved = LinkResolver(tree_of(*sorted(chain)), 20_000, 1000).resolve()
    assert max(entry.path.count("/") for entry in resolved.entries) <= 102
    loops = LinkResolver(tree_of(("a", "b"), ("b", "a"), ("c", "c/c"), ("d", "/work")), 10, 10)
    assert loops.resolve().entries == ()


@pytest.mark.needs("bubblewrap")
def test_the_limits_of_the_environment_bound_the_copies() -> None:
    limits = SandboxLimits(disk=1 << 20, files=100)
    command = "head -c 600000 /dev/zero > a; ln -s a b; ln -s a c"
    _, outcome = talk(ShellEnvironment(check="cmp a b && test ! -e c", limits=limits), command)
    assert outcome["check"]["passed"], outcome
    assert outcome["links"]["c"]["why"] == "its copy would be too large"
