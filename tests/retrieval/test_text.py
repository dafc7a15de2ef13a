import math

import pytest
import torch

from steelyard.retrieval.ngrams import Vocabulary, hash_texts
from steelyard.retrieval.text import TextEncoder, inverse_document_frequency

VOCABULARY = Vocabulary(words=61, pairs=17, ngrams=43)
TEXTS = ["read a csv file", "", "Write write WRITE to_csv", "inverse of a matrix", "matrix matrix product"]


def encoder(dim=5, seed=0):
    made = TextEncoder.over(
        hash_texts(TEXTS, VOCABULARY), VOCABULARY, dim, generator=torch.Generator().manual_seed(seed)
    )
    with torch.no_grad():
        noise = torch.rand(VOCABULARY.buckets, 1, generator=torch.Generator().manual_seed(1))
        made.document_weights.weight.mul_(1 + noise)
    return made


def slow_vectors(model, features, side):
    weights = (model.query_weights if side == "query" else model.document_weights).weight.double()
    rows = []
    for r in range(len(features)):
        total = torch.zeros(model.dim, dtype=torch.float64)
        for j in range(int(features.offsets[r]), int(features.offsets[r + 1])):
            t = int(features.ids[j])
            total = total + math.log1p(features.counts[j]) * weights[t] * model.vectors.weight[t].double()
        rows.append(total / total.norm() if bool(total.norm() > 0) else total)
    return torch.stack(rows)


@pytest.mark.parametrize("side", ["query", "document"])
def test_vectors_equal_a_plain_loop(side):
    model, features = encoder(), hash_texts(TEXTS, VOCABULARY)
    torch.testing.assert_close(
        model(features, side).double(), slow_vectors(model, features, side), atol=1e-6, rtol=1e-5
    )


@pytest.mark.parametrize("side", ["query", "document"])
def test_gradients_equal_those_of_a_plain_loop(side):
    model, features = encoder(), hash_texts(TEXTS, VOCABULARY)
    skew = torch.linspace(-2, 3, len(TEXTS) * model.dim).view(len(TEXTS), -1).double().exp()
    found, wanted = [], []
    for vectors, into in (
        (model(features, side).double(), found),
        (slow_vectors(model, features, side), wanted),
    ):
        model.zero_grad()
        (vectors * skew).sum().backward()
        weights = model.query_weights if side == "query" else model.document_weights
        into += [model.vectors.weight.grad, weights.weight.grad]
    for mine, theirs in zip(found, wanted, strict=True):
        assert mine.is_sparse
        torch.testing.assert_close(mine.to_dense(), theirs, atol=1e-4, rtol=1e-4)


def test_a_gradient_has_only_the_rows_that_the_texts_use():
    model, features = encoder(), hash_texts(TEXTS[:1], VOCABULARY)
    model(features, "document").sum().backward()
    rows = model.vectors.weight.grad.coalesce().indices()[0]
    assert rows.tolist() == sorted(set(features.ids.tolist()))
    assert model.query_weights.weight.grad is None


def test_both_towers_add_their_gradients_to_the_shared_vectors():
    model = encoder()
    queries, documents = hash_texts(TEXTS[:1], VOCABULARY), hash_texts(TEXTS[2:4], VOCABULARY)
    parts = []
    for used in (
        [(queries, "query")],
        [(documents, "document")],
        [(queries, "query"), (documents, "document")],
    ):
        model.zero_grad()
        sum((model(f, side)[:, 0].sum() for f, side in used), torch.zeros(())).backward()
        parts.append(model.vectors.weight.grad.to_dense())
    torch.testing.assert_close(parts[0] + parts[1], parts[2])


def test_an_empty_text_has_the_zero_vector_and_no_nan_gradient():
    model = encoder()
    vectors = model(hash_texts(["", "file", ""], VOCABULARY), "query")
    assert vectors[[0, 2]].eq(0).all()
    vectors.sum().backward()
    assert model.vectors.weight.grad.to_dense().isfinite().all()
    model(hash_texts(["", ""], VOCABULARY), "query").sum().backward()
    assert model(hash_texts([], VOCABULARY), "document").shape == (0, 5)


def test_the_untrained_cosine_is_the_tfidf_cosine_up_to_noise():
    dim = 16384
    features = hash_texts(TEXTS, VOCABULARY)
    model = TextEncoder.over(features, VOCABULARY, dim, generator=torch.Generator().manual_seed(0))
    weights = inverse_document_frequency(features, VOCABULARY)
    bags = torch.zeros(len(TEXTS), VOCABULARY.buckets)
    for r in range(len(TEXTS)):
        inside = slice(int(features.offsets[r]), int(features.offsets[r + 1]))
        ids = features.ids[inside].long()
        bags[r, ids] = features.counts[inside].log1p() * weights[ids]
    bags = torch.nn.functional.normalize(bags)
    vectors = model(features, "query")
    # 10 pairs, each off by less than 6 standard errors of 1/sqrt(dim): fails by chance below 1e-7.
    assert (vectors @ vectors.T - bags @ bags.T).abs().max() < 6 / dim**0.5


def test_rare_features_weigh_more_than_common_ones():
    vocabulary = Vocabulary(1 << 12, 1 << 12, 0)
    features = hash_texts(["the file", "the matrix", "the file reader", "the end"], vocabulary)
    weights = inverse_document_frequency(features, vocabulary)

    def weight(word):
        return float(weights[hash_texts([word], vocabulary).ids[0]])

    assert weight("matrix") == pytest.approx(math.log(5 / 1.5))
    assert weight("file") == pytest.approx(math.log(5 / 2.5))
    assert weight("the") == pytest.approx(math.log(5 / 4.5))
    assert weight("unheard") == pytest.approx(math.log(5 / 0.5))


def test_encoding_in_chunks_changes_nothing(monkeypatch):
    model = encoder()
    whole = model.encode(TEXTS, "document")
    monkeypatch.setattr("steelyard.retrieval.text.ENCODED_AT_ONCE", 2)
    assert torch.equal(model.encode(TEXTS, "document"), whole)
    assert torch.equal(whole, model(hash_texts(TEXTS, VOCABULARY), "document").detach())


def test_an_encoder_comes_back_from_its_settings_and_weights():
    model = encoder()
    again = TextEncoder.from_settings(model.settings())
    again.load_state_dict(model.state_dict())
    assert torch.equal(again.encode(TEXTS, "query"), model.encode(TEXTS, "query"))
    for broken in ({}, model.settings() | {"dim": "5"}, model.settings() | {"extra": 1}):
        with pytest.raises(ValueError, match="whole numbers"):
            TextEncoder.from_settings(broken)


def test_a_seed_fixes_the_start():
    assert torch.equal(encoder(seed=3).vectors.weight, encoder(seed=3).vectors.weight)
    assert not torch.equal(encoder(seed=3).vectors.weight, encoder(seed=4).vectors.weight)


def test_a_dimension_below_one_is_refused():
    with pytest.raises(ValueError, match="dim"):
        TextEncoder(VOCABULARY, 0)
