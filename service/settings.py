"""What can be set, through ``TRIWIRE_*`` variables of the environment or flags."""

from pathlib import Path

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

CHECKPOINTS = Path(__file__).parent.parent / "checkpoints"


class Settings(BaseSettings):
    """All settings of the service; every field is read from ``TRIWIRE_`` and its name."""

    model_config = SettingsConfigDict(env_prefix="TRIWIRE_", frozen=True, extra="forbid")

    host: str = Field(
        default="127.0.0.1", description="Address to listen on; 0.0.0.0 for every one."
    )
    port: int = Field(
        default=8000, ge=0, le=65535, description="Port to listen on; 0 picks a free one."
    )
    checkpoints: Path = Field(default=CHECKPOINTS, description="Directory of NAME/VERSION bundles.")
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
    request_timeout_s: float = Field(
        default=30.0,
        gt=0,
        allow_inf_nan=False,
        description="Seconds until a request that is not answered gets 504.",
    )
