"""results.parquet, written and read by DuckDB, which is imported here and only when it is needed.

Rows are added as they come to a table that DuckDB keeps in little memory; the same columns give the
same bytes. The file says what its columns are in a JSON text in its footer, since two of them may
differ in case alone, which SQL does not tell apart.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

import msgspec
import numpy as np
from numpy.typing import NDArray

from heldout._core.temporary import TemporaryFolder
from heldout.errors import UNREADABLE, RunDirectoryError
from heldout.stats.intervals import Ints
from heldout.store.jsonl import open_to_read, storage_error, temporary_name

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

ColumnType = Literal["string", "double", "int", "bool", "json"]
"""What a column holds; "json" has values of several types as JSON texts, read as "string"."""
SQL_TYPES: dict[ColumnType, str] = {
    "string": "VARCHAR",
    "double": "DOUBLE",
    "int": "BIGINT",
    "bool": "BOOLEAN",
    "json": "VARCHAR",
}
FORMAT = 4
"""Version of the columns; for a file of another version the journal is read instead."""
ROW_GROUP = 122_880
MOST_HANDED_OVER = 100_000
"""Rows of a file that is read by the database that wrote it: to open one takes 30 ms."""
KEPT = "; the journal is whole, so nothing is lost"


class Footer(msgspec.Struct):
    """What a file says of itself."""

    version: int
    columns: dict[str, tuple[str, ColumnType]]
    """By name: its name in the file, and its kind."""
    possible_counts: list[str] = msgspec.field(name="plain")
    """Metrics that may be counts."""
    own: list[str]
    """Metadata keys that results add to those of their samples."""


def connect() -> DuckDBPyConnection:
    """Open a DuckDB database in memory, of one thread, that loads no extension."""
    import duckdb

    return duckdb.connect(
        ":memory:",
        config={
            "threads": 1,
            "memory_limit": "1GB",
            "pandas_analyze_sample": 0,  # an array of objects is a column of texts
            "python_enable_replacements": False,
            "autoinstall_known_extensions": False,
            "autoload_known_extensions": False,
        },
    )


def insert_arrays(db: DuckDBPyConnection, table: str, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Append rows, by column, to a table."""
    db.register("part", dict(arrays))
    db.execute(f"INSERT INTO {table} BY NAME SELECT * FROM part")
    db.unregister("part")


def quote_path(path: Path) -> str:
    """Quote the path of one file for SQL, in which a `*`, `?` or `[` means itself."""
    return quote_text(re.sub(r"[*?[]", r"[\g<0>]", str(path.absolute())))


def quote_name(name: str) -> str:
    """Quote an identifier for SQL."""
    return '"' + name.replace('"', '""') + '"'


def quote_text(text: str) -> str:
    """Quote a string for SQL."""
    return "'" + text.replace("'", "''") + "'"


def hash_of_file(path: Path) -> str:
    """Return the version of the columns, the size of an ordinary file, and a hash of its bytes."""
    with open_to_read(path) as file:
        digest = hashlib.file_digest(file, "blake2b").hexdigest()[:32]
        return f"{FORMAT}:{file.tell()}:{digest}"


