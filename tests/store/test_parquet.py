"""The Parquet codec: what it writes, everyone reads; what it reads, it never trusts."""

from __future__ import annotations

import contextlib
import io
import math
import os
import subprocess
import sys
import tracemalloc
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from heldout.store import parquet
from heldout.store.parquet import Column, Kind, ParquetError, ParquetFile, ParquetWriter

Group = dict[str, list[Any]]
Table = tuple[dict[str, Kind], list[Group]]

VALUES: dict[Kind, st.SearchStrategy[Any]] = {
    "string": st.sampled_from(["", "easy", "härt", "日本", "🙂"]) | st.text(max_size=12),
    "double": st.floats(),
    "int": st.integers(-(2**63), 2**63 - 1),
    "bool": st.booleans(),
}
NUMPY = {"string": np.int32, "double": np.float64, "int": np.int64, "bool": np.bool_}


@st.composite
def tables(draw: st.DrawFn) -> Table:
    names = draw(st.lists(st.text(min_size=1, max_size=8), min_size=1, max_size=5, unique=True))
    schema: dict[str, Kind] = {name: draw(st.sampled_from(list(VALUES))) for name in names}
    groups = []
    for rows in draw(st.lists(st.integers(1, 20), max_size=3)):
        columns = {}
        for name, kind in schema.items():
            values = st.none() | VALUES[kind]
            columns[name] = draw(st.lists(values, min_size=rows, max_size=rows))
        groups.append(columns)
    return schema, groups


def encode(
    schema: dict[str, Kind], groups: list[Group], metadata: dict[str, str] | None = None
) -> bytes:
    file = io.BytesIO()
    writer = ParquetWriter(file, schema, metadata=metadata)
    for group in groups:
        writer.write_group(group)
    writer.close()
    return file.getvalue()


def to_list(column: Column) -> list[Any]:
    values = column.values.tolist()
    if column.dictionary is not None:
        values = [column.dictionary[code] if code >= 0 else None for code in values]
    return [value if ok else None for value, ok in zip(values, column.valid.tolist(), strict=True)]


def read_all(path: Path) -> list[Group]:
    file = ParquetFile(path)
    return [
        {name: to_list(column) for name, column in group.items()}
        for group in file.groups(list(file.schema))
    ]


def joined(schema: dict[str, Kind], groups: list[Group]) -> list[list[Any]]:
    """The columns of all groups together, in the order of the schema."""
    return [[value for group in groups for value in group[name]] for name in schema]


def exact(values: Any) -> Any:
    """Values such that equal means the same: by sign of zero, and NaN to itself."""
    if isinstance(values, list | tuple):
        return [exact(value) for value in values]
    return ("float", math.isnan(values) or values.hex()) if isinstance(values, float) else values


def from_duckdb(path: Path) -> list[list[Any]]:
    relation = duckdb.sql(f"select * from read_parquet('{path}')")
    rows = relation.fetchall()
    return [[row[i] for row in rows] for i in range(len(relation.columns))]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("parquet") / "table.parquet"


EVERY_KIND: dict[str, Kind] = {"s": "string", "d": "double", "i": "int", "b": "bool", "u": "string"}


def every_kind(rows: int) -> Group:
    """All kinds and both encodings of strings, with nulls in every column."""
    group: Group = {
        "s": [f"täsk {i % 5}" for i in range(rows)],
        "d": [i / 7 for i in range(rows)],
        "i": [i**5 for i in range(rows)],
        "b": [i % 3 == 0 for i in range(rows)],
        "u": [f"unique {i}" for i in range(rows)],
    }
    for place, values in enumerate(group.values()):
        values[place::11] = [None] * len(values[place::11])
    return group


# --- Round trips --------------------------------------------------------------------------------


