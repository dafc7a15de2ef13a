"""Replace a mined negative once the model no longer finds it hard."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Replacement:
    """What `conan_replace` did.

    Args:
        position: int64, (B, H): where in its query's mined list each negative now stands.
        cursor: int64, (B,): the first place of each list that was not used yet.
        replaced: bool, (B, H): which were replaced; take their score at the next step as their start score.
        exhausted: bool, (B, H): which are no longer hard and stay, since the list has come to its end.
    """

    position: Tensor
    cursor: Tensor
    replaced: Tensor
    exhausted: Tensor


def conan_replace(
    score: Tensor,
    start_score: Tensor,
    position: Tensor,
    cursor: Tensor,
    length: Tensor | int,
    *,
    factor: float = 1.15,
    ceiling: float = 0.8,
) -> Replacement:
    """Give a query the next negative of its mined list for each that has become easy: dynamic mining of Conan.

        replace j  if  factor * s_now(j) < s_start(j)  and  |s_now(j)| < ceiling

    Ask every so many steps (100 in the paper), which costs one forward pass. The score has to fall by a
    share, so what was easy from the start stays. Where several of a query are due, the first takes the next
    place of the list.

    Args:
        score: float, (B, H): cosine of each negative with its query under the model as it is now.
        start_score: float, (B, H): its score when it came in.
        position: int64, (B, H): its place in the mined list of its query.
        cursor: int64, (B,): the first place of each list that was not used yet.
        length: int, or int64 (B,): length of the lists.
        factor: 1 or more.
        ceiling: positive; a score beyond it is hard whatever it was at the start.

    Returns:
        The new positions and cursors, and which negatives were replaced; `start_score` where `replaced` is the
        caller's to set anew.

    Raises:
        TypeError: scores that are not floating point, positions that are not int64.
        ValueError: shapes that do not fit, NaN scores, `factor` below 1, `ceiling` not positive.

    Reference:
        Li, Tang, Chen and Chen (2024), Conan-embedding: General text embedding with more and better negative
        samples, arXiv 2408.15710. Reconstructed: the next one of the list for each negative, in place of the
        next ten for the whole set.
    """
    if not (score.is_floating_point() and start_score.is_floating_point()):
        raise TypeError(f"Scores must be floating point, got {score.dtype} and {start_score.dtype}.")
    if position.dtype != torch.int64 or cursor.dtype != torch.int64:
        raise TypeError(f"position and cursor must be int64, got {position.dtype} and {cursor.dtype}.")
    ends = torch.as_tensor(length)
    if (
        score.ndim != 2
        or not score.shape == start_score.shape == position.shape
        or cursor.shape != score.shape[:1]
    ):
        raise ValueError(
            "Wanted scores, start scores and positions (B, H) and cursors (B,), got "
            f"{tuple(score.shape)}, {tuple(start_score.shape)}, {tuple(position.shape)}, {tuple(cursor.shape)}."
        )
    if ends.shape not in ((), (1,), cursor.shape):
        raise ValueError(f"length must be one number or (B,) as the cursors, got {tuple(ends.shape)}.")
    ends = ends.expand(cursor.shape)
    if bool(score.isnan().any() | start_score.isnan().any()):
        raise ValueError("The scores have NaN.")
    if not (factor >= 1 and ceiling > 0):
        raise ValueError(f"factor must be at least 1 and ceiling positive, got {factor} and {ceiling}.")
    easy = (factor * score < start_score) & (score.abs() < ceiling)
    following = cursor.unsqueeze(1) + easy.cumsum(1) - 1
    replaced = easy & (following < ends.unsqueeze(1))
    return Replacement(
        torch.where(replaced, following, position), cursor + replaced.sum(1), replaced, easy & ~replaced
    )
