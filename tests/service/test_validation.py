import pytest
from pydantic import ValidationError

from service.schemas import CompletionRequest, DecodeRequest, FillMaskRequest, LatentsRequest
from service.validation import explain

FILL = "model, inputs, top_k, targets, mask_token, evidence, attention"


def fault(schema, body):
    """What a caller is told who sends ``body``."""
    with pytest.raises(ValidationError) as caught:
        schema.model_validate(body, from_attributes=True)
    details = [detail | {"loc": ("body", *detail["loc"])} for detail in caught.value.errors()]
    return explain(details)


@pytest.mark.parametrize(
    ("schema", "body", "param", "message"),
    [
        (FillMaskRequest, [1], None, "expected an object, got [1]"),
        (FillMaskRequest, "x", None, "expected an object, got 'x'"),
        (FillMaskRequest, {}, "inputs", "expected a value, got none"),
        (FillMaskRequest, {"inputs": 5}, "inputs", "expected a string or a list, got 5"),
        (FillMaskRequest, {"inputs": None}, "inputs", "expected a string or a list, got null"),
        (FillMaskRequest, {"inputs": ["a", True]}, "inputs[1]", "expected a string, got true"),
        (FillMaskRequest, {"inputs": "a", "nope": 1}, "nope", f"expected one of the fields {FILL}"),
        (FillMaskRequest, {"inputs": "a", "top_k": 0}, "top_k", "expected at least 1, got 0"),
        (FillMaskRequest, {"inputs": "a", "top_k": "5"}, "top_k", "expected an integer, got '5'"),
        (FillMaskRequest, {"inputs": "a", "top_k": True}, "top_k", "expected an integer, got true"),
        (FillMaskRequest, {"inputs": "a", "top_k": 5.0}, "top_k", "expected an integer, got 5.0"),
        (
            FillMaskRequest,
            {"inputs": "a", "targets": []},
            "targets",
            "expected at least 1 item(s), got []",
        ),
        (
            FillMaskRequest,
            {"inputs": "a", "mask_token": ""},
            "mask_token",
            "expected at least 1 character, got ''",
        ),
        (
            FillMaskRequest,
            {"inputs": "a", "evidence": 1},
            "evidence",
            "expected true or false, got 1",
        ),
        (
            FillMaskRequest,
            {"inputs": "a", "attention": "all"},
            "attention",
            "expected true or false or an object, got 'all'",
        ),
        (
            FillMaskRequest,
            {"inputs": "a", "attention": {"layer": 1}},
            "attention.layer",
            "expected one of the fields layers, heads, encoding",
        ),
        (
            FillMaskRequest,
            {"inputs": "a", "attention": {"layers": "some"}},
            "attention.layers",
            "expected 'all' or a list, got 'some'",
        ),
        (
            FillMaskRequest,
            {"inputs": "a", "attention": {"heads": [0, -1]}},
            "attention.heads[1]",
            "expected at least 0, got -1",
        ),
        (
            FillMaskRequest,
            {"inputs": "a", "attention": {"encoding": "npy"}},
            "attention.encoding",
            "expected 'float' or 'base64', got 'npy'",
        ),
        (
            DecodeRequest,
            {"inputs": "a", "stream": "yes"},
            "stream",
            "expected true or false, got 'yes'",
        ),
        (DecodeRequest, {"inputs": "a", "num_beams": 9}, "num_beams", "expected at most 8, got 9"),
        (CompletionRequest, {"stream": "yes"}, "stream", "expected true or false, got 'yes'"),
        (
            LatentsRequest,
            {"features": "AAAA"},
            "features",
            "expected an object or a list, got 'AAAA'",
        ),
        (
            LatentsRequest,
            {"features": {"data": "AAAA", "shape": [1]}},
            "features.shape",
            "expected at least 2 item(s), got [1]",
        ),
        (
            LatentsRequest,
            {"features": {"data": "AAAA", "shape": [1] * 4}},
            "features.shape",
            "expected at most 3 items, got [1, 1, 1, ...]",
        ),
        (
            LatentsRequest,
            {"features": {"data": "AAAA", "shape": [1, -1]}},
            "features.shape[1]",
            "expected at least 1, got -1",
        ),
        (LatentsRequest, {"features": {}}, "features.data", "expected a value, got none"),
        (
            CompletionRequest,
            {"temperature": 2.5},
            "temperature",
            "expected at most 2, got 2.5",
        ),
        (CompletionRequest, {"top_p": 0}, "top_p", "expected more than 0, got 0"),
        (CompletionRequest, {"top_p": "1"}, "top_p", "expected a number, got '1'"),
        (
            CompletionRequest,
            {"temperature": float("nan")},
            "temperature",
            "expected a finite number, got nan",
        ),
        (CompletionRequest, {"echo": 1}, "echo", "expected true or false, got 1"),
        (
            CompletionRequest,
            {"seed": 2**63},
            "seed",
            "expected less than 9.22337e+18, got 9223372036854775808",
        ),
    ],
    ids=str,
)
def test_a_fault_is_told_by_field_and_by_what_was_expected_and_came(schema, body, param, message):
    assert fault(schema, body) == (param, f"{param}: {message}" if param else message)


def test_a_body_of_null_is_told_as_such():
    assert explain([{"type": "missing", "loc": ("body",), "msg": "Field required"}]) == (
        None,
        "expected an object, got null",
    )


@pytest.mark.parametrize(
    "body",
    [
        {"inputs": [0] * 50_000},
        {"inputs": "a"} | {f"x{i}": 0 for i in range(50_000)},
        {"inputs": "a", "targets": [None] * 50_000},
        {"inputs": "a", "attention": {"layers": [-1] * 50_000, "heads": [-1] * 50_000}},
        {"inputs": "a", "attention": {f"x{i}": 0 for i in range(50_000)}},
    ],
    ids=["inputs", "unknown fields", "targets", "layers and heads", "unknown fields within"],
)
def test_a_body_with_many_faults_is_not_described_fault_by_fault(body):
    with pytest.raises(ValidationError) as caught:
        FillMaskRequest.model_validate(body)
    assert caught.value.error_count() <= 6


def test_names_of_unknown_fields_are_cut():
    param, message = fault(FillMaskRequest, {"inputs": "a", "x" * 1000: 1})
    assert param == "x" * 40
    assert len(message) < 200
