"""Datasets into samples, and what is said about files that are not what they should be."""

from __future__ import annotations

import gzip
import json
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from heldout import Sample
from heldout.datasets import read_csv, read_hf, read_jsonl, read_parquet, to_samples
from heldout.errors import InvalidInput

ROWS = [
    {"question": "one?", "answer": "1", "difficulty": "easy"},
    {"question": "zwölf?", "answer": "12", "difficulty": "hard"},
]
SAMPLES = [
    Sample("0", {"question": "one?"}, "1", {"difficulty": "easy"}),
    Sample("1", {"question": "zwölf?"}, "12", {"difficulty": "hard"}),
]
COLUMNS: Any = {"ground_truth": "answer", "metadata": ["difficulty"]}


def gz(content: bytes) -> bytes:
    """Without the time of day in it: test names are made of this."""
    return gzip.compress(content, mtime=0)


def jsonl(rows: list[Any]) -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def zstd(*frames: bytes) -> bytes:
    # With a checksum, as the command zstd writes it.
    compress = zstandard.ZstdCompressor(write_checksum=True).compress
    return b"".join(map(compress, frames))


def written(path: Path, content: bytes | str) -> Path:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


# --- Rows to samples ----------------------------------------------------------------------------


def test_named_columns_go_where_they_are_named_and_the_rest_is_input() -> None:
    assert to_samples(ROWS, **COLUMNS) == SAMPLES
    rows = [{"id": 7, "ground_truth": 1, "prompt": "?"}]  # which say what they are
    assert to_samples(rows) == [Sample("7", {"prompt": "?"}, 1)]
    assert to_samples(iter(ROWS), id="question", input=["question", "answer"]) == [
        Sample(row["question"], {"question": row["question"], "answer": row["answer"]})
        for row in ROWS
    ]


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"id": "", "prompt": "?"}, "a sample id must be a non-empty string"),
        ({"id": None, "prompt": "?"}, "an id must be a text or a number, got None"),
        ({"id": ["a"], "prompt": "?"}, "an id must be a text or a number, got ['a']"),
        ({"prompt": "?"}, "there is no column 'id'"),
        ([1, 2], "a row must be an object with columns, got list"),
        (None, "a row must be an object with columns, got NoneType"),
    ],
)
def test_a_row_that_makes_no_sample_is_named_with_file_and_line(
    tmp_path: Path, row: Any, said: str
) -> None:
    rows = [{"id": "x", "prompt": "?"}, row]
    file = written(tmp_path / "a.jsonl", b"\n" + jsonl(rows))
    with pytest.raises(InvalidInput) as refused:
        to_samples(read_jsonl(file))
    assert str(refused.value).startswith(f"{file}, line 3: {said}")
    with pytest.raises(InvalidInput) as refused:
        to_samples(rows)
    assert str(refused.value).startswith(f"row 1: {said}")


@pytest.mark.parametrize(
    "columns",
    [{"id": "key"}, {"ground_truth": "key"}, {"input": ["key"]}, {"metadata": ["answer", "key"]}],
)
def test_a_column_that_a_row_lacks_is_an_error_unless_it_is_optional(columns: Any) -> None:
    rows = [{**ROWS[0], "key": "k"}, ROWS[1]]
    with pytest.raises(InvalidInput) as refused:
        to_samples(rows, **columns)
    assert str(refused.value) == (
        "row 1: there is no column 'key'; there are ['answer', 'difficulty', 'question']. "
        "A column that rows may lack is named: optional=['key']"
    )
    if "id" not in columns:
        expected = to_samples([rows[0], {**rows[1], "key": None}], **columns)
        assert to_samples(rows, **columns, optional=["key"]) == expected


@pytest.mark.parametrize("given", [{}, {"id": "id"}])
def test_an_id_is_not_optional(given: dict[str, str]) -> None:
    with pytest.raises(InvalidInput, match=r"optional: 'id' is the id, .* give the rows that lack"):
        to_samples([{"id": "a", "question": "q"}, {"question": "r"}], optional=["id"], **given)


def test_an_optional_column_that_no_row_has_is_refused() -> None:
    with pytest.raises(InvalidInput) as refused:
        to_samples(ROWS, metadata=["level"], optional=["level"])
    assert str(refused.value) == (
        "optional: no row has 'level'; there are ['answer', 'difficulty', 'question']"
    )


