import base64
import dataclasses
import math

import numpy as np
import pytest

from models.vocabulary import MASK
from service.tasks.filling import Filling
from service.tasks.masked_text import Span
from service.tasks.reading import Belief
from tests.service.numbers import split
from tests.service.tiny import MASKED, WINDOW

PATH = "/v1/fill-mask"
MASK_ID = MASKED.special_id(MASK)
# Padding and batching change the order of float32 sums and nothing else.
ATOL = 1e-5

LONG = "it was at ten o clock to day that the first of all time machines began its career"


@pytest.fixture(scope="module")
def predict(call):
    """The model's own probabilities and attention for token ids, without padding."""

    def predict(tokens):
        probs, attention = call(
            "masked-lm", "predict", np.array([tokens], np.int32), np.array([len(tokens)], np.int32)
        )
        return probs[0], attention[0]

    return predict


def token_ids(text, mask="_"):
    return [MASK_ID if c == mask else MASKED.symbols.index(c) for c in text]


def scores(mask):
    return {candidate["token"]: candidate["score"] for candidate in mask["candidates"]}


def window_of(tokens, position):
    start = min(max(position - WINDOW // 2, 0), max(len(tokens) - WINDOW, 0))
    return start, min(start + WINDOW, len(tokens))


def fill(predict, tokens):
    """Fills the surest mask, reads again, and so on; every mask in the window centred on it."""
    tokens = list(tokens)
    while MASK_ID in tokens:
        best = (-1.0, 0, 0)
        for position in [i for i, token in enumerate(tokens) if token == MASK_ID]:
            start, end = window_of(tokens, position)
            known = predict(tokens[start:end])[0][position - start][1:]
            best = max(best, (float(known.max()), position, 1 + int(known.argmax())))
        tokens[best[1]] = best[2]
    return "".join(MASKED.symbols[token] for token in tokens)


def test_the_answer_has_the_shape_of_the_contract(ask):
    answer = ask(PATH, inputs="Time trave<mask>", top_k=2)
    assert list(answer) == ["model", "version", "results", "usage"]
    assert (answer["model"], answer["version"]) == ("masked-lm", 1)
    assert answer["usage"] == {"input_tokens": 11}
    (result,) = answer["results"]
    assert list(result) == ["normalized", "masks", "filled"]
    assert result["normalized"] == "time trave<mask>"
    (mask,) = result["masks"]
    assert list(mask) == [
        "index",
        "position",
        "char_start",
        "char_end",
        "window",
        "entropy",
        "candidates",
    ]
    assert mask["index"] == 0
    assert mask["position"] == 10
    assert (mask["char_start"], mask["char_end"]) == (10, 16)
    assert mask["window"] == [0, 11]
    assert [list(candidate) for candidate in mask["candidates"]] == [
        ["token", "token_id", "score"]
    ] * 2
    for candidate in mask["candidates"]:
        assert MASKED.symbols[candidate["token_id"]] == candidate["token"]


@pytest.mark.parametrize("text", ["_", "the tim_ m_chine", "_ab_", "so i_"])
def test_scores_are_the_models_probabilities_over_the_whole_vocabulary(ask, predict, text):
    result = ask(PATH, inputs=text, mask_token="_", top_k=28)["results"][0]
    tokens = token_ids(text)
    probs, _ = predict(tokens)
    assert len(result["masks"]) == text.count("_")
    for mask in result["masks"]:
        expected = probs[mask["position"]]
        assert tokens[mask["position"]] == MASK_ID
        found = scores(mask)
        assert len(found) == 28
        np.testing.assert_allclose([found[s] for s in MASKED.symbols], expected, atol=ATOL)
        assert sum(found.values()) == pytest.approx(1, abs=ATOL)
        assert mask["entropy"] == pytest.approx(-(expected * np.log(expected)).sum(), abs=1e-4)
        in_order = [candidate["score"] for candidate in mask["candidates"]]
        assert in_order == sorted(in_order, reverse=True)


def test_masks_are_found_where_they_were_in_the_text_as_sent(ask):
    text = "\t1. The  <mask>ime—machine… <mask>\U0001f642<mask>"
    result = ask(PATH, inputs=text)["results"][0]
    assert result["normalized"] == " the <mask>ime machine <mask> <mask>"
    for mask in result["masks"]:
        assert text[mask["char_start"] : mask["char_end"]] == MASK
    assert [mask["index"] for mask in result["masks"]] == [0, 1, 2]
    assert [mask["position"] for mask in result["masks"]] == [5, 18, 20]
    assert [mask["char_start"] for mask in result["masks"]] == sorted(
        i for i in range(len(text)) if text.startswith(MASK, i)
    )


@pytest.mark.parametrize("placeholder", ["_", "[MASK]", ".*", "X", "\\", "☃", "<mask> ", "?" * 50])
def test_any_placeholder_stands_for_a_mask(ask, placeholder):
    plain = ask(PATH, inputs="a tim<mask> m<mask>")["results"][0]
    other = ask(PATH, inputs=f"a tim{placeholder} m{placeholder}", mask_token=placeholder)
    other = other["results"][0]
    if placeholder != "<mask> ":
        assert other["filled"] == plain["filled"]
        assert [scores(m) for m in other["masks"]] == [scores(m) for m in plain["masks"]]
    for mask in other["masks"]:
        assert mask["char_end"] - mask["char_start"] == len(placeholder)


def test_by_default_there_are_five_candidates_and_top_k_asks_for_others(ask):
    def count(**options):
        return len(ask(PATH, inputs="a<mask>", **options)["results"][0]["masks"][0]["candidates"])

    assert count() == 5
    assert count(top_k=None) == 5
    assert count(top_k=1) == 1
    assert count(top_k=28) == 28
    assert count(top_k=10**9) == 28


def test_targets_choose_candidates_without_renormalising_their_scores(ask):
    everything = scores(ask(PATH, inputs="a<mask>", top_k=28)["results"][0]["masks"][0])
    for targets in (["e"], [" ", "z", "<unk>"], ["x", "y", "z", "a", "b", "c", "d"]):
        (mask,) = ask(PATH, inputs="a<mask>", targets=targets)["results"][0]["masks"]
        assert scores(mask) == {target: everything[target] for target in targets}
        (mask,) = ask(PATH, inputs="a<mask>", targets=targets, top_k=2)["results"][0]["masks"]
        best = sorted(targets, key=everything.get, reverse=True)[:2]
        assert [candidate["token"] for candidate in mask["candidates"]] == best


@pytest.mark.parametrize("num_targets", [1, 3, 28])
@pytest.mark.parametrize("top_k", [None, 1, 3, 5, 100])
def test_there_are_as_many_candidates_as_targets_or_as_top_k_asks_for_if_fewer(
    ask, num_targets, top_k
):
    targets = list(MASKED.symbols[:num_targets])
    result = ask(PATH, inputs="<mask>a<mask>", targets=targets, top_k=top_k)["results"][0]
    for mask in result["masks"]:
        assert len(mask["candidates"]) == min(top_k or num_targets, num_targets)


@pytest.mark.parametrize("num_masks", [1, 2, 3])
@pytest.mark.parametrize("num_texts", [1, 2])
def test_the_answer_has_one_shape_however_many_texts_and_masks(ask, num_masks, num_texts):
    """A list of one is answered as a list, and no special token leaks into what is filled."""
    inputs = ["a<mask>" * num_masks] * num_texts
    results = ask(PATH, inputs=inputs)["results"]
    assert len(results) == num_texts
    for result in results:
        assert [mask["index"] for mask in result["masks"]] == list(range(num_masks))
        assert [list(mask) for mask in result["masks"]] == [list(result["masks"][0])] * num_masks
        assert len(result["filled"]) == 2 * num_masks
        assert set(result["filled"]) <= set(MASKED.alphabet)


def test_more_attention_than_an_answer_may_hold_is_refused_with_a_way_out(client):
    many = ["ab<mask>"] * 2
    limit = 2 * 2 * 9 * len(many) - 1
    context = client.app.state.context
    settings = context.settings.model_copy(update={"max_attention_values": limit})
    client.app.state.context = dataclasses.replace(context, settings=settings)
    try:
        answer = client.post(PATH, json={"inputs": many, "attention": True})
        assert answer.status_code == 413
        error = answer.json()["error"]
        assert (error["param"], error["code"]) == ("attention", "too_large")
        assert f"at most {limit} attention weights, got {limit + 1}" in error["message"]
        for fewer in ({"layers": [1]}, {"heads": "mean"}):
            assert client.post(PATH, json={"inputs": many, "attention": fewer}).status_code == 200
    finally:
        client.app.state.context = context


def test_a_long_text_is_read_in_the_window_centred_on_each_mask(ask, predict):
    text = "_" + LONG[1:30] + "_" + LONG[31:-1] + "_"
    tokens = token_ids(text)
    answer = ask(PATH, inputs=text, mask_token="_", top_k=28)
    result = answer["results"][0]
    assert answer["usage"] == {"input_tokens": len(text)}
    assert result["normalized"] == text.replace("_", MASK)
    positions = [mask["position"] for mask in result["masks"]]
    assert positions == [0, 30, len(text) - 1]
    windows = [mask["window"] for mask in result["masks"]]
    assert windows == [[0, 16], [22, 38], [len(text) - 16, len(text)]]
    for mask in result["masks"]:
        start, end = mask["window"]
        probs, _ = predict(tokens[start:end])
        expected = probs[mask["position"] - start]
        found = scores(mask)
        np.testing.assert_allclose([found[s] for s in MASKED.symbols], expected, atol=ATOL)


@pytest.mark.parametrize(
    "text",
    [
        "the ti_e _achin_",
        "_" * WINDOW,
        LONG[:20] + "_" + LONG[21:25] + "__" + LONG[27:-1] + "_",
        "".join("_" if i % 5 == 0 else c for i, c in enumerate(LONG)),
        "".join("_" if i % 20 < 3 else c for i, c in enumerate(LONG)),
        "_" * (WINDOW + 8),
    ],
    ids=["one window", "only masks", "windows", "windows that overlap", "groups", "only and long"],
)
def test_filled_is_what_repeated_filling_of_the_surest_mask_gives(ask, predict, text):
    result = ask(PATH, inputs=text, mask_token="_")["results"][0]
    assert result["filled"] == fill(predict, token_ids(text))


def test_the_surest_mask_is_settled_first_and_never_as_unknown():
    tokens = np.array([5, MASK_ID, MASK_ID], np.int32)
    probs = [np.array([0.8, 0.1, 0.1]), np.array([0.1, 0.3, 0.6]), np.array([0.8, 0.15, 0.05])]
    filling = Filling(tokens, {1: Belief(Span(0, 3), probs[0]), 2: Belief(Span(0, 3), probs[1])})
    assert filling.advance(first_id=1) == [1]
    assert list(filling.open) == [1]
    assert tokens.tolist() == [5, MASK_ID, 2]
    filling.open[1] = Belief(Span(0, 3), probs[2])
    assert filling.advance(first_id=1) == []
    assert filling.open == {}
    assert tokens.tolist() == [5, 1, 2]


def test_only_masks_that_see_what_was_filled_are_read_again():
    tokens = np.full(12, MASK_ID, np.int32)
    beliefs = {
        position: Belief(Span(max(position - 2, 0), position + 2), np.array([0, sure, 0.1]))
        for position, sure in [(0, 0.9), (4, 0.5), (5, 0.8), (7, 0.6)]
    }
    filling = Filling(tokens, dict(beliefs))
    # Nothing sees position 0, so 5 follows at once; 4 sees 5 as its last, 7 as its first.
    assert filling.advance(first_id=1) == [4, 7]
    assert filling.open == {4: beliefs[4], 7: beliefs[7]}
    # Now 4 is filled, which is too far to the left of 7.
    filling.open[4] = Belief(Span(2, 6), np.array([0, 0.7, 0.1]))
    assert filling.advance(first_id=1) == []
    assert np.flatnonzero(tokens != MASK_ID).tolist() == [0, 4, 5, 7]


@pytest.mark.parametrize(
    ("text", "num_passes"),
    [
        ("a_", 1),
        ("_a_a_", 3),
        (("_" + "a" * WINDOW) * 5, 5),
        # Masks at the start share a window, the other two do not; then one of each pair again.
        (("__" + "a" * WINDOW) * 2, 5),
    ],
    ids=["one", "in one window", "scattered", "in pairs"],
)
def test_filling_reads_no_more_than_what_has_changed(client, ask, monkeypatch, text, num_passes):
    engine = client.app.state.context.registry.find("masked-lm").engine
    rows = []

    def run(name, batch):
        rows.extend(batch)
        return type(engine).run(engine, name, batch)

    monkeypatch.setattr(engine, "run", run)
    ask(PATH, inputs=text, mask_token="_")
    assert len(rows) == num_passes


def test_filling_jointly_differs_from_filling_every_mask_by_itself(ask):
    result = ask(PATH, inputs="_" * WINDOW, mask_token="_", top_k=28)["results"][0]
    alone = "".join(
        max((c for c in mask["candidates"] if c["token"] != "<unk>"), key=lambda c: c["score"])[
            "token"
        ]
        for mask in result["masks"]
    )
    assert len(result["filled"]) == WINDOW
    assert result["filled"] != alone


def test_attention_is_the_models_and_its_rows_sum_to_one(ask, predict):
    text = "the ti_e m_ch"
    attention = ask(PATH, inputs=text, mask_token="_", attention=True)["results"][0]["attention"]
    assert list(attention) == [
        "source_tokens",
        "target_tokens",
        "layers",
        "heads",
        "shape",
        "weights",
    ]
    assert attention["source_tokens"] == [MASK if c == "_" else c for c in text]
    assert attention["target_tokens"] == attention["source_tokens"]
    assert attention["layers"] == [0, 1]
    assert attention["heads"] == [0, 1]
    assert attention["shape"] == [2, 2, 13, 13]
    weights = np.array(attention["weights"])
    np.testing.assert_allclose(weights, predict(token_ids(text))[1], atol=ATOL)
    np.testing.assert_allclose(weights.sum(axis=-1), 1, atol=ATOL)


@pytest.mark.parametrize(
    ("choice", "layers", "heads"),
    [
        ({}, [0, 1], [0, 1]),
        ({"layers": "all", "heads": "all"}, [0, 1], [0, 1]),
        ({"layers": [1]}, [1], [0, 1]),
        ({"layers": [1, 0], "heads": [1]}, [1, 0], [1]),
        ({"heads": [1, 0]}, [0, 1], [1, 0]),
    ],
    ids=str,
)
def test_layers_and_heads_are_those_that_were_asked_for(ask, choice, layers, heads):
    def attention(asked):
        return ask(PATH, inputs="ab<mask>", attention=asked)["results"][0]["attention"]

    everything = np.array(attention(True)["weights"])
    found = attention(choice)
    assert (found["layers"], found["heads"]) == (layers, heads)
    assert found["shape"] == [len(layers), len(heads), 3, 3]
    np.testing.assert_array_equal(found["weights"], everything[layers][:, heads])
    packed = attention(choice | {"encoding": "base64"})
    values = np.frombuffer(base64.b64decode(packed["weights"]), "<f4").reshape(packed["shape"])
    np.testing.assert_array_equal(values, np.array(found["weights"], np.float32))
    assert {**packed, "weights": None} == {**found, "weights": None}


def test_heads_can_be_averaged(ask):
    def attention(asked):
        return ask(PATH, inputs="ab<mask>", attention=asked)["results"][0]["attention"]

    mean = attention({"heads": "mean"})
    assert mean["heads"] == ["mean"]
    assert mean["shape"] == [2, 1, 3, 3]
    everything = np.array(attention(True)["weights"])
    np.testing.assert_allclose(mean["weights"], everything.mean(axis=1, keepdims=True), atol=ATOL)


def test_attention_that_is_not_wanted_is_not_sent_and_changes_nothing_else(ask):
    plain = ask(PATH, inputs="ab<mask>")
    assert ask(PATH, inputs="ab<mask>", attention=False) == plain
    assert ask(PATH, inputs="ab<mask>", attention=None) == plain
    assert "attention" not in plain["results"][0]
    with_attention = ask(PATH, inputs="ab<mask>", attention=True)["results"][0]
    assert with_attention["filled"] == plain["results"][0]["filled"]


def sides_of(tokens, position):
    """The windows of a mask that end with it, begin with it, and hold both sides."""
    start, end = window_of(tokens, position)
    return {"left": (start, position + 1), "right": (position, end), "both": (start, end)}


@pytest.mark.parametrize(
    "text",
    ["_", "_bc", "ab_", "the ti_e", "_a_b__", "__", LONG[:20] + "__" + LONG[22:40] + "_"],
    ids=["alone", "first", "last", "between", "many", "only masks", "long"],
)
@pytest.mark.parametrize("targets", [None, ["q", "e", " "]], ids=["top", "targets"])
def test_evidence_is_what_the_model_reads_of_each_side_alone_and_of_both(
    ask, predict, text, targets
):
    tokens = token_ids(text)
    options = {"mask_token": "_", "targets": targets}
    result = ask(PATH, inputs=text, evidence=True, **options)["results"][0]
    for mask in result["masks"]:
        position, ids = mask["position"], [c["token_id"] for c in mask["candidates"]]
        evidence = mask["evidence"]
        assert list(evidence) == ["left", "right", "both"]
        for name, (start, end) in sides_of(tokens, position).items():
            # Other masks of the side stay masks.
            expected = predict(tokens[start:end])[0][position - start]
            side = evidence[name]
            assert list(side) == ["window", "entropy", "scores"]
            assert side["window"] == [start, end]
            np.testing.assert_allclose(side["scores"], expected[ids], atol=ATOL)
            assert side["entropy"] == pytest.approx(-(expected * np.log(expected)).sum(), abs=1e-4)
        assert evidence["both"]["window"] == mask["window"]
        assert evidence["both"]["entropy"] == mask["entropy"]
        assert evidence["both"]["scores"] == [c["score"] for c in mask["candidates"]]


def test_a_side_without_any_token_is_the_mask_by_itself(ask):
    alone = ask(PATH, inputs="<mask>", top_k=28)["results"][0]["masks"][0]
    for text, side, other in (("<mask>bc", "left", "right"), ("ab<mask>", "right", "left")):
        (mask,) = ask(PATH, inputs=text, evidence=True, top_k=28)["results"][0]["masks"]
        names = [candidate["token"] for candidate in mask["candidates"]]
        found = dict(zip(names, mask["evidence"][side]["scores"], strict=True))
        assert found == pytest.approx(scores(alone), abs=ATOL)
        assert mask["evidence"][other] == mask["evidence"]["both"]


def test_evidence_changes_nothing_else_whatever_else_is_asked_for(ask):
    texts = ["a tim<mask>", "<mask>ab<mask>d", LONG[:9] + "<mask>"]
    for attention in (False, {"heads": "mean"}):
        plain = ask(PATH, inputs=texts, attention=attention)
        assert ask(PATH, inputs=texts, attention=attention, evidence=False) == plain
        full = ask(PATH, inputs=texts, attention=attention, evidence=True)
        assert full["usage"] == plain["usage"]
        for result, twin in zip(full["results"], plain["results"], strict=True):
            bare = {**result, "masks": [dict(mask) for mask in result["masks"]]}
            assert all(mask.pop("evidence") for mask in bare["masks"])
            numbers, expected = [], []
            assert split(bare, numbers) == split(twin, expected)
            np.testing.assert_allclose(numbers, expected, atol=1e-4)


@pytest.mark.parametrize(
    ("text", "num_passes"),
    [("ab_de", 3), ("_", 1), ("_a", 2), ("a_c_", 4), ("a" * WINDOW + "_" + "a" * WINDOW, 3)],
    ids=["both sides", "alone", "first", "two masks", "long"],
)
def test_evidence_is_asked_for_with_the_main_pass(client, ask, monkeypatch, text, num_passes):
    """Each crop once, and together with that text; only filling reads again."""
    batcher = client.app.state.context.batcher
    submitted = []

    async def submit(groups, ticket):
        submitted.append(len(groups))
        return await type(batcher).submit(batcher, groups, ticket)

    monkeypatch.setattr(batcher, "submit", submit)
    ask(PATH, inputs=text, mask_token="_", evidence=True)
    assert submitted[0] == num_passes
    assert len(submitted) == text.count("_")


def test_more_passes_than_the_queue_ever_holds_are_refused_by_name(client):
    body = {"inputs": ["ab<mask>de<mask>"] * 64, "evidence": True, "targets": ["a"]}
    assert client.post(PATH, json=body).status_code == 200
    body["inputs"] = ["ab<mask>de<mask>f<mask>g<mask>h"] * 64
    answer = client.post(PATH, json=body)
    assert answer.status_code == 413
    assert answer.json()["error"]["message"] == (
        "inputs: expected masks and sides that take at most 512 passes, got 576; send fewer texts "
        "or masks"
    )


def same(results, expected):
    assert [result["normalized"] for result in results] == [r["normalized"] for r in expected]
    assert [result["filled"] for result in results] == [r["filled"] for r in expected]
    for result, other in zip(results, expected, strict=True):
        for mask, twin in zip(result["masks"], other["masks"], strict=True):
            assert {**mask, "entropy": 0, "candidates": 0} == {
                **twin,
                "entropy": 0,
                "candidates": 0,
            }
            assert scores(mask) == pytest.approx(scores(twin), abs=ATOL)


def test_one_text_in_a_list_is_answered_like_the_text_itself(ask):
    assert ask(PATH, inputs=["a tim<mask>"]) == ask(PATH, inputs="a tim<mask>")


def test_many_texts_are_answered_like_each_by_itself(ask):
    generator = np.random.default_rng(0)
    texts = []
    for _ in range(40):
        start, size = generator.integers(0, 40), generator.integers(1, 40)
        text = list(LONG[start : start + size])
        for position in generator.integers(0, len(text), 2):
            text[position] = "_"
        texts.append("".join(text))
    together = ask(PATH, inputs=texts, mask_token="_", top_k=28)
    alone = [ask(PATH, inputs=text, mask_token="_", top_k=28) for text in texts]
    same(together["results"], [answer["results"][0] for answer in alone])
    tokens = sum(answer["usage"]["input_tokens"] for answer in alone)
    assert together["usage"] == {"input_tokens": tokens}


def test_the_model_can_be_named(ask):
    assert ask(PATH, inputs="a<mask>", model="masked-lm") == ask(PATH, inputs="a<mask>", model=None)


def test_entropy_is_in_nats_and_of_certainty_zero():
    def entropy(*probs):
        return Belief(Span(0, 1), np.array(probs)).entropy

    assert entropy(0.0, 1.0, 0.0) == 0
    assert entropy(*[0.25] * 4) == pytest.approx(math.log(4))
