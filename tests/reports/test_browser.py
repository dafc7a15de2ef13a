"""The reports as a browser shows them: whole, readable in light and dark, on a desk and on a phone."""

import html
import json
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import matplotlib.image
import polars as pl
import pytest
import torch

from steelyard.reports import write_audit_report, write_comparison_report, write_training_report
from steelyard.retrieval import Cell, Interactions, TrainConfig, audit, compare, train
from tests.retrieval import planted

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = [
    pytest.mark.skipif(BROWSER is None, reason="no Chromium here: apt-get install chromium"),
    pytest.mark.xdist_group("browser"),
]
DESK, PHONE = 1280, 400
READABLE = 4.5  # the contrast that WCAG 2.1 asks of body text
DARK = ("--blink-settings=preferredColorScheme=0",)
SMALL = TrainConfig(candidates=32, dim=8, batch=16, lr=0.05, epochs=3, validation_users=60)


def awkward() -> Interactions:
    """Histories of unequal length, and ids that break a page: long ones, markup, another script."""
    data = planted.interactions()
    g = torch.Generator().manual_seed(1)
    keep = torch.rand(len(data), generator=g) < torch.linspace(0.3, 1, data.n_users)[data.users]
    users = ["u" * 150, "<b>u</b>", "مستخدم", *(f"u{i}" for i in range(3, data.n_users))]
    items = ["i" * 150, "a & b <i>", "項目" * 40, *(f"item {i} with a title" for i in range(3, data.n_items))]
    return replace(data.select(keep), user_ids=pl.Series(users), item_ids=pl.Series(items))


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A small report of each kind, of real jobs."""
    root, data = tmp_path_factory.mktemp("pages"), awkward()
    trained = train(data, config=SMALL, out=root / "ids")
    train(planted.texts(), config=TrainConfig.of("text", epochs=1, dim=16), out=root / "texts")
    audit(trained.retriever, data, ["uniform", "in-batch+popularity:0.75", "top5+uniform"], out=root / "audit", candidates=16, queries=20, repeats=3)  # fmt: skip
    cells = [Cell(loss, "uniform", model) for model in ("mf", "sequence") for loss in ("softmax", "bsl")]
    compare(data, None, cells, minutes=0.01, seeds=2, config=SMALL, out=root / "compare")
    return {
        "training of ids": write_training_report(root / "ids"),
        "training of texts": write_training_report(root / "texts"),
        "audit": write_audit_report(root / "audit"),
        "comparison": write_comparison_report(root / "compare"),
    }


def browse(*words: str) -> str:
    """What Chromium prints, without a network."""
    assert BROWSER is not None
    flags = ("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run")
    alone = ("--disable-background-networking", "--host-resolver-rules=MAP * ~NOTFOUND")
    done = subprocess.run(
        [BROWSER, *flags, *alone, *words], capture_output=True, text=True, timeout=90, check=True
    )
    return done.stdout


def looked_at(pages: dict[str, Path], folder: Path, *words: str) -> list[dict[str, Any]]:
    """Each page at both widths, measured in the browser."""
    frame = (Path(__file__).parent / "measure.html").read_text(encoding="utf-8")
    addresses = [path.as_uri() for path in pages.values()]
    frame = frame.replace("__PAGES__", json.dumps(addresses)).replace("__WIDTHS__", json.dumps([DESK, PHONE]))
    (folder / "frame.html").write_text(frame, encoding="utf-8")
    dom = browse(
        "--allow-file-access-from-files", "--virtual-time-budget=20000", "--window-size=1400,900", "--dump-dom", *words,
        (folder / "frame.html").as_uri(),
    )  # fmt: skip
    told = re.search(r"<pre>(.*)</pre>", dom, re.DOTALL)
    assert told is not None, dom[-500:]
    found: list[dict[str, Any]] = json.loads(html.unescape(told[1]))
    assert len(found) == 2 * len(pages)
    return found


@pytest.fixture(scope="module")
def light(pages: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return looked_at(pages, tmp_path_factory.mktemp("light"))


@pytest.fixture(scope="module")
def dark(pages: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return looked_at(pages, tmp_path_factory.mktemp("dark"), *DARK)


def test_no_page_is_wider_than_the_screen(light: list[dict[str, Any]]) -> None:
    for page in light:
        assert page["shown"] == page["width"]
        assert page["beyond"] <= 0, page["page"]


def test_every_picture_has_a_size_and_no_label_is_cut_off(light: list[dict[str, Any]]) -> None:
    for page in light:
        assert len(page["pictures"]) >= 2
        for width, height in page["pictures"]:
            assert width > 200, page["page"]
            assert height > 60, page["page"]
        assert page["cut"] == [], page["page"]


def test_text_is_readable_by_day_and_by_night(
    light: list[dict[str, Any]], dark: list[dict[str, Any]]
) -> None:
    for found, bright in ((light, True), (dark, False)):
        for page in found:
            assert (min(page["background"][:3]) > 200) == bright
            assert (max(page["background"][:3]) < 60) != bright
            assert page["least"]["contrast"] >= READABLE, (page["page"], page["least"])


def test_nothing_is_fetched_and_nothing_is_run(pages: dict[str, Path], light: list[dict[str, Any]]) -> None:
    for page in light:
        assert page["resources"] == []
        assert page["scripts"] == 0
    for name, path in pages.items():
        text = path.read_text(encoding="utf-8")
        referred = re.findall(r"""(?:src|href)\s*=\s*["']([^"']*)|url\(\s*["']?([^)"']*)|(@import)""", text)
        assert all("".join(found).startswith("#") for found in referred), name
        assert not re.search(r"<[^>]*\son\w+\s*=|javascript:", text), name


def test_what_the_data_name_is_shown_as_it_is_written(pages: dict[str, Path]) -> None:
    text = pages["comparison"].read_text(encoding="utf-8")
    assert "<b>u</b>" not in text
    assert "a & b <i>" not in text


def test_a_page_is_painted(pages: dict[str, Path], tmp_path: Path) -> None:
    picture = tmp_path / "page.png"
    browse("--window-size=1280,1600", f"--screenshot={picture}", pages["comparison"].as_uri())
    pixels = matplotlib.image.imread(picture)
    assert pixels.shape[:2] == (1600, 1280)
    colours = {
        tuple(pixel) for pixel in (pixels[::4, ::4, :3].reshape(-1, 3) * 255).round().astype(int).tolist()
    }
    assert (15, 107, 107) in colours  # the accent, of cards and dots
    assert len(colours) > 30
