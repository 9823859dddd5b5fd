"""results.parquet, written and read by DuckDB, which is imported here and only when it is needed.

Parts of a table are written as they come and joined at the end, so that little is held in memory;
the same columns give the same bytes. The file says what its columns are in a
JSON text in its footer, since two of them may differ in case alone, which SQL does not tell apart.
"""

from __future__ import annotations

import hashlib
import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self

import msgspec
import numpy as np
from numpy.typing import NDArray

from heldout.errors import RunDirectoryError
from heldout.stats import Ints
from heldout.store.jsonl import open_to_read, storage_error

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

Kind = Literal["string", "double", "int", "bool"]
SQL_TYPES: dict[Kind, str] = {
    "string": "VARCHAR",
    "double": "DOUBLE",
    "int": "BIGINT",
    "bool": "BOOLEAN",
}
FORMAT = 2
"""1 is of an earlier version, whose files are passed over for the journal."""
ROW_GROUP = 122_880
KEPT = "; the journal is whole, so nothing is lost"
MEMORY_LIMIT = "64MB"


class ColumnType(NamedTuple):
    """What a column holds; `mixed` where texts stand beside values of other kinds."""

    kind: Kind
    mixed: bool = False


class Footer(msgspec.Struct):
    """What a file says of itself."""

    version: int
    columns: dict[str, tuple[str, Kind]]
    """By name: its name in the file, and its kind."""
    plain: list[str]
    """Metrics that may be counts."""
    own: list[str]
    """Metadata keys that results add to those of their samples."""


_footer_decoder = msgspec.json.Decoder(Footer)


def connect(path: Path | None = None, *, memory_limit: str = MEMORY_LIMIT) -> DuckDBPyConnection:
    """Open a DuckDB database of one thread that loads no extension.

    Args:
        path: Where to keep it; None is in memory.
        memory_limit: What it may hold in memory.

    Returns:
        The connection, to be closed by the caller.
    """
    import duckdb

    return duckdb.connect(
        str(path or ":memory:"),
        config={
            "threads": 1,
            "memory_limit": memory_limit,
            "pandas_analyze_sample": 0,  # an array of objects is a column of texts
            "python_enable_replacements": False,
            "autoinstall_known_extensions": False,
            "autoload_known_extensions": False,
        },
    )


def quote_name(name: str) -> str:
    """Quote an identifier for SQL."""
    return '"' + name.replace('"', '""') + '"'


def quote_text(text: str) -> str:
    """Quote a string for SQL."""
    return "'" + text.replace("'", "''") + "'"


def read_source(*paths: Path) -> str:
    """Give what reads the rows of Parquet files, whatever their paths look like.

    Args:
        paths: The files: no pattern of names, and nothing in a path is a column.

    Returns:
        A table function; its rows have their number in the file as `file_row_number`.
    """
    files = ", ".join(quote_path(path) for path in paths)
    return (
        f"read_parquet([{files}], file_row_number = true, hive_partitioning = false, "
        "union_by_name = true)"
    )


def quote_path(path: Path) -> str:
    """Quote the path of a file that is read: `*`, `?` and `[` in it mean themselves."""
    return quote_text(re.sub(r"[*?[]", r"[\g<0>]", str(path.absolute())))


def hash_of_file(path: Path) -> str:
    """Hash the bytes of a file.

    Args:
        path: An ordinary file.

    Returns:
        Its size, a colon, and 32 hexadecimal digits.

    Raises:
        FileNotFoundError: There is none.
        RunDirectoryError: It is not an ordinary file, or cannot be read.
    """
    with open_to_read(path) as file:
        digest = hashlib.file_digest(file, "blake2b").hexdigest()[:32]
        return f"{file.tell()}:{digest}"


