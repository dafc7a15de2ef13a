"""The audit of a trained model's data: which proposal would err least, and what each costs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from steelyard.files import check_writable, write_json
from steelyard.negatives import Catalogue, proposal
from steelyard.ragged import Ragged
from steelyard.retrieval.auditing import ProposalAudit, Scene, audit_proposals
from steelyard.retrieval.collection import rows_of
from steelyard.retrieval.interactions import Interactions
from steelyard.retrieval.retriever import Retriever

AUDIT = "audit.json"
DEFAULTS = (
    "uniform",
    "popularity:0.75",
    "popularity",
    "in-batch",
    "in-batch+uniform",
    "top50+uniform",
    "clusters",
    "midx",
)


@dataclass(frozen=True)
class Audited:
    """What an audit leaves.

    Args:
        audits: one a proposal.
        advice: sentences.
        summary: what `audit.json` holds.
    """

    audits: list[ProposalAudit]
    advice: list[str]
    summary: dict[str, Any]


@torch.no_grad()
def audit(
    model: Retriever,
    data: Interactions,
    negatives: Sequence[str] = DEFAULTS,
    candidates: int = 1024,
    *,
    queries: int = 512,
    repeats: int = 32,
    seed: int = 0,
    out: str | Path | None = None,
    watch: Callable[[int, int], None] | None = None,
    say: Callable[[str], None] | None = None,
) -> Audited:
    """Measure on the person's own data what each proposal does to the softmax gradient of a trained model.

    The yardstick is the softmax over everything, whatever loss the model was trained by; each query has one
    positive, and in-batch candidates come from batches of independent pairs, as in a loop of one positive a query.

    A model of ids is audited at pairs of its own training; items of `data` that their user did not take in
    training are held-out positives, and a draw that hits one is a false negative. A text model is audited at a
    random pair of each query of `data`; the query's other documents are held out.

    Args:
        model: what `steelyard train` left.
        data: best the test pairs (ids), or pairs with several documents a query (text).
        negatives: proposals by name, as `steelyard.negatives.proposal` reads them.
        candidates: draws of a query.
        queries: how many queries are looked at.
        repeats: repetitions of each proposal.
        seed: seed of the sample and of all draws.
        out: folder for `audit.json`; None writes nothing.
        watch: called with the number of repetitions done and in all.
        say: called with what is worth knowing.

    Returns:
        Audits, advice and summary.

    Raises:
        ValueError: an unknown proposal, more candidates than items, or data of another catalogue.
        OSError: no room to write.
    """
    say = say or (lambda _: None)
    if candidates > len(model.item_ids):
        raise ValueError(
            f"{candidates:,} candidates were asked for, but there are {len(model.item_ids):,} items: take fewer, or "
            "train with the negatives `everything`."
        )
    if not all(negatives):
        raise ValueError(
            "--negatives has an empty name: give names joined by commas, such as uniform,in-batch."
        )
    if len(set(negatives)) < len(negatives):
        raise ValueError(f"A proposal is named twice in {', '.join(negatives)}.")
    if out is not None:  # what cannot be written is said before the work
        Path(out).expanduser().mkdir(parents=True, exist_ok=True)
        check_writable(Path(out).expanduser())
    generator = torch.Generator().manual_seed(seed)
    scene, counts = scene_of(model, data, queries, generator, say)
    catalogue = Catalogue(counts, items=scene.items, scale=scene.scale)
    made = {spec: proposal(spec, catalogue, generator=generator) for spec in negatives}
    audits = audit_proposals(scene, made, candidates, repeats=repeats, generator=generator, watch=watch)
    summary = {
        "queries": len(scene.queries),
        "items": len(scene.items),
        "candidates": candidates,
        "repeats": repeats,
        "seed": seed,
        "held_out": len(scene.held_out.values),
        "proposals": [a.to_dict() for a in audits],
    }
    words = advice(audits, candidates)
    summary["advice"] = words
    if out is not None:
        write_json(Path(out).expanduser() / AUDIT, summary)
    return Audited(audits, words, summary)


def scene_of(
    model: Retriever,
    data: Interactions,
    queries: int,
    generator: torch.Generator,
    say: Callable[[str], None] = lambda _: None,
) -> tuple[Scene, Tensor]:
    """A random sample of the data's queries in the vectors of a model, and how often training saw each item.

    Args:
        model: what `steelyard train` left.
        data: pairs.
        queries: how many at most.
        generator: source of randomness.
        say: called with what is worth knowing.

    Returns:
        The scene, and int64 counts, (I,).

    Raises:
        ValueError: data of another kind or catalogue, or no query is left.
    """
    if queries < 1:
        raise ValueError(f"queries must be at least 1, got {queries}.")
    if data.is_text != (model.item_texts is not None):
        kinds = {True: "texts", False: "ids"}
        raise ValueError(
            f"The model knows {kinds[not data.is_text]}, and the data are {kinds[data.is_text]}."
        )
    items = rows_of(data.item_ids, model.item_ids)[data.items]
    scale = float(model.model.log_scale.detach().exp())
    if model.user_ids is None:
        known = items >= 0
        pairs = Ragged.from_pairs(data.users[known], items[known], data.n_users)
        _need(pairs.values, "No document of the data is in the model's catalogue: was it trained on others?")
        chosen = _sample((pairs.counts > 0).nonzero().squeeze(1), queries, generator)
        rows = pairs.take(chosen)
        positives = _one_of_each(rows, generator)
        vectors = model.encode(data.user_ids.gather(chosen.numpy()), "query")
        counts = torch.bincount(pairs.values, minlength=len(model.item_ids))
        alone = Ragged.from_pairs(torch.arange(len(chosen)), positives, len(chosen))
        held_out, population = _without(rows, alone), pairs.values
        known_rows = alone
    else:
        assert model.seen is not None
        users = rows_of(data.user_ids, model.user_ids)[data.users]
        known = (users >= 0) & (items >= 0)
        _need(users[known], "The model knows no pair of the data: was it trained on other ids?")
        if int((~known).sum()):
            say(
                f"{int((~known).sum()):,} pairs have a user or an item that the model does not know; left out."
            )
        pairs = Ragged.from_pairs(users[known], items[known], len(model.user_ids))
        eligible = (pairs.counts > 0) & (model.seen.counts > 0)
        chosen = _sample(eligible.nonzero().squeeze(1), queries, generator)
        known_rows = model.seen.take(chosen)
        positives = _one_of_each(known_rows, generator)
        vectors = model.user_vectors(chosen)
        counts = torch.bincount(model.seen.values, minlength=len(model.item_ids))
        held_out, population = _without(pairs.take(chosen), known_rows), model.seen.values
    if len(held_out.values) == 0:
        say(
            "No query has a held-out positive, so false negatives cannot be counted: give test pairs (ids), or "
            "queries with several documents (text)."
        )
    scene = Scene(vectors, model.item_vectors, positives, known_rows, held_out, population, scale)
    return scene, counts


def advice(audits: list[ProposalAudit], candidates: int) -> list[str]:
    """What the figures say, in sentences: which proposal to take, and what to beware of."""
    error = {a.name: (a.bias**2 + a.noise**2) ** 0.5 for a in audits}
    best = min(audits, key=lambda a: error[a.name])
    words = [
        f"At {candidates:,} draws {best.name} errs least: one step is off by {error[best.name]:.0%} of the gradient, "
        f"for {best.microseconds:,.1f} microseconds a query."
    ]
    # Squared error falls as the draws, and the time grows with them.
    quick = min(audits, key=lambda a: error[a.name] ** 2 * a.microseconds)
    if quick is not best and error[best.name] > 0:
        more = (error[quick.name] / error[best.name]) ** 2
        words.append(
            f"For the time it takes, {quick.name} is better: about {more * candidates:,.0f} of its draws err as little, "
            f"in {more * quick.microseconds:,.1f} microseconds."
        )
    wrong = [a for a in audits if a.bias_unweighed > 2 * max(a.bias, 0.05)]
    if wrong:
        worst = max(wrong, key=lambda a: a.bias_unweighed)
        words.append(
            f"The weights matter: without them the mean gradient of {worst.name} is off by "
            f"{worst.bias_unweighed:.0%}, with them by {worst.bias:.0%}."
        )
    words += [
        f"{a.name} stays biased by {a.bias:.0%} (at least {a.bias_low:.0%}) with its weights: {candidates:,} draws are "
        "few for it, or it does not reach every item; take more, or add +uniform."
        for a in audits
        if a.bias_low > 0.1
    ]
    heavy = [a.name for a in audits if a.unreliable > 0.5]
    if heavy:
        words.append(
            f"The weights have a heavy tail (k-hat above the limit for most queries) under {', '.join(heavy)}: single "
            "draws decide, and the figures may flatter, since the rare draws that matter most were seldom seen."
        )
    pushed = [a for a in audits if a.false_push is not None and a.false_push > 0]
    if pushed:
        most, fewest = max(pushed, key=_push), min(pushed, key=_push)
        words.append(
            f"False negatives: {_push(most):.1%} of the push of {most.name} goes against held-out positives"
            + (f", {_push(fewest):.1%} of {fewest.name}'s" if fewest is not most else "")
            + ". The full softmax pushes against them too; only filters or more "
            "labels help."
        )
    return words


def _push(a: ProposalAudit) -> float:
    return a.false_push or 0.0


def _need(found: Tensor, words: str) -> None:
    if len(found) == 0:
        raise ValueError(words)


def _sample(rows: Tensor, n: int, generator: torch.Generator) -> Tensor:
    _need(rows, "No query of the data has a positive that the model knows.")
    return rows[torch.randperm(len(rows), generator=generator)[:n]].sort().values


def _one_of_each(rows: Ragged, generator: torch.Generator) -> Tensor:
    """A random value of each row."""
    place = (torch.rand(len(rows), generator=generator, dtype=torch.float64) * rows.counts).long()
    return rows.values[rows.offsets[:-1] + place]


def _without(rows: Ragged, others: Ragged) -> Ragged:
    """The values of each row that the same row of `others` lacks."""
    width = int(max(int(r.values.max()) if len(r.values) else 0 for r in (rows, others))) + 1
    keys = rows.row_index() * width + rows.values
    gone = torch.isin(keys, others.row_index() * width + others.values)
    return Ragged.from_pairs(rows.row_index()[~gone], rows.values[~gone], len(rows))