def test_a_bare_text_for_a_list_of_columns_is_refused() -> None:
    for name in ("input", "metadata", "optional"):
        columns: Any = {name: "difficulty"}
        with pytest.raises(
            InvalidInput, match=f"{name} must be a list of .*write \\['difficulty'\\]"
        ):
            to_samples(ROWS, **columns)


# --- JSONL --------------------------------------------------------------------------------------


def test_the_same_rows_come_of_every_form_of_a_file(tmp_path: Path) -> None:
    for name, content in {
        "a.jsonl": jsonl(ROWS),
        "no newline.jsonl": jsonl(ROWS).rstrip(),
        "windows.jsonl": jsonl(ROWS).replace(b"\n", b"\r\n"),
        "blank lines.jsonl": b"\n" + jsonl(ROWS).replace(b"\n", b"\n \n"),
        "byte order mark.jsonl": b"\xef\xbb\xbf" + jsonl(ROWS),
        "two members.jsonl.gz": gz(jsonl(ROWS[:1])) + gz(jsonl(ROWS[1:])),
        "a.jsonl.zstd": zstd(jsonl(ROWS)),
        "two frames.jsonl.zst": zstd(jsonl(ROWS[:1]), jsonl(ROWS[1:])),
        "frames within a line.jsonl.zst": zstd(jsonl(ROWS)[:5], b"", jsonl(ROWS)[5:]),
    }.items():
        assert read_jsonl(written(tmp_path / name, content)) == ROWS, name
    for content in (b"", b"\n\n", b"\xef\xbb\xbf"):
        assert read_jsonl(written(tmp_path / "a.jsonl", content)) == []
        assert read_jsonl(written(tmp_path / "a.jsonl.gz", gz(content))) == []
        assert read_jsonl(written(tmp_path / "a.jsonl.zst", zstd(content))) == []