@settings(max_examples=50, deadline=None)
@given(tables())
def test_what_was_written_is_what_this_reader_reads(path: Path, table: Table) -> None:
    schema, groups = table
    path.write_bytes(encode(schema, groups))
    file = ParquetFile(path)
    assert file.schema == schema
    assert list(file.schema) == list(schema)
    assert file.num_rows == sum(len(next(iter(group.values()))) for group in groups)
    read = read_all(path)
    assert [exact(list(group.values())) for group in read] == [
        exact(list(group.values())) for group in groups
    ]


@settings(max_examples=40, deadline=None)
@given(tables())
def test_what_was_written_is_what_pyarrow_reads(path: Path, table: Table) -> None:
    schema, groups = table
    path.write_bytes(encode(schema, groups))
    read = pq.read_table(path)
    assert read.column_names == list(schema)
    types = {"string": pa.string(), "double": pa.float64(), "int": pa.int64(), "bool": pa.bool_()}
    assert read.schema.types == [types[kind] for kind in schema.values()]
    assert exact([column.to_pylist() for column in read.columns]) == exact(joined(schema, groups))
    counts = pq.read_metadata(path)
    for number, group in enumerate(groups):
        for place, values in enumerate(group.values()):
            statistics = counts.row_group(number).column(place).statistics
            assert statistics.null_count == values.count(None)


@settings(max_examples=30, deadline=None)
@given(tables())
def test_what_was_written_is_what_duckdb_reads(path: Path, table: Table) -> None:
    schema, groups = table
    path.write_bytes(encode(schema, groups))
    assert exact(from_duckdb(path)) == exact(joined(schema, groups))


@pytest.mark.parametrize(
    ("rows", "distinct", "encoding"),
    [
        (300, 256, "RLE_DICTIONARY"),
        (300, 257, "PLAIN"),
        (600, 300, "RLE_DICTIONARY"),
        (600, 301, "PLAIN"),
        (140_000, 70_000, "RLE_DICTIONARY"),
    ],
)
def test_strings_go_through_a_dictionary_when_they_repeat(
    path: Path, rows: int, distinct: int, encoding: str
) -> None:
    values = [f"v{i % distinct}" for i in range(rows)]
    path.write_bytes(encode({"s": "string"}, [{"s": values}]))
    assert encoding in pq.read_metadata(path).row_group(0).column(0).encodings
    dictionary = encoding == "RLE_DICTIONARY"
    assert pq.read_metadata(path).row_group(0).column(0).has_dictionary_page == dictionary
    (group,) = ParquetFile(path).groups(["s"])
    assert group["s"].dictionary == list(dict.fromkeys(values))
    assert to_list(group["s"]) == values
    assert pq.read_table(path)["s"].to_pylist() == values
    assert from_duckdb(path) == [values]


@pytest.mark.parametrize("rows", [1, 7, 8, 9, 100, 5000])
def test_every_reader_agrees_on_every_kind_at_any_number_of_rows(path: Path, rows: int) -> None:
    groups = [every_kind(rows), every_kind(rows + 1)]
    path.write_bytes(encode(EVERY_KIND, groups))
    assert read_all(path) == groups
    columns = joined(EVERY_KIND, groups)
    assert [column.to_pylist() for column in pq.read_table(path).columns] == columns
    assert from_duckdb(path) == columns


@pytest.mark.parametrize("kind", VALUES)
def test_a_column_of_nulls_is_read_as_nulls_by_everyone(path: Path, kind: Kind) -> None:
    path.write_bytes(encode({"x": kind}, [{"x": [None] * 20}]))
    (group,) = ParquetFile(path).groups(["x"])
    assert group["x"].values.dtype == NUMPY[kind]
    assert not group["x"].valid.any()
    assert to_list(group["x"]) == [None] * 20
    assert pq.read_table(path)["x"].to_pylist() == [None] * 20
    assert from_duckdb(path) == [[None] * 20]


