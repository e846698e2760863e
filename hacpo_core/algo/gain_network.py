"""A small network that predicts the gain of training on a response from its features. It is trained online.

Its weights, Adam's moments and the features' statistics are numpy arrays, so that a step can commit them as state.

Shapes: N row, C feature.
"""

from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

Array = NDArray[np.float64]


def initial(num_inputs: int, num_hidden: int, generator: np.random.Generator) -> dict[str, Array]:
    """Random weights (He initialisation) and empty running statistics."""
    weights = {
        "0.weight": generator.normal(0.0, np.sqrt(2.0 / num_inputs), (num_hidden, num_inputs)),
        "0.bias": np.zeros(num_hidden),
        "2.weight": generator.normal(0.0, np.sqrt(1.0 / num_hidden), (1, num_hidden)),
        "2.bias": np.zeros(1),
    }
    return {**weights, "count": np.zeros(1), "mean_C": np.zeros(num_inputs), "square_C": np.zeros(num_inputs)}


def add_rows(state: Mapping[str, Array], context_NC: Array) -> dict[str, Array]:
    """The state with these rows added to each feature's running mean and variance."""
    count, num_added = state["count"], float(len(context_NC))
    if not num_added:
        return dict(state)
    mean_C, square_C = context_NC.mean(axis=0), ((context_NC - context_NC.mean(axis=0)) ** 2).sum(axis=0)
    num_rows, delta_C = count + num_added, mean_C - state["mean_C"]
    return {
        **state,
        "count": num_rows,
        "mean_C": state["mean_C"] + delta_C * num_added / num_rows,
        "square_C": state["square_C"] + square_C + delta_C**2 * count * num_added / num_rows,
    }


def predict(state: Mapping[str, Array], context_NC: Array) -> Array:
    """gain_N = relu(x W1 + b1) W2 + b2,   x the features normalised by their running mean and standard deviation."""
    with torch.no_grad():
        gain_N: Array = _network(state)(_normalised(state, context_NC))[:, 0].numpy()
    return gain_N


def fit(
    state: Mapping[str, Array], context_NC: Array, gain: float, *, learning_rate: float, num_passes: int
) -> dict[str, Array]:
    """The state after `num_passes` Adam steps on the mean squared error, with `gain` as every row's target.

    Args:
        state: as returned by `initial`, or by this function.
        context_NC: features of the rows that were trained on.
        gain: their joint gain.
        learning_rate: of Adam.
        num_passes: Adam steps, each over all rows.
    """
    if not len(context_NC):
        return dict(state)
    network, x_NC = _network(state), _normalised(state, context_NC)
    parameters = dict(network.named_parameters())
    adam = torch.optim.Adam(parameters.values(), lr=learning_rate)
    for name, parameter in parameters.items():
        if f"{name}.step" in state:
            kinds = ("step", "exp_avg", "exp_avg_sq")
            adam.state[parameter] = {kind: torch.tensor(state[f"{name}.{kind}"]) for kind in kinds}
    for _ in range(num_passes):
        adam.zero_grad()
        ((network(x_NC)[:, 0] - gain) ** 2).mean().backward()
        adam.step()
    new_state = dict(state)
    for name, parameter in parameters.items():
        new_state[name] = parameter.detach().numpy()
        new_state |= {f"{name}.{kind}": np.asarray(value) for kind, value in adam.state[parameter].items()}
    return new_state


def _network(state: Mapping[str, Array]) -> nn.Sequential:
    num_hidden, num_inputs = state["0.weight"].shape
    with torch.device("meta"):  # draws no random weights
        network = nn.Sequential(nn.Linear(num_inputs, num_hidden), nn.ReLU(), nn.Linear(num_hidden, 1))
    network.load_state_dict({name: torch.tensor(state[name]) for name in network.state_dict()}, assign=True)
    return network.requires_grad_()


def _normalised(state: Mapping[str, Array], context_NC: Array) -> Tensor:
    std_C = np.sqrt(state["square_C"] / np.maximum(state["count"], 1.0))
    return torch.from_numpy((context_NC - state["mean_C"]) / np.where(std_C > 1e-12, std_C, 1.0))
