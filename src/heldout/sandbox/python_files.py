"""The files that a Python needs to run, of a prefix that may hold anything else.

Where CPython is in /usr/local, and in the prefix of a conda environment, there is more than a
Python: what the machine's owner has installed, with its configuration. Programs see the
interpreter, its standard library and the shared libraries that these name, and nothing else there.
"""

from __future__ import annotations

import struct
import sysconfig
from collections.abc import Iterator
from pathlib import Path

PT_LOAD, PT_DYNAMIC = 1, 2
DT_NEEDED, DT_STRTAB = 1, 5


def find_python_files(prefix: Path, binary: Path) -> list[Path]:
    """Return what a Python consists of: its binary, its standard library, and shared libraries."""
    folders = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib")}
    standard = sorted(Path(folder) for folder in folders)
    found = [binary, *(folder for folder in standard if folder.is_relative_to(prefix))]
    waiting = [binary, *(path for folder in standard for path in folder.glob("lib-dynload/*.so"))]
    seen: set[str] = set()
    while waiting:
        for name in needed_libraries(waiting.pop()):
            path = prefix / "lib" / name
            if name not in seen and "/" not in name and path.is_file():
                seen.add(name)
                found.append(path)
                waiting.append(path)
    return found


def needed_libraries(path: Path) -> Iterator[str]:
    """Yield the names of the shared libraries that a binary is linked with (64-bit ELF)."""
    data = path.read_bytes()
    if data[:6] != b"\x7fELF\x02\x01":
        return
    table = struct.unpack_from("<Q", data, 32)[0]
    size, count = struct.unpack_from("<HH", data, 54)
    segments = []
    dynamic = range(0)
    for index in range(count):
        kind, _, offset, address, _, length = struct.unpack_from(
            "<IIQQQQ", data, table + index * size
        )
        if kind == PT_LOAD:
            segments.append((address, offset, length))
        elif kind == PT_DYNAMIC:
            dynamic = range(offset, offset + length, 16)
    entries = [struct.unpack_from("<QQ", data, place) for place in dynamic]
    strings = next((value for tag, value in entries if tag == DT_STRTAB), 0)
    for address, offset, length in segments:
        if address <= strings < address + length:
            strings += offset - address
            break
    for tag, value in entries:
        if tag == DT_NEEDED:
            start = strings + value
            yield data[start : data.index(b"\0", start)].decode()
