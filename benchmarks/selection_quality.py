"""What a selection is worth on real text: precision of its domain, and perplexity of a model trained on it.

Domains are the twenty newsgroups, AG News' four classes, Reuters' eight, film reviews and plain-language corpora. Rows of
each are dealt into three thirds: the target, a part of the corpus to select from, and held-out text. From the mixed
corpus as many rows are selected as the target's domain has there. Precision: their share that is of the domain.
Perplexity: of an interpolated bigram model of the selected rows, on the held-out third; its vocabulary is that of the
whole corpus. Intervals are 95 % bootstrap over domains.

pip install zstandard [data-selection==1.0.3]
python benchmarks/selection_quality.py [--data ../shared/data] [--seeds 3]
"""

from __future__ import annotations

import argparse
import csv
import gzip
import io
import itertools
import json
import math
import re
import tempfile
import zipfile
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from steelyard.selection import SelectConfig, select

TARGETS = [
    "sci.space", "rec.sport.baseball", "comp.graphics", "talk.politics.mideast", "soc.religion.christian",
    "ag World", "ag Business", "reuters earn", "reuters crude", "film reviews", "medicine leaflets", "inaugural",
]  # fmt: skip
CONTENDERS: dict[str, dict[str, Any]] = {
    "random": {"method": "random"},
    "dsir": {},
    "dsir, length": {"temper": "length"},
    "dsir, length,again=0.5": {"temper": "length,again=0.5"},
    "dsir, ess=4n": {"temper": "ess"},
    "dsir, top": {"design": "top"},
    "classifier, top": {"method": "classifier", "design": "top"},
    "classifier": {"method": "classifier"},
    "betr, top": {"method": "betr", "design": "top"},
}
WORD = re.compile(r"\w+|[^\w\s]")


def domains(data: Path) -> dict[str, list[str]]:
    """Texts by domain."""
    import zstandard

    found: dict[str, list[str]] = {}
    packed = (data / "text-20newsgroups" / "20news-bydate.jsonl.zst").read_bytes()
    for line in zstandard.ZstdDecompressor().stream_reader(io.BytesIO(packed)).read().splitlines():
        row = json.loads(line)
        found.setdefault(row["group"], []).append(row["text"].split("\n\n", 1)[-1][:5000])
    names = (data / "text-agnews" / "classes.txt").read_text().split("\n")
    with gzip.open(data / "text-agnews" / "test.csv.gz", "rt", encoding="utf-8") as file:
        for row in csv.reader(file):
            found.setdefault(f"ag {names[int(row[0]) - 1].strip()}", []).append(f"{row[1]} {row[2]}")
    for part in ("train", "test"):
        with gzip.open(data / "text-reuters-r8" / f"{part}.txt.gz", "rt", encoding="utf-8") as file:
            for line in file:
                name, text = line.rstrip("\n").split("\t", 1)
                found.setdefault(f"reuters {name}", []).append(text)
    for name, archive in (
        ("film reviews", "movie_reviews"),
        ("medicine leaflets", "pil"),
        ("inaugural", "inaugural"),
    ):
        with zipfile.ZipFile(data / "text-nltk" / f"{archive}.zip") as packed_texts:
            for entry in packed_texts.namelist():
                if entry[-1] != "/" and not entry.endswith("README"):
                    text = packed_texts.read(entry).decode("utf-8", "replace")
                    found.setdefault(name, []).extend(text[k : k + 2000] for k in range(0, len(text), 2000))
    return {name: [t for t in texts if t.strip()] for name, texts in found.items()}


def perplexity(train: list[str], held_out: list[str], vocabulary: dict[str, int]) -> float:
    """Of a bigram model with absolute discounting over an add-one unigram model."""
    unigrams, bigrams, followers = Counter[int](), Counter[tuple[int, int]](), Counter[int]()
    size = len(vocabulary) + 1

    def ids(text: str) -> list[int]:
        return [vocabulary.get(w, size - 1) for w in WORD.findall(text.lower())]

    for text in train:
        tokens = ids(text)
        unigrams.update(tokens)
        bigrams.update(itertools.pairwise(tokens))
    contexts = Counter[int]()
    for (a, _), count in bigrams.items():
        followers[a] += 1
        contexts[a] += count
    total, log_sum, count = sum(unigrams.values()), 0.0, 0
    for text in held_out:
        tokens = ids(text)
        for a, b in itertools.pairwise(tokens):
            base = (unigrams[b] + 1) / (total + size)
            seen = contexts[a]
            p = base if seen == 0 else max(bigrams[a, b] - 0.75, 0) / seen + 0.75 * followers[a] / seen * base
            log_sum += math.log(p)
            count += 1
    return math.exp(-log_sum / max(count, 1))