def test_a_null_is_nan_or_zero_or_false_or_minus_one_among_the_values(path: Path) -> None:
    columns: Group = {"s": ["a", None], "d": [1.5, None], "i": [7, None], "b": [True, None]}
    schema = {name: EVERY_KIND[name] for name in columns}
    path.write_bytes(encode(schema, [columns]))
    (group,) = ParquetFile(path).groups(list(schema))
    assert group["s"].values.tolist() == [0, -1]
    assert group["s"].dictionary == ["a"]
    assert group["i"].values.tolist() == [7, 0]
    assert group["b"].values.tolist() == [True, False]
    assert group["d"].values[0] == 1.5
    assert math.isnan(group["d"].values[1])
    for name, kind in schema.items():
        assert group[name].values.dtype == NUMPY[kind]
        assert group[name].valid.tolist() == [True, False]
        assert (group[name].dictionary is None) == (kind != "string")


def test_nan_is_a_value_and_not_a_null(path: Path) -> None:
    path.write_bytes(encode({"d": "double"}, [{"d": [math.nan, None]}]))
    (group,) = ParquetFile(path).groups(["d"])
    assert group["d"].valid.tolist() == [True, False]
    assert np.isnan(group["d"].values).all()
    assert pq.read_table(path)["d"].null_count == 1


def test_a_file_without_groups_has_a_schema_and_no_rows(path: Path) -> None:
    path.write_bytes(encode(EVERY_KIND, []))
    file = ParquetFile(path)
    assert (file.schema, file.metadata, file.num_rows) == (EVERY_KIND, {}, 0)
    assert list(file.groups(["s"])) == []
    assert pq.read_table(path).num_rows == 0
    assert pq.read_table(path).column_names == list(EVERY_KIND)
    assert from_duckdb(path) == [[]] * len(EVERY_KIND)


def test_a_group_without_rows_is_not_written() -> None:
    nothing: Group = {name: [] for name in EVERY_KIND}
    group = every_kind(3)
    assert encode(EVERY_KIND, [nothing, group, nothing]) == encode(EVERY_KIND, [group])


@pytest.mark.parametrize("many", [13, 14, 15, 16, 40])
def test_many_columns_and_many_groups_keep_their_order(path: Path, many: int) -> None:
    schema: dict[str, Kind] = {f"c{i}": "int" for i in range(many)}
    groups = [{f"c{i}": [i * g] for i in range(many)} for g in range(many)]
    path.write_bytes(encode(schema, groups))
    assert read_all(path) == groups
    assert [c.to_pylist() for c in pq.read_table(path).columns] == joined(schema, groups)
    assert from_duckdb(path) == joined(schema, groups)


def test_numpy_scalars_are_values_of_their_kind(path: Path) -> None:
    schema: dict[str, Kind] = {"d": "double", "i": "int", "b": "bool"}
    columns: Group = {"d": [np.float32(0.5), 2], "i": [np.uint8(3), 4], "b": [np.True_, False]}
    path.write_bytes(encode(schema, [columns]))
    assert read_all(path) == [{"d": [0.5, 2.0], "i": [3, 4], "b": [True, False]}]


# --- Names and metadata -------------------------------------------------------------------------


def test_a_dotted_name_is_one_flat_column_for_everyone(path: Path) -> None:
    schema: dict[str, Kind] = {"metadata.difficulty": "string", "metadata": "int", "a.b.c": "int"}
    columns: Group = {"metadata.difficulty": ["hard", None], "metadata": [1, 2], "a.b.c": [3, 4]}
    path.write_bytes(encode(schema, [columns]))
    assert read_all(path) == [columns]
    assert pq.read_schema(path).names == list(schema)
    assert pq.read_table(path).to_pydict() == columns
    chunk = pq.read_metadata(path).row_group(0).column(0)
    assert chunk.path_in_schema == "metadata.difficulty"
    found = duckdb.sql(f"""select "metadata.difficulty", "a.b.c" from read_parquet('{path}')""")
    assert found.fetchall() == [("hard", 3), (None, 4)]


