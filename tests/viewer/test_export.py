"""Runs as one HTML file: the same bytes each time, nothing that should not be in it."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from heldout import EvalResult, Message, Metric, Sample, Score, Trajectory
from heldout.errors import InvalidInput
from heldout.viewer import export
from heldout.viewer.export import export_runs
from heldout.viewer.pages import Pages
from tests.viewer.conftest import HOSTILE, Command
from tests.viewer.runs import make_two_evals, save_results

pytestmark = pytest.mark.integration


def data_of(page: bytes) -> dict[str, Any]:
    packed = re.search(rb'id="data">([^<]*)<', page)
    assert packed
    answers: dict[str, Any] = json.loads(gzip.decompress(base64.b64decode(packed[1])))
    return answers


@pytest.fixture(scope="module")
def page(folder: Path) -> bytes:
    names = ("shop-base", "shop-tuned", "grpo-shop", "shop-killed", "hostile")
    return export_runs([folder / name for name in names])


def test_the_same_runs_give_the_same_bytes(folder: Path, page: bytes) -> None:
    names = ("shop-base", "shop-tuned", "grpo-shop", "shop-killed", "hostile")
    assert export_runs([folder / name for name in names]) == page
    assert str(folder).encode() not in page
    assert str(folder) not in json.dumps(data_of(page))


def test_the_answers_are_those_of_the_server(pages: Pages, page: bytes) -> None:
    answers = data_of(page)
    whole = json.loads(json.dumps(pages.compare("shop-base", "shop-tuned", "level", "", [])))
    inside = answers["compare\na=shop-base\nb=shop-tuned\nby=level"]
    assert inside == whole
    assert answers["run\nname=shop-base"]["summary"] == pages.run("shop-base")["summary"]
    assert len(answers["rows\nname=shop-base"]["rows"]) == 120
    assert answers["curve\nname=grpo-shop"]["verdict"]["sentence"]
    flips = pages.pairs("shop-base", "shop-tuned", "", [], "lost:yes", "", 0, 9)["rows"]
    for name in ("shop-base", "shop-tuned"):
        assert all(f"sample\nid={flip['id']}\nname={name}" in answers for flip in flips)
    assert len(answers["pairs\na=shop-base\nb=shop-tuned"]["rows"]) == 120


def test_conversations_that_failed_are_inside_and_all_on_request(folder: Path, page: bytes) -> None:
    def ids(answers: dict[str, Any]) -> list[str]:
        return [a["id"] for key, a in answers.items() if key.startswith("sample\n")]

    rows = data_of(page)["rows\nname=shop-base"]["rows"]
    failed = [row["id"] for row in rows if row["outcome"] != "passed"]
    inside = ids(data_of(export_runs([folder / "shop-base"])))
    assert inside == failed
    assert len(ids(data_of(export_runs([folder / "shop-base"], samples="all")))) == 120
    assert len(ids(data_of(export_runs([folder / "shop-base"], samples="5")))) == 5
    with pytest.raises(InvalidInput, match="all, failures or a number"):
        export_runs([folder / "shop-base"], samples="some")


def test_tools_are_inside_once_for_all_samples_that_have_them(page: bytes) -> None:
    data = data_of(page)
    lists = {key for key in data if key.startswith("tools\n")}
    samples = [answer for key, answer in data.items() if key.startswith("sample\n")]
    assert {sample["tools"] for sample in samples if sample["tools"]} == lists
    assert len(lists) == 1 + len(HOSTILE)  # the shop's, and one for each hostile sample


def test_what_is_marked_together_is_in_the_file(folder: Path, tmp_path: Path) -> None:
    names = ["shop-base", "shop-tuned", "shop-base-strict"]
    make_two_evals(tmp_path)
    shutil.copytree(tmp_path / "two-evals", tmp_path / "again")
    roots = [*(folder / name for name in names), tmp_path / "two-evals", tmp_path / "again"]
    data = data_of(export_runs(roots, samples="1"))
    tables = [key.split("\nname=")[1:] for key in data if key.startswith("several\n")]
    assert [base for base, *_ in tables] == ["shop-base"]  # others differ in their scorer
    pages = Pages([folder])
    for chosen in tables:
        found = data["several\n" + "\n".join(f"name={name}" for name in chosen)]
        assert sorted(chosen) == sorted(names)
        text = pages.several(chosen, "", [])["rows"][1]["readings"][0]["text"]
        assert found["rows"][1]["readings"][0]["text"] == text
    charts = sorted(key for key in data if key.startswith("curves\n"))
    assert [chart.count("\nname=") for chart in charts] == [2, 2]
    assert len(data[charts[0]]["series"]) == 2


def test_script_and_style_are_the_only_ones_allowed(page: bytes) -> None:
    text = page.decode()
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', text)
    assert policy
    for tag, directive in (("script", "script-src"), ("style", "style-src")):
        bodies = re.findall(rf"<{tag}>(.*?)</{tag}>", text, re.S)
        digests = [base64.b64encode(hashlib.sha256(b.encode()).digest()).decode() for b in bodies]
        allowed = re.search(rf"{directive} ([^;]*)", policy[1])
        assert allowed
        assert sorted(allowed[1].split()) == sorted(f"'sha256-{digest}'" for digest in digests)
    assert "default-src 'none'" in policy[1]
    assert "http" not in re.sub(r"http-equiv|www\.w3\.org|http://www", "", text.split("<script")[0])


def test_hostile_text_stays_out_of_the_markup(page: bytes) -> None:
    text = page.decode()
    markup = text[: text.index('<script type="application')] + text[text.rindex("</script>") :]
    assert "<img" not in markup
    assert "alert(1)<" not in markup
    assert text.count("<script") == 3  # what is inside, Markdown, and the page
    assert data_of(page)["rows\nname=hostile"]["rows"][0]["id"] == HOSTILE[0]


SECRET = "sk-" + "abcdefghij" * 3


def with_secret() -> list[EvalResult]:
    sample = Sample("q", {"question": "?"}, None, {"owner": "Ann", "level": "hard"})
    messages = (Message("user", "?"), Message("assistant", f"the key is {SECRET}"))
    metric = Metric("m", 0.0, 1.0, {"note": "Ann"})
    return [EvalResult("q", sample, Trajectory(messages), Score((metric,)))]


def test_texts_that_look_like_keys_stop_it(tmp_path: Path, command: Command) -> None:
    save_results(tmp_path / "run", with_secret())
    with pytest.raises(
        InvalidInput, match=r"look like keys \(sk-abc…ij\).*--with-secrets"
    ) as refusal:
        export_runs([tmp_path / "run"])
    assert SECRET not in str(refusal.value)
    assert SECRET in json.dumps(data_of(export_runs([tmp_path / "run"], allow_secrets=True)))


@pytest.mark.parametrize(
    "text",
    [
        "hf_" + "a" * 34,
        "ghp_" + "A" * 36,
        "AKIA" + "A1B2C3D4E5F6G7H8",
        "-----BEGIN RSA PRIVATE KEY-----",
        "eyJhbGciOiJIUzI1.eyJzdWIiOiIxMjM0.c2lnbmF0dXJlMTIz",
    ],
)
def test_keys_of_many_kinds_are_known(text: str) -> None:
    with pytest.raises(InvalidInput, match="look like keys"):
        export._refuse_secrets(json.dumps({"answer": f"it is {text}."}).encode())
    export._refuse_secrets(b'{"answer": "a task-list of risk-based skills, sk-8, hf_small"}')


def test_values_of_a_key_can_be_left_out(tmp_path: Path) -> None:
    save_results(tmp_path / "run", with_secret())
    answers = data_of(export_runs([tmp_path / "run"], redact=["owner", "note"], allow_secrets=True))
    assert "Ann" not in json.dumps(answers)
    assert answers["sample\nid=q\nname=run"]["metadata"] == {"level": "hard", "owner": "[redacted]"}


def test_what_is_too_much_is_refused(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InvalidInput, match="There is no run in .* yet"):
        export_runs([tmp_path])
    monkeypatch.setattr(export, "MOST_BYTES", 1_000)
    with pytest.raises(InvalidInput, match="fewer conversations with --samples"):
        export_runs([folder / "arithmetic"])
    monkeypatch.setattr(export, "MOST_RUNS", 2)
    with pytest.raises(InvalidInput, match="name those to export"):
        export_runs([folder])


def test_the_command_writes_the_file(folder: Path, tmp_path: Path, command: Command) -> None:
    out = tmp_path / "out.html"
    printed = command("view", folder / "arithmetic", "--export", out, "--samples", "3")
    assert printed == f"Wrote {out}, {len(out.read_bytes()) / 1e6:.1f} MB.\n"
    assert out.read_bytes() == export_runs([folder / "arithmetic"], samples="3")


def test_readers_without_script_see_the_summary(
    page: bytes, command_json: Callable[..., Any]
) -> None:
    noscript = page.decode().split("<noscript>")[1].split("</noscript>")[0]
    assert "<h2>shop-base</h2>" in noscript
    assert ">reward" in noscript
    assert "conversations inside" in noscript
