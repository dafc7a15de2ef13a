"""Scorers: a ranking by benchmark against plain loops, a classifier against its optimum, and both in a stream."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr

from steelyard.selection import HashedNgrams, SelectConfig, benchmark_ranking, fit_linear, select


def test_benchmark_ranking_equals_brute_force() -> None:
    generator = torch.Generator().manual_seed(0)
    documents, benchmark = torch.randn(30, 5, generator=generator), torch.randn(7, 5, generator=generator)
    documents[3] = 2 * documents[11]  # equally near to everything: they share a rank
    best, mean = [0.0] * 30, [0.0] * 30
    for b in benchmark:
        cosines = [float(torch.cosine_similarity(d, b, dim=0)) for d in documents]
        for e in range(30):
            above = sum(c > cosines[e] + 1e-6 for c in cosines)
            equal = sum(abs(c - cosines[e]) <= 1e-6 for c in cosines)
            rank = above + (equal + 1) / 2
            best[e], mean[e] = max(best[e], 1 / rank), mean[e] + 1 / rank / 7
    documents[3] = documents[11]
    torch.testing.assert_close(
        benchmark_ranking(documents, benchmark), torch.tensor(best, dtype=torch.float64)
    )
    found = benchmark_ranking(documents, benchmark, aggregate="mean")
    torch.testing.assert_close(found, torch.tensor(mean, dtype=torch.float64))


def test_benchmark_ranking_refuses_what_has_no_direction() -> None:
    good = torch.ones(2, 3)
    for documents, benchmark, words in (
        (torch.zeros(2, 3), good, "no direction"),
        (good * math.nan, good, "no direction"),
        (good, torch.ones(2, 4), "dimensions"),
        (torch.empty(0, 3), good, "at least one row"),
    ):
        with pytest.raises(ValueError, match=words):
            benchmark_ranking(documents, benchmark)
    with pytest.raises(ValueError, match="max or mean"):
        benchmark_ranking(good, good, aggregate="least")  # type: ignore[arg-type]


def test_the_classifier_is_at_the_optimum_of_its_stated_loss() -> None:
    rng = np.random.default_rng(0)
    x = rng.poisson(1.0, (40, 6)).astype(float) + np.eye(6)[rng.integers(0, 6, 40)]
    y = rng.random(40) < 0.3 + 0.4 * (x[:, 0] > 1)

    def loss(table: np.ndarray, b: float) -> float:
        w, total = table - b, 0.0
        for label in (True, False):
            rows = [r / r.sum() @ w + b for r in x[y == label]]
            total += np.mean([math.log1p(math.exp(-z if label else z)) for z in rows]) / 2
        return float(total + 0.01 / 2 * (w**2).sum())

    table = fit_linear(x, y, l2=0.01)
    grid = [loss(table, b) for b in np.linspace(-3, 3, 6001)]
    b = np.linspace(-3, 3, 6001)[int(np.argmin(grid))]
    for step in (1e-2, -1e-2):
        for j in range(6):
            moved = table.copy()
            moved[j] += step
            assert loss(moved, b) > min(grid) - 1e-7


def test_the_classifier_estimates_the_log_ratio_of_densities() -> None:
    """Texts of one token: z is the log ratio of the token's shares, whatever the class sizes."""
    x = np.repeat(np.eye(2), [300, 700], 0)
    y = np.concatenate(
        [np.arange(300) < 30, np.arange(700) < 10]
    )  # shares 30/40 and 270/960 of the first token
    table = fit_linear(x, y, l2=1e-9)
    expected = [math.log((30 / 40) / (270 / 960)), math.log((10 / 40) / (690 / 960))]
    np.testing.assert_allclose(table, expected, atol=1e-3)


def test_one_class_or_rows_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="both classes"):
        fit_linear(np.eye(3), [1, 1, 1])
    with pytest.raises(ValueError, match="both classes"):
        fit_linear(np.array([[1.0], [0.0]]), [1, 0])
    with pytest.raises(ValueError, match="do not fit labels"):
        fit_linear(np.eye(3), [1, 0])


def topics(n: int, seed: int) -> list[tuple[str, int]]:
    rng = np.random.default_rng(seed)
    words = [[f"t{t}w{k}" for k in range(60)] for t in range(4)]
    common = [f"c{k}" for k in range(60)]
    found = []
    for _ in range(n):
        t = int(rng.integers(0, 4))
        body = [*rng.choice(words[t], 8), *rng.choice(common, rng.integers(8, 40))]
        found.append((" ".join(rng.permutation(body)), t))
    return found


@pytest.mark.parametrize("method", ["dsir", "classifier", "betr"])
def test_every_scorer_enriches_the_target_topic_many_times_over_chance(tmp_path: Path, method: str) -> None:
    raw, target = topics(1200, 0), [text for text, t in topics(400, 1) if t == 2]
    (tmp_path / "raw.jsonl").write_text("".join(json.dumps({"text": x, "t": t}) + "\n" for x, t in raw))
    (tmp_path / "target.txt").write_text("\n".join(target))
    for settings, least in (({"design": "top"}, 0.8), ({"temper": "again=0.5"}, 0.5)):
        config = SelectConfig(150, method, **settings)  # type: ignore[arg-type]
        select(
            [tmp_path / "raw.jsonl"], [tmp_path / "target.txt"], config, out=tmp_path / "o", overwrite=True
        )
        rows = (tmp_path / "o" / "selected" / "part-00000.jsonl").read_text().splitlines()
        assert np.mean([json.loads(r)["t"] == 2 for r in rows]) > least


def test_the_distilled_classifier_ranks_as_the_direct_scores_do() -> None:
    raw, target = topics(800, 2), [text for text, t in topics(200, 3) if t == 1]
    grams = HashedNgrams()
    x = grams.features([t for t, _ in raw]).toarray()
    b = grams.features(target).toarray()
    direct = benchmark_ranking(x, b, aggregate="mean").numpy()
    table = fit_linear(grams.features([t for t, _ in raw]), direct >= np.quantile(direct, 0.9))
    texts = [t for t, _ in raw]
    sums, tokens = grams.scores(texts, table)
    assert spearmanr(sums / grams.grams_of(tokens), direct).statistic > 0.4


def test_a_target_that_is_a_copy_of_the_corpus_ranks_nothing_and_is_said_to(tmp_path: Path) -> None:
    path = tmp_path / "raw.jsonl"
    path.write_text("".join(f'{{"text": "word{k} word{k + 1}"}}\n' for k in range(30)))
    with pytest.raises(ValueError, match="equally near to the target"):
        select([path], [path], SelectConfig(5, "betr"), out=tmp_path / "out")
