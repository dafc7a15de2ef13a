"""Reading: what comes back from files of every kind, and what is said of files that are wrong."""

from __future__ import annotations

import gzip
import tempfile
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from steelyard.retrieval.interactions import Interactions
from steelyard.retrieval.reading import read_interactions, read_test

DATA = Path(__file__).resolve().parents[3] / "shared" / "data"


def pairs_of(read: Interactions) -> list[tuple[object, object]]:
    users, items = read.user_ids.to_list(), read.item_ids.to_list()
    return [(users[u], items[i]) for u, i in zip(read.users.tolist(), read.items.tolist(), strict=True)]


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str, str | bytes], Path]:
    def write_file(name: str, content: str | bytes) -> Path:
        path = tmp_path / name
        data = content.encode() if isinstance(content, str) else content
        path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
        return path

    return write_file


Write = Callable[[str, str | bytes], Path]


# Round trips

WORDS = st.text(
    st.characters(exclude_categories=["Cs", "Cc"], include_characters=",;\"'\t| \n"), min_size=1, max_size=8
).map(lambda text: f"é{text}")
WHOLE = st.integers(-(2**63) + 10, 2**63 - 10)
ROWS = st.lists(st.tuples(WORDS, WORDS), min_size=1, max_size=30) | st.lists(
    st.tuples(WHOLE, WORDS), min_size=1, max_size=30
)


@given(rows=ROWS, ending=st.sampled_from(["csv", "tsv", "parquet", "jsonl"]), packed=st.booleans())
@settings(max_examples=60, deadline=None)
def test_whatever_is_written_is_read_back_once_and_in_order(
    rows: list[tuple[object, str]], ending: str, packed: bool
) -> None:
    frame = pl.DataFrame({"user": [row[0] for row in rows], "item": [row[1] for row in rows]})
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"data.{ending}"
        if ending == "parquet":
            frame.write_parquet(path)
        elif ending == "jsonl":
            frame.write_ndjson(path)
        else:
            frame.write_csv(path, separator="," if ending == "csv" else "\t")
        if packed and ending != "parquet":
            packed_path = path.with_name(path.name + ".gz")
            packed_path.write_bytes(gzip.compress(path.read_bytes()))
            path = packed_path
        read = read_interactions(path)
    assert pairs_of(read) == list(dict.fromkeys(rows))
    assert read.reading.rows == len(rows)
    assert read.reading.dropped.get("duplicate", 0) == len(rows) - len(read)
    assert read.user_ids.is_sorted()
    assert read.item_ids.is_sorted()


@given(
    table=st.dictionaries(st.integers(-50, 10**12), st.lists(st.integers(0, 10**12), max_size=6), min_size=1),
    ending=st.sampled_from(["\n", "\r\n", " \n", "\n\n", "\t\r\n"]),
)
@settings(max_examples=50, deadline=None)
def test_adjacency_lists_come_back_whatever_ends_their_lines(
    table: dict[int, list[int]], ending: str
) -> None:
    text = "".join(" ".join(map(str, [user, *items])) + ending for user, items in table.items())
    expected = list(dict.fromkeys((user, item) for user, items in table.items() for item in items))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "lists.txt"
        path.write_text(text)
        if not expected:
            with pytest.raises(ValueError, match="no row names both user and item"):
                read_interactions(path, format="adjacency")
            return
        read = read_interactions(path, format="adjacency")
    assert pairs_of(read) == expected
    lonely = sum(not items for items in table.values())
    assert any(f"{lonely} lines name a user without items" in note for note in read.reading.notes) == bool(
        lonely
    )