@pytest.mark.parametrize(
    "name", ["größe", "難易度", "🙂", "with space", "quo\"te'", "a\nb", "schema"]
)
def test_any_text_can_name_a_column(path: Path, name: str) -> None:
    path.write_bytes(encode({name: "int"}, [{name: [1]}]))
    assert read_all(path) == [{name: [1]}]
    assert pq.read_table(path).to_pydict() == {name: [1]}
    assert duckdb.sql(f"select * from read_parquet('{path}')").columns == [name]


def test_metadata_is_in_the_footer_for_everyone(path: Path) -> None:
    metadata = {"heldout.journal_bytes": "123", "ключ": "значение", "empty": ""}
    path.write_bytes(encode({"x": "int"}, [{"x": [1]}], metadata))
    assert ParquetFile(path).metadata == metadata
    expected = {key.encode(): value.encode() for key, value in metadata.items()}
    assert pq.read_metadata(path).metadata == expected
    found = duckdb.sql(f"select key, value from parquet_kv_metadata('{path}')").fetchall()
    assert dict(found) == expected


# --- Writing: determinism and refusals ----------------------------------------------------------


def test_the_same_input_gives_the_same_bytes_in_any_process() -> None:
    script = """
import sys
from heldout.store.parquet import ParquetWriter
writer = ParquetWriter(sys.stdout.buffer, {"s": "string", "d": "double"}, metadata={"a": "b"})
writer.write_group({"s": [f"v{i % 7}" for i in range(99)], "d": [i / 3 for i in range(99)]})
writer.close()
"""
    group: Group = {"s": [f"v{i % 7}" for i in range(99)], "d": [i / 3 for i in range(99)]}
    expected = encode({"s": "string", "d": "double"}, [group], {"a": "b"})
    where = str(Path(parquet.__file__).parents[2])
    environment = {**os.environ, "PYTHONPATH": where, "PYTHONHASHSEED": "7"}
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, env=environment, check=True, capture_output=True)
    assert done.stdout == expected


def test_no_page_carries_a_time_stamp() -> None:
    pages = encode(EVERY_KIND, [every_kind(1000)]).split(b"\x1f\x8b\x08\x00")[1:]
    assert len(pages) == 6  # one for each of five columns, and one dictionary
    assert all(page.startswith(b"\0\0\0\0") for page in pages)


def test_closing_writes_the_footer_once_and_leaves_the_file_open() -> None:
    file = io.BytesIO()
    writer = ParquetWriter(file, {"x": "int"})
    writer.write_group({"x": [1]})
    writer.close()
    size = file.tell()
    writer.close()
    assert file.tell() == size
    assert not file.closed
    with pytest.raises(ValueError, match="closed"):
        writer.write_group({"x": [2]})


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("string", 1),
        ("string", b"bytes"),
        ("string", "\ud800"),
        ("double", "1.0"),
        ("double", True),
        ("double", 10**400),
        ("int", 1.0),
        ("int", True),
        ("int", 2**63),
        ("int", -(2**63) - 1),
        ("int", np.uint64(2**63)),
        ("bool", 1),
        ("bool", "true"),
    ],
)
def test_a_value_that_does_not_fit_its_kind_is_refused_by_the_name_of_its_column(
    kind: Kind, value: object
) -> None:
    writer = ParquetWriter(io.BytesIO(), {"fine": "int", "the culprit": kind})
    with pytest.raises(ValueError, match="'the culprit'"):
        writer.write_group({"fine": [1, 2], "the culprit": [None, value]})


@pytest.mark.parametrize(
    "columns",
    [
        {"fine": [1]},
        {"fine": [1], "the culprit": []},
        {"fine": [], "the culprit": [1]},
        {"fine": [1], "other": [1], "the culprit": [1, 2]},
        {"fine": [1], "other": [1], "the culprit": [1], "more": [1]},
    ],
)
def test_columns_that_do_not_match_are_refused_by_name(columns: Group) -> None:
    writer = ParquetWriter(io.BytesIO(), {"fine": "int", "the culprit": "int"})
    with pytest.raises(ValueError, match=r"'the culprit'|'other'"):
        writer.write_group(columns)


