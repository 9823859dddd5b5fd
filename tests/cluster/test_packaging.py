"""Which code goes to the workers of a cluster, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from heldout.cluster.packaging import (
    ImportPath,
    find_project,
    list_files,
    load_reference,
    pack_functions,
    zip_folder,
)
from heldout.errors import InvalidInput
from heldout.scoring import Rubric, grade_exact
from tests.cluster import evals

FOLDER = Path(__file__).parent
rubric = Rubric(grade_exact)


@pytest.mark.parametrize(
    ("function", "file", "name"),
    [
        (evals.exact, "evals.py", "exact"),
        (rubric, "test_packaging.py", "rubric"),  # an object
        (evals.definition.prepare_messages, "evals.py", "definition.prepare_messages"),
        (evals.anonymous, "evals.py", "anonymous"),  # that a function returned
    ],
)
def test_what_is_sent_is_the_name_it_is_assigned_to(function: Any, file: str, name: str) -> None:
    packed = pack_functions({"score_fn": function, "prepare_messages": None})
    assert packed.references == {"score_fn": ImportPath(file, name)}
    assert packed.folder == FOLDER


def test_a_function_without_a_name_is_refused_by_what_it_is() -> None:
    def score(trajectory: object, sample: object) -> float:
        return 1.0

    with pytest.raises(InvalidInput, match="score_fn .*locals.*score.* cannot be sent.*top level"):
        pack_functions({"score_fn": score})
    with pytest.raises(InvalidInput, match=r"endpoint \(a Rubric\) cannot be sent"):
        pack_functions({"endpoint": Rubric(grade_exact)})


def test_a_function_of_an_installed_package_is_imported_there() -> None:
    import msgspec

    packed = pack_functions({"score_fn": msgspec.to_builtins})
    assert packed.folder is None


def test_a_script_outside_of_the_folder_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evals, "__name__", "__main__")
    with pytest.raises(InvalidInput, match=r"score_fn is defined in .*evals.py, outside of"):
        pack_functions({"score_fn": evals.exact}, tmp_path)


def test_a_reference_is_loaded_from_the_folder(tmp_path: Path) -> None:
    (tmp_path / "some_eval.py").write_text("class A:\n    number = 7\n")
    assert load_reference(ImportPath("some_eval.py", "A.number"), tmp_path) == 7
    with pytest.raises(InvalidInput, match="some_eval.py has no B"):
        load_reference(ImportPath("some_eval.py", "B"), tmp_path)
    with pytest.raises(
        InvalidInput, match="no_such_module does not load: ModuleNotFoundError.*working_dir="
    ):
        load_reference(ImportPath("no_such_module", "B"), tmp_path)


def test_outputs_hidden_files_and_environments_are_not_sent(tmp_path: Path) -> None:
    for name in ("eval.py", "data/rows.jsonl", "outputs/x", ".git/x", ".key", "env/pyvenv.cfg"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("")
    files = {file.relative_to(tmp_path).as_posix() for file in list_files(tmp_path)}
    assert files == {"eval.py", "data/rows.jsonl"}


def test_the_same_files_make_the_same_archive(tmp_path: Path) -> None:
    (tmp_path / "eval.py").write_text("x = 1\n")
    first = zip_folder(tmp_path)
    (tmp_path / "eval.py").touch()
    assert zip_folder(tmp_path) == first


def test_a_folder_that_is_too_large_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("heldout.cluster.packaging.MAX_BYTES", 100)
    (tmp_path / "eval.py").write_text("x = 1\n")
    (tmp_path / "weights").mkdir()
    (tmp_path / "weights" / "big.bin").write_bytes(bytes(200))
    with pytest.raises(InvalidInput, match="most of it in weights"):
        zip_folder(tmp_path)


@pytest.mark.parametrize(
    ("mark", "project"),
    [
        (".git/HEAD", "repo"),
        (".git", "repo"),  # of a worktree
        ("pyproject.toml", "repo"),
        ("part/pyproject.toml", "repo/part"),
        ("part/scripts/pyproject.toml", "repo/part/scripts"),
        ("part/scripts/.gitignore", "repo/part/scripts"),
    ],
)
def test_a_project_is_the_nearest_folder_that_says_it_is_one(
    tmp_path: Path, mark: str, project: str
) -> None:
    script = tmp_path / "repo/part/scripts/script.py"
    script.parent.mkdir(parents=True)
    script.touch()
    (tmp_path / "repo" / mark).parent.mkdir(exist_ok=True)
    (tmp_path / "repo" / mark).touch()
    assert find_project(script) == tmp_path / project


def test_a_home_that_is_a_repository_of_dotfiles_is_not_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / "scratch").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path))
    assert find_project(tmp_path / "scratch/script.py") == tmp_path / "scratch"
