"""How far apart two clouds of vectors lie: in a plane that t-SNE drew, and where they are.

CoT-MoTE (Ma et al. 2023), appendix A.1, compares queries with passages in a plane (equations 14 to 19). What t-SNE
draws changes with its seed and keeps no distances, so the same question is also asked of the vectors themselves.

Letters of shapes: N points, H hidden, E places at which densities are told. One row of `queries` and of `passages`
make a pair.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.float64]

LEAST_DENSITY = 1e-300  # beyond it a density is 0 in double precision, and a divergence has no end
FOLDS = 5  # of the probe


def unit(vectors_NH: NDArray[Any]) -> Values:
    """The vectors at length 1; one without a direction stays 0."""
    vectors_NH = vectors_NH.astype(np.float64)
    lengths_N1 = np.linalg.norm(vectors_NH, axis=1, keepdims=True)
    return np.asarray(vectors_NH / np.where(lengths_N1 > 0, lengths_N1, 1.0))


def cosine_distances(unit_NH: Values) -> Values:
    """D = 1 - cos (equation 14), not below 0 and 0 from each point to itself."""
    distances_NN = np.clip(1 - unit_NH @ unit_NH.T, 0, None)
    np.fill_diagonal(distances_NN, 0)
    return distances_NN


def plane(distances_NN: Values, *, perplexity: float, seed: int) -> Values:
    """[N, 2], t-SNE of these distances from a random start. One thread, so that sums are added in one order."""
    from sklearn.manifold import TSNE
    from threadpoolctl import threadpool_limits

    drawer = TSNE(metric="precomputed", init="random", perplexity=perplexity, random_state=seed)
    with threadpool_limits(limits=1):
        return np.asarray(drawer.fit_transform(distances_NN), np.float64)


def log_densities(points_N2: Values, places_E2: Values) -> Values:
    """[E], log of the Gaussian kernel density of the points at some places (equations 15 and 16).

    The bandwidth is not printed; Scott's rule, N ** (-1/6) in a plane, times the points' covariance.
    """
    from scipy.stats import gaussian_kde

    return np.asarray(gaussian_kde(points_N2.T).logpdf(places_E2.T))


def divergences(p_E: Values, q_E: Values) -> dict[str, float]:
    """KL(p || q) (equation 17) and JS (equations 18 and 19) in nats, each side scaled to sum to 1."""
    from scipy.stats import entropy

    p_E, q_E = p_E / p_E.sum(), q_E / q_E.sum()
    middle_E = (p_E + q_E) / 2
    js = (entropy(p_E, middle_E) + entropy(q_E, middle_E)) / 2
    return {"kl": float(entropy(p_E, q_E)), "js": float(js)}


def on_common_support(queries_N2: Values, passages_N2: Values) -> dict[str, float]:
    """Both densities at all points of both: a distance between distributions in the usual sense."""
    places_E2 = np.concatenate([queries_N2, passages_N2])
    of_queries, of_passages = (np.exp(log_densities(points, places_E2)) for points in (queries_N2, passages_N2))
    return divergences(np.maximum(of_queries, LEAST_DENSITY), np.maximum(of_passages, LEAST_DENSITY))


def on_own_points(queries_N2: Values, passages_N2: Values) -> dict[str, float] | None:
    """Log-densities of each side at its own points, pair by pair: what gives numbers as small as the printed ones.

    None where log-densities differ in sign: they cannot be scaled to sum to 1.
    """
    own = [log_densities(points, points) for points in (queries_N2, passages_N2)]
    if len(np.unique(np.sign(np.concatenate(own)))) > 1:
        return None
    return divergences(own[0], own[1])


def mean_cosines(queries_NH: Values, passages_NH: Values) -> dict[str, float]:
    """Of unit vectors: among queries, among passages, between the two, and of each pair's own two."""
    number = len(queries_NH)

    def among(vectors_NH: Values) -> float:
        cosines_NN = vectors_NH @ vectors_NH.T
        return float((cosines_NN.sum() - np.trace(cosines_NN)) / (number * (number - 1)))

    between_NN = queries_NH @ passages_NH.T
    apart = (between_NN.sum() - np.trace(between_NN)) / (number * (number - 1))
    return {
        "queries": among(queries_NH), "passages": among(passages_NH), "between": float(apart),
        "pairs": float(np.trace(between_NN) / number),
    }  # fmt: skip


def probe_accuracy(queries_NH: Values, passages_NH: Values) -> float:
    """How often a linear classifier tells queries from passages that it has not seen: 0.5 by chance, 1 apart.

    Logistic regression on unit vectors, scikit-learn's settings; a pair is held out as a whole, one pair in five at a
    time, the first pair first.
    """
    from sklearn.linear_model import LogisticRegression
    from threadpoolctl import threadpool_limits

    vectors, kinds = np.concatenate([queries_NH, passages_NH]), np.repeat([0, 1], len(queries_NH))
    folds = np.tile(np.arange(len(queries_NH)) % FOLDS, 2)
    right = 0
    with threadpool_limits(limits=1):
        for fold in range(FOLDS):
            held = folds == fold
            told = LogisticRegression(max_iter=1000).fit(vectors[~held], kinds[~held]).predict(vectors[held])
            right += int((told == kinds[held]).sum())
    return right / len(kinds)


def squared_mmd(queries_NH: Values, passages_NH: Values) -> float:
    """The unbiased estimate of the squared maximum mean discrepancy (Gretton et al. 2012, equation 3): 0 or below where
    two clouds are alike.

    The kernel is exp(-d^2 / (2 s^2)), where s is the median distance of all points (the same paper, section 8).
    """
    from scipy.spatial.distance import pdist, squareform

    number = len(queries_NH)
    distances = pdist(np.concatenate([queries_NH, passages_NH]))
    scale = float(np.median(distances)) or 1.0
    kernel_NN = squareform(np.exp(-(distances**2) / (2 * scale**2)))  # 0 on the diagonal, which is left out
    within = kernel_NN[:number, :number].sum() + kernel_NN[number:, number:].sum()
    return float(within / (number * (number - 1)) - 2 * kernel_NN[:number, number:].mean())
