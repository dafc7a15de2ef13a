"""Independent pieces of a job as tasks of a Ray cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any


def on_ray(
    task: Callable[..., Any], shared: Any, pieces: Sequence[tuple[Any, ...]]
) -> Iterator[tuple[int, Any]]:
    """`task(shared, *piece)` for every piece, as workers are free; what is shared is put into the store once.

    Args:
        task: a function of a module.
        shared: what all pieces need.
        pieces: the other arguments of each call.

    Yields:
        The place of a piece and its result, as they finish; at most two pieces a processor wait.

    Raises:
        ImportError: the extra `ray` is not installed.
    """
    try:
        import ray
    except ImportError:
        raise ImportError("The ray engine needs Ray: pip install 'steelyard[ray]'.") from None
    if not ray.is_initialized():
        ray.init(log_to_driver=False)
    stored, remote = ray.put(shared), ray.remote(task)
    cluster = ray.cluster_resources()  # type: ignore[no-untyped-call, unused-ignore]
    limit = max(2, 2 * int(cluster.get("CPU", 1)))
    waiting: dict[Any, int] = {}
    left = list(reversed(range(len(pieces))))
    while left or waiting:
        while left and len(waiting) < limit:
            place = left.pop()
            waiting[remote.remote(stored, *pieces[place])] = place
        ready, _ = ray.wait(list(waiting), num_returns=1)
        yield waiting.pop(ready[0]), ray.get(ready[0])
