"""What is wrong with a request that does not fit its schema, in terms of the JSON that came."""

from collections.abc import Sequence
from typing import Any, TypeVar

from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ValidationError

from service import hugging_face, schemas, tensor_schemas
from service.errors import excerpt
from service.schemas import UNKNOWN_FIELD

FIELD_NAMES = schemas.FIELD_NAMES | hugging_face.FIELD_NAMES | tensor_schemas.FIELD_NAMES

# What was expected, by the type of pydantic's error; its own words speak of Python.
WANTED = {
    "bool_type": "true or false",
    "dict_type": "an object",
    "finite_number": "a finite number",
    "float_type": "a number",
    "greater_than": "more than {gt:g}",
    "greater_than_equal": "at least {ge:g}",
    "int_type": "an integer",
    "less_than": "less than {lt:g}",
    "less_than_equal": "at most {le:g}",
    "list_type": "a list",
    "literal_error": "{expected}",
    "model_attributes_type": "an object",
    "model_type": "an object",
    "string_too_short": "at least {min_length} character",
    "string_type": "a string",
    "too_long": "at most {max_length} items",
    "too_short": "at least {min_length} item(s)",
    UNKNOWN_FIELD: "one of the fields {expected}",
}


Schema = TypeVar("Schema", bound=BaseModel)


def validated(schema: type[Schema], body: Any) -> Schema:
    """``body`` as what ``schema`` describes.

    Raises:
        RequestValidationError: if it does not fit.
    """
    try:
        return schema.model_validate(body)
    except ValidationError as error:
        raise RequestValidationError(
            [{**detail, "loc": ("body", *detail["loc"])} for detail in error.errors()]
        ) from None


def explain(details: Sequence[dict[str, Any]]) -> tuple[str | None, str]:
    """The field at fault and the message, for the first of some validation errors.

    A value that fits none of several types has an error for each. The one that went deepest into
    the value tells best what is wrong with it; those of equal depth are told together.
    """
    first = [detail for detail in details if detail["loc"][:2] == details[0]["loc"][:2]]
    paths = [_path(detail) for detail in first]
    deepest = max(paths, key=len)
    alike = [d for d, path in zip(first, paths, strict=True) if path == deepest]
    param = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in deepest)[1:]
    message = _message(alike, has_field=bool(param))
    return (param, f"{param}: {message}") if param else (None, message)


def _path(detail: dict[str, Any]) -> list[str | int]:
    """Where a validation error is, without the names of the types that were tried on the way."""
    path = [part for part in detail["loc"][1:] if isinstance(part, int) or part in FIELD_NAMES]
    return [*path, detail["ctx"]["field"]] if detail["type"] == UNKNOWN_FIELD else path


def _message(alike: Sequence[dict[str, Any]], *, has_field: bool) -> str:
    if alike[0]["type"] == "missing":
        # FastAPI takes a body of null for none.
        return "expected a value, got none" if has_field else "expected an object, got null"
    expected = " or ".join(dict.fromkeys(map(_wanted, alike)))
    if alike[0]["type"] == UNKNOWN_FIELD:
        return f"expected {expected}"
    return f"expected {expected}, got {excerpt(alike[0]['input'])}"


def _wanted(detail: dict[str, Any]) -> str:
    template = WANTED.get(detail["type"])
    wanted = template.format(**detail.get("ctx", {})) if template else str(detail["msg"])
    return "false" if wanted == "False" else wanted