def test_a_refused_group_leaves_no_trace_in_the_file() -> None:
    file = io.BytesIO()
    writer = ParquetWriter(file, EVERY_KIND)
    writer.write_group(every_kind(5))
    with pytest.raises(ValueError, match="'u'"):
        writer.write_group({**every_kind(5), "u": ["a", "b", "c", "d", 5]})
    writer.write_group(every_kind(6))
    writer.close()
    assert file.getvalue() == encode(EVERY_KIND, [every_kind(5), every_kind(6)])


def test_a_group_larger_than_a_reader_would_accept_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    writer = ParquetWriter(io.BytesIO(), {"s": "string"})
    monkeypatch.setattr(parquet, "_MAX_BYTES", 1000)
    with pytest.raises(ValueError, match=r"'s'.*too much"):
        writer.write_group({"s": ["x" * 1000]})
    monkeypatch.setattr(parquet, "_MAX_ROWS", 10)
    with pytest.raises(ValueError, match=r"'s'.*too much"):
        writer.write_group({"s": ["x"] * 11})
    writer.write_group({"s": ["x"] * 10})


def test_a_schema_without_columns_or_with_an_unknown_kind_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one column"):
        ParquetWriter(io.BytesIO(), {})
    with pytest.raises(ValueError, match="'x'"):
        ParquetWriter(io.BytesIO(), {"x": "float"})  # type: ignore[dict-item]


# --- Reading: laziness and distrust -------------------------------------------------------------


def test_only_the_columns_asked_for_are_decoded(path: Path) -> None:
    data = bytearray(encode({"a": "double", "b": "int"}, [{"a": [1.0], "b": [2]}]))
    data[4:40] = bytes(36)  # most of the chunk of "a"
    path.write_bytes(data)
    file = ParquetFile(path)
    assert [to_list(group["b"]) for group in file.groups(["b"])] == [[2]]
    with pytest.raises(ParquetError, match="column 'a'"):
        list(file.groups(["a"]))


def test_asking_for_an_unknown_column_names_it(path: Path) -> None:
    path.write_bytes(encode({"a": "int"}, []))
    with pytest.raises(ParquetError, match="'nope'"):
        list(ParquetFile(path).groups(["a", "nope"]))