class ParquetWriter:
    """Takes rows, and writes them to one file."""

    def __init__(self) -> None:
        self._columns: dict[str, str] = {}
        """What the columns so far are called while they are collected: c0, c1 and so on."""
        self._rows = 0
        self._is_handed_over = False

    def __enter__(self) -> Self:
        self._folder = TemporaryFolder("parquet")
        self._db = connect()
        self._db.execute(f"SET temp_directory = {quote_text(self._folder.name)}")
        return self

    def __exit__(self, *_: object) -> None:
        if not self._is_handed_over:
            self._db.close()
        self._folder.cleanup()

    def __len__(self) -> int:
        """How many columns there are: none before the first rows."""
        return len(self._columns)

    def add(
        self, kinds: Mapping[str, ColumnType | None], arrays: Mapping[str, NDArray[Any]]
    ) -> None:
        """Append rows, by column and with its kind; a column without an array has no values."""
        import duckdb

        try:
            self._add_columns({name: kinds[name] for name in arrays})
            columns = {self._columns[name]: array for name, array in arrays.items()}
            insert_arrays(self._db, "rows", columns)
            self._rows += len(arrays["index"])
        except duckdb.Error as problem:
            raise RunDirectoryError(f"cannot write results.parquet: {problem}{KEPT}") from problem

    def write(
        self,
        path: Path,
        kinds: Mapping[str, ColumnType],
        possible_counts: Iterable[str],
        own: Iterable[str],
    ) -> ParquetFile:
        """Write the file, or leave the one that is there; returns it, open for reading."""
        import duckdb

        names = dict(zip(kinds, unique_names(kinds), strict=True))
        columns: dict[str, tuple[str, ColumnType]] = {
            name: (names[name], kind) for name, kind in kinds.items()
        }
        footer = msgspec.json.encode(
            Footer(FORMAT, columns, sorted(possible_counts), sorted(own))
        ).decode()
        temporary = temporary_name(path)
        try:
            self._add_columns(kinds)
            selected = ", ".join(f"{self._columns[n]} AS {quote_name(names[n])}" for n in kinds)
            self._db.execute(
                f"COPY (SELECT {selected} FROM rows) TO {quote_text(str(temporary.absolute()))} "
                f"(FORMAT parquet, USE_TMP_FILE false, COMPRESSION zstd, "
                f"ROW_GROUP_SIZE {ROW_GROUP}, KV_METADATA {{heldout: {quote_text(footer)}}})"
            )
            self._db.execute("DROP TABLE rows")
            temporary.replace(path)
        except duckdb.Error as problem:
            raise RunDirectoryError(f"cannot write {path}: {problem}{KEPT}") from problem
        except OSError as problem:
            raise storage_error(path, problem, KEPT) from problem
        finally:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)
        self._is_handed_over = True
        if self._rows > MOST_HANDED_OVER:  # what DuckDB keeps of many rows is given back first
            self._db.close()
            return ParquetFile(path)
        return ParquetFile(path, self._db)

    def _add_columns(self, kinds: Mapping[str, ColumnType | None]) -> None:
        """Add the columns of these kinds that are not there yet."""
        added = []
        for name, kind in kinds.items():
            if name not in self._columns:
                self._columns[name] = f"c{len(self._columns)}"
                added.append(f"{self._columns[name]} {SQL_TYPES[kind or 'string']}")
        if not added:
            return
        # DuckDB keeps blocks of each column, and all values of a row group while it writes them.
        self._db.execute(f"SET memory_limit = '{24 + len(self._columns)}MB'")
        if len(added) == len(self._columns):
            self._db.execute(f"CREATE TABLE rows ({', '.join(added)})")
            return
        for column in added:
            self._db.execute(f"ALTER TABLE rows ADD COLUMN {column}")


def merge_typed(codes: Ints, texts: Iterable[str]) -> tuple[Ints, list[Any]]:
    """Number values by what JSON texts of several types say: 1 and 1.0 are one value."""
    numbers: dict[Any, int] = {}
    merged = [numbers.setdefault(typed(text), len(numbers)) for text in texts]
    return np.array([*merged, -1], dtype=np.int64)[codes], list(numbers)


def typed(text: str) -> Any:
    """Return the number or the text that a JSON text is; of anything else the JSON text itself.

    A text that reads like such a JSON text (`true`, `[1]`) stays quoted: it is another value.
    """
    value = msgspec.json.decode(text)
    if isinstance(value, int | float) and not isinstance(value, bool):
        # Programs read numbers of 64 bits at most.
        return value if isinstance(value, float) or -(2**63) <= value < 2**63 else text
    if not isinstance(value, str):
        return text
    try:
        looks_like = msgspec.json.decode(value)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return value
    is_number = isinstance(looks_like, int | float) and not isinstance(looks_like, bool)
    return value if is_number else text