def peer(raw: Path, target: Path, n: int, folder: Path) -> list[int]:
    """Rows that data-selection takes."""
    from data_selection import HashedNgramDSIR

    dsir = HashedNgramDSIR(
        [str(raw)], [str(target)], cache_dir=str(folder / "cache"), num_proc=1, min_example_length=1
    )
    dsir.fit_importance_estimator(num_tokens_to_fit="all")
    dsir.compute_importance_weights()
    dsir.resample(out_dir=str(folder / "out"), num_to_sample=n, cache_dir=str(folder / "cache2"))
    return [
        json.loads(line)["id"] for path in (folder / "out").iterdir() for line in open(path, encoding="utf-8")
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, default=Path(__file__).resolve().parents[2] / "shared" / "data")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--peer", action="store_true", help="data-selection too")
    chosen = parser.parse_args()
    rng = np.random.default_rng(0)
    thirds: dict[str, list[list[str]]] = {}
    for name, texts in domains(chosen.data).items():
        order = rng.permutation(len(texts))
        thirds[name] = [[texts[i] for i in part] for part in np.array_split(order, 3)]
    rows = [(text, name) for name, parts in thirds.items() for text in parts[1]]
    words = Counter(w for text, _ in rows for w in WORD.findall(text.lower()))
    vocabulary = {w: k for k, (w, c) in enumerate(words.most_common()) if c > 1}
    print(f"{len(rows):,} rows of {len(thirds)} domains; vocabulary {len(vocabulary):,}", flush=True)
    contenders = CONTENDERS | ({"data-selection 1.0.3": {}} if chosen.peer else {})
    scores: dict[str, dict[str, list[float]]] = {c: {"precision": [], "perplexity": []} for c in contenders}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        raw, target = folder / "raw.jsonl", folder / "target.jsonl"
        raw.write_text("".join(json.dumps({"id": k, "text": t}) + "\n" for k, (t, _) in enumerate(rows)))
        for name in TARGETS:
            target.write_text("".join(json.dumps({"text": t}) + "\n" for t in thirds[name][0]))
            n = len(thirds[name][1])
            for contender, settings in contenders.items():
                found = []
                for seed in range(chosen.seeds):
                    if contender.startswith("data-selection"):
                        np.random.seed(seed)  # noqa: NPY002 (its only source of randomness)
                        with tempfile.TemporaryDirectory() as inner:
                            taken = peer(raw, target, n, Path(inner))
                    else:
                        own = settings | (
                            {"temper": f"ess={4 * n}"} if settings.get("temper") == "ess" else {}
                        )
                        select(
                            [raw],
                            [target],
                            SelectConfig(n, seed=seed, **own),
                            out=folder / "o",
                            overwrite=True,
                        )
                        lines = (folder / "o" / "selected" / "part-00000.jsonl").read_text().splitlines()
                        taken = [json.loads(line)["id"] for line in lines]
                    texts = [rows[i][0] for i in taken]
                    found.append(
                        (
                            np.mean([rows[i][1] == name for i in taken]),
                            perplexity(texts, thirds[name][2], vocabulary),
                        )
                    )
                    if contender.endswith("top"):
                        break  # no chance in it
                precision, perplexed = np.mean(found, 0)
                scores[contender]["precision"].append(float(precision))
                scores[contender]["perplexity"].append(float(perplexed))
                print(f"{name:24s} {contender:24s} {precision:.3f} {perplexed:8.1f}", flush=True)
    everything = scores["random"]["perplexity"]
    for contender, values in scores.items():
        precision = np.array(values["precision"])
        ratio = np.log(np.array(values["perplexity"]) / np.array(everything))
        draws = np.random.default_rng(1).integers(0, len(TARGETS), (2000, len(TARGETS)))
        low, high = np.quantile(precision[draws].mean(1), [0.025, 0.975])
        a, b = np.exp(np.quantile(ratio[draws].mean(1), [0.025, 0.975]))
        print(
            f"| {contender} | {precision.mean():.3f} [{low:.3f}, {high:.3f}] | "
            f"{np.exp(ratio.mean()):.3f} [{a:.3f}, {b:.3f}] |"
        )


if __name__ == "__main__":
    main()
