"""Blocks of a corpus: every line once, however it is cut, compressed or spoilt."""

from __future__ import annotations

import bz2
import gzip
import json
import time
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from steelyard.selection.corpus import cut, find_files
from steelyard.selection.passes import where
from steelyard.selection.reading import fetch, fetch_rows, read

TEXTS = ["first", "", "zwei Wörter", 'quo"te \\ and\nbreak', "x" * 300, "\u2028 odd breaks \x85", "last"]


def write(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def lines_of(texts: list[str], ascii: bool = True) -> bytes:
    return b"".join(
        json.dumps({"id": k, "text": t}, ensure_ascii=ascii).encode() + b"\n" for k, t in enumerate(texts)
    )


def everything(path: Path, block: int = 2**24, field: str = "text") -> list[tuple[int, str]]:
    """Line of the file and text of every row."""
    found, first = [], 0
    for each in cut([path], block=block):
        n_lines = 0
        for piece in read(each, field):
            texts = [
                bytes(t.as_buffer()).decode("utf-8", "replace") if t.is_valid else None for t in piece.texts
            ]
            found += [(first + int(line), str(t)) for line, t in zip(piece.lines, texts, strict=True)]
            n_lines = piece.n_lines
        first += n_lines
    return found


@pytest.mark.parametrize("ascii", [True, False])
@pytest.mark.parametrize("block", [1, 7, 64, 10_000])
def test_rows_do_not_hang_on_how_a_file_is_cut(tmp_path: Path, block: int, ascii: bool) -> None:
    path = write(tmp_path / "a.jsonl", lines_of(TEXTS * 3, ascii))
    assert everything(path, block) == list(enumerate(TEXTS * 3))


def test_every_compression_and_format_reads_alike(tmp_path: Path) -> None:
    plain = lines_of(TEXTS)
    paths = [write(tmp_path / "a.jsonl", plain), write(tmp_path / "a.jsonl.gz", gzip.compress(plain))]
    paths.append(write(tmp_path / "two.jsonl.gz", gzip.compress(plain[:40]) + gzip.compress(plain[40:])))
    paths.append(write(tmp_path / "a.jsonl.bz2", bz2.compress(plain)))
    with pa.output_stream(str(tmp_path / "a.ndjson.zst"), compression="zstd") as stream:
        stream.write(plain)
    pl.DataFrame({"text": TEXTS}).write_parquet(tmp_path / "a.parquet", row_group_size=2)
    paths += [tmp_path / "a.ndjson.zst", tmp_path / "a.parquet"]
    for path in paths:
        assert everything(path) == list(enumerate(TEXTS)), path


def test_blank_lines_and_windows_breaks_are_no_rows(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", b'\n{"text":"a"}\r\n  \r\n\n{"text":"b"}')
    assert everything(path) == [(1, "a"), (4, "b")]
    path = write(tmp_path / "a.txt", b"\xef\xbb\xbfone\n\n \t\ntwo\r\nthree")
    assert [line for line, _ in everything(path)] == [0, 3, 4]
    assert [t.strip() for _, t in everything(path)] == ["one", "two", "three"]


def test_spoilt_lines_are_counted_with_their_place_and_the_others_kept(tmp_path: Path) -> None:
    content = [
        b'{"text": "good"}',
        b'{"text": "cut off',
        b'{"text": "bad \xff bytes"}',
        b'{"other": 1}',
        b'{"text": null}',
        b'["no object"]',
        b'{"text": "a"}{"text": "b"}',
        b'{"text": "fine"}',
    ]
    path = write(tmp_path / "a.jsonl", b"\n".join(content) + b"\n")
    (piece,) = read(cut([path])[0], "text")
    assert piece.texts.to_pylist() == ["good", "bad \ufffd bytes", "fine"]
    assert piece.lines.tolist() == [0, 2, 7]
    assert piece.faults == {
        "malformed JSON": 3,
        "invalid UTF-8, read with replacements": 1,
        "no text": 2,
    }
    assert piece.examples[0] == (1, "malformed JSON", '{"text": "cut off')
    for block in (1, 40, 100):  # the same whatever stands beside them
        assert [t for _, t in everything(path, block)] == piece.texts.to_pylist()


def test_a_line_of_fifty_megabytes_is_one_row(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", lines_of(["a", "word " * 10_000_000, "b"]))
    rows = everything(path)
    assert [(line, len(t)) for line, t in rows] == [(0, 1), (1, 50_000_000), (2, 1)]


def test_lines_are_fetched_as_they_stand(tmp_path: Path) -> None:
    content = lines_of(TEXTS * 5)
    for name, data in (("a.jsonl", content), ("a.jsonl.gz", gzip.compress(content))):
        blocks = cut([write(tmp_path / name, data)], block=100)
        found = []
        for block in blocks:
            n_lines = sum(1 for _ in fetch(block, np.arange(1000)))
            wanted = np.arange(0, n_lines, 2)
            found += [line for _, line in fetch(block, wanted)]
        assert set(found) <= set(content.split(b"\n"))
        assert len(found) >= 5


def test_rows_of_parquet_keep_their_columns(tmp_path: Path) -> None:
    frame = pl.DataFrame({"text": [str(k) for k in range(20)], "more": [{"a": k} for k in range(20)]})
    frame.write_parquet(tmp_path / "a.parquet", row_group_size=3)
    blocks = cut([tmp_path / "a.parquet"], block=1)
    assert len(blocks) == 7
    assert fetch_rows(blocks[2], np.array([0, 2])).to_pylist() == [
        {"text": "6", "more": {"a": 6}},
        {"text": "8", "more": {"a": 8}},
    ]


def test_a_changed_file_is_noticed(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", lines_of(TEXTS))
    block = cut([path])[0]
    time.sleep(0.01)
    write(path, lines_of(["other"] * 7))
    with pytest.raises(ValueError, match="was changed since the job began"):
        list(read(block, "text"))
    path.unlink()
    with pytest.raises(ValueError, match="was removed"):
        list(fetch(block, np.arange(1)))


def test_damaged_files_are_said_to_be(tmp_path: Path) -> None:
    whole = gzip.compress(lines_of(TEXTS * 100))
    path = write(tmp_path / "a.jsonl.gz", whole[: len(whole) // 2])
    with pytest.raises(ValueError, match="cannot be decompressed"):
        list(read(cut([path])[0], "text"))
    with pytest.raises(ValueError, match="no Parquet file"):
        cut([write(tmp_path / "a.parquet", b"nothing of the kind")])


def test_columns_that_are_not_there_or_hold_no_strings_are_named(tmp_path: Path) -> None:
    pl.DataFrame({"body": ["a"], "n": [1]}).write_parquet(tmp_path / "a.parquet")
    block = cut([tmp_path / "a.parquet"])[0]
    with pytest.raises(ValueError, match="no column 'text', only body, n"):
        list(read(block, "text"))
    with pytest.raises(ValueError, match="holds int64, not strings"):
        list(read(block, "n"))


def test_files_are_found_in_folders_and_by_patterns_once(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for name in ("in/b.jsonl", "in/a.jsonl.gz", "c.txt", "in/readme.md", "in/.hidden.jsonl"):
        write(tmp_path / name, b"x")
    found = find_files([tmp_path / "in", str(tmp_path / "in/*.jsonl"), tmp_path / "c.txt"])
    assert [p.name for p in found] == ["a.jsonl.gz", "b.jsonl", "c.txt"]
    with pytest.raises(FileNotFoundError, match="There is no file"):
        find_files([tmp_path / "missing*.jsonl"])
    with pytest.raises(ValueError, match="no known kind"):
        find_files([tmp_path / "in/readme.md"])
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="has no file that ends in"):
        find_files([tmp_path / "empty"])


def test_a_line_is_told_as_people_count_them(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", lines_of(["a", "b", "c", "d"]))
    blocks = cut([path], block=23)
    assert where(blocks[0], 0).endswith("a.jsonl, line 1")
    assert where(blocks[-1], 0).endswith("a.jsonl, line 4")


@pytest.mark.parametrize("kind", [pa.dictionary(pa.int32(), pa.string()), pa.string_view()])
def test_parquet_strings_of_any_encoding_are_read_and_come_back_as_they_were(
    tmp_path: Path, kind: pa.DataType
) -> None:
    table = pa.table({"text": pa.array(["a b", "c", "a b", "d"]).cast(kind), "n": [1, 2, 3, 4]})
    pq.write_table(table, tmp_path / "a.parquet")
    block = cut([tmp_path / "a.parquet"])[0]
    assert [t for piece in read(block, "text") for t in piece.texts.to_pylist()] == ["a b", "c", "a b", "d"]
    taken = fetch_rows(block, np.array([1, 3]))
    assert taken.schema == table.schema
    assert taken.to_pydict() == {"text": ["c", "d"], "n": [2, 4]}


def test_two_columns_of_the_name_are_refused(tmp_path: Path) -> None:
    table = pa.table([pa.array(["a"]), pa.array(["b"])], names=["text", "text"])
    pq.write_table(table, tmp_path / "a.parquet")
    with pytest.raises(ValueError, match="has 2 columns 'text'; rename"):
        list(read(cut([tmp_path / "a.parquet"])[0], "text"))