def test_a_long_file_of_numbers_is_read_across_blocks(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("steelyard.retrieval.reading.adjacency._BLOCK", 7)
    text = "".join(
        f"{user} {' '.join(str(user * 1000 + k) for k in range(user % 5 + 1))}\n" for user in range(300)
    )
    read = read_interactions(write("lists.txt.gz", text.rstrip("\n")))
    expected = [(user, user * 1000 + k) for user in range(300) for k in range(user % 5 + 1)]
    assert pairs_of(read) == expected


# Layouts, told by themselves


@pytest.mark.parametrize(
    ("name", "text", "weight", "time"),
    [
        ("a.csv", "user_id,item_id\n1,2\n3,4\n", None, None),
        ("a.tsv", "uid\tasin\tts\n1\t2\t9\n3\t4\t8\n", None, [9, 8]),
        (
            "a.inter",
            "user_id:token\titem_id:token\trating:float\ttimestamp:float\n1\t2\t5\t9\n3\t4\t4\t8\n",
            [5, 4],
            [9, 8],
        ),
        ("a.txt", "1 2\n3 4\n", None, None),
        ("a.txt", "1\t2\t3\t881250949\n3\t4\t5\t881250950\n", [3, 5], [881250949, 881250950]),
        ("a.txt", "1 2 881250949\n3 4 881250950\n", None, [881250949, 881250950]),
        ("a.csv", "1,2,3.5\n3,4,2\n", [3.5, 2], None),
        ("a.csv", "1;2\n3;4\n", None, None),
        ("a.csv", "\ufeffUser ID, Item\r\n1,2\r\n3,4\r\n", None, None),
        (
            "a.jsonl",
            '{"user": 1, "item": 2, "score": 0.5}\n\n{"user": 3, "item": 4, "score": 2}\n',
            [0.5, 2],
            None,
        ),
        ("a.csv", "user,item,time\n1,2,1.5\n3,4,2\n", None, [1.5, 2.0]),
        (
            "a.csv",
            "user,item,time\n1,2,1970-01-01T00:00:01Z\n3,4,1970-01-02T00:00:00Z\n",
            None,
            [10**6, 864 * 10**8],
        ),
    ],
)
def test_the_layout_is_told_from_the_file(
    write: Write, name: str, text: str, weight: list[float] | None, time: list[float] | None
) -> None:
    read = read_interactions(write(name, text))
    assert pairs_of(read) == [(1, 2), (3, 4)]
    assert (None if read.weights is None else read.weights.tolist()) == weight
    assert (None if read.times is None else read.times.tolist()) == time


def test_rising_first_numbers_make_users_and_others_make_sessions(write: Write) -> None:
    lists = read_interactions(write("lists.txt", "3 1 2\n5 1\n9 4 4 2 8 8\n"))
    assert pairs_of(lists) == [(3, 1), (3, 2), (5, 1), (9, 4), (9, 2), (9, 8)]
    assert lists.reading.format == "adjacency"
    assert any("format sessions" in note for note in lists.reading.notes)
    sessions = read_interactions(write("clicks.txt", "3 1 2\n3 1\n9 4\n7\n"))
    assert pairs_of(sessions) == [(1, 3), (1, 1), (1, 2), (2, 3), (2, 1), (3, 9), (3, 4), (4, 7)]
    assert sessions.reading.format == "sessions"
    assert any("format adjacency" in note for note in sessions.reading.notes)


def test_sessions_are_numbered_on_from_file_to_file(write: Write) -> None:
    paths = [write("a.txt", "5 6\n7\n"), write("b.txt", "5 6\n8\n")]
    assert pairs_of(read_interactions(paths, format="sessions")) == [
        (1, 5),
        (1, 6),
        (2, 7),
        (3, 5),
        (3, 6),
        (4, 8),
    ]


def test_named_columns_win_over_usual_names_and_an_empty_name_leaves_a_role_out(write: Write) -> None:
    path = write("a.csv", "user,item,buyer,rating\n1,2,7,5\n3,4,8,4\n")
    assert pairs_of(read_interactions(path, columns={"user": "buyer"})) == [(7, 2), (8, 4)]
    assert read_interactions(path).weights is not None
    assert read_interactions(path, columns={"weight": ""}).weights is None


def test_columns_of_a_file_without_a_header_are_named_by_their_places(write: Write) -> None:
    path = write("a.csv", "x,ann,9\ny,bob,8\n")
    read = read_interactions(path, columns={"user": "column_2", "item": "column_1", "weight": ""})
    assert pairs_of(read) == [("ann", "x"), ("bob", "y")]


def test_zero_padded_numbers_stay_text_even_where_they_come_late(write: Write) -> None:
    text = "user,item\n" + "".join(f"{i},{i}\n" for i in range(1, 5000)) + "007,7\n"
    read = read_interactions(write("a.csv", text))
    assert read.user_ids.dtype == pl.String
    assert read.item_ids.dtype == pl.Int64
    assert {"7", "007"} <= set(read.user_ids)


def test_files_of_a_folder_are_read_in_the_order_of_their_names_and_ids_agree_between_them(
    write: Write, tmp_path: Path
) -> None:
    write("b.csv", "user,item\nann,1\n")
    write("a.csv.gz", "user,item\n1,1\n")
    write("readme.md", "no table")
    read = read_interactions(tmp_path)
    assert pairs_of(read) == [("1", 1), ("ann", 1)]
    assert any("readme.md" in note for note in read.reading.notes)


def test_zstd_is_unpacked_by_its_first_bytes(write: Write) -> None:
    for text in ("user,item\n1,2\n", "1 2\n"):
        packed = pa.compress(text.encode(), codec="zstd", asbytes=True)
        assert pairs_of(read_interactions(write("packed.csv", packed))) == [(1, 2)]


def test_typed_parquet_columns_are_taken_as_they_are(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    when = pl.Series([1, 2, 3]).cast(pl.Datetime("ms"))
    user = pl.Series(["01", "1", "01"], dtype=pl.Categorical)
    pl.DataFrame({"user": user, "item": pl.Series([4, 5, 6], dtype=pl.UInt16), "time": when}).write_parquet(
        path
    )
    read = read_interactions(path)
    assert pairs_of(read) == [("01", 4), ("1", 5), ("01", 6)]
    assert read.times.tolist() == [1000, 2000, 3000]


# What is dropped


def test_rows_without_a_user_or_an_item_are_dropped_and_counted(write: Write) -> None:
    read = read_interactions(write("a.csv", 'user,item\n1,2\n,3\n4,\n5,""\n\n1,2\n6,7\n'))
    assert pairs_of(read) == [(1, 2), (6, 7)]
    assert read.reading.dropped == {"empty row": 1, "empty user": 1, "empty item": 2, "duplicate": 1}
    assert (read.reading.rows, read.reading.kept) == (7, 2)


def test_of_a_repeated_pair_the_first_stays_and_the_earliest_where_there_are_times(write: Write) -> None:
    text = "user,item,rating\n1,2,5\n1,3,4\n1,2,1\n"
    by_order = read_interactions(write("a.csv", text))
    assert by_order.weights.tolist() == [5, 4]
    by_time = read_interactions(write("b.csv", "user,item,time\n1,2,50\n1,3,40\n1,2,10\n1,2,10\n2,2,50\n"))
    assert by_time.times.tolist() == [40, 10, 50]
    assert pairs_of(by_time) == [(1, 3), (1, 2), (2, 2)]


# Test files


def test_a_test_file_shares_the_vocabularies_and_counts_what_is_unknown(write: Write) -> None:
    train = read_interactions(write("train.csv", "user,item\n1,a\n2,b\n9,c\n"))
    test = read_test(write("test.csv", "user,item\n2,a\n3,a\n1,z\n1,b\n1,b\n4,z\n1,a\n"), train)
    assert pairs_of(test) == [(2, "a"), (1, "b"), (1, "a")]
    assert test.reading.dropped == {"unknown user": 2, "unknown item": 1, "duplicate": 1}
    assert (test.n_users, test.n_items) == (3, 3)
    assert any("1 test pairs stand in the training data too" in note for note in test.reading.notes)


def test_ids_of_another_type_are_cast_where_nothing_is_lost(write: Write) -> None:
    numbers = read_interactions(write("numbers.csv", "user,item\n1,1\n2,2\n"))
    mixed = read_test(write("mixed.csv", "user,item\n2,1\n02,1\nann,2\n"), numbers)
    assert pairs_of(mixed) == [(2, 1)]
    assert mixed.reading.dropped == {"unknown user": 2}
    words = read_interactions(write("words.csv", "user,item\nann,1\n2,2\n"))
    assert pairs_of(read_test(write("whole.csv", "user,item\n2,1\n"), words)) == [("2", 1)]
    with pytest.raises(ValueError, match="user ids of the test are text such as 'bob'"):
        read_test(write("bob.csv", "user,item\nbob,1\n"), numbers)


def test_a_test_of_another_data_set_is_refused(write: Write) -> None:
    train = read_interactions(write("train.csv", "user,item\n1,1\n2,2\n"))
    with pytest.raises(ValueError, match="none of 2 rows has a user of the training data"):
        read_test(write("test.csv", "user,item\n7,1\n8,2\n"), train)


def test_a_test_follows_the_columns_and_the_line_layout_of_the_training_data(write: Write) -> None:
    train = read_interactions(write("a.csv", "who,what\n1,2\n3,4\n"), columns={"user": "who", "item": "what"})
    assert pairs_of(read_test(write("b.csv", "what,who\n4,1\n"), train)) == [(1, 4)]
    lists = read_interactions(write("train.txt", "1 5 6\n2 5\n3 5 6 7\n"))
    assert pairs_of(read_test(write("test.txt", "1 7 5\n3 5 6\n"), lists)) == [(1, 7), (1, 5), (3, 5), (3, 6)]


def test_sessions_have_a_test_file_of_new_sessions_alone(write: Write) -> None:
    train = read_interactions(write("a.txt", "5 6 7\n5 6\n"), format="sessions")
    path = write("b.txt", "6 5 6\n7 9 5\n8 8\n")
    with pytest.raises(ValueError, match="numbered sessions"):
        read_test(path, train)
    test = read_test(path, train, new_users=True, repeats=True)
    assert pairs_of(test) == [(1, 6), (1, 5), (1, 6), (2, 7), (2, 5)]
    assert test.reading.dropped == {"unknown item": 3}
    assert test.item_ids.equals(train.item_ids)


def test_test_users_are_new_histories_where_none_is_known_and_they_may_be(write: Write) -> None:
    train = read_interactions(write("a.csv", "user,item\n1,a\n2,b\n"))
    new = write("b.csv", "user,item\n7,a\n7,b\n8,a\n")
    with pytest.raises(ValueError, match="none of 3 rows has a user"):
        read_test(new, train)
    test = read_test(new, train, new_users=True)
    assert pairs_of(test) == [(7, "a"), (7, "b"), (8, "a")]
    assert any("new histories" in note for note in test.reading.notes)
    some = read_test(write("c.csv", "user,item\n7,a\n2,a\n"), train, new_users=True)
    assert pairs_of(some) == [(2, "a")]
    assert some.reading.dropped == {"unknown user": 1}


def test_repeats_are_kept_where_they_are_wanted(write: Write) -> None:
    path = write("a.csv", "user,item,time\n1,2,50\n1,3,40\n1,2,10\n")
    read = read_interactions(path, repeats=True)
    assert pairs_of(read) == [(1, 2), (1, 3), (1, 2)]
    assert read.reading.dropped == {}
    assert read.times.tolist() == [50, 40, 10]


# Text


def test_text_pairs_have_queries_for_users_and_documents_for_items(write: Write) -> None:
    path = write("a.csv", 'question,answer\nwhat?,"that, then"\nwho?,me\nwhat?,me\nwhat?,me\n,me\n')
    read = read_interactions(path, kind="text")
    assert pairs_of(read) == [("what?", "that, then"), ("who?", "me"), ("what?", "me")]
    assert read.item_texts.to_list() == read.item_ids.to_list()
    assert read.reading.dropped == {"empty query": 1, "duplicate": 1}


def test_documents_may_have_ids_and_the_first_text_of_an_id_is_its_text(write: Write) -> None:
    triples = [("q", "old", 7), ("r", "new", 7), ("r", "x", 3)]
    text = "".join(f'{{"query":"{query}","doc":"{doc}","item":{item}}}\n' for query, doc, item in triples)
    read = read_interactions(write("a.jsonl", text), kind="text", columns={"item": "item"})
    assert pairs_of(read) == [("q", 7), ("r", 7), ("r", 3)]
    assert read.item_texts.to_list() == ["x", "old"]
    assert any("1 items have more than one text" in note for note in read.reading.notes)
    test = read_test(write("b.jsonl", '{"query":"new one","doc":"x","item":3}\n'), read)
    assert pairs_of(test) == [("new one", 3)]
    with pytest.raises(ValueError, match="both have ids, or both none"):
        read_test(write("c.jsonl", '{"query":"q","doc":"x"}\n'), read)


def test_a_new_query_is_kept_and_a_new_document_is_counted(write: Write) -> None:
    train = read_interactions(write("a.csv", "query,document\nq,one\nr,two\n"), kind="text")
    test = read_test(write("b.csv", "query,document\nnew,two\nq,three\n"), train)
    assert pairs_of(test) == [("new", "two")]
    assert test.reading.dropped == {"unknown document": 1}
    assert test.user_ids.to_list() == ["new"]
    assert test.item_texts is train.item_texts or test.item_texts.equals(train.item_texts)  # type: ignore[union-attr]


# Bad input

BAD: list[tuple[str, str | bytes, dict[str, object], str]] = [
    ("empty.csv", "", {}, "is empty"),
    ("blank.csv", "\n \n", {}, "is empty"),
    ("header.csv", "user,item\n", {}, "no row names both user and item"),
    ("nothing.csv", "user,item\n,1\n2,\n", {}, "no row names both"),
    ("one.csv", "user\n1\n", {}, "one column only"),
    ("one.txt", "1\n2\n", {}, "one column only"),
    ("late.csv", "\nuser,item\n1,2\n", {}, "first line is blank"),
    ("movie.dat", "1::2::5\n", {}, "two characters.*sed"),
    (
        "c.csv",
        "user,thing\n1,2\n",
        {},
        "no column looks like item. Columns there are: user, thing.*item=NAME",
    ),
    (
        "c.csv",
        "user,item\n1,2\n",
        {"columns": {"user": "usr"}},
        "no column 'usr'. Did you mean user.*are: user, item",
    ),
    (
        "c.csv",
        "user,item\n1,2\n",
        {"columns": {"usr": "user"}},
        "Unknown role 'usr'.*user, item, weight, time",
    ),
    ("c.csv", "user,item\n1,2\n", {"columns": {"user": "item", "item": "item"}}, "two roles"),
    ("c.csv", "user,item\n1,2\n", {"format": "xml"}, "Unknown format 'xml'"),
    ("c.csv", "user,item\n1,2\n", {"kind": "words"}, "Unknown kind 'words'"),
    ("f.csv", "user,item\n1.0,2\n3.0,4\n,5\n", {}, "user column holds floats such as 1.0.*Cast it"),
    ("f.csv", "user,item\n" + "1,2\n" * 1500 + "2.0,4\n", {}, "user column holds floats such as 2.0"),
    ("f.jsonl", '{"user":1,"item":2.5}\n', {}, "item column holds floats such as 2.5"),
    (
        "w.csv",
        "user,item,weight\n1,2,1\n1,3,NaN\n1,4,nan\n",
        {},
        r"weight is NaN in 2 rows \(counted from 1: 2, 3\)",
    ),
    (
        "w.csv",
        "user,item,weight\n1,2,1\n1,3,\n,,\n",
        {},
        r"weight is missing in 1 row \(counted from 1: 2\)",
    ),
    ("w.csv", "user,item,weight\n1,2,-1\n", {}, "weight is negative in 1 row"),
    ("w.csv", "user,item,weight\n1,2,inf\n", {}, "weight is infinite in 1 row"),
    ("w.csv", "user,item,weight\n1,2,1e300\n", {}, "largest 32-bit float"),
    ("w.csv", "user,item,weight\n1,2,1\n1,3,much\n", {}, "row 2: weight is 'much', a number was expected"),
    (
        "t.csv",
        "user,item,time\n1,2,5\n1,3,-1\n",
        {},
        "time is negative in 1 row.*-1 often stands for a missing one",
    ),
    ("t.txt", "1 2 4 5\n1 3 4 -7\n", {}, "time is negative in 1 row"),
    ("t.csv", "user,item,time\n1,2,soon\n", {}, "time is 'soon', a number or an ISO date was expected"),
    ("t.csv", "user,item,date\n1,2,1969-12-31\n", {}, "time is negative"),
    (
        "t.csv",
        "user,item,date\n1,2,2020-13-45\n1,3,2020-01-01\n",
        {},
        "row 1: the time '2020-13-45' is no date",
    ),
    (
        "t.csv",
        "user,item,date\n1,2,2020-01-01T09:00:00Z\n1,3,2020-01-01T10:00:00\n",
        {},
        "row 2: the time '2020-01-01T10:00:00' is no date, or not in the form",
    ),
    (
        "l.csv",
        "user,item\nu1,1\né,2\n".encode("latin-1"),
        {},
        r"not UTF-8: byte 0xe9 at position 15, line 3.*iconv",
    ),
    (
        "l.jsonl",
        '{"user":"é","item":2}\n'.encode("latin-1"),
        {},
        "not UTF-8: byte 0xe9 at position 9, line 1",
    ),
    ("l.csv", "user,item\n1,2\n".encode("utf-16"), {}, r"not UTF-8: byte 0xff at position 0.*utf-16"),
    ("r.csv", "user,item\n1,2\n\n3,4,5\n", {}, "line 4: 3 cells where the first line has 2"),
    ("q.csv", 'user,item\n1,2\n"3,4\n5,6\n', {}, "line 3: .*quote"),
    ("j.jsonl", '{"user":1,"item":2}\n{"user":2,"item":\n{"user":3,"item":4}\n', {}, "line 2: not JSON"),
    ("j.jsonl", '{"user":1,"item":2}\n[1,2]\n', {}, "line 2: a list"),
    (
        "n.jsonl",
        '{"session":1,"events":[{"aid":3}]}\n',
        {},
        "looks like item.*events, which hold lists or objects",
    ),
    ("p.parquet", b"PAR1 this is none", {}, "not a readable Parquet file"),
    ("z.csv", b"PK\x03\x04 zipped", {}, "zip archive. Unpack"),
    ("a.txt", "1 2 3\n4 5 x 7\n", {"format": "adjacency"}, "line 2: 'x' is not a whole number"),
    (
        "a.txt",
        "1 2 3\n4 99999999999999999999\n",
        {"format": "adjacency"},
        "line 2: '99999999999999999999' is not",
    ),
    ("a.txt", "1 2 3\n4 5 - 7\n", {"format": "sessions"}, "line 2: '-' is not"),
    ("a.txt", "1 2 3\n4 5\n", {"kind": "text"}, "numbers only"),
]


@pytest.mark.parametrize(("name", "content", "options", "message"), BAD)
def test_bad_input_is_refused_with_its_place_and_its_mend(
    write: Write, name: str, content: str | bytes, options: dict[str, object], message: str
) -> None:
    with pytest.raises(ValueError, match=f"(?s){message}"):
        read_interactions(write(name, content), **options)  # type: ignore[arg-type]


def test_float_ids_in_parquet_are_refused_by_their_type(tmp_path: Path) -> None:
    pl.DataFrame({"user": [1.0, None], "item": [1, 2]}).write_parquet(tmp_path / "f.parquet")
    with pytest.raises(ValueError, match="user column holds Float64, integers or text were expected"):
        read_interactions(tmp_path / "f.parquet")


@pytest.mark.parametrize("name", ["a.csv.gz", "a.jsonl.gz", "a.txt.gz", "b.csv.gz"])
@pytest.mark.parametrize("damage", ["cut", "flipped", "checksum"])
def test_damaged_gzip_is_named_as_such(tmp_path: Path, name: str, damage: str) -> None:
    lines = {
        "a.csv.gz": "user,item\n" + "".join(f"{i},{i * 7919 % 10007}\n" for i in range(60000)),
        "b.csv.gz": "user,item\n1,2\n",
        "a.jsonl.gz": "".join(f'{{"user":{i},"item":{i * 7919 % 10007}}}\n' for i in range(60000)),
        "a.txt.gz": "".join(f"{i} {i * 7919 % 10007} 3 4 5 6\n" for i in range(60000)),
    }
    packed = bytearray(gzip.compress(lines[name].encode()))
    if damage == "cut":
        del packed[len(packed) * 3 // 4 :]
    elif damage == "flipped":
        packed[len(packed) // 2] ^= 0xFF
    else:
        packed[-6] ^= 0xFF
    path = tmp_path / name
    path.write_bytes(packed)
    with pytest.raises(ValueError, match=r"damaged or cut short.*again"):
        read_interactions(path)


def test_missing_files_and_folders_without_tables_are_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"no file or folder .*nowhere"):
        read_interactions(tmp_path / "nowhere.csv")
    with pytest.raises(ValueError, match="holds nothing"):
        read_interactions(tmp_path)
    (tmp_path / "notes.md").write_text("hello")
    with pytest.raises(ValueError, match=r"holds notes\.md"):
        read_interactions(tmp_path)
    with pytest.raises(ValueError, match="No path"):
        read_interactions([])


def test_a_folder_of_training_and_test_files_is_not_read_as_one(write: Write, tmp_path: Path) -> None:
    write("train.csv", "user,item\n1,2\n")
    write("test.csv", "user,item\n1,3\n")
    with pytest.raises(ValueError, match="train on test data"):
        read_interactions(tmp_path)


def test_files_of_different_layouts_and_files_named_twice_are_refused(write: Write) -> None:
    first, second = write("a.csv", "user,item\n1,2\n"), write("b.csv", "user,item,rating\n1,2,3\n")
    with pytest.raises(
        ValueError, match=r"a\.csv is csv with user, item, .*b\.csv is csv with user, item, weight"
    ):
        read_interactions([first, second])
    with pytest.raises(ValueError, match="more than once"):
        read_interactions([first, first])


def test_one_user_alone_can_be_read(write: Write) -> None:
    read = read_interactions(write("a.csv", "user,item\n1,2\n1,3\n"))
    assert (read.n_users, read.n_items) == (1, 2)


def test_the_home_folder_is_known_by_its_sign(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write("a.csv", "user,item\n1,2\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert pairs_of(read_interactions("~/a.csv")) == [(1, 2)]


# Real files


def real(*parts: str) -> Path:
    path = DATA.joinpath(*parts)
    if not path.exists():
        pytest.skip(f"the data folder has no {'/'.join(parts)}")
    return path


@pytest.mark.parametrize(
    ("folder", "users", "items", "train_pairs", "test_pairs"),
    [
        ("cf-gowalla", 29_858, 40_981, 810_128, 217_242),
        ("cf-yelp2018", 31_668, 38_048, 1_237_259, 324_147),
        ("cf-amazon-book-kgat", 70_679, 24_915, 652_514, 193_920),
        ("cf-ml-1m-lcfn", 6_022, 3_043, 796_244, 99_455),
    ],
)
def test_published_splits_have_their_published_counts(
    folder: str, users: int, items: int, train_pairs: int, test_pairs: int
) -> None:
    train = read_interactions(real(folder, "train.txt.gz"))
    test = read_test(real(folder, "test.txt.gz"), train)
    assert (train.n_users, train.n_items, len(train)) == (users, items, train_pairs)
    assert test.reading.rows == test_pairs
    assert len(test) + sum(test.reading.dropped.values()) == test_pairs
    assert not train.reading.dropped
    assert train.reading.format == "adjacency"
    if folder in ("cf-gowalla", "cf-yelp2018"):
        assert not test.reading.dropped


@pytest.mark.parametrize(
    ("path", "users", "items", "rows"),
    [
        ("seq-ml-1m/ml-1m.txt.gz", 6_040, 3_416, 999_611),
        ("seq-beauty-sasrec/Beauty.txt.gz", 52_204, 57_289, 394_908),
        ("seq-beauty-bert4rec/beauty.txt.gz", 40_226, 54_542, 353_962),
        ("seq-s3rec/Beauty.txt.gz", 22_363, 12_101, 198_502),
        ("seq-s3rec/LastFM.txt.gz", 1_090, 3_646, 52_551),
        ("seq-s3rec/Yelp.txt.gz", 30_431, 20_033, 316_354),
        ("session-diginetica/train_sessions.txt.gz", 186_670, 43_097, 906_140),
        ("session-yoochoose1_64/train_sessions.txt.gz", 116_167, 17_376, 486_026),
        ("session-tmall/train_sessions.txt.gz", 65_286, 40_727, 416_554),
        ("cf-ml-100k/ml-100k.inter.gz", 943, 1_682, 100_000),
    ],
)
def test_sequences_and_sessions_are_read_as_interactions(
    path: str, users: int, items: int, rows: int
) -> None:
    read = read_interactions(real(*path.split("/")))
    assert (read.n_users, read.n_items, read.reading.rows) == (users, items, rows)
    assert (read.reading.format == "sessions") == path.startswith("session-")


def test_movielens_has_ratings_and_times() -> None:
    read = read_interactions(real("cf-ml-100k"))
    assert (read.weights.min().item(), read.weights.max().item()) == (1, 5)
    assert read.times.min().item() == 874_724_710


def test_nested_events_are_refused_with_the_reason() -> None:
    with pytest.raises(ValueError, match="events, which hold lists or objects"):
        read_interactions(real("session-otto-fixture", "train.jsonl.gz"))
