"""The audit measures what brute force measures, and says what a person should hear."""

import dataclasses
import json
import math
from pathlib import Path

import pytest
import torch

from steelyard.draws import Draws
from steelyard.losses import sampled_softmax
from steelyard.negatives import Catalogue, Context, Everything, SimANS, Uniform, proposal
from steelyard.ragged import Ragged
from steelyard.retrieval import ProposalAudit, Scene, audit_proposals
from steelyard.retrieval.auditing import _full_gradient
from steelyard.retrieval.auditing_job import advice


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def scene(n: int = 12, items: int = 60, d: int = 6, scale: float = 4.0) -> Scene:
    g = generator(1)
    queries = torch.nn.functional.normalize(torch.randn(n, d, generator=g), dim=1)
    vectors = torch.nn.functional.normalize(torch.randn(items, d, generator=g), dim=1)
    positives = torch.randint(items, (n,), generator=g)
    more = torch.randint(items, (n,), generator=g)
    known = Ragged.from_pairs(torch.arange(n).repeat(2), torch.cat([positives, more]), n)
    false = (queries @ vectors.T).scatter(1, torch.stack([positives, more], 1), -math.inf).argmax(1)
    held_out = Ragged.from_pairs(torch.arange(n), false, n)
    population = (torch.randn(500, generator=g).abs() * 20).long().clamp(max=items - 1)
    return Scene(queries, vectors, positives, known, held_out, population, scale)


def sampled(s: Scene, draws: Draws) -> torch.Tensor:
    """The gradient of the sampled loss through autograd, (B, d)."""
    q = s.queries.double().requires_grad_()
    v = s.items.double()
    mask = Context(s.positives, s.known).mask(draws.ids)
    positive = s.scale * (q * v[s.positives]).sum(1)
    loss = sampled_softmax(
        positive, s.scale * q @ v[draws.ids].T, draws.log_expected.double(), mask, reduction="sum"
    )
    return torch.autograd.grad(loss, q)[0]


def test_the_full_gradient_is_that_of_cross_entropy_without_what_is_known() -> None:
    s = scene()
    q = s.queries.double().requires_grad_()
    logits = s.scale * q @ s.items.double().T
    gone = torch.zeros_like(logits, dtype=torch.bool)
    gone[s.known.row_index(), s.known.values] = True
    gone[torch.arange(12), s.positives] = False
    loss = torch.nn.functional.cross_entropy(
        logits.masked_fill(gone, -math.inf), s.positives, reduction="sum"
    )
    torch.testing.assert_close(_full_gradient(s), torch.autograd.grad(loss, q)[0], rtol=1e-5, atol=1e-6)


def test_everything_has_no_bias_and_no_noise() -> None:
    (a,) = audit_proposals(scene(), {"everything": Everything(60)}, 60, repeats=2)
    assert a.bias < 1e-5
    assert a.noise < 1e-5
    assert a.bias_unweighed < 1e-5  # each stands for itself


def test_bias_and_noise_equal_those_of_many_draws_through_autograd() -> None:
    s, n = scene(), 8
    g = generator(5)
    full = _full_gradient(s)
    made = torch.stack(
        [sampled(s, Uniform(60).sample(Context(s.positives), n, generator=g)) for _ in range(1500)]
    )
    size = full.square().sum()
    want_noise = float((made.var(0).sum() / size).sqrt())
    want_bias = float(((made.mean(0) - full).square().sum() / size).sqrt())
    (a,) = audit_proposals(s, {"uniform": Uniform(60)}, n, repeats=1500, generator=generator(6))
    assert a.noise == pytest.approx(want_noise, rel=0.05)
    assert a.bias == pytest.approx(want_bias, rel=0.25)
    assert a.bias_low <= a.bias <= a.bias_high


def test_a_small_bias_is_not_drowned_by_the_noise_of_few_repetitions() -> None:
    """Without subtracting the noise of the mean, 8 repetitions would show noise / sqrt(8) as bias."""
    s = scene(n=400)
    (a,) = audit_proposals(s, {"uniform": Uniform(60)}, 40, repeats=8, generator=generator(2))
    assert a.noise / math.sqrt(8) > 0.06
    assert a.bias < 0.04
    assert a.bias_high < 0.06


def test_weights_are_what_keeps_the_gradient_right() -> None:
    s = scene(n=100)
    counts = torch.bincount(s.population, minlength=60)
    made = {"popularity": proposal("popularity", counts + 1), "in-batch": proposal("in-batch", counts + 1)}
    for a in audit_proposals(s, made, 30, repeats=40, generator=generator()):
        assert a.bias < 0.25
        assert a.bias_unweighed > 1.5 * a.bias


def test_false_negatives_are_counted_by_draws_and_by_their_push() -> None:
    s = scene(n=64)
    (everything,) = audit_proposals(s, {"everything": Everything(60)}, 60, repeats=2)
    unknown = 60 - s.known.counts.float().mean()
    assert everything.false_negatives == pytest.approx(float(1 / unknown), rel=1e-5)
    logits = s.scale * (s.queries @ s.items.T).double()
    logits[s.known.row_index(), s.known.values] = -math.inf
    share = torch.softmax(logits, 1)[torch.arange(64), s.held_out.values].mean()
    assert everything.false_push == pytest.approx(float(share), rel=1e-5)
    catalogue = Catalogue(torch.ones(60), items=s.items, scale=s.scale)
    (top,) = audit_proposals(s, {"top5": proposal("top:5", catalogue)}, 10, repeats=4, generator=generator())
    assert top.false_negatives is not None
    assert top.false_negatives > 5 * everything.false_negatives  # the best unknown item is held out here
    alone = dataclasses.replace(
        s, held_out=Ragged(torch.zeros(65, dtype=torch.int64), torch.zeros(0, dtype=torch.int64))
    )
    (nothing,) = audit_proposals(alone, {"uniform": Uniform(60)}, 10, repeats=2)
    assert nothing.false_negatives is None