def test_the_file_is_closed_however_reading_ends(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path.write_bytes(encode({"a": "int"}, [{"a": [1]}, {"a": [2]}]))
    opened: list[IO[Any]] = []
    real = parquet.open_to_read

    def recording(path: Path) -> IO[Any]:
        opened.append(real(path))
        return opened[-1]

    monkeypatch.setattr(parquet, "open_to_read", recording)
    file = ParquetFile(path)
    for _ in file.groups(["a"]):
        pass
    for _ in file.groups(["a"]):
        break
    assert len(opened) == 3
    assert all(handle.closed for handle in opened)


def forged(data: bytes, change: Callable[[dict[int, Any]], None]) -> bytes:
    """The file with its footer changed."""
    size = int.from_bytes(data[-8:-4], "little")
    footer = parquet._Cursor(data[-8 - size : -8]).struct()
    change(footer)
    raw = parquet._encode(footer)[1]
    return data[: -8 - size] + raw + len(raw).to_bytes(4, "little") + b"PAR1"


def read_or_refuse(path: Path, data: bytes) -> None:
    path.write_bytes(data)
    with contextlib.suppress(ParquetError):
        read_all(path)


SMALL = encode(EVERY_KIND, [every_kind(9), every_kind(2)], {"key": "value"})
TINY = encode({"s": "string", "d": "double"}, [{"s": ["a", None], "d": [None, 1.0]}])
LARGE = encode(EVERY_KIND, [every_kind(700)])


def test_no_truncation_is_taken_for_a_file(path: Path) -> None:
    for size in range(len(TINY)):
        path.write_bytes(TINY[:size])
        with pytest.raises(ParquetError):
            ParquetFile(path)


def test_any_footer_byte_can_be_wrong_without_another_exception(path: Path) -> None:
    size = int.from_bytes(TINY[-8:-4], "little")
    for place in range(len(TINY) - 8 - size, len(TINY)):
        for flip in (0x01, 0xFF):
            data = bytearray(TINY)
            data[place] ^= flip
            read_or_refuse(path, bytes(data))


@settings(max_examples=100, deadline=None)
@given(
    st.sampled_from([SMALL, LARGE]),
    st.lists(st.tuples(st.integers(0), st.integers(0, 255)), min_size=1, max_size=6),
    st.integers(0, 20),
)
def test_damaged_bytes_are_refused_or_read_and_nothing_else(
    path: Path, data: bytes, changes: list[tuple[int, int]], lost: int
) -> None:
    damaged = bytearray(data)
    for place, value in changes:
        damaged[place % len(data)] = value
    middle = changes[0][0] % len(data)
    del damaged[middle : middle + lost]
    read_or_refuse(path, bytes(damaged))


@settings(max_examples=100, deadline=None)
@given(
    st.sampled_from([9, 700]),
    st.integers(0, 7),
    st.lists(st.tuples(st.integers(0, 40), st.integers(0, 255)), min_size=1, max_size=4),
    st.integers(-9, 9),
)
@example(9, 0, [(0, 255), (1, 255), (2, 255), (3, 255)], 0)
def test_pages_that_decompress_to_nonsense_are_refused_or_read(
    path: Path, rows: int, victim: int, changes: list[tuple[int, int]], growth: int
) -> None:
    real, pages = parquet._page, 0

    def damaging(header: dict[int, Any], body: bytes) -> tuple[bytes, int]:
        nonlocal pages
        pages += 1
        if pages == victim + 1:
            damaged = bytearray(body)
            for place, value in changes:
                damaged[place % len(body)] = value
            body = (
                bytes(damaged) + bytes(growth) if growth > 0 else bytes(damaged[: growth or None])
            )
        return real(header, body)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parquet, "_page", damaging)
        data = encode(EVERY_KIND, [every_kind(rows)])
    read_or_refuse(path, data)


def chunk(footer: dict[int, Any], column: int = 0) -> dict[int, Any]:
    """The metadata of a column in the first row group."""
    meta: dict[int, Any] = footer[4][0][1][column][3]
    return meta


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda f: f[2][2].update({1: 1}), "unknown type"),
        (lambda f: f[2][2].update({3: 2}), "unknown type"),
        (lambda f: f[2][1].pop(6), "unknown type"),
        (lambda f: f[2][1].update({4: b"\xff"}), "UTF-8"),
        (lambda f: f[2].pop(), "columns of a group"),
        (lambda f: f.pop(2), "schema"),
        (lambda f: f.update({2: [1, 2]}), "schema"),
        (lambda f: f.update({3: 12}), "number of rows"),
        (lambda f: f.pop(4), "row groups"),
        (lambda f: f.update({5: [{1: b"k", 2: 1}]}), "value"),
        (lambda f: f[4][0].update({3: 1 << 40}), "number of rows in a group"),
        (lambda f: f[4][0].update({3: 0}), "number of rows in a group"),
        (lambda f: f[4][0].update({3: 10}), "number of rows"),
        (lambda f: chunk(f).update({4: 1}), "codec of column 's' is 1"),
        (lambda f: chunk(f).update({1: 5}), "type of column 's' is 5"),
        (lambda f: chunk(f).update({3: [b"s", b"t"]}), "columns of a group"),
        (lambda f: chunk(f).update({7: 1 << 20}), "size of column 's'"),
        (lambda f: chunk(f).update({7: b"9"}), "size of column 's'"),
        (lambda f: chunk(f).update({7: 9}), "column 's': .* bytes"),
        (lambda f: chunk(f).update({11: 1 << 40}), "offset of column 's'"),
        (lambda f: chunk(f).update({11: 0}), "offset of column 's'"),
        (lambda f: chunk(f).pop(11), "header of the data page"),
        (lambda f: chunk(f, 1).pop(9), "offset of column 'd'"),
    ],
)
def test_a_footer_that_lies_is_refused_with_what_is_wrong(
    path: Path, change: Callable[[dict[int, Any]], None], message: str
) -> None:
    path.write_bytes(forged(SMALL, lambda footer: None))
    assert read_all(path) == [every_kind(9), every_kind(2)]
    path.write_bytes(forged(SMALL, change))
    with pytest.raises(ParquetError, match=message):
        read_all(path)


