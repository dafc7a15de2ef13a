"""Point clouds made smaller by learning: points moved softly on their input neighbours, or matched to them."""

from __future__ import annotations

import torch
from torch import Tensor, nn

_CHUNK = 1 << 22  # distances held at once
_NOTHING = 1e4  # exp(-1e4) is 0 in every dtype


def soft_projection(queries: Tensor, points: Tensor, k: int, temperature: float | Tensor) -> Tensor:
    """Replace each query point by a weighted mean of its k nearest input points, differentiably.

        r = sum_i w_i p_i,    w = softmax(-|q - p_i|^2 / t^2) over the k nearest p_i

    As t falls to 0 the mean hardens to the nearest input point; with k = 1 it is that at once. Train a network
    that puts out the queries on `task(r) + alpha simplification_loss(queries, points) + lambda t^2`, and take
    `match_points` where a true subset is wanted.

    Args:
        queries: generated points, (..., m, d), floating point.
        points: input cloud, (..., n, d); leading dimensions broadcast with those of `queries`.
        k: neighbours, 1 to n.
        temperature: t, a number or a tensor broadcastable to (..., m), not 0; its sign does not matter.

    Returns:
        Projected points, (..., m, d), float64 for float64, else float32, with gradients to queries, points and
        temperature.

    Raises:
        TypeError: the clouds are not floating point.
        ValueError: shapes that do not fit, k outside 1 to n, a temperature whose square is 0 or not finite,
            or coordinates that are not finite.

    Reference:
        Lang, Manor & Avidan (2020), SampleNet: differentiable point cloud sampling, CVPR, arXiv 1912.03663.
    """
    queries, points = _clouds(queries, points)
    t2 = torch.as_tensor(temperature, dtype=queries.dtype, device=queries.device).square().unsqueeze(-1)
    if not bool(((t2 > 0) & t2.isfinite()).all()):
        raise ValueError(f"The square of the temperature must be above 0, got {temperature}: for 0 take k=1.")
    near = _pick(points, nearest_neighbours(queries, points, k))
    gap = (near - queries.unsqueeze(-2)).square().sum(-1)
    gap = gap - gap.detach().amin(-1, keepdim=True)
    # Or the gradient of a weight of 0 would be 0 times infinity once t is small.
    far = gap > _NOTHING * t2
    logits = -(gap.masked_fill(far, 0.0) / t2)
    weight = logits.masked_fill(far, -torch.inf).softmax(-1)
    return (weight.unsqueeze(-1) * near).sum(-2)


class SoftProjection(nn.Module):
    """`soft_projection` with a temperature that is learned; matched input points once training is over.

        in training: soft_projection(queries, points, k, t),    after eval(): points[match_points(queries, points)]

    Args:
        k: neighbours.
        temperature: t to start with.

    Raises:
        ValueError: a temperature that is not positive and finite.

    Reference:
        Lang, Manor & Avidan (2020), SampleNet: differentiable point cloud sampling, CVPR, arXiv 1912.03663.
    """

    def __init__(self, k: int, temperature: float = 1.0) -> None:
        super().__init__()
        if not 0 < temperature < float("inf"):
            raise ValueError(f"temperature must be positive and finite, got {temperature}.")
        self.k = k
        self.temperature = nn.Parameter(torch.tensor(float(temperature)))

    def forward(self, queries: Tensor, points: Tensor) -> Tensor:
        """Project, or match where the module is in evaluation mode.

        Args:
            queries: generated points, (..., m, d).
            points: input cloud, (..., n, d).

        Returns:
            (..., m, d).
        """
        if self.training:
            return soft_projection(queries, points, self.k, self.temperature)
        ids = match_points(queries, points)
        return points.expand(*ids.shape[:-1], *points.shape[-2:]).gather(
            -2, ids.unsqueeze(-1).expand(*ids.shape, points.shape[-1])
        )

    def projection_loss(self) -> Tensor:
        """t^2, which drives the temperature down when it is part of the loss."""
        return self.temperature.square()


def simplification_loss(
    generated: Tensor, points: Tensor, *, beta: float = 1.0, gamma: float = 1.0, delta: float = 0.0
) -> Tensor:
    """Distance of a small generated cloud from the cloud that it stands for, both ways.

        L = mean_g d(g, P) + beta max_g d(g, P) + (gamma + delta m) mean_p d(p, G)
        d(x, Y) = min_{y in Y} |x - y|^2

    The first two terms bring generated points close to the input and vanish where they lie on it; the third
    spreads them over the whole input.

    Args:
        generated: G, (..., m, d), floating point.
        points: P, (..., n, d).
        beta: weight of the worst generated point.
        gamma: weight of the coverage.
        delta: further weight of the coverage for each generated point.

    Returns:
        One loss a cloud, (...,), with gradients to both clouds.

    Raises:
        TypeError: the clouds are not floating point.
        ValueError: shapes that do not fit, an empty cloud, or coordinates that are not finite.

    Reference:
        Dovrat, Lang & Avidan (2019), Learning to sample (S-NET), CVPR, arXiv 1812.01659; Lang, Manor & Avidan
        (2020), SampleNet, CVPR, arXiv 1912.03663.
    """
    generated, points = _clouds(generated, points)
    there = (generated - _pick(points, nearest_neighbours(generated, points, 1)).squeeze(-2)).square().sum(-1)
    back = (points - _pick(generated, nearest_neighbours(points, generated, 1)).squeeze(-2)).square().sum(-1)
    coverage = gamma + delta * generated.shape[-2]
    return there.mean(-1) + beta * there.amax(-1) + coverage * back.mean(-1)