def test_a_proposal_that_cannot_reach_everything_is_found_out() -> None:
    s = scene(n=64)
    catalogue = Catalogue(torch.ones(60), items=s.items, scale=s.scale)
    near = SimANS(60, 10, catalogue.score)
    audits = audit_proposals(
        s, {"uniform": Uniform(60), "simans": near}, 10, repeats=20, generator=generator()
    )
    assert audits[1].bias_low > 0.1
    said = advice(audits, 10)
    assert any("simans stays biased" in words for words in said)


def test_the_same_seed_gives_the_same_audit() -> None:
    s = scene()
    twice = [
        audit_proposals(s, {"u": Uniform(60)}, 9, repeats=3, generator=generator(4))[0] for _ in range(2)
    ]
    a, b = (dataclasses.replace(x, microseconds=0.0) for x in twice)
    assert a.to_dict() == b.to_dict()
    json.dumps(a.to_dict(), allow_nan=False)


def made(name: str, bias: float, noise: float, microseconds: float, **more: float) -> ProposalAudit:
    zero = dict.fromkeys((f.name for f in dataclasses.fields(ProposalAudit)), 0.0)
    return ProposalAudit(
        **{**zero, "name": name, "bias": bias, "noise": noise, "microseconds": microseconds, **more}  # type: ignore[arg-type]
    )


def test_advice_weighs_error_against_time() -> None:
    dear, quick = made("dear", 0.0, 0.1, 500.0), made("quick", 0.0, 0.2, 5.0)
    said = advice([quick, dear], 100)
    assert "dear errs least" in said[0]
    assert "quick is better: about 400 of its draws err as little, in 20.0 microseconds" in said[1]
    said = advice([dear, made("slow", 0.0, 0.2, 500.0)], 100)
    assert not any("is better" in words for words in said)
    said = advice([made("a", 0.01, 0.1, 1.0, bias_unweighed=0.6)], 100)
    assert any("without them the mean gradient of a is off by 60%" in words for words in said)


def test_bad_input_is_refused() -> None:
    s = scene()
    with pytest.raises(ValueError, match="two repetitions"):
        audit_proposals(s, {"u": Uniform(60)}, 5, repeats=1)
    with pytest.raises(ValueError, match="candidates must be"):
        audit_proposals(s, {"u": Uniform(60)}, 0)
    with pytest.raises(ValueError, match="share d"):
        dataclasses.replace(s, queries=s.queries[:, :3])
    with pytest.raises(ValueError, match="held_out has"):
        dataclasses.replace(s, held_out=Ragged.from_pairs(torch.zeros(1).long(), torch.zeros(1).long(), 1))


def test_the_report_is_one_page_with_its_pictures(tmp_path: Path) -> None:
    from steelyard.reports import write_audit_report

    audits = [made("<b>", 0.1, 0.2, 3.0, bias_low=0.05, bias_high=0.2, ess=4.0), made("u", 0.0, 0.5, 1.0)]
    content = {
        "queries": 5, "items": 60, "candidates": 10, "repeats": 3, "seed": 0, "held_out": 7,
        "proposals": [a.to_dict() for a in audits], "advice": advice(audits, 10),
    }  # fmt: skip
    (tmp_path / "audit.json").write_text(json.dumps(content))
    page = write_audit_report(tmp_path).read_text()
    assert page.count("<svg") == 2
    assert "&lt;b&gt;" in page
    assert "<td><b>" not in page
    assert "http://" not in page.replace("http://www.w3.org", "").replace("http://purl.org", "").replace(
        "http://creativecommons.org", ""
    )
    with pytest.raises(FileNotFoundError):
        write_audit_report(tmp_path / "nothing")


def test_the_interval_covers_the_bias_although_queries_share_their_draws() -> None:
    """Of 60 audits at 95 % at most 9 miss (binomial, 1e-3); an interval over queries alone misses more."""
    s, g = scene(n=100), generator(9)
    (best,) = audit_proposals(s, {"u": Uniform(60)}, 30, repeats=2000, generator=g)
    missed = 0
    for _ in range(60):
        (a,) = audit_proposals(s, {"u": Uniform(60)}, 30, repeats=16, generator=g)
        missed += not a.bias_low <= best.bias <= a.bias_high
    assert missed <= 9


def test_a_mixture_of_in_batch_and_hard_candidates_has_the_bias_of_its_law_and_not_of_the_audits_queries() -> (
    None
):
    s = scene(n=64)
    s = dataclasses.replace(s, population=torch.cat([s.population, s.positives, torch.arange(60)]))
    counts = torch.bincount(s.population, minlength=60)
    made = proposal("top5+in-batch", Catalogue(counts, items=s.items, scale=s.scale))
    plain = proposal("in-batch", counts)
    mixed, alone = audit_proposals(s, {"a": made, "b": plain}, 40, repeats=60, generator=generator())
    assert mixed.draws > 30  # the batch is long enough for all the draws
    assert mixed.bias < 0.1
    assert mixed.noise < alone.noise
