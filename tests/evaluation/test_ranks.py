"""Ranks by counting equal ranks by looking, whatever the chunks, the ties and the filter."""

import pytest
import torch

from steelyard.evaluation import Ranks, count_ranks, ranks_from_lists, ranks_from_scores
from steelyard.ragged import Ragged


def ragged(rows: list[list[int]]) -> Ragged:
    index = torch.tensor([r for r, row in enumerate(rows) for _ in row], dtype=torch.int64)
    values = torch.tensor([v for row in rows for v in row], dtype=torch.int64)
    return Ragged.from_pairs(index, values, len(rows))


def slow_ranks(scores: torch.Tensor, targets: Ragged, seen: Ragged | None) -> Ranks:
    above, tied, candidates = [], [], []
    for q in range(len(scores)):
        hidden = set() if seen is None else set(seen.row(q).tolist())
        pool = [i for i in range(scores.shape[1]) if i not in hidden]
        candidates.append(len(pool))
        for t in targets.row(q).tolist():
            reach = t not in hidden
            above.append(sum(float(scores[q, i] > scores[q, t]) for i in pool) if reach else len(pool))
            tied.append(sum(float(scores[q, i] == scores[q, t]) for i in pool) if reach else 0)
    columns = (above, tied, candidates)
    return Ranks(*(torch.tensor([int(x) for x in column], dtype=torch.int64) for column in columns))


def assert_same(got: Ranks, wanted: Ranks) -> None:
    for name in ("above", "tied", "candidates"):
        assert torch.equal(getattr(got, name), getattr(wanted, name)), name


def skewed_case(n_queries: int, n_items: int, seed: int) -> tuple[Ragged, Ragged]:
    generator = torch.Generator().manual_seed(seed)
    popularity = 1.0 / torch.arange(1, n_items + 1) ** 0.9

    def draw(n: int, rows: int) -> Ragged:
        where = torch.randint(rows, (n,), generator=generator)
        return Ragged.from_pairs(
            where, torch.multinomial(popularity, n, replacement=True, generator=generator), n_queries
        )

    return draw(3 * n_queries, n_queries - 2), draw(5 * n_queries, n_queries)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_counting_equals_looking_at_every_pair(dtype):
    targets, seen = skewed_case(23, 41, 0)
    generator = torch.Generator().manual_seed(1)
    queries = torch.randint(-2, 3, (23, 3), generator=generator).to(dtype)
    items = torch.randint(-2, 3, (41, 3), generator=generator).to(dtype)
    scores = queries.double() @ items.double().T
    for hidden in (seen, None):
        wanted = slow_ranks(scores, targets, hidden)
        assert bool((wanted.tied > 1).any())
        assert (wanted.unreachable > 0) == (hidden is not None)
        assert_same(count_ranks(queries, items, targets, hidden), wanted)
        assert_same(ranks_from_scores(scores.to(torch.float32), targets, hidden), wanted)


@pytest.mark.parametrize("memory_bytes", [1, 5 * 2**20, 2**30])
def test_chunks_of_items_and_queries_change_nothing(memory_bytes):
    n_queries, n_items, d = 150, 9000, 17
    generator = torch.Generator().manual_seed(2)
    queries = torch.randn(n_queries, d, generator=generator)
    items = torch.randn(n_items, d, generator=generator)
    targets, seen = skewed_case(n_queries, n_items, 3)
    got = count_ranks(queries, items, targets, seen, memory_bytes=memory_bytes)
    assert_same(got, count_ranks(queries, items, targets, seen))
    exact = ranks_from_scores(queries.double() @ items.double().T, targets, seen)
    assert int((got.above - exact.above).abs().max()) <= 2


def test_the_number_of_threads_changes_nothing():
    generator = torch.Generator().manual_seed(4)
    queries, items = torch.randn(300, 33, generator=generator), torch.randn(5000, 33, generator=generator)
    targets, seen = skewed_case(300, 5000, 5)
    threads = torch.get_num_threads()
    results = []
    try:
        for count in (1, 3):
            torch.set_num_threads(count)
            results.append(count_ranks(queries, items, targets, seen))
            assert torch.get_num_threads() == count
    finally:
        torch.set_num_threads(threads)
    assert_same(*results)


def test_items_with_equal_vectors_tie_wherever_they_stand():
    generator = torch.Generator().manual_seed(6)
    half = torch.randn(4099, 64, generator=generator)
    queries = torch.randn(70, 64, generator=generator)
    targets = ragged([[q, 4098, 4099 + q] for q in range(70)])
    ranks = count_ranks(queries, torch.cat([half, half]), targets)
    assert ranks.tied.tolist() == [2] * 210