class ParquetWriter:
    """Writes parts of a table into a temporary folder, and joins them to one file."""

    def __init__(self) -> None:
        self._types: dict[str, ColumnType] = {}
        """Of the columns so far; they are called c0, c1 and so on in the parts."""
        self._parts: list[Path] = []

    def __enter__(self) -> Self:
        self._folder = tempfile.TemporaryDirectory(prefix="heldout-")
        self._db = connect()
        return self

    def __exit__(self, *_: object) -> None:
        self._db.close()
        self._folder.cleanup()

    def __len__(self) -> int:
        """How many parts there are."""
        return len(self._parts)

    def can_hold(self, columns: Mapping[str, ColumnType]) -> bool:
        """Tell whether the columns that are there already are of these types."""
        return all(columns[name] == known for name, known in self._types.items())

    def add(self, columns: Mapping[str, ColumnType], arrays: Mapping[str, NDArray[Any]]) -> None:
        """Append rows.

        Args:
            columns: The type of each column so far; `can_hold` has to be true of them.
            arrays: Values by column; a column that is not there has none in these rows.

        Raises:
            RunDirectoryError: There is no room for them.
        """
        for name, column in columns.items():
            self._types.setdefault(name, column)
        places = self._places()
        part = {places[name]: array for name, array in arrays.items()}
        selected = ", ".join(
            f"{places[name]}::{SQL_TYPES[columns[name].kind]} AS {places[name]}" for name in arrays
        )
        path = Path(self._folder.name) / f"{len(self._parts)}.parquet"
        self._db.register("part", part)
        self._copy(f"SELECT {selected} FROM part", path, "COMPRESSION snappy")
        self._db.unregister("part")
        self._parts.append(path)

    def write(
        self,
        path: Path,
        columns: Mapping[str, ColumnType],
        plain: Iterable[str],
        own: Iterable[str],
    ) -> str:
        """Write the file, or leave the one that is there.

        Args:
            path: The file.
            columns: Its columns, in their order.
            plain: Metrics that may be counts.
            own: Metadata keys that results add to those of their samples.

        Returns:
            A hash of its bytes.

        Raises:
            RunDirectoryError: It cannot be written.
        """
        file_names = dict(zip(columns, unique_names(columns), strict=True))
        named = {name: (file_names[name], column.kind) for name, column in columns.items()}
        footer = msgspec.json.encode(Footer(FORMAT, named, sorted(plain), sorted(own))).decode()
        places = self._places()
        selected = ", ".join(
            f"{places[name]} AS {quote_name(file_name)}" for name, file_name in file_names.items()
        )
        temporary = path.with_name(f".{path.name}.tmp")
        try:
            temporary.unlink(missing_ok=True)
            self._copy(
                f"SELECT {selected} FROM {read_source(*self._parts)}",
                temporary,
                f"COMPRESSION zstd, ROW_GROUP_SIZE {ROW_GROUP}, "
                f"KV_METADATA {{heldout: {quote_text(footer)}}}",
            )
            written = hash_of_file(temporary)
            temporary.replace(path)
        except OSError as problem:
            raise storage_error(path, problem, KEPT) from problem
        finally:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)
        return written

    def _copy(self, query: str, path: Path, options: str) -> None:
        import duckdb

        try:
            self._db.execute(
                f"COPY ({query}) TO {quote_text(str(path.absolute()))} "
                f"(FORMAT parquet, USE_TMP_FILE false, {options})"
            )
        except duckdb.Error as problem:
            raise RunDirectoryError(f"cannot write {path}: {problem}{KEPT}") from problem

    def _places(self) -> dict[str, str]:
        return {name: f"c{place}" for place, name in enumerate(self._types)}


def unique_names(names: Iterable[str]) -> Iterator[str]:
    """Give names of which no two differ in case alone, and all are printable, as SQL needs them."""
    taken: set[str] = set()
    for name in names:
        plain = name if name.isprintable() else name.encode("unicode_escape").decode()
        plain = plain or "_"
        unique, number = plain, 2
        while unique.lower() in taken:
            unique, number = f"{plain}_{number}", number + 1
        taken.add(unique.lower())
        yield unique


class ParquetFile:
    """A file of `ParquetWriter`, open for reading."""

    def __init__(self, path: Path) -> None:
        self._db, self._source = connect(), read_source(path)
        (footer,) = self._db.execute(
            f"SELECT value FROM parquet_kv_metadata({quote_path(path)}) WHERE key = 'heldout'"
        ).fetchall()
        read = _footer_decoder.decode(footer[0])
        self.columns, self.plain, self.own = read.columns, frozenset(read.plain), read.own

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    def read(self, names: Iterable[str]) -> dict[str, NDArray[Any]]:
        """Read whole columns; they are masked where a row has no value."""
        wanted = list(dict.fromkeys(names))
        selected = ", ".join(f"{self._quoted(name)} AS c{i}" for i, name in enumerate(wanted))
        arrays = self._db.execute(f"SELECT {selected} FROM {self._source}").fetchnumpy()
        return {name: arrays[f"c{i}"] for i, name in enumerate(wanted)}

    def read_codes(self, name: str) -> tuple[Ints, list[Any]]:
        """Read a column as numbers into its values.

        Args:
            name: The column.

        Returns:
            The numbers, -1 where a row has no value; and the values, in the order they first come.
        """
        if self.columns[name][1] != "string":
            return _number_values(self.read([name])[name])
        column = self._quoted(name)
        self._db.execute(
            f"CREATE OR REPLACE TYPE label AS ENUM (SELECT {column} FROM {self._source} "
            f"WHERE {column} IS NOT NULL GROUP BY 1 ORDER BY min(file_row_number))"
        )
        values = self._db.execute("SELECT unnest(enum_range(NULL::label))").fetchall()
        codes = self._db.execute(f"SELECT enum_code({column}::label) AS codes FROM {self._source}")
        array = codes.fetchnumpy()["codes"].astype(np.int64)
        return np.ma.filled(array, -1), [value for (value,) in values]

    def _quoted(self, name: str) -> str:
        return quote_name(self.columns[name][0])


def _number_values(array: NDArray[Any]) -> tuple[Ints, list[Any]]:
    valid = ~np.ma.getmaskarray(array)
    distinct, first, inverse = np.unique(
        np.ma.getdata(array)[valid], return_index=True, return_inverse=True
    )
    order = np.argsort(first)
    rank = np.empty(len(order), dtype=np.int64)
    rank[order] = np.arange(len(order))
    codes = np.full(len(valid), -1, dtype=np.int64)
    codes[valid] = rank[inverse]
    return codes, distinct[order].tolist()
