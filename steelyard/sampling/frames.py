"""Frames of a video chosen one by one for what each says alone, and a light network that learns to tell."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional


def frame_values(logits: Tensor, label: Tensor) -> Tensor:
    """What each frame is worth alone: the classifier's confidence in the right class.

        v_t = softmax(f(x_t))_label

    Costs T evaluations of the classifier; the best of all subsets would cost T choose N. Taking the largest
    values is optimal where the score of a video is a sum over its frames, and as near to it as that holds.

    Args:
        logits: the classifier's output for each frame alone, (..., T, classes), floating point.
        label: class of the video, int64, (...).

    Returns:
        Values in (0, 1), (..., T).

    Raises:
        ValueError: shapes that do not fit, or a label outside the classes.

    Reference:
        Lee, Shin, Ko, Ha & Lee (2024), Scalable frame sampling for video classification: a semi-optimal policy
        approach with reduced search space, BMVC, arXiv 2409.05260.
    """
    if logits.ndim < 2 or label.shape != logits.shape[:-2]:
        raise ValueError(
            f"Logits (..., T, classes) want labels (...), got {tuple(logits.shape)} and {tuple(label.shape)}."
        )
    if bool(((label < 0) | (label >= logits.shape[-1])).any()):
        raise ValueError(f"Labels must lie in [0, {logits.shape[-1]}).")
    place = label[..., None, None].expand(*logits.shape[:-1], 1)
    return logits.log_softmax(-1).gather(-1, place).squeeze(-1).exp()


def select_frames(values: Tensor, n: int) -> Tensor:
    """The n frames of largest value, in the order of time.

    Args:
        values: worth of each frame, true or predicted, (..., T), without NaN.
        n: number of frames, 1 to T.

    Returns:
        Frame numbers, int64, (..., n), ascending.

    Raises:
        ValueError: n outside 1 to T, or NaN.

    Reference:
        Lee, Shin, Ko, Ha & Lee (2024), Scalable frame sampling for video classification, BMVC, arXiv 2409.05260.
    """
    if not 1 <= n <= values.shape[-1]:
        raise ValueError(f"n must lie between 1 and the {values.shape[-1]} frames, got {n}.")
    if bool(values.isnan().any()):
        raise ValueError("values has NaN: which frame is worth more cannot be told.")
    return values.topk(n, -1).indices.sort(-1).values


class FrameScores(NamedTuple):
    """What a `FrameSampler` says of a video: a score a frame, (..., T), and its own class logits, (..., T, C)."""

    score: Tensor
    logits: Tensor


class FrameSampler(nn.Module):
    """A light network that predicts which frames the classifier would value, from cheap features.

        h_t = relu(A features_t + position_t),    score_t = a . h_t,    logits_t = C h_t

    At inference `select_frames(sampler(features).score, n)` needs no class and no classifier. The logits serve
    the label guidance in training alone.

    Args:
        features: width d of the cheap features.
        classes: number of classes.
        hidden: width of the hidden layer.

    Reference:
        Lee, Shin, Ko, Ha & Lee (2024), Scalable frame sampling for video classification, BMVC, arXiv 2409.05260.
        The network is ours: theirs is a MobileNet with a transformer layer; any module with this output will do.
    """

    def __init__(self, features: int, classes: int, hidden: int = 64) -> None:
        super().__init__()
        self.inner = nn.Linear(features + 2, hidden)
        self.score = nn.Linear(hidden, 1)
        self.logits = nn.Linear(hidden, classes)

    def forward(self, features: Tensor) -> FrameScores:
        """Score the frames.

        Args:
            features: (..., T, d).

        Returns:
            Scores and logits.
        """
        frames = features.shape[-2]
        angle = torch.linspace(0, math.pi, frames, dtype=features.dtype, device=features.device)
        position = torch.stack([angle.cos(), angle.sin()], -1).expand(*features.shape[:-1], 2)
        h = self.inner(torch.cat([features, position], -1)).relu()
        return FrameScores(self.score(h).squeeze(-1), self.logits(h))


def frame_sampler_loss(
    scores: FrameScores, values: Tensor, label: Tensor, *, guidance: float = 1.0, margin: float = 0.0
) -> Tensor:
    """Teach a sampler the order of the frames' values, and the class of the video.

        ranking = mean over pairs v_s > v_t + margin of log(1 + exp(score_t - score_s))
        loss = ranking + guidance * mean_t cross_entropy(logits_t, label)

    Only the order of the values is learned: their size depends on the label, which the sampler does not see.

    Args:
        scores: what the sampler says.
        values: `frame_values`, (..., T).
        label: class of each video, int64, (...).
        guidance: weight of the label guidance.
        margin: pairs whose values differ by no more are left out.

    Returns:
        The mean loss, a scalar; a video without a pair to order adds nothing to the ranking.

    Raises:
        ValueError: shapes that do not fit.

    Reference:
        Lee, Shin, Ko, Ha & Lee (2024), Scalable frame sampling for video classification, BMVC, arXiv 2409.05260.
        Reconstructed: a pairwise ranking loss with label guidance is theirs, this logistic form and the
        guidance by cross-entropy of each frame are ours.
    """
    score, logits = scores
    if score.shape != values.shape or logits.shape[:-1] != score.shape or label.shape != score.shape[:-1]:
        raise ValueError(
            f"Scores {tuple(score.shape)}, logits {tuple(logits.shape)}, values {tuple(values.shape)} and labels "
            f"{tuple(label.shape)} do not fit: give (..., T), (..., T, classes), (..., T) and (...)."
        )
    better = values.unsqueeze(-1) > values.unsqueeze(-2) + margin
    pair = functional.softplus(score.unsqueeze(-2) - score.unsqueeze(-1))
    ranking = pair.where(better, 0.0).sum() / better.sum().clamp(min=1)
    target = label.unsqueeze(-1).expand(score.shape)
    return ranking + guidance * functional.cross_entropy(logits.flatten(0, -2), target.flatten())
