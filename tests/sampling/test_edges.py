"""Empty, huge and wrong input has a stated answer in every design."""

import math

import numpy as np
import pytest
import torch

from steelyard.ragged import Ragged
from steelyard.sampling import (
    AliasTable,
    conditional_poisson,
    conditional_poisson_joint,
    conditional_poisson_weights,
    horvitz_thompson,
    induced_subgraph,
    pivotal,
    proportional_inclusion,
    without_replacement,
)


def test_a_common_factor_of_any_size_cancels() -> None:
    log_p = torch.randn(1000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    shifted = proportional_inclusion(log_p + 1e12, 300)
    assert float(shifted.exp().sum()) == pytest.approx(300, abs=1e-9)
    flat = torch.full((10,), 1e15, dtype=torch.float64)
    assert proportional_inclusion(flat, 7).exp().tolist() == pytest.approx([0.7] * 10)


def test_no_candidates_give_no_draws() -> None:
    assert without_replacement(torch.zeros(0), 0).ids.shape == (0,)
    assert without_replacement(torch.zeros(3, 0), 0).ids.shape == (3, 0)
    assert conditional_poisson_weights(torch.zeros(0)).shape == (0,)
    assert pivotal(torch.zeros(0), order="local", x=torch.zeros(0, 2)).ids.shape == (0,)


def test_weights_of_any_real_type_make_a_table_and_complex_ones_none() -> None:
    for weights in (torch.ones(3, requires_grad=True), torch.ones(3, dtype=torch.bfloat16), [1, 1, 1]):
        assert AliasTable(weights).log_probability.tolist() == pytest.approx([-math.log(3)] * 3)
    for bad in (torch.ones(3, dtype=torch.complex64), np.ones(3, complex)):
        with pytest.raises(TypeError, match="real"):
            AliasTable(bad)


def test_joint_probabilities_that_cannot_be_are_no_perfect_error() -> None:
    draws = conditional_poisson(torch.zeros(6), 3, generator=torch.Generator().manual_seed(0))
    for joint in (torch.zeros(3, 3), torch.full((3, 3), math.nan)):
        with pytest.raises(ValueError, match="joint"):
            horvitz_thompson(torch.ones(3), draws, design="conditional_poisson", joint=joint)
    with pytest.raises(ValueError, match="population"):
        horvitz_thompson(torch.ones(3), draws, design="conditional_poisson", population=math.nan)  # type: ignore[arg-type]


def test_ids_outside_are_refused() -> None:
    for ids in ([0, -1], torch.tensor([6])):
        with pytest.raises(ValueError, match=r"\[0, 6\)"):
            conditional_poisson_joint(torch.zeros(6), 3, ids)  # type: ignore[arg-type]
    graph = Ragged(torch.tensor([0, 1, 2]), torch.tensor([1, 0]))
    for node in (-2, -1, 2):
        with pytest.raises(ValueError, match="nodes"):
            induced_subgraph(graph, torch.tensor([node]))


def test_coordinates_need_a_dimension() -> None:
    with pytest.raises(ValueError, match="dimension"):
        pivotal(torch.full((4,), 0.5), order="local", x=torch.zeros(4, 0))
