import sys

import pytest

from steelyard.retrieval.pydoc import _select, read_documentation, split_docstring
from steelyard.retrieval.pysource import (
    Docstring,
    Source,
    find_modules,
    named_documents,
    read_modules,
    read_source,
)


def write(root, files):
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)


def documents_of(root):
    return named_documents(read_modules(find_modules(root)))


@pytest.mark.parametrize(
    ("text", "query", "rest"),
    [
        ("Compress a file.", "Compress a file.", ""),
        ("Compress a file. Slowly.\n\nMore.", "Compress a file.", "Slowly.\n\nMore."),
        ("Compress\n   a file,\nslowly\n\nMore\n\nand more", "Compress a file, slowly", "More\n\nand more"),
        ("Use e.g. This one. Then stop.", "Use e.g. This one.", "Then stop."),
        ("Version 1.2 of it. Next.", "Version 1.2 of it.", "Next."),
        ("Is it? Yes.", "Is it?", "Yes."),
        ("", "", ""),
    ],
)
def test_a_docstring_is_cut_after_its_first_sentence(text, query, rest):
    assert split_docstring(text) == (query, rest)


def test_public_objects_with_docstrings_are_found_and_others_are_not(tmp_path):
    write(
        tmp_path,
        {
            "pack/__init__.py": "",
            "pack/shapes.py": '''
class Square(Shape):
    """A square of a given side."""
    def __init__(self, side: float, *, colour="red"):
        """Hidden."""
    def area(self, unit=(1, 2)) -> float:
        """Area of the square."""
        def inner():
            """Nobody sees this."""
    @property
    def side(self):
        """Length of a side."""
    def _secret(self):
        """Not public."""
    def silent(self): pass
if True:
    async def fetch(url: str,
                    retries: int = 3,
                    ) -> bytes:
        """Fetch a page."""
try:
    import fast
except ImportError:
    def slow(x): """One line of code."""
''',
            "pack/_hidden.py": 'def gone():\n    """Never offered to anybody."""\n',
            "pack/tests/test_it.py": 'def check():\n    """A test of it."""\n',
            "pack/_vendor/other.py": 'def other():\n    """A vendored copy."""\n',
            "pack/broken.py": "def (:\n",
        },
    )
    found = documents_of(tmp_path)
    assert {name: signature for name, (signature, _) in found.items()} == {
        "pack.shapes.Square": 'class Square(Shape) (side: float, *, colour="red")',
        "pack.shapes.Square.area": "area(unit=(1, 2)) -> float",
        "pack.shapes.Square.side": "side()",
        "pack.shapes.fetch": "fetch(url: str, retries: int = 3) -> bytes",
        "pack.shapes.slow": "slow(x)",
    }
    assert found["pack.shapes.slow"][1] == "One line of code."


def test_an_object_goes_by_the_shortest_name_its_package_offers(tmp_path):
    write(
        tmp_path,
        {
            "pack/__init__.py": "from ._core import *\nfrom .deep.layers import Linear\nfrom other import borrowed\n",
            "pack/_core/__init__.py": "from .matrix import inv, det as determinant\n__all__ = ['inv']\n",
            "pack/_core/matrix.py": 'def inv(a):\n    """Inverse of a matrix."""\ndef det(a):\n    """Not listed."""\n',
            "pack/deep/__init__.py": "",
            "pack/deep/layers.py": 'class Linear:\n    """A linear map."""\n    def run(self):\n        """Apply the map."""\n',
            "other.py": 'def borrowed():\n    """Comes from elsewhere."""\n',
        },
    )
    assert set(documents_of(tmp_path)) == {"pack.inv", "pack.Linear", "pack.Linear.run", "other.borrowed"}


def test_packages_that_import_each_other_are_read(tmp_path):
    write(
        tmp_path,
        {
            "a/__init__.py": "from b import *\ndef one():\n    'The first of them.'\n",
            "b/__init__.py": "from a import *\nfrom . import missing\ndef two():\n    'The second of them.'\n",
        },
    )
    assert set(documents_of(tmp_path)) == {"a.one", "b.two"}


