"""Variances of several cases, each shrunk toward what the others have.

Three trials of one case say little about their own spread, and those of all cases together do not say which
case is the noisier one. G. K. Smyth (2004), "Linear models and empirical Bayes methods for assessing
differential expression in microarray experiments", Stat. Appl. Genet. Mol. Biol. 3(1), weighs the two by how
much the variances differ beyond chance: the moderated t of the R package limma.
"""

from __future__ import annotations

import math

import numpy as np
from scipy import special

# a variance of 0, of trials that agree by chance or are counted, has no logarithm (as in limma)
_LEAST = 1e-5


def shrunk(variances: np.ndarray, freedoms: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Variances shrunk toward their common one, and the degrees of freedom behind each.

    Args:
        variances: unbiased estimates, shape (cases,); without meaning where ``freedoms`` is 0.
        freedoms: their degrees of freedom, shape (cases,), at least one above 0; may be fractions.
    """
    known = freedoms > 0
    own = np.where(known, variances, 0.0)
    if not own.any():
        return own, np.full(len(own), freedoms.sum())
    common, weight = _prior(_floored(own[known]), freedoms[known])
    if math.isinf(weight):
        return np.full(len(own), common), np.full(len(own), freedoms.sum())
    mixed = (weight * common + freedoms * own) / (weight + freedoms)
    return mixed, np.minimum(weight + freedoms, freedoms.sum())


def _floored(variances: np.ndarray) -> np.ndarray:
    floored: np.ndarray = np.maximum(variances, _LEAST * np.median(variances[variances > 0]))
    return floored


def _prior(variances: np.ndarray, freedoms: np.ndarray) -> tuple[float, float]:
    """The common variance, and how many degrees of freedom it counts for (Smyth 2004, section 6.2)."""
    logs = np.log(variances) - special.digamma(freedoms / 2) + np.log(freedoms / 2)
    beyond = 0.0
    if len(logs) > 1:
        beyond = float(logs.var(ddof=1) - special.polygamma(1, freedoms / 2).mean())
    if beyond <= 0:
        return float(np.average(variances, weights=freedoms)), math.inf
    weight = 2 * _trigamma_inverse(beyond)
    return float(np.exp(logs.mean() + special.digamma(weight / 2)) / (weight / 2)), weight


def _trigamma_inverse(value: float) -> float:
    """Argument at which the trigamma function is *value*, by Newton's method on its reciprocal."""
    x = 0.5 + 1 / value
    for _ in range(50):
        trigamma = float(special.polygamma(1, x))
        step = trigamma * (1 - trigamma / value) / float(special.polygamma(2, x))
        x += step
        if -step < 1e-8 * x:
            break
    return x
