"""Selection of rows as a scikit-learn estimator: for labelled arrays that fit in memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

try:
    from sklearn.base import BaseEstimator
    from sklearn.linear_model import SGDClassifier
    from sklearn.preprocessing import StandardScaler
    from sklearn.utils import check_random_state
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import validate_data
except ImportError:
    raise ImportError("RowSelector needs scikit-learn: pip install 'steelyard[sklearn]'.") from None

from steelyard.draws import Draws
from steelyard.selection.clusters import balanced_draw, hierarchical_kmeans
from steelyard.selection.coverage import coverage_centric, top_mask
from steelyard.selection.error_norms import el2n
from steelyard.selection.exploration import top_and_explore

METHODS = ("coverage", "explore", "hardest", "clusters", "random")


class RowSelector(BaseEstimator):  # type: ignore[misc]
    """Select a share of labelled rows to train on, with the weight that each stands for.

    Scores are EL2N error norms of linear models, trained for a few epochs from several seeds on standardised
    features. "coverage" draws evenly over strata of difficulty (CCS), "explore" keeps the hardest and explores the rest,
    "hardest" keeps the highest scores (and falls below "random" where little is kept), "clusters" draws evenly from
    k-means clusters, "random" draws evenly.

    Args:
        method: "coverage", "explore", "hardest", "clusters" or "random".
        share: of the rows to keep, in (0, 1].
        beta: of "coverage": share of the hardest rows that is cut off.
        epochs: of each scoring model.
        seeds: scoring models.
        random_state: seed, generator of NumPy, or None.

    Attributes:
        indices_: rows kept, ascending, (m,).
        sample_weight_: inverse inclusion probability of each, (m,); 1 for "hardest".
        score_: EL2N of all rows, (n,), where the method looks at it.
        classes_: distinct labels.
        n_features_in_: columns seen in `fit`.

    Reference:
        Paul, Ganguli and Dziugaite (2021), arXiv 2107.07075 (EL2N); Zheng, Liu, Lai and Prakash (2023), arXiv
        2210.15809 (CCS); the contract of `fit_resample` is imbalanced-learn's.
    """

    def __init__(
        self,
        method: str = "coverage",
        share: float = 0.3,
        *,
        beta: float = 0.0,
        epochs: int = 5,
        seeds: int = 3,
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        self.method = method
        self.share = share
        self.beta = beta
        self.epochs = epochs
        self.seeds = seeds
        self.random_state = random_state

    def fit(self, X: Any, y: Any) -> RowSelector:
        """Choose rows.

        Args:
            X: features, (n, d), finite.
            y: class labels, (n,).

        Returns:
            Itself.

        Raises:
            ValueError: an unknown method, settings outside their range, data that are not finite or do not fit, or
                labels of one class only where scores are needed.
        """
        if self.method not in METHODS:
            raise ValueError(f"method must be one of {', '.join(METHODS)}, got {self.method!r}.")
        if not 0 < self.share <= 1:
            raise ValueError(f"share must lie in (0, 1], got {self.share}.")
        X, y = validate_data(self, X, y, dtype=[np.float64, np.float32])
        check_classification_targets(y)
        random = check_random_state(self.random_state)
        generator = torch.Generator().manual_seed(int(random.randint(2**31)))
        self.classes_, codes = np.unique(y, return_inverse=True)
        k = max(1, round(self.share * len(X)))
        self.indices_: NDArray[np.int64]
        self.sample_weight_: NDArray[np.float64]
        if self.method in ("hardest", "coverage", "explore"):
            self.score_ = self._scores(X, codes, random)
        if self.method == "hardest" or (self.method == "explore" and k == len(X)):
            self.indices_ = np.flatnonzero(top_mask(torch.from_numpy(self.score_), k).numpy())
            self.sample_weight_ = np.ones(k)
        else:
            draws = self._draw(X, k, generator)
            self.indices_ = draws.ids.numpy()
            self.sample_weight_ = (-draws.log_expected.double()).exp().numpy()
        return self

    def fit_resample(self, X: ArrayLike, y: ArrayLike) -> tuple[NDArray[Any], NDArray[Any]]:
        """Choose rows, and return them with their labels; their weights are in `sample_weight_`.

        Args:
            X: features, (n, d).
            y: labels, (n,).

        Returns:
            The rows kept, (m, d), and their labels, (m,).
        """
        self.fit(X, y)
        return np.asarray(X)[self.indices_], np.asarray(y)[self.indices_]

    def _draw(self, X: Any, k: int, generator: torch.Generator) -> Draws:
        n = len(X)
        if self.method == "random":
            return balanced_draw([torch.zeros(n, dtype=torch.int64)], k, generator=generator)
        if self.method == "clusters":
            level = hierarchical_kmeans(np.array(X), [max(1, min(n, round(k**0.5)))], generator=generator)
            return balanced_draw(level, k, generator=generator)
        if self.method == "coverage":
            k = min(k, n - int(self.beta * n))
            return coverage_centric(self.score_, k, beta=self.beta, generator=generator)
        return top_and_explore(self.score_, k, explore=max(0.5, 1 / k), generator=generator)

    def _scores(self, X: Any, codes: Any, random: Any) -> NDArray[np.float64]:
        if len(self.classes_) < 2:
            raise ValueError(f"{self.method!r} scores rows by their errors, and there is one class only.")
        scaled = StandardScaler().fit_transform(X)
        logits = []
        for seed in random.randint(2**31, size=self.seeds):
            model = SGDClassifier(
                loss="log_loss", alpha=1e-3, max_iter=self.epochs, tol=None, random_state=int(seed)
            ).fit(scaled, codes)
            found = model.decision_function(scaled)
            logits.append(np.stack([np.zeros(len(X)), found], 1) if found.ndim == 1 else found)
        score: NDArray[np.float64] = el2n(np.stack(logits), codes).double().numpy()
        return score