def test_a_file_that_is_not_python_is_marked_and_does_no_harm(tmp_path):
    write(tmp_path, {"bad.py": "def (", "zero.py": "x = '\0'"})
    sources = read_modules(find_modules(tmp_path))
    assert [source.is_valid for source in sources.values()] == [False, False]
    assert not read_source("gone", tmp_path / "gone.py").is_valid


def selected(documents, most=100, standard=()):
    sources = {"m": Source((Docstring("f", "f()", "x"),)), "n": Source(is_valid=False)}
    return _select(documents, set(standard), sources, most)


def test_what_is_left_out_is_counted():
    found = selected(
        {
            "p.a": ("f(x)", "Close the file.\n\nTwice if need be."),
            "p.deep.a": ("f(x)", "Close the file.\n\nTwice if need be."),
            "q.a": ("f(x)", "Close the file.\n\nTwice if need be."),
            "p.b": ("g()", "See below."),
            "p.c": ("c()", ">>> c() is c()"),
        }
    )
    assert found.pairs["item"].to_list() == ["p.a", "q.a"]
    assert found.pairs["query"].to_list() == ["Close the file."] * 2
    assert found.pairs["document"][0] == "p.a\nf(x)\n\nTwice if need be."
    assert (found.short, found.repeated, found.capped, found.files, found.unreadable) == (2, 1, 0, 2, 1)
    assert "1 unreadable" in str(found)


def test_a_signature_at_the_head_of_a_docstring_is_no_query():
    text = "dot(a, b)\ndot(a, b, out)\n\nProduct of two arrays. See matmul."
    pairs = selected({"p.dot": ("dot(a, b, out=None)", text)}).pairs
    assert pairs.rows() == [("Product of two arrays.", "p.dot\ndot(a, b, out=None)\n\nSee matmul.", "p.dot")]
    assert selected({"p.dot": ("dot()", "dot(a, b) is not said in words")}).short == 1


def test_over_the_cap_the_standard_library_comes_first_and_the_rest_is_a_fixed_sample():
    documents = {f"pack.f{i}": ("f()", f"Does thing number {i}.") for i in range(50)}
    documents |= {f"std.g{i}": ("g()", f"Does a standard thing {i}.") for i in range(5)}
    first = selected(documents, 20, ["std"])
    again = selected(dict(reversed(documents.items())), 20, ["std"])
    assert first.pairs.equals(again.pairs)
    assert first.capped == 35
    assert first.pairs["item"].str.starts_with("std.").sum() == 5
    smaller = selected(documents, 10, ["std"]).pairs["item"]
    assert set(smaller) < set(first.pairs["item"])
    assert selected({}).pairs.shape == (0, 3)


@pytest.mark.parametrize(
    "header",
    ["def f(a: int):", "def f(a: int):  # note: one", "def f(\n    a: int,  # one\n):", "def f(a: int) :"],
)
@pytest.mark.parametrize("between", [" ", "\n    "])
def test_a_signature_never_holds_the_docstring(tmp_path, header, between):
    if "#" in header.split("\n")[-1] and between == " ":
        pytest.skip("a comment ends the line")
    write(tmp_path, {"one.py": f'{header}{between}"""Says: what it does."""\n'})
    ((signature, text),) = documents_of(tmp_path).values()
    assert signature.startswith("f(")
    assert "Says" not in signature
    assert signature.count("(") == signature.count(")") == 1
    assert text == "Says: what it does."


@pytest.mark.slow
def test_the_documentation_of_this_python_is_a_large_clean_corpus():
    found = read_documentation(processes=1)
    pairs = found.pairs
    assert pairs.columns == ["query", "document", "item"]
    assert pairs["item"].is_unique().all()
    assert pairs["item"].is_sorted()
    assert len(pairs) > 10_000
    assert {"gzip.compress", "zlib.compress", "json.loads", "math.sqrt", "numpy.average"} <= set(
        pairs["item"]
    )
    assert not pairs["item"].str.contains(r"(^|\.)(_|tests?\.)").any()
    assert pairs["query"].str.len_chars().min() > 0
    head = pairs["document"].str.split("\n").list.first()
    assert head.equals(pairs["item"].alias(head.name))
    assert "turtle" not in sys.modules, "reading must not import what it reads"


def test_a_cap_below_one_is_refused():
    with pytest.raises(ValueError, match="most_pairs"):
        read_documentation(0)