def unique_names(names: Iterable[str]) -> Iterator[str]:
    """Make names printable, and distinct regardless of case, as SQL needs them."""
    used: set[str] = set()
    for name in names:
        plain = name if name.isprintable() else name.encode("unicode_escape").decode()
        plain = plain or "_"
        unique, number = plain, 2
        while unique.lower() in used:
            unique, number = f"{plain}_{number}", number + 1
        used.add(unique.lower())
        yield unique


class ParquetFile:
    """A file of `ParquetWriter`, open for reading."""

    def __init__(self, path: Path, db: DuckDBPyConnection | None = None) -> None:
        """Open a file; `db` is the database that wrote it, which is closed with it.

        RunDirectoryError if it is not such a file.
        """
        self.path, self.db = path, db or connect()
        source = quote_path(path)
        self.source = f"read_parquet({source}, file_row_number = true, hive_partitioning = false)"
        """Reads the file in SQL; `file_row_number` is the number of each row."""
        try:
            content = self._read_footer(source)
        except BaseException:
            self.db.close()
            raise
        self.columns: dict[str, tuple[str, ColumnType]] = {
            name: (column, "string" if kind == "json" else kind)
            for name, (column, kind) in content.columns.items()
        }
        self._mixed = {name for name, (_, kind) in content.columns.items() if kind == "json"}
        self.possible_counts = frozenset(content.possible_counts)
        self.own = content.own

    def _read_footer(self, source: str) -> Footer:
        """Read what the file says of itself, and check that its columns are those."""
        with self._reading():
            footers = self.db.execute(
                f"SELECT value FROM parquet_kv_metadata({source}) WHERE key = 'heldout'"
            ).fetchall()
            described = self.db.execute(f"DESCRIBE SELECT * FROM {self.source}").fetchall()
        try:
            content = msgspec.json.decode(footers[0][0] if footers else b"", type=Footer)
        except UNREADABLE as problem:
            raise self._damaged(problem) from None
        types = {name: type for name, type, *_ in described}
        for name, kind in content.columns.values():
            if types.get(name) != SQL_TYPES[kind]:
                raise self._damaged(f"no column {name!r} of {SQL_TYPES[kind]}")
        return content

    def _damaged(self, problem: object) -> RunDirectoryError:
        return RunDirectoryError(
            f"{self.path} is no file of results: {problem}; without it the journal is read"
        )

    def close(self) -> None:
        """Close the file."""
        self.db.close()

    def read(self, names: Iterable[str]) -> dict[str, NDArray[Any]]:
        """Read whole columns; they are masked where a row has no value."""
        columns = list(dict.fromkeys(names))
        selected = ", ".join(f"{self._quoted(name)} AS c{i}" for i, name in enumerate(columns))
        with self._reading():
            arrays = self.db.execute(f"SELECT {selected} FROM {self.source}").fetchnumpy()
        return {name: arrays[f"c{i}"] for i, name in enumerate(columns)}

    def read_ids(self) -> NDArray[Any]:
        """Read the sample id of each row."""
        return self.read(["sample_id"])["sample_id"]

    def read_codes(self, name: str) -> tuple[Ints, list[Any]]:
        """Read a column as numbers into its values, -1 where a row has none; and these values."""
        column = self._quoted(name)
        with self._reading():
            self.db.execute(
                f"CREATE OR REPLACE TABLE labels AS SELECT {column} AS label, "
                f"row_number() OVER (ORDER BY min(file_row_number)) - 1 AS code "
                f"FROM {self.source} WHERE {column} IS NOT NULL GROUP BY 1"
            )
            values = self.db.execute("SELECT label FROM labels ORDER BY code").fetchall()
            codes = self.db.execute(
                f"SELECT coalesce(code, -1) AS code FROM {self.source} LEFT JOIN labels "
                f"ON label = {column} ORDER BY file_row_number"
            ).fetchnumpy()["code"]
        found = [value for (value,) in values]
        return (codes, found) if name not in self._mixed else merge_typed(codes, found)

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """Turn what DuckDB raises into RunDirectoryError."""
        import duckdb

        try:
            yield
        except duckdb.Error as problem:
            raise self._damaged(problem) from None

    def _quoted(self, name: str) -> str:
        return quote_name(self.columns[name][0])
