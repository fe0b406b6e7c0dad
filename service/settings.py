"""What can be set: by flags, by ``TRIWIRE_*`` variables, or in a file, in that order."""

import json
import re
import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal

from dotenv import dotenv_values
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PositiveInt,
    SecretStr,
)
from pydantic_settings import (
    BaseSettings,
    InitSettingsSource,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

# What is neither a flag nor told in a message.
SECRETS = frozenset({"api_keys"})
PREFIX = "TRIWIRE_"
CHECKPOINTS = Path(__file__).parent.parent / "checkpoints"


def _split(value: Any) -> Any:
    """The parts of a list as variables and flags write it, with commas between them."""
    if not isinstance(value, str):
        return value
    return tuple(part.strip() for part in value.split(",") if part.strip())


def _parse_json(value: Any) -> Any:
    """What JSON in a variable or a flag says; files can hold the objects themselves."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except json.JSONDecodeError as error:
        raise ValueError(f"expected JSON: {error}") from None


def _require_selection(value: str) -> str:
    if not re.fullmatch("[^/]+(/[0-9]+)?", value):
        raise ValueError("expected NAME or NAME/VERSION")
    return value


def _require_prefix(value: str) -> str:
    if value and not re.fullmatch(r"(/[^/?#\s]+)+", value):
        raise ValueError("expected a path such as /triwire, without a slash at its end")
    return value


Selected = Annotated[str, AfterValidator(_require_selection)]
Listed = (NoDecode, BeforeValidator(_split))


class GridSetting(BaseModel):
    """The shapes of a program; what is left out is as the program has it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    batch_sizes: tuple[PositiveInt, ...] | None = None
    lengths: tuple[PositiveInt, ...] | None = None
    max_tokens: PositiveInt = 4096


class Settings(BaseSettings):
    """All settings of the service; every field is read from ``TRIWIRE_`` and its name."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, frozen=True, extra="forbid")

    host: str = Field(
        default="127.0.0.1", description="Address to listen on; 0.0.0.0 for every one."
    )
    port: int = Field(
        default=8000, ge=0, le=65535, description="Port to listen on; 0 picks a free one."
    )
    checkpoints: Path = Field(default=CHECKPOINTS, description="Directory of NAME/VERSION bundles.")
    models: Annotated[tuple[Selected, ...], *Listed] = Field(
        default=(),
        description="Models to serve, with commas between them: NAME for its highest version, or "
        "NAME/VERSION; by default the highest version of every name.",
    )
    device: Literal["auto", "cpu", "gpu", "tpu"] = Field(
        default="auto",
        description="Where models run: auto, cpu, gpu or tpu. One that is not there is an error; "
        "auto takes what JAX prefers.",
    )
    dtype: Literal["float32", "bfloat16"] = Field(
        default="float32",
        description="What matrices are multiplied in: float32, or bfloat16, with half the memory "
        "for them and two to three digits; about half the time on CPUs with units for it.",
    )
    grids: Annotated[dict[str, GridSetting], NoDecode, BeforeValidator(_parse_json)] = Field(
        default={},
        description="Shapes to compile for programs, by name, as JSON: "
        '{"fill-mask": {"batch_sizes": [8, 64], "lengths": [16], "max_tokens": 8192}}. Beside '
        "these there is always a batch of 1, and the longest length that the model takes.",
    )
    calls_at_once: int = Field(
        default=0,
        ge=0,
        le=64,
        description="Calls of models that run side by side, each in a thread of its own. By "
        "default, on a CPU one for every core that there is, up to 8; elsewhere one.",
    )
    compilation_cache: str = Field(
        default="auto",
        min_length=1,
        description="Directory that keeps compiled programs for the next start, or off; auto is "
        "triwire under $XDG_CACHE_HOME or ~/.cache. Who may write there can run code here.",
    )
    api_keys: Annotated[tuple[SecretStr, ...], *Listed] = Field(
        default=(),
        description="Keys that open the service, with commas between them; sent as Authorization: "
        "Bearer KEY. Without any, here or in the file, it is open to all.",
    )
    api_keys_file: Path | None = Field(
        default=None,
        description="File with a key on each line, lines with # in front left out; read again on "
        "SIGHUP.",
    )
    protected: Annotated[tuple[Literal["probes", "metrics", "docs"], ...], *Listed] = Field(
        default=(),
        description="What needs a key beside the API itself: probes, metrics, docs.",
    )
    cors_origins: Annotated[tuple[str, ...], *Listed] = Field(
        default=(),
        description="Origins whose pages may call from a browser, with commas between them; * for "
        "every one.",
    )
    root_path: Annotated[str, AfterValidator(_require_prefix)] = Field(
        default="", description="Prefix under which a proxy serves this, as /triwire."
    )
    log_format: Literal["auto", "json", "text"] = Field(
        default="auto", description="json or text; auto is text on a terminal and json elsewhere."
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="The least severe that is logged: debug, info, warning, error."
    )
    tracing: bool = Field(
        default=False,
        description="Whether spans go to OpenTelemetry; needs the extra otel, and OTEL_* variables "
        "say where to.",
    )
    shutdown_grace_s: float = Field(
        default=5.0,
        ge=0,
        allow_inf_nan=False,
        description="Seconds that SIGTERM lets pass, not ready but serving, before nothing new is "
        "taken.",
    )
    drain_timeout_s: float = Field(
        default=30.0,
        ge=0,
        allow_inf_nan=False,
        description="Seconds that requests under way have to finish after that.",
    )
    max_body_bytes: int = Field(
        default=32 * 2**20, ge=1, description="Largest request body; a larger one is answered 413."
    )
    max_inputs: int = Field(
        default=64, ge=1, description="Most inputs of one request; more are answered 422."
    )
    max_text_len: int = Field(
        default=8192,
        ge=1,
        description="Longest text in characters, before normalisation, else 422.",
    )
    max_masks: int = Field(
        default=64,
        ge=1,
        description="Most masks of one text. Filling one costs a pass over a text that fits the "
        "window, otherwise a pass for every open mask whose window it is in.",
    )
    max_new_tokens: int = Field(
        default=1024, ge=1, description="Most tokens that one completion may ask for."
    )
    max_attention_values: int = Field(
        default=1_000_000,
        ge=1,
        description="Most attention weights of one answer; more are answered 413.",
    )
    max_queue_rows: int = Field(
        default=512,
        ge=1,
        description="Rows that may wait for the device; beyond, requests get 429.",
    )
    max_concurrent_requests: int = Field(
        default=256,
        ge=1,
        description="Requests that may be under way; beyond, they get 429.",
    )
    request_timeout_s: float = Field(
        default=30.0,
        gt=0,
        allow_inf_nan=False,
        description="Seconds until a request that is not answered gets 504.",
    )


class SettingsFileError(ValueError):
    """The file of settings cannot be used."""


def load_settings(file: str | Path | None = None, **given: Any) -> Settings:
    """The settings: those that are ``given``, then the environment's, then those of a file.

    A name that ends in .toml is TOML, with the settings by name at its top; anything else is lines
    of ``TRIWIRE_NAME=value``.

    Raises:
        SettingsFileError: if the file cannot be read, or holds what is no setting.
        ValidationError: if a value is wrong.
    """
    if file is None:
        return Settings(**given)
    content = _read(Path(file))

    class WithFile(Settings):
        @classmethod
        def settings_customise_sources(
            cls,
            settings_cls: type[BaseSettings],
            init_settings: PydanticBaseSettingsSource,
            env_settings: PydanticBaseSettingsSource,
            dotenv_settings: PydanticBaseSettingsSource,
            file_secret_settings: PydanticBaseSettingsSource,
        ) -> tuple[PydanticBaseSettingsSource, ...]:
            from_file = InitSettingsSource(settings_cls, content)
            return init_settings, env_settings, from_file

    return Settings.model_construct(**dict(WithFile(**given)))


def _read(file: Path) -> dict[str, Any]:
    """The settings that a file holds, by name."""
    try:
        if file.suffix == ".toml":
            content = tomllib.loads(file.read_text(encoding="utf-8"))
        else:
            with file.open(encoding="utf-8") as stream:
                values = dotenv_values(stream=stream)
            content = {_unprefixed(name): value for name, value in values.items()}
    except OSError as error:
        raise SettingsFileError(f"expected a readable file, got {file}: {error.strerror}") from None
    except ValueError as error:
        raise SettingsFileError(f"{file}: {error}") from None
    unknown = sorted(content.keys() - Settings.model_fields.keys())
    if unknown:
        raise SettingsFileError(f"{file}: expected names of settings, got {unknown[0]!r}")
    return content


def _unprefixed(name: str) -> str:
    if not name.upper().startswith(PREFIX):
        raise ValueError(f"expected names that start with {PREFIX}, got {name!r}")
    return name[len(PREFIX) :].lower()
