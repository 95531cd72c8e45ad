"""The base class of all configs."""

from pydantic import BaseModel, ConfigDict


class Config(BaseModel):
    """Base of all configs: unknown keys are errors, numbers are finite, instances are immutable."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, ser_json_inf_nan="constants")
