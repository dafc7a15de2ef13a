"""Multi-similarity: its pair weights, its hard limit, its mining, and a peer's values."""

import math

import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

from steelyard.losses.multi_similarity import informative_pairs, multi_similarity


def batch() -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(0)
    x = normalize(torch.randn(12, 5, generator=g, dtype=torch.float64), dim=1)
    return x @ x.T, torch.tensor([0, 0, 0, 1, 1, 1, 1, 2, 2, 3, 3, 4])


def test_it_equals_a_plain_loop() -> None:
    s, y = batch()
    got = multi_similarity(s, y, alpha=3.0, beta=10.0, base=0.2, reduction="none")
    for i in range(12):
        p = sum(math.exp(-3 * (s[i, j] - 0.2)) for j in range(12) if j != i and y[i] == y[j])
        n = sum(math.exp(10 * (s[i, j] - 0.2)) for j in range(12) if y[i] != y[j])
        assert float(got[i]) == pytest.approx(math.log(1 + p) / 3 + math.log(1 + n) / 10, abs=1e-12)


def test_it_equals_pytorch_metric_learning_with_and_without_its_miner() -> None:
    s, y = batch()  # MultiSimilarityLoss and MultiSimilarityMiner(0.1) of version 2.9.0
    assert float(multi_similarity(s, y)) == pytest.approx(0.9689216587046087, abs=1e-12)
    got = multi_similarity(s, y, alpha=3.0, beta=10.0, base=0.2)
    assert float(got) == pytest.approx(0.9429009238417488, abs=1e-12)
    kept = informative_pairs(s, y)
    assert int((kept & (y[:, None] == y)).sum()) == 20
    assert int((kept & (y[:, None] != y)).sum()) == 58
    assert float(multi_similarity(s, y, mask=~kept)) == pytest.approx(0.900702838606999, abs=1e-12)


def test_the_gradient_is_the_pair_weight_of_the_paper() -> None:
    s, y = batch()
    s.requires_grad_()
    (got,) = torch.autograd.grad(multi_similarity(s, y, alpha=2.0, beta=7.0, reduction="sum"), s)
    for i in range(12):
        for j in range(12):
            want = 0.0
            if i != j and y[i] == y[j]:
                others = [k for k in range(12) if k != i and y[i] == y[k]]
                below = math.exp(2 * (s[i, j] - 0.5)) + sum(
                    math.exp(-2 * (s[i, k] - s[i, j])) for k in others
                )
                want = -1 / below
            elif i != j:
                others = [k for k in range(12) if y[i] != y[k]]
                want = 1 / (
                    math.exp(7 * (0.5 - s[i, j])) + sum(math.exp(7 * (s[i, k] - s[i, j])) for k in others)
                )
            assert float(got[i, j]) == pytest.approx(want, abs=1e-12)


def test_a_large_beta_leaves_the_hinge_of_the_hardest_negative() -> None:
    s, y = batch()
    alone = torch.arange(12)  # no positives
    got = multi_similarity(s, alone, beta=1e6, base=0.5, reduction="none")
    hardest = s.masked_fill(torch.eye(12, dtype=torch.bool), -1).amax(1)
    torch.testing.assert_close(got, (hardest - 0.5).relu(), atol=1e-5, rtol=0)
    assert y.shape == alone.shape


def test_mined_pairs_are_those_of_brute_force() -> None:
    s, y = batch()
    kept = informative_pairs(s, y, epsilon=0.15)
    for i in range(12):
        pos = [j for j in range(12) if j != i and y[i] == y[j]]
        neg = [j for j in range(12) if y[i] != y[j]]
        for j in range(12):
            want = False
            if j in pos:
                want = bool(s[i, j] < max(s[i, k] for k in neg) + 0.15)
            elif j in neg and pos:
                want = bool(s[i, j] > min(s[i, k] for k in pos) - 0.15)
            assert bool(kept[i, j]) == want


def test_gradients_agree_with_finite_differences() -> None:
    s, y = batch()
    s.requires_grad_()
    assert torch.autograd.gradcheck(lambda x: multi_similarity(x, y, beta=8.0, reduction="none"), (s,))


def test_one_class_no_class_in_common_and_nothing_at_all_cost_what_is_left() -> None:
    s, _ = batch()
    one = torch.zeros(12, dtype=torch.long)
    assert not informative_pairs(s, one).any()
    assert not informative_pairs(s, torch.arange(12)).any()
    assert bool((multi_similarity(s, one, reduction="none") > 0).all())
    single = multi_similarity(torch.ones(1, 1, requires_grad=True), torch.tensor([7]))
    single.backward()
    assert float(single) == 0
    nothing = torch.zeros(0, 0)
    none = torch.zeros(0, dtype=torch.long)
    assert float(multi_similarity(nothing, none, reduction="sum")) == 0
    assert informative_pairs(nothing, none).shape == (0, 0)
    with pytest.raises(ValueError, match="no query"):
        multi_similarity(nothing, none)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_low_precision_and_huge_scales_stay_finite(dtype: torch.dtype) -> None:
    s, y = batch()
    low = s.to(dtype).requires_grad_()
    loss = multi_similarity(low, y, beta=1e4, alpha=1e4)
    loss.backward()
    assert loss.isfinite()
    assert low.grad.isfinite().all()
    want = multi_similarity(low.detach().double(), y)
    assert float(multi_similarity(low, y)) == pytest.approx(float(want), rel=1e-5)


def test_parameters_out_of_range_are_refused() -> None:
    s, y = batch()
    for wrong in ({"alpha": 0.0}, {"beta": -1.0}, {"base": math.nan}):
        with pytest.raises(ValueError, match="must be finite"):
            multi_similarity(s, y, **wrong)
    with pytest.raises(ValueError, match="epsilon"):
        informative_pairs(s, y, epsilon=-1.0)
