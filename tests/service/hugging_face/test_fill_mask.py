"""``fill_mask`` of the client, against the native call."""

import pytest
from huggingface_hub.errors import HfHubHTTPError

TEXT = "the tim<mask>"
PAIR = "a <mask>im<mask>"


@pytest.fixture(scope="module")
def masked(hub):
    return hub("masked-lm")


@pytest.fixture(scope="module")
def masks(native):
    """The masks of the only text of a native answer."""

    def masks(text, **options):
        (result,) = native("fill-mask", inputs=text, **options)["results"]
        return result["masks"]

    return masks


def pairs(elements):
    return [(element.token_str, element.token, element.score) for element in elements]


def native_pairs(mask):
    return [(one["token"], one["token_id"], one["score"]) for one in mask["candidates"]]


def same(elements, mask):
    told, expected = pairs(elements), native_pairs(mask)
    assert [one[:2] for one in told] == [one[:2] for one in expected]
    assert [one[2] for one in told] == pytest.approx([one[2] for one in expected], abs=1e-6)


def test_one_mask_gives_its_candidates_with_the_text_that_each_makes(masked, masks):
    told = masked.fill_mask(TEXT)
    (mask,) = masks(TEXT)
    same(told, mask)
    assert len(told) == 5
    assert [one.sequence for one in told] == [f"the tim{one.token_str}" for one in told]


def test_several_masks_give_a_list_each_and_their_sequences_keep_the_others(masked, masks):
    first, second = masked.fill_mask(PAIR, top_k=2)
    for told, mask in zip((first, second), masks(PAIR, top_k=2), strict=True):
        same(told, mask)
    assert [one.sequence for one in first] == [f"a {one.token_str}im<mask>" for one in first]
    assert [one.sequence for one in second] == [f"a <mask>im{one.token_str}" for one in second]


def test_a_list_gives_what_each_of_its_texts_gives(masked):
    one, other = masked.fill_mask([TEXT, PAIR], top_k=2)
    assert [element.sequence for element in one] == [
        element.sequence for element in masked.fill_mask(TEXT, top_k=2)
    ]
    assert [[e.token_str for e in elements] for elements in other] == [
        [e.token_str for e in elements] for elements in masked.fill_mask(PAIR, top_k=2)
    ]


def test_a_list_of_one_text_counts_as_that_text(masked):
    assert [element.token for element in masked.fill_mask([TEXT])] == [
        element.token for element in masked.fill_mask(TEXT)
    ]


def test_targets_are_all_told_and_keep_their_share_of_the_whole_vocabulary(masked, masks):
    targets = ["e", "a", "o", "i", "u", "y"]
    told = masked.fill_mask(TEXT, targets=targets)
    (mask,) = masks(TEXT, targets=targets)
    same(told, mask)
    assert {element.token_str for element in told} == set(targets)
    assert sum(element.score for element in told) < 1
    assert len(masked.fill_mask(TEXT, targets=targets, top_k=2)) == 2


def test_the_text_is_told_as_it_was_read(masked):
    for element in masked.fill_mask("The -- TIM<mask>"):
        assert element.sequence == f"the tim{element.token_str}"


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("no mask", {}, "inputs: expected 1 to 64 masks '<mask>', got 0"),
        (["a<mask>", "no"], {}, "inputs[1]: expected 1 to 64 masks '<mask>', got 0"),
        ("a [MASK]", {}, "inputs: expected masks '<mask>', got '[MASK]'"),
        (["a<mask>", "<mask> [MASK]"], {}, "inputs[1]: expected masks '<mask>', got '[MASK]'"),
        (TEXT, {"targets": ["e", "time"]}, "parameters.targets[1]: expected one of the symbols"),
        (TEXT, {"targets": ["e", "e"]}, "parameters.targets: expected every target once"),
        (TEXT, {"targets": []}, "parameters.targets: expected a string or at least 1 item"),
        (TEXT, {"top_k": 0}, "parameters.top_k: expected at least 1, got 0"),
        ([], {}, "inputs: expected 1 to 64 inputs, got 0"),
    ],
)
def test_what_cannot_be_filled_is_told_to_the_user(masked, text, options, message):
    with pytest.raises(HfHubHTTPError) as caught:
        masked.fill_mask(text, **options)
    assert caught.value.response.status_code == 422
    assert message in str(caught.value)
    assert "Request ID" in str(caught.value)
