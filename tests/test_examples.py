"""The examples run as they stand, and show what they say."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

REPO = Path(__file__).parents[1]
EXAMPLES = sorted((REPO / "examples").glob("*.py"))


def output(name: str, folder: Path) -> str:
    """What an example prints, run as a process of its own in an empty folder, warnings as errors."""
    done = subprocess.run(
        [sys.executable, "-W", "error::UserWarning:__main__", str(REPO / "examples" / name)],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(REPO), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert not list(folder.iterdir()), "an example leaves nothing behind"
    return done.stdout


def numbers(pattern: str, text: str) -> list[float]:
    return [float(found) for found in re.findall(pattern, text)]


@pytest.mark.slow
def test_weighed_hard_negatives_come_closest_to_the_true_sum(tmp_path: Path) -> None:
    printed = output("weigh_candidates.py", tmp_path)
    ratios, errors = numbers(r"true Z (\S+)", printed), numbers(r"log Z (\S+)", printed)
    assert len(ratios) == len(errors) == 3
    assert abs(ratios[2] - 1) < 0.05
    assert ratios[1] > 2
    assert errors[2] < errors[0] < errors[1]


@pytest.mark.slow
def test_the_small_recommender_beats_popularity_and_popularity_beats_chance(tmp_path: Path) -> None:
    printed = output("train_and_recommend.py", tmp_path)
    for metric in ("recall@10", "ndcg@10"):
        chance, popularity, model = numbers(rf"{metric}\s+\w+\s+(\d\.\d+)", printed)
        assert chance < popularity < model
    assert "shape: (6, 4)" in printed


@pytest.mark.slow
def test_the_own_loop_brings_the_full_loss_down(tmp_path: Path) -> None:
    full = numbers(r"full loss (\S+)", output("own_training_loop.py", tmp_path))
    assert full == sorted(full, reverse=True)
    assert full[-1] < full[0] - 1


@pytest.mark.slow
def test_a_weighted_sample_is_trusted_from_a_wide_proposal_and_not_from_a_narrow_one(tmp_path: Path) -> None:
    lines = output("trust_a_weighted_sample.py", tmp_path).splitlines()
    assert [("do not trust" in line) for line in lines] == [False] * 5 + [True] * 3


@pytest.mark.slow
def test_designs_of_equal_probabilities_differ_in_how_far_they_stray(tmp_path: Path) -> None:
    lines = output("compare_designs.py", tmp_path).splitlines()[1:]
    strays = {line[:26].strip(): float(line[26:].split()[0]) for line in lines}
    assert len(strays) == 7
    assert strays["Poisson"] > 2 * strays["conditional Poisson"] > 4 * strays["pivotal, local in space"]


def test_every_example_is_short_says_what_it_shows_and_is_run_here() -> None:
    here = Path(__file__).read_text(encoding="utf-8")
    for path in EXAMPLES:
        text = path.read_text(encoding="utf-8")
        assert len(text.splitlines()) <= 55, path.name
        assert text.startswith('"""'), path.name
        assert f'output("{path.name}"' in here, path.name
    assert len(EXAMPLES) >= 3


def test_an_audit_shows_what_weights_are_worth(tmp_path: Path) -> None:
    printed = output("audit_negatives.py", tmp_path)
    bias, unweighed = numbers(r"bias +(\S+)%", printed), numbers(r"unweighed +(\S+)%", printed)
    assert len(bias) == len(unweighed) == 5
    assert max(bias) < 20
    assert min(unweighed) > 25