def pyarrow_file(**options: Any) -> bytes:
    file = io.BytesIO()
    pq.write_table(pa.table({"x": [1.5, None], "s": ["a", "b"]}), file, **options)
    return file.getvalue()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "beginning and end"),
        (b"PAR1", "beginning and end"),
        (b"not a Parquet file at all", "beginning and end"),
        (b"PAR1" + b"\0" * 4 + b"PAR1", "left"),
        (b"PAR1" + b"\xff" * 4 + b"PAR1", "size of the footer is 4294967295"),
        (b"PARE" + SMALL[4:], "beginning and end"),
        (SMALL[:-4] + b"PARE", "beginning and end"),
        (pyarrow_file(), "this module"),
        (pyarrow_file(compression="gzip"), "this module"),
    ],
)
def test_a_foreign_file_is_refused(path: Path, data: bytes, message: str) -> None:
    path.write_bytes(data)
    with pytest.raises(ParquetError, match=message):
        read_all(path)


def one_page(header: dict[int, Any], body: bytes, rows: int = 1) -> bytes:
    """A file of one double column, whose only page has this header and these bytes."""
    page = parquet._encode(header)[1] + body

    def change(footer: dict[int, Any]) -> None:
        footer[3] = footer[4][0][3] = rows
        chunk(footer)[7] = len(page)

    data = encode({"d": "double"}, [{"d": [None]}])
    size = int.from_bytes(data[-8:-4], "little") + 8
    return forged(b"PAR1" + page + data[-size:], change)


def gzip(body: bytes) -> bytes:
    packer = zlib.compressobj(wbits=31)
    return packer.compress(body) + packer.flush()


GOOD = b"\2\0\0\0\3\1" + np.float64(1.5).tobytes()
DATA_PAGE = {1: 1, 2: 0, 3: 3, 4: 3}


@pytest.mark.parametrize(
    ("header", "packed", "message"),
    [
        ({1: 3}, gzip(GOOD), "header of the data page"),
        ({5: {**DATA_PAGE, 1: 2}}, gzip(GOOD), "header of the data page"),
        ({5: {**DATA_PAGE, 2: 5}}, gzip(GOOD), "header of the data page"),
        ({5: {**DATA_PAGE, 3: 4}}, gzip(GOOD), "header of the data page"),
        ({5: 1}, gzip(GOOD), "header of the data page"),
        ({2: 13}, gzip(GOOD), "does not decompress to the 13 bytes"),
        ({2: 15}, gzip(GOOD), "does not decompress to the 15 bytes"),
        ({2: (1 << 30) + 1}, gzip(GOOD), "size of a page is 1073741825"),
        ({3: 1000}, gzip(GOOD), "1000 bytes expected"),
        ({}, gzip(GOOD)[:-1], "does not decompress"),
        ({}, gzip(GOOD)[:-8] + bytes(8), "does not decompress"),
        ({}, GOOD, "does not decompress"),
        ({}, gzip(GOOD[:-1] + b""), "does not decompress"),
        ({2: 13}, gzip(GOOD[:-1]), "8 bytes expected"),
        ({2: 15}, gzip(GOOD + b"x"), "what follows the values"),
        ({2: 14}, gzip(b"\3" + GOOD[1:]), "head of the definition levels"),
        ({2: 14}, gzip(GOOD[:4] + b"\5" + GOOD[5:]), "head of the definition levels"),
    ],
)
def test_a_page_that_lies_is_refused_with_what_is_wrong(
    path: Path, header: dict[int, Any], packed: bytes, message: str
) -> None:
    good = {1: 0, 2: len(GOOD), 3: len(gzip(GOOD)), 5: DATA_PAGE}
    path.write_bytes(one_page(good, gzip(GOOD)))
    assert read_all(path) == [{"d": [1.5]}]
    path.write_bytes(one_page({**good, 3: len(packed), **header}, packed))
    with pytest.raises(ParquetError, match=f"column 'd': .*{message}"):
        read_all(path)


