"""Measure how far apart two clouds of vectors are: in a plane by t-SNE, and in the original space.

CoT-MoTE (Ma et al. 2023), appendix A.1, compares queries with passages in a plane (equations 14 to 19). A plane by
t-SNE depends on the seed and does not preserve distances, so the vectors themselves are compared as well.

Letters of shapes: N points, H hidden, E points at which densities are evaluated. Row n of `queries` and row n of
`passages` are a pair.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

MIN_DENSITY = 1e-300  # a density that underflows to 0 would make the divergence infinite
FOLDS = 5  # of the cross-validated probe


def unit(vectors_NH: NDArray[Any]) -> NDArray[np.float64]:
    """Return the vectors normalised to length 1; a zero vector stays 0."""
    vectors_NH = vectors_NH.astype(np.float64)
    lengths_N1 = np.linalg.norm(vectors_NH, axis=1, keepdims=True)
    return np.asarray(vectors_NH / np.where(lengths_N1 > 0, lengths_N1, 1.0))


def cosine_distances(unit_NH: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return D = 1 - cos (equation 14), clipped at 0 and exactly 0 on the diagonal."""
    distances_NN = np.clip(1 - unit_NH @ unit_NH.T, 0, None)
    np.fill_diagonal(distances_NN, 0)
    return distances_NN


def plane(distances_NN: NDArray[np.float64], *, perplexity: float, seed: int) -> NDArray[np.float64]:
    """Return t-SNE of these distances with random initialisation, [N, 2]; in one thread, to be reproducible."""
    from sklearn.manifold import TSNE
    from threadpoolctl import threadpool_limits

    tsne = TSNE(metric="precomputed", init="random", perplexity=perplexity, random_state=seed)
    with threadpool_limits(limits=1):
        return np.asarray(tsne.fit_transform(distances_NN), np.float64)


def log_densities(points_N2: NDArray[np.float64], evaluated_E2: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the log of the points' Gaussian kernel density, [E] (equations 15 and 16).

    The paper does not report the bandwidth. This is Scott's rule: N ** (-1/6) in a plane, times the covariance.
    """
    from scipy.stats import gaussian_kde

    return np.asarray(gaussian_kde(points_N2.T).logpdf(evaluated_E2.T))


def divergences(p_E: NDArray[np.float64], q_E: NDArray[np.float64]) -> dict[str, float]:
    """Return KL(p || q) (equation 17) and JS (equations 18 and 19) in nats; p and q are normalised to sum to 1."""
    from scipy.stats import entropy

    p_E, q_E = p_E / p_E.sum(), q_E / q_E.sum()
    middle_E = (p_E + q_E) / 2
    js = (entropy(p_E, middle_E) + entropy(q_E, middle_E)) / 2
    return {"kl": float(entropy(p_E, q_E)), "js": float(js)}


def on_common_support(queries_N2: NDArray[np.float64], passages_N2: NDArray[np.float64]) -> dict[str, float]:
    """Return the divergences of both densities at all points of both clouds: the usual definition."""
    points_E2 = np.concatenate([queries_N2, passages_N2])
    p_E, q_E = (np.exp(log_densities(points, points_E2)) for points in (queries_N2, passages_N2))
    return divergences(np.maximum(p_E, MIN_DENSITY), np.maximum(q_E, MIN_DENSITY))


def on_own_points(queries_N2: NDArray[np.float64], passages_N2: NDArray[np.float64]) -> dict[str, float] | None:
    """Return the divergences of log-densities, each cloud's at its own points: values as small as the paper's.

    None where log-densities differ in sign: they cannot be normalised to sum to 1.
    """
    own = [log_densities(points, points) for points in (queries_N2, passages_N2)]
    if len(np.unique(np.sign(np.concatenate(own)))) > 1:
        return None
    return divergences(own[0], own[1])


def mean_cosines(queries_NH: NDArray[np.float64], passages_NH: NDArray[np.float64]) -> dict[str, float]:
    """Return mean cosines of unit vectors: among queries, among passages, between the two, and within pairs."""
    number = len(queries_NH)

    def among(vectors_NH: NDArray[np.float64]) -> float:
        cosines_NN = vectors_NH @ vectors_NH.T
        return float((cosines_NN.sum() - np.trace(cosines_NN)) / (number * (number - 1)))

    between_NN = queries_NH @ passages_NH.T
    unpaired = (between_NN.sum() - np.trace(between_NN)) / (number * (number - 1))
    return {
        "queries": among(queries_NH), "passages": among(passages_NH), "between": float(unpaired),
        "pairs": float(np.trace(between_NN) / number),
    }  # fmt: skip


def probe_accuracy(queries_NH: NDArray[np.float64], passages_NH: NDArray[np.float64]) -> float:
    """Return the accuracy of a linear classifier of queries and passages on held-out pairs: 0.5 by chance.

    It is logistic regression on unit vectors with scikit-learn's defaults, by cross-validation in five folds; both
    texts of a pair are in the same fold.
    """
    from sklearn.linear_model import LogisticRegression
    from threadpoolctl import threadpool_limits

    vectors, kinds = np.concatenate([queries_NH, passages_NH]), np.repeat([0, 1], len(queries_NH))
    folds = np.tile(np.arange(len(queries_NH)) % FOLDS, 2)
    correct = 0
    with threadpool_limits(limits=1):
        for fold in range(FOLDS):
            held_out = folds == fold
            classifier = LogisticRegression(max_iter=1000).fit(vectors[~held_out], kinds[~held_out])
            correct += int((classifier.predict(vectors[held_out]) == kinds[held_out]).sum())
    return correct / len(kinds)


def squared_mmd(queries_NH: NDArray[np.float64], passages_NH: NDArray[np.float64]) -> float:
    """Return the unbiased estimate of the squared maximum mean discrepancy (Gretton et al. 2012, equation 3).

    It is about 0, or negative, for equal distributions. The kernel is exp(-d^2 / (2 s^2)), where s is the median
    distance of all points (section 8 of the same paper).
    """
    from scipy.spatial.distance import pdist, squareform

    number = len(queries_NH)
    distances = pdist(np.concatenate([queries_NH, passages_NH]))
    scale = float(np.median(distances)) or 1.0
    kernel_NN = squareform(np.exp(-(distances**2) / (2 * scale**2)))  # 0 on the diagonal, which the estimate excludes
    within = kernel_NN[:number, :number].sum() + kernel_NN[number:, number:].sum()
    return float(within / (number * (number - 1)) - 2 * kernel_NN[:number, number:].mean())