def is_open(file: Path) -> bool:
    """Whether this process still holds the file, as the traceback of a refusal might have it do."""
    links = [link for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
    return file.resolve() in [link.readlink() for link in links]


def many_rows() -> list[dict[str, str]]:
    rng = random.Random(0)  # what does not compress fills many blocks
    return [{"prompt": rng.randbytes(50).hex()} for _ in range(5_000)]


@pytest.mark.parametrize("suffix", [".gz", ".zst"])
def test_a_compressed_file_is_read_whole_or_is_an_error_and_not_a_shorter_dataset(
    tmp_path: Path, suffix: str
) -> None:
    pack = zstd if suffix == ".zst" else gz
    rows, file = many_rows(), tmp_path / f"a.jsonl{suffix}"
    content = pack(jsonl(rows))
    assert read_jsonl(written(file, content)) == rows
    for kept in (0.5, 0.999):
        with pytest.raises(InvalidInput, match=r"cannot be read after line \d+: .*end"):
            read_jsonl(written(file, content[: int(len(content) * kept)]))
    small = pack(jsonl(ROWS))
    for part in (*(small[:end] for end in range(1, len(small))), jsonl(ROWS)):
        with pytest.raises(InvalidInput, match="cannot be read after line"):
            read_jsonl(written(file, part))
    middle = len(content) // 2
    with pytest.raises(InvalidInput):
        read_jsonl(written(file, content[:middle] + bytes(64) + content[middle + 64 :]))


@pytest.mark.parametrize(
    "line",
    [b"{", b'{"a": NaN}', b'{"a": "\xff"}', b"{} {}", b"[" * 100_000],
    ids=["cut", "nan", "not UTF-8", "two", "deep"],
)
def test_a_line_that_is_not_json_is_named_with_its_number(tmp_path: Path, line: bytes) -> None:
    file = written(tmp_path / "a.jsonl", jsonl(ROWS) + b"\n" + line + b"\n" + jsonl(ROWS))
    with pytest.raises(InvalidInput) as refused:
        read_jsonl(file)
    assert str(refused.value).startswith(f"{file}, line 4: not JSON: ")
    assert not is_open(file)


# --- CSV ----------------------------------------------------------------------------------------

CSV = "question,answer,difficulty\r\none?,1,easy\r\nzwölf?,12,hard\r\n"


def test_the_same_rows_come_of_every_form_of_a_csv_file(tmp_path: Path) -> None:
    for name, content in {
        "a.csv": CSV.encode(),
        "unix.csv": CSV.replace("\r\n", "\n").encode(),
        "no newline.csv": CSV.rstrip().encode(),
        "byte order mark.csv": b"\xef\xbb\xbf" + CSV.encode(),
        "quoted.csv": CSV.replace("one?", '"one?"').encode(),
        "blank lines.csv": CSV.replace("\r\n", "\r\n\r\n").encode(),
        "a.csv.gz": gz(CSV.encode()),
        "a.csv.zst": zstd(CSV.encode()),
    }.items():
        assert read_csv(written(tmp_path / name, content)) == ROWS, name
    for content in ("", "\n", "question,answer\n", "question,answer"):
        assert read_csv(written(tmp_path / "a.csv", content)) == []
    with pytest.raises(InvalidInput, match="cannot be read after line"):
        read_csv(written(tmp_path / "a.csv.gz", gz(CSV.encode() * 1000)[:-20]))


def test_quoted_fields_keep_line_breaks_commas_and_quotes(tmp_path: Path) -> None:
    file = written(tmp_path / "a.csv", 'question,answer\n"a,\r\nb\n""c""",1\n')
    assert read_csv(file) == [{"question": 'a,\r\nb\n"c"', "answer": "1"}]


def test_a_field_may_be_longer_than_a_csv_reader_likes(tmp_path: Path) -> None:
    long = "x" * 1_000_000
    rows = read_csv(written(tmp_path / "a.csv", f"question\n{long}\n"))
    assert rows == [{"question": long}]


@pytest.mark.parametrize(
    ("content", "line", "said"),
    [
        ("a,b\n1,2\n3\n", 3, "1 fields, where the header has 2: ['a', 'b']"),
        ("a,b\n1,2\n3,4,5\n", 3, "3 fields, where the header has 2"),
        ('a,b\n"x\ny\nz",2\n3\n', 5, "1 fields"),
        ('a,b\n1,2\n"x\ny\nz"\n', 3, "1 fields"),
        ("a,b\n\n\n1,2\n\n3\n", 6, "1 fields"),
        ('a,b\n1,2\n"x\ny\n', 3, "unexpected end of data"),
        ('a,b\n1,2\n"x"y,2\n', 3, "',' expected after '\"'"),
        ("a,b,a\n1,2,3\n", 1, "the header has ['a'] more than once"),
    ],
)
def test_a_bad_csv_record_is_named_with_the_line_it_begins_on(
    tmp_path: Path, content: str, line: int, said: str
) -> None:
    file = written(tmp_path / "a.csv", content)
    with pytest.raises(InvalidInput) as refused:
        read_csv(file)
    assert str(refused.value).startswith(f"{file}, line {line}: {said}")
    assert not is_open(file)


def test_csv_that_is_not_utf_8_is_named_with_its_line(tmp_path: Path) -> None:
    file = written(tmp_path / "a.csv", b"a,b\n" + b"1,2\n" * 5000 + b"z\xfcrich,4\n")
    with pytest.raises(InvalidInput, match=r"a\.csv, line 5002: 'utf-8' codec can't decode"):
        read_csv(file)
    excel = written(tmp_path / "b.csv", CSV.encode("utf-16"))
    with pytest.raises(InvalidInput, match=r"b\.csv, line 1: 'utf-8' codec can't decode"):
        read_csv(excel)


# --- Parquet ------------------------------------------------------------------------------------


def test_parquet_rows_are_read(tmp_path: Path) -> None:
    row = {"id": 3, "messages": [{"role": "user", "content": "?"}], "choices": ["a"], "x": 0.5}
    for rows in (ROWS, [row]):
        pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet", row_group_size=1)
        assert read_parquet(tmp_path / "a.parquet") == rows


@pytest.mark.parametrize("name", ["split=test/a.parquet", "a[1].parquet", "a*.parquet"])
def test_a_path_names_one_parquet_file_and_no_column(name: str, tmp_path: Path) -> None:
    (tmp_path / "split=test").mkdir()
    for other in ("a1.parquet", "a2.parquet", name):
        pq.write_table(pa.table({"file": [other]}), tmp_path / other)
    assert read_parquet(tmp_path / name) == [{"file": name}]


def test_a_wrong_column_of_a_parquet_file_is_named_with_its_row(tmp_path: Path) -> None:
    pq.write_table(pa.Table.from_pylist(ROWS), tmp_path / "a.parquet")
    with pytest.raises(InvalidInput, match=r"a\.parquet, row 0: there is no column 'truth'"):
        to_samples(read_parquet(tmp_path / "a.parquet"), ground_truth="truth")


def test_a_file_that_is_not_parquet_or_only_part_of_one_is_an_error(tmp_path: Path) -> None:
    file = tmp_path / "a.parquet"
    pq.write_table(pa.Table.from_pylist(ROWS), file)
    whole = file.read_bytes()
    for content in (b"", b"text", jsonl(ROWS) * 10, whole[:-10], whole[: len(whole) // 2]):
        with pytest.raises(InvalidInput, match=r"a\.parquet is not a readable Parquet file: "):
            read_parquet(written(file, content))


# --- Hugging Face -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def datasets() -> Any:
    import datasets

    return datasets


def test_a_hugging_face_dataset_is_read(datasets: Any) -> None:
    dataset = datasets.Dataset.from_list(ROWS)
    assert read_hf(dataset) == ROWS
    assert read_hf(dataset.to_iterable_dataset()) == ROWS
    assert read_hf(iter(ROWS)) == ROWS


def test_a_dict_of_splits_needs_one_named_unless_there_is_only_one(datasets: Any) -> None:
    test, train = (datasets.Dataset.from_list(rows) for rows in (ROWS, ROWS[:1]))
    both = datasets.DatasetDict({"test": test, "train": train})
    assert read_hf(both, split="test") == ROWS
    assert read_hf(both, split="train") == ROWS[:1]
    assert read_hf(datasets.DatasetDict({"test": test})) == ROWS
    with pytest.raises(InvalidInput) as refused:
        read_hf(both)
    assert str(refused.value) == "DatasetDict has the splits ['test', 'train']; name one: split=…"
    with pytest.raises(InvalidInput, match=r"splits \['test', 'train'\], not 'dev'; name one"):
        read_hf(both, split="dev")
    with pytest.raises(InvalidInput, match="Dataset has no splits, so there is no 'test'"):
        read_hf(test, split="test")


def test_a_saved_dataset_is_loaded_from_its_folder(datasets: Any, tmp_path: Path) -> None:
    datasets.disable_progress_bars()
    dataset = datasets.Dataset.from_list(ROWS)
    dataset.save_to_disk(tmp_path / "one")
    datasets.DatasetDict({"test": dataset}).save_to_disk(tmp_path / "splits")
    assert read_hf(tmp_path / "one") == ROWS
    assert read_hf(str(tmp_path / "splits")) == ROWS
    with pytest.raises(InvalidInput, match=r"splits\['test'\], row 0: there is no column 'x'"):
        to_samples(read_hf(tmp_path / "splits"), id="x")


def test_a_folder_that_is_not_a_saved_dataset_is_named(datasets: Any, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"is not a folder that save_to_disk made"):
        read_hf(tmp_path)
    with pytest.raises(InvalidInput, match=r"is not a folder that save_to_disk made"):
        read_hf(written(tmp_path / "a.jsonl", jsonl(ROWS)))


def test_the_name_of_a_dataset_on_the_hub_is_refused_with_what_to_do() -> None:
    with pytest.raises(InvalidInput, match=r"no dataset folder at openai/gsm8k; .*load_dataset"):
        read_hf("openai/gsm8k")


# --- Files that are not there -------------------------------------------------------------------


@pytest.mark.parametrize("load", [read_jsonl, read_csv, read_parquet])
def test_a_missing_file_and_a_folder_are_refused_at_the_call(
    tmp_path: Path, load: Callable[[Path], Any]
) -> None:
    with pytest.raises(InvalidInput) as refused:
        load(tmp_path / "none")
    assert str(refused.value) == f"there is no file {tmp_path / 'none'}"
    with pytest.raises(InvalidInput, match="is a folder, not a file"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("package", "call"),
    [
        ("zstandard", lambda path: read_jsonl(path)),
        ("datasets", lambda path: read_hf(path.parent)),
    ],
)
def test_a_package_that_is_not_installed_is_named_with_how_to_install_it(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    package: str,
    call: Callable[[Path], Any],
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    file = written(tmp_path / "a.zst", zstd(jsonl(ROWS)))
    with pytest.raises(InvalidInput) as refused:
        call(file)
    assert f"needs the package {package}: pip install '{package}>=" in str(refused.value)