def test_an_index_beyond_the_dictionary_is_refused(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = parquet._page
    monkeypatch.setattr(
        parquet, "_page", lambda header, body: real(header, body.replace(b"\1\0\1", b"\1\2\1"))
    )
    path.write_bytes(encode({"s": "string"}, [{"s": ["a", "b", "a", "b"]}]))
    with pytest.raises(ParquetError, match="dictionary index is 2, expected 0 to 1"):
        read_all(path)


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda body: body[:-1], id="last one cut"),
        pytest.param(lambda body: body[: -4 - len("unique 299")], id="last one missing"),
        pytest.param(lambda body: body + bytes(4), id="one more"),
    ],
)
def test_strings_that_do_not_fill_their_page_are_refused(
    path: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[bytes], bytes]
) -> None:
    real = parquet._page
    monkeypatch.setattr(parquet, "_page", lambda header, body: real(header, change(body)))
    path.write_bytes(encode({"s": "string"}, [{"s": [f"unique {i}" for i in range(300)]}]))
    with pytest.raises(ParquetError, match=r"(end|number) of (the )?strings"):
        read_all(path)


def test_a_dictionary_with_more_entries_than_rows_is_refused(path: Path) -> None:
    def change(footer: dict[int, Any]) -> None:
        footer[3] = footer[4][0][3] = 2

    path.write_bytes(forged(encode({"s": "string"}, [{"s": ["a", "b", "c"]}]), change))
    with pytest.raises(ParquetError, match="end of the strings"):
        read_all(path)


def footer_only(raw: bytes) -> bytes:
    return b"PAR1" + raw + len(raw).to_bytes(4, "little") + b"PAR1"


BOMB = gzip(bytes(50_000_000))


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(one_page({1: 0, 2: 99, 3: len(BOMB), 5: DATA_PAGE}, BOMB), id="bomb"),
        pytest.param(one_page({1: 0, 2: 1 << 30, 3: 9, 5: DATA_PAGE}, bytes(9)), id="page"),
        pytest.param(
            one_page({1: 0, 2: 9, 3: 9, 5: {**DATA_PAGE, 1: 1 << 30}}, bytes(9), 1 << 30), id="rows"
        ),
        pytest.param(footer_only(b"\x19" * 100_000), id="a list in a list in a list"),
        pytest.param(footer_only(b"\x1c" * 100_000), id="a struct in a struct in a struct"),
        pytest.param(footer_only(b"\x19\xfc\xff\xff\xff\xff\x7f"), id="a list of 2**35 structs"),
        pytest.param(footer_only(b"\x18\xff\xff\xff\xff\x7f"), id="a string of 2**35 bytes"),
        pytest.param(footer_only(b"\x15" + b"\xff" * 100_000), id="a number without an end"),
    ],
)
def test_a_small_file_cannot_make_the_reader_allocate_much(path: Path, data: bytes) -> None:
    path.write_bytes(data)
    tracemalloc.start()
    try:
        with pytest.raises(ParquetError):
            read_all(path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 2_000_000
