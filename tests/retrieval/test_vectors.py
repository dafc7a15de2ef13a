"""Vectors of any size have a direction, and only zero has none."""

from __future__ import annotations

import torch

from steelyard.retrieval.vectors import of_length_one


def test_lengths_that_leave_float32_when_squared_keep_their_direction() -> None:
    plain = torch.tensor([[3.0, -4.0], [1.0, 0.0], [0.0, 0.0]])
    for size in (1e30, 1e-30, 1e15, 1.0):
        unit, zero = of_length_one(plain * size)
        torch.testing.assert_close(unit, torch.tensor([[0.6, -0.8], [1.0, 0.0], [0.0, 0.0]]))
        assert zero.tolist() == [False, False, True]
