"""Seconds and peak resident memory of reading 1, 3 and 10 million pairs, each in a process of its own.

Run: python benchmarks/reading.py [--rows 1000000 3000000 10000000] [--ids integer text]
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import polars as pl


def write_pairs(folder: Path, rows: int, ids: str) -> list[Path]:
    """Skewed pairs over rows / 10 users and 300,000 items, as CSV, gzip CSV, Parquet, JSONL and adjacency."""
    rng = np.random.default_rng(7)
    users = rng.integers(0, rows // 10, rows)
    items = (rng.pareto(1.2, rows) * 1000).astype(np.int64) % 300_000
    frame = pl.DataFrame({"user": users, "item": items})
    stem = folder / f"{ids}{rows}"
    paths = []
    if ids == "integer":
        lines = frame.group_by("user").agg(pl.col("item").cast(pl.String)).sort("user")
        joined = lines.select(pl.col("user").cast(pl.String) + " " + pl.col("item").list.join(" "))
        paths.append(Path(f"{stem}.txt"))
        joined.write_csv(paths[-1], include_header=False, quote_style="never")
    else:
        frame = frame.select(("customer-" + pl.all().cast(pl.String).str.zfill(12)).name.keep())
    frame.write_csv(f"{stem}.csv")
    frame.write_parquet(f"{stem}.parquet")
    frame.write_ndjson(f"{stem}.jsonl")
    paths += [Path(f"{stem}{ending}") for ending in (".csv", ".parquet", ".jsonl")]
    subprocess.run(["gzip", "-1", "-k", f"{stem}.csv"], check=True)
    return [*paths, Path(f"{stem}.csv.gz")]


def peak_megabytes() -> float:
    """Peak resident size of this process; `getrusage` would count the parent that started it, too."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) / 1024


def read_alone(path: Path) -> None:
    """Read one file and print what it took; the peak is that of the whole process."""
    import torch  # noqa: F401

    from steelyard.retrieval.reading import read_interactions

    baseline = peak_megabytes()
    start = time.perf_counter()
    pairs = read_interactions(path)
    seconds = time.perf_counter() - start
    peak = peak_megabytes()
    size = path.stat().st_size / 2**20
    kind = path.name.split(".", 1)[1]
    print(
        f"{pairs.reading.rows:>12,} {pairs.user_ids.dtype!s:>7} {kind:>8} {size:8.0f} MB {seconds:7.2f} s "
        f"peak {peak:6.0f} MB (imports {baseline:.0f} MB)",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, nargs="+", default=[1_000_000, 3_000_000, 10_000_000])
    parser.add_argument("--ids", nargs="+", default=["integer", "text"])
    parser.add_argument("--read", type=Path)
    chosen = parser.parse_args()
    if chosen.read:
        return read_alone(chosen.read)
    for ids in chosen.ids:
        for rows in chosen.rows:
            with tempfile.TemporaryDirectory() as folder:
                for path in write_pairs(Path(folder), rows, ids):
                    subprocess.run([sys.executable, __file__, "--read", str(path)], check=True)
    return None


if __name__ == "__main__":
    main()
