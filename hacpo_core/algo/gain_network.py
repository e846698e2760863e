"""A small network that predicts the gain of training on a response from ten features. It is trained online.

Its parameters are a mapping of numpy arrays, so that a step can commit them as state.

Shapes: N row, C feature, H hidden unit.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
WEIGHTS = ("hidden_CH", "bias_H", "out_H", "out_bias")
BETAS = (0.9, 0.999)


def initial(num_inputs: int, num_hidden: int, generator: np.random.Generator) -> dict[str, Array]:
    """Random weights (He initialisation), zero Adam moments and empty running statistics."""
    weights: dict[str, Array] = {
        "hidden_CH": generator.normal(0.0, np.sqrt(2.0 / num_inputs), (num_inputs, num_hidden)),
        "bias_H": np.zeros(num_hidden),
        "out_H": generator.normal(0.0, np.sqrt(1.0 / num_hidden), num_hidden),
        "out_bias": np.zeros(1),
    }
    moments = {f"{name}.{moment}": np.zeros_like(weights[name]) for name in WEIGHTS for moment in ("first", "second")}
    statistics = {"count": np.zeros(1), "mean_C": np.zeros(num_inputs), "square_C": np.zeros(num_inputs)}
    return {**weights, **moments, **statistics, "num_steps": np.zeros(1)}


def seen(parameters: Mapping[str, Array], context_NC: Array) -> dict[str, Array]:
    """The parameters with these rows added to each feature's running mean and variance."""
    count, added = parameters["count"], float(len(context_NC))
    if not added:
        return dict(parameters)
    mean_C, square_C = context_NC.mean(axis=0), ((context_NC - context_NC.mean(axis=0)) ** 2).sum(axis=0)
    total, delta_C = count + added, mean_C - parameters["mean_C"]
    return {
        **parameters,
        "count": total,
        "mean_C": parameters["mean_C"] + delta_C * added / total,
        "square_C": parameters["square_C"] + square_C + delta_C**2 * count * added / total,
    }


def _normalised(parameters: Mapping[str, Array], context_NC: Array) -> Array:
    std_C = np.sqrt(parameters["square_C"] / np.maximum(parameters["count"], 1.0))
    scaled: Array = (context_NC - parameters["mean_C"]) / np.where(std_C > 1e-12, std_C, 1.0)
    return scaled


def predicted(parameters: Mapping[str, Array], context_NC: Array) -> Array:
    """gain_N = relu(x W1 + b1) W2 + b2,   x the features normalised by their running mean and standard deviation."""
    hidden_NH = np.maximum(_normalised(parameters, context_NC) @ parameters["hidden_CH"] + parameters["bias_H"], 0.0)
    gain_N: Array = hidden_NH @ parameters["out_H"] + parameters["out_bias"]
    return gain_N


def fitted(
    parameters: Mapping[str, Array], context_NC: Array, gain: float, *, learning_rate: float, num_passes: int
) -> dict[str, Array]:
    """The parameters after `num_passes` Adam steps on the mean squared error, with `gain` as every row's target.

    Args:
        parameters: as returned by `initial`.
        context_NC: features of the rows that were trained on.
        gain: their joint gain.
        learning_rate: of Adam.
        num_passes: Adam steps, each over all rows.
    """
    after = dict(parameters)
    x_NC = _normalised(parameters, context_NC)
    for _ in range(num_passes if len(x_NC) else 0):
        before_NH = x_NC @ after["hidden_CH"] + after["bias_H"]
        hidden_NH = np.maximum(before_NH, 0.0)
        error_N = (hidden_NH @ after["out_H"] + after["out_bias"] - gain) * 2.0 / len(x_NC)
        back_NH = np.outer(error_N, after["out_H"]) * (before_NH > 0.0)
        gradients = {
            "hidden_CH": x_NC.T @ back_NH,
            "bias_H": back_NH.sum(axis=0),
            "out_H": hidden_NH.T @ error_N,
            "out_bias": error_N.sum(keepdims=True),
        }
        after = _adam(after, gradients, learning_rate)
    return after


def _adam(parameters: Mapping[str, Array], gradients: Mapping[str, Array], learning_rate: float) -> dict[str, Array]:
    after = dict(parameters)
    after["num_steps"] = parameters["num_steps"] + 1.0
    for name, gradient in gradients.items():
        first = BETAS[0] * parameters[f"{name}.first"] + (1 - BETAS[0]) * gradient
        second = BETAS[1] * parameters[f"{name}.second"] + (1 - BETAS[1]) * gradient**2
        unbiased = first / (1 - BETAS[0] ** after["num_steps"])
        spread = np.sqrt(second / (1 - BETAS[1] ** after["num_steps"]))
        after[name] = parameters[name] - learning_rate * unbiased / (spread + 1e-8)
        after[f"{name}.first"], after[f"{name}.second"] = first, second
    return after