def match_points(generated: Tensor, points: Tensor) -> Tensor:
    """Turn a generated cloud into a subset of the input of the same size.

    Each generated point takes its nearest input point; those taken twice count once; then the input point
    farthest from all that are taken is added until there are m.

    Args:
        generated: (..., m, d), floating point.
        points: input cloud, (..., n, d), n at least m.

    Returns:
        Numbers of input points, int64, (..., m), no number twice in a row: the matched ones in the order of
        the generated points, then the added ones in the order in which they were chosen. No gradient.

    Raises:
        TypeError: the clouds are not floating point.
        ValueError: shapes that do not fit, m above n, or coordinates that are not finite.

    Reference:
        Dovrat, Lang & Avidan (2019), Learning to sample (S-NET), CVPR, arXiv 1812.01659.
    """
    generated, points = _clouds(generated.detach(), points.detach())
    lead, (n, d), m = points.shape[:-2], points.shape[-2:], generated.shape[-2]
    if m > n:
        raise ValueError(f"{m} generated points cannot be matched to {n} input points without repeats.")
    rows = points.reshape(-1, n, d)
    nearest = nearest_neighbours(generated, points, 1).view(-1, m)
    order = torch.arange(m, device=rows.device).expand_as(nearest)
    first = torch.full((len(rows), n), m, device=rows.device).scatter_reduce(1, nearest, order, "amin")
    repeat = first.gather(1, nearest) < order
    ids = nearest.gather(1, repeat.sort(dim=1, stable=True).indices)
    count = m - repeat.sum(1)
    taken = _pick(rows, ids.unsqueeze(-1)).squeeze(-2)
    far = (rows - _pick(taken, nearest_neighbours(rows, taken, 1)).squeeze(-2)).square().sum(-1)
    far.scatter_(1, ids, -1.0)  # copies of a taken point may follow, the point itself may not
    for slot in range(int(count.min()) if len(rows) else m, m):
        short = (count <= slot).nonzero().squeeze(1)
        new = far[short].argmax(1)
        ids[short, slot] = new
        apart = (rows[short] - rows[short, new].unsqueeze(1)).square().sum(-1)
        far[short] = torch.minimum(far[short], apart).scatter(1, new.unsqueeze(1), -1.0)
    return ids.view(*lead, m)


@torch.no_grad()
def nearest_neighbours(queries: Tensor, points: Tensor, k: int) -> Tensor:
    """The k nearest points of each query by Euclidean distance, a block of queries at a time.

    Args:
        queries: (..., m, d), floating point.
        points: (..., n, d), the same leading dimensions.
        k: 1 to n.

    Returns:
        Numbers of points, nearest first, int64, (..., m, k).

    Raises:
        ValueError: k outside 1 to n.
    """
    n, m = points.shape[-2], queries.shape[-2]
    if not 1 <= k <= n:
        raise ValueError(f"k must lie between 1 and the {n} points, got {k}.")
    step = max(1, _CHUNK // max(1, n * points.shape[:-2].numel()))
    blocks = []
    for start in range(0, m, step):
        block = queries[..., start : start + step, :]
        # By differences: the matrix product loses the small distances of points far from the origin.
        distance = torch.cdist(block, points, compute_mode="donot_use_mm_for_euclid_dist")
        blocks.append(
            distance.argmin(-1, keepdim=True) if k == 1 else distance.topk(k, -1, largest=False).indices
        )
    return torch.cat(blocks, -2) if m else torch.zeros(*queries.shape[:-1], k, dtype=torch.int64)


def _pick(points: Tensor, ids: Tensor) -> Tensor:
    """Rows (..., m, k, d) of clouds (..., n, d) by numbers (..., m, k)."""
    flat = ids.flatten(-2).unsqueeze(-1)
    near = points.gather(-2, flat.expand(*flat.shape[:-1], points.shape[-1]))
    return near.reshape(*ids.shape, points.shape[-1])


def _clouds(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Both clouds in one dtype and with the same leading dimensions."""
    if not (a.is_floating_point() and b.is_floating_point()):
        raise TypeError(f"Point clouds must be floating point, got {a.dtype} and {b.dtype}.")
    if a.ndim < 2 or b.ndim < 2 or a.shape[-1] != b.shape[-1] or 0 in (a.shape[-2], b.shape[-2]):
        raise ValueError(
            f"Clouds must be (..., m, d) and (..., n, d), not empty, got {tuple(a.shape)} and {tuple(b.shape)}."
        )
    if not bool(a.isfinite().all() & b.isfinite().all()):
        raise ValueError("The coordinates of both clouds must be finite, got NaN or an infinity.")
    dtype = torch.promote_types(a.dtype, b.dtype)
    dtype = dtype if dtype == torch.float64 else torch.float32
    try:
        lead = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])  # type: ignore[no-untyped-call]
    except RuntimeError:
        raise ValueError(
            f"Clouds of shapes {tuple(a.shape)} and {tuple(b.shape)} do not broadcast in their leading dimensions."
        ) from None
    return a.to(dtype).expand(*lead, *a.shape[-2:]), b.to(dtype).expand(*lead, *b.shape[-2:])
