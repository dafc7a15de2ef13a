"""Frames chosen one by one, and the network that learns their order."""

import itertools
import math

import pytest
import torch

from steelyard.sampling.frames import (
    FrameSampler,
    FrameScores,
    frame_sampler_loss,
    frame_values,
    select_frames,
)

T, N = 9, 4


def best_subset(value, frames: int, n: int) -> float:
    return max(value(list(s)) for s in itertools.combinations(range(frames), n))


def test_values_are_the_confidence_in_the_right_class() -> None:
    logits = torch.randn(2, 5, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    label = torch.tensor([2, 0])
    for b, rows in enumerate(logits.tolist()):
        wanted = [math.exp(r[int(label[b])]) / sum(map(math.exp, r)) for r in rows]
        assert frame_values(logits, label)[b].tolist() == pytest.approx(wanted)
    assert frame_values(logits[0], label[0]).shape == (5,)


def test_where_the_score_is_a_sum_the_largest_values_are_the_best_subset_for_one_evaluation_a_frame() -> None:
    for seed in range(10):
        g = torch.Generator().manual_seed(seed)
        v = torch.randn(T, generator=g, dtype=torch.float64) ** 3
        evaluated = []

        def score(frames: list[int], v: torch.Tensor = v, evaluated: list[int] = evaluated) -> float:
            evaluated.append(len(frames))
            return float(v[frames].sum())

        alone = torch.tensor([score([t]) for t in range(T)])
        assert len(evaluated) == T
        chosen = select_frames(alone, N).tolist()
        assert chosen == sorted(chosen)
        evaluated.clear()
        best = best_subset(score, T, N)
        assert len(evaluated) == math.comb(T, N)
        assert score(chosen) == pytest.approx(best)


def test_the_gap_to_the_best_subset_grows_only_with_interactions() -> None:
    gaps = torch.zeros(4)
    for seed in range(20):
        g = torch.Generator().manual_seed(seed)
        v = torch.randn(T, generator=g, dtype=torch.float64)
        pair = torch.randn(T, T, generator=g, dtype=torch.float64).triu(1)
        for i, strength in enumerate((0.0, 0.1, 0.5, 2.0)):

            def score(frames: list[int], s: float = strength, v=v, pair=pair) -> float:
                return float(v[frames].sum() + s * pair[frames][:, frames].sum())

            alone = torch.tensor([score([t]) for t in range(T)])
            gaps[i] += best_subset(score, T, N) - score(select_frames(alone, N).tolist())
    assert gaps[0].abs() < 1e-9
    assert gaps[0] < gaps[1] < gaps[2] < gaps[3]


def test_the_loss_equals_its_plain_loops() -> None:
    g = torch.Generator().manual_seed(1)
    score, values = (torch.randn(2, 4, generator=g, dtype=torch.float64) for _ in range(2))
    logits, label = torch.randn(2, 4, 3, generator=g, dtype=torch.float64), torch.tensor([1, 2])
    pairs, cross = [], []
    for b in range(2):
        for s in range(4):
            cross.append(-float(logits[b, s].log_softmax(-1)[label[b]]))
            pairs += [
                math.log1p(math.exp(float(score[b, t] - score[b, s])))
                for t in range(4)
                if values[b, s] > values[b, t] + 0.2
            ]
    wanted = sum(pairs) / len(pairs) + 0.5 * sum(cross) / len(cross)
    loss = frame_sampler_loss(FrameScores(score, logits), values, label, guidance=0.5, margin=0.2)
    assert float(loss) == pytest.approx(wanted)
    ties = frame_sampler_loss(FrameScores(score, logits), torch.ones(2, 4), label, guidance=0.0)
    assert float(ties) == 0.0


def test_a_sampler_learns_to_find_the_frames_of_new_videos() -> None:
    g = torch.Generator().manual_seed(2)
    torch.manual_seed(0)
    means = torch.randn(3, 6, generator=g)

    def videos(count: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        label = torch.randint(3, (count,), generator=g)
        shown = torch.rand(count, 12, generator=g)  # how clearly a frame shows what the video is about
        noise = 0.3 * torch.randn(count, 12, 6, generator=g)
        features = shown.unsqueeze(-1) * means[label].unsqueeze(1) + noise
        return features, frame_values(2 * features @ means.T, label), label

    sampler = FrameSampler(6, 3, hidden=32)
    optimizer = torch.optim.Adam(sampler.parameters(), lr=1e-2)
    features, values, label = videos(200)
    for _ in range(150):
        optimizer.zero_grad()
        frame_sampler_loss(sampler(features), values, label).backward()
        optimizer.step()
    features, values, label = videos(200)
    with torch.no_grad():
        out = sampler(features)
    share = values.gather(1, select_frames(out.score, 3)).sum(1) / values.topk(3, 1).values.sum(1)
    assert float(share.mean()) > 0.93
    assert float((values.mean(1) * 3 / values.topk(3, 1).values.sum(1)).mean()) < 0.85  # frames at random
    assert float((out.logits.mean(1).argmax(1) == label).float().mean()) > 0.9


def test_bad_input_is_refused() -> None:
    values, logits, label = torch.rand(2, 5), torch.rand(2, 5, 3), torch.tensor([0, 1])
    for n in (0, 6):
        with pytest.raises(ValueError, match="between 1 and the 5 frames"):
            select_frames(values, n)
    with pytest.raises(ValueError, match="NaN"):
        select_frames(values * math.nan, 2)
    with pytest.raises(ValueError, match="want labels"):
        frame_values(logits, label[:1])
    with pytest.raises(ValueError, match=r"\[0, 3\)"):
        frame_values(logits, label + 2)
    with pytest.raises(ValueError, match="do not fit"):
        frame_sampler_loss(FrameScores(values, logits), values[:, 1:], label)