def test_a_target_ties_with_itself_alone_on_continuous_scores():
    generator = torch.Generator().manual_seed(7)
    queries, items = torch.randn(40, 64, generator=generator), torch.randn(500, 64, generator=generator)
    ranks = count_ranks(queries, items, ragged([list(range(0, 500, 7))] * 40))
    assert bool((ranks.tied == 1).all())


def test_a_seen_target_is_beyond_reach_and_counted():
    scores = torch.tensor([[3.0, 2.0, 1.0, 0.0]])
    ranks = ranks_from_scores(scores, ragged([[0, 2]]), ragged([[0, 1]]))
    assert ranks.above.tolist() == [2, 0]
    assert ranks.tied.tolist() == [0, 1]
    assert ranks.candidates.tolist() == [2]
    assert ranks.unreachable == 1


def test_a_score_of_minus_infinity_does_not_tie_with_filtered_items():
    inf = float("inf")
    scores = torch.tensor([[-inf, -inf, inf, -inf, 0.0]])
    ranks = ranks_from_scores(scores, ragged([[0, 2]]), ragged([[1, 4]]))
    assert ranks.above.tolist() == [1, 0]
    assert ranks.tied.tolist() == [2, 1]


def test_inputs_are_left_untouched_and_strided_scores_are_read_right():
    scores = torch.arange(12.0).view(4, 3).T
    before = scores.clone()
    ranks = ranks_from_scores(scores, ragged([[0], [3], [1]]), ragged([[3], [], [0]]))
    assert ranks.above.tolist() == [2, 0, 2]
    assert torch.equal(scores, before)


def test_no_targets_and_no_queries_give_empty_ranks():
    items = torch.ones(5, 2)
    ranks = count_ranks(torch.ones(3, 2), items, ragged([[], [], []]), ragged([[1], [], [0, 2]]))
    assert len(ranks.above) == 0
    assert ranks.candidates.tolist() == [4, 5, 3]
    assert len(count_ranks(torch.ones(0, 2), items, ragged([])).candidates) == 0


def test_nan_scores_are_refused():
    queries, items = torch.ones(2, 2), torch.ones(5000, 2)
    items[4999, 0] = float("nan")
    with pytest.raises(ValueError, match="2 scores are NaN"):
        count_ranks(queries, items, ragged([[0], [1]]))
    with pytest.raises(ValueError, match="NaN"):
        ranks_from_scores(torch.tensor([[float("nan"), 1.0]]), ragged([[1]]))


def test_wrong_shapes_types_and_ids_are_refused():
    queries, items, targets = torch.ones(2, 3), torch.ones(4, 3), ragged([[0], [3]])
    with pytest.raises(TypeError, match="floating"):
        count_ranks(queries.long(), items, targets)
    with pytest.raises(ValueError, match="equal width"):
        count_ranks(queries, torch.ones(4, 2), targets)
    with pytest.raises(ValueError, match="1 rows for 2 queries"):
        count_ranks(queries, items, ragged([[0]]))
    with pytest.raises(ValueError, match="hold items 0 to 4"):
        count_ranks(queries, items, targets, ragged([[0], [4]]))
    with pytest.raises(ValueError, match="from_pairs"):
        count_ranks(queries, items, Ragged(torch.tensor([0, 2, 2]), torch.tensor([3, 1])))


def test_lists_count_duplicates_once_and_padding_never():
    lists = torch.tensor([[7, 7, 3, 7, 5, -1], [-1, -1, -1, -1, -1, -1], [2, -1, 0, 2, 9, 0]])
    ranks = ranks_from_lists(lists, ragged([[3, 4, 5, 7], [1], [0, 9]]))
    assert ranks.above.tolist() == [1, 3, 2, 0, 0, 1, 2]
    assert ranks.tied.tolist() == [1, 0, 1, 1, 0, 1, 1]
    assert ranks.candidates.tolist() == [3, 0, 3]
    assert ranks.unreachable == 2


def test_lists_of_nothing_retrieve_nothing():
    ranks = ranks_from_lists(torch.empty(2, 0, dtype=torch.int64), ragged([[3], [4]]))
    assert ranks.unreachable == 2
    with pytest.raises(TypeError, match="int64"):
        ranks_from_lists(torch.zeros(2, 3), ragged([[3], [4]]))


def test_lists_sorted_by_score_agree_with_the_scores():
    generator = torch.Generator().manual_seed(8)
    scores = torch.rand(12, 30, generator=generator)
    targets, _ = skewed_case(12, 30, 9)
    lists = scores.argsort(dim=1, descending=True)
    assert_same(ranks_from_lists(lists, targets), ranks_from_scores(scores, targets))
