"""Importance resampling of a corpus: `steelyard select` (the whole job, checks and report data and all) against
the package data-selection, on the same JSONL files, each in a process of its own.

The corpus is made of the rows of the files given, each turned at a random place and repeated until the size is
reached; the target is its first thousandth. Both select 5,000 rows by hashed 1- and 2-grams in 10,000 buckets. CPU
seconds are those of the process and its children; memory is the largest resident size of one of them.

pip install data-selection==1.0.3 zstandard psutil
python benchmarks/selection.py FILE... [--megabytes 50 200 800] [--peer-megabytes 200] [--workers 2]
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import random
import resource
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

ROWS = 5_000


def make(texts: list[str], megabytes: int, folder: Path) -> tuple[Path, Path]:
    """A corpus of the size, and a target."""
    rng = random.Random(0)
    raw, target = folder / f"raw{megabytes}.jsonl", folder / f"target{megabytes}.jsonl"
    size, count = 0, 0
    with open(raw, "w", encoding="utf-8") as file:
        while size < megabytes * 1e6:
            text = rng.choice(texts)
            turn = rng.randrange(len(text))
            line = json.dumps({"id": count, "text": text[turn:] + " " + text[:turn], "source": "made"}) + "\n"
            file.write(line)
            size, count = size + len(line), count + 1
    with open(raw, encoding="utf-8") as file:
        target.write_text("".join(line for line, _ in zip(file, range(max(count // 1000, 50)), strict=False)))
    return raw, target


def ours(raw: Path, target: Path, out: Path, workers: int) -> None:
    from steelyard.selection import SelectConfig, select

    select([raw], [target], SelectConfig(ROWS), out=out / "ours", workers=workers)


def peers(raw: Path, target: Path, out: Path, workers: int) -> None:
    from data_selection import HashedNgramDSIR

    dsir = HashedNgramDSIR(
        [str(raw)], [str(target)], cache_dir=str(out / "cache"), num_proc=workers, min_example_length=1
    )
    dsir.fit_importance_estimator(num_tokens_to_fit="all")
    dsir.compute_importance_weights()
    dsir.resample(out_dir=str(out / "resampled"), num_to_sample=ROWS, cache_dir=str(out / "cache2"))


def measured(who: str, raw: Path, target: Path, workers: int) -> dict[str, float]:
    """Wall and CPU seconds and peak memory of one contender in a fresh process."""
    import psutil

    with tempfile.TemporaryDirectory() as out:
        command = [
            sys.executable,
            __file__,
            "--one",
            who,
            str(raw),
            str(target),
            out,
            "--workers",
            str(workers),
        ]
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        began, peak, done = time.monotonic(), 0.0, threading.Event()
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

        def watch() -> None:
            nonlocal peak
            while not done.wait(0.05):
                try:
                    whole = psutil.Process(process.pid)
                    peak = max(
                        peak, sum(p.memory_info().rss for p in [whole, *whole.children(recursive=True)])
                    )
                except psutil.Error:
                    continue

        watcher = threading.Thread(target=watch)
        watcher.start()
        code = process.wait()
        done.set()
        watcher.join()
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if code:
        raise SystemExit(f"{who} failed on {raw.name} with exit code {code}; run it with --one to see why.")
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"seconds": time.monotonic() - began, "cpu": cpu, "megabytes": peak / 1e6}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "files", nargs="*", type=Path, help="texts: .jsonl with a field text, or .txt, a row a line"
    )
    parser.add_argument("--megabytes", nargs="*", type=int, default=[50, 200, 800])
    parser.add_argument("--peer-megabytes", nargs="*", type=int, default=[200])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--one", nargs=4, metavar=("WHO", "RAW", "TARGET", "OUT"), help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.one:
        who, raw, target, out = chosen.one
        {"ours": ours, "peers": peers}[who](Path(raw), Path(target), Path(out), chosen.workers)
        return
    texts: list[str] = []
    for path in chosen.files:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
        texts += [json.loads(x)["text"] for x in lines] if path.suffix == ".jsonl" else lines
    texts = [t[:30_000] for t in texts if t.strip()]
    with tempfile.TemporaryDirectory() as folder:
        for size in sorted({*chosen.megabytes, *chosen.peer_megabytes}):
            raw, target = make(texts, size, Path(folder))
            found = measured("ours", raw, target, chosen.workers)
            print(f"{size} MB, {chosen.workers} workers: steelyard {_words(size, found)}", flush=True)
            if size in chosen.peer_megabytes:
                other = measured("peers", raw, target, chosen.workers)
                ratio = ", ".join(f"{other[k] / found[k]:.1f} x {k}" for k in found)
                print(f"    data-selection {_words(size, other)}; ratios {ratio}", flush=True)
            raw.unlink()


def _words(size: int, found: dict[str, float]) -> str:
    return (
        f"{found['seconds']:.1f} s, {found['cpu']:.1f} CPU s ({size / found['cpu']:.1f} MB a CPU second), "
        f"{found['megabytes']:.0f} MB"
    )


if __name__ == "__main__":
    multiprocessing.set_start_method("fork", force=True)
    main()
