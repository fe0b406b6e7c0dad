import numpy as np
import pytest

from service.errors import InvalidInput, TooLarge
from service.schemas import AttentionRequest
from service.tasks.attention import choose


@pytest.mark.parametrize("asked", [None, False])
def test_no_attention_is_chosen_where_none_is_asked_for(asked):
    assert choose(asked, 2, 4) is None


def test_true_is_all_layers_and_all_heads():
    choice = choose(True, 2, 3)
    assert choice == choose(AttentionRequest(), 2, 3)
    assert (choice.layers, choice.heads, choice.encoding) == ([0, 1], [0, 1, 2], "float")


@pytest.mark.parametrize("field", ["layers", "heads"])
@pytest.mark.parametrize("asked", [[2], [0, 1, 2], [0, 0], [1, 0, 1], [], [2**62], [5] * 1000])
def test_what_does_not_exist_repeats_or_is_nothing_is_refused(field, asked):
    with pytest.raises(InvalidInput) as caught:
        choose(AttentionRequest(**{field: asked}), 2, 2)
    message = str(caught.value)
    assert message.startswith(f"attention.{field}: expected different numbers from 0 to 1, got [")
    assert len(message) < 120


@pytest.mark.parametrize(
    ("asked", "num_values"),
    [
        ({}, 2 * 4 * 100),
        ({"layers": [1]}, 4 * 100),
        ({"heads": [0, 3]}, 2 * 2 * 100),
        ({"heads": "mean"}, 2 * 100),
    ],
    ids=str,
)
def test_more_weights_than_the_limit_are_refused_with_a_way_out(asked, num_values):
    choice = choose(AttentionRequest(**asked), 2, 4)
    choice.require_size(100, num_values)
    with pytest.raises(TooLarge) as caught:
        choice.require_size(100, num_values - 1)
    assert str(caught.value) == (
        f"attention: expected at most {num_values - 1} attention weights, got {num_values}; "
        "ask for fewer layers, heads or inputs"
    )


def test_weights_are_cut_to_the_tokens_there_are():
    weights = np.arange(2 * 3 * 4 * 5, dtype=np.float32).reshape(2, 3, 4, 5)
    chosen = choose(True, 2, 3).select(weights, ["x"] * 2, ["y"] * 3)
    assert chosen.shape == [2, 3, 2, 3]
    np.testing.assert_array_equal(chosen.weights, weights[:, :, :2, :3])
