"""Time-delay networks: the config classes of the families ``tdnn`` and ``cnn_tdnn``."""

from typing import Any, Literal

from pydantic import Field, PositiveInt, field_validator, model_validator

from speech3.config.base import Config
from speech3.config.features import FeatureConfig
from speech3.config.models import ModelConfig, check_sizes
from speech3.errors import Speech3Error


class TdnnConfig(ModelConfig):
    """An affine layer over five frames, then factored time-delay layers (Povey et al. 2018).

    Times are counted in steps of three frames, whatever `subsampling` is: the same network has one output for every
    step or, with three times the computation, one for every frame.
    """

    family: Literal["tdnn"] = "tdnn"
    left_context: Literal[0] = Field(0, description="do not set: the layers determine it")
    right_context: Literal[0] = Field(0, description="do not set: the layers determine it")
    subsampling: Literal[1, 3] = Field(3, description="frames per output")
    layers: int = Field(9, ge=1, description="factored layers")
    width: int = Field(
        384, ge=0, description="0, in a recipe: this, bottleneck and prefinal follow the amount of speech"
    )
    bottleneck: int = Field(96, ge=1, description="width between the two products of a factored layer")
    bottlenecks: tuple[PositiveInt, ...] = Field(
        (), description="bottleneck of each layer, as training.group_lasso leaves them; empty: all have `bottleneck`"
    )
    context: int = Field(1, ge=1, description="steps between the two times that each product of a layer sees")
    bypass: float = Field(0.66, ge=0, le=1, description="scale with which a layer's input is added to its output")
    dropout: float = Field(
        0.1, ge=0, lt=1, description="probability for units of factored layers, with one mask for a whole chunk"
    )
    prefinal: int = Field(192, ge=1, description="width of the last hidden layer")
    two_outputs: bool = Field(False, description="add a second output layer, for cross-entropy besides LF-MMI")

    @field_validator("left_context", "right_context", mode="before")
    @classmethod
    def _not_set(cls, value: Any) -> Any:
        if value != 0:
            raise ValueError("the layers of this family determine the context; leave it out")
        return value

    @property
    def layer_bottlenecks(self) -> tuple[int, ...]:
        """The bottleneck of each factored layer."""
        return self.bottlenecks or (self.bottleneck,) * self.layers

    @model_validator(mode="after")
    def _narrows(self) -> "TdnnConfig":
        if self.width and self.bottleneck >= self.width:
            raise ValueError(f"bottleneck={self.bottleneck} must be below width={self.width}: it reduces the dimension")
        check_sizes(self.bottlenecks, self.layers, "bottlenecks")
        return self


class StridedConvolutionConfig(Config):
    """One convolution over frequency and time."""

    maps: int = Field(ge=1)
    kernel: tuple[PositiveInt, PositiveInt] = Field(
        description="frequency x time, no padding; time in frames in the first convolution, in steps in the others"
    )
    stride: int = Field(
        1, ge=1, description="in frequency; in time only the first convolution has a stride, which is subsampling"
    )


class CnnTdnnConfig(TdnnConfig):
    """Convolutions over frequency and time and an affine layer, then factored time-delay layers."""

    family: Literal["cnn_tdnn"] = "cnn_tdnn"  # type: ignore[assignment]  # another family with the same keys and more
    convolutions: tuple[StridedConvolutionConfig, ...] = Field(
        (
            StridedConvolutionConfig(maps=48, kernel=(5, 7), stride=2),
            StridedConvolutionConfig(maps=64, kernel=(3, 3), stride=2),
        ),
        min_length=1,
    )

    @model_validator(mode="after")
    def _sees_every_frame(self) -> "CnnTdnnConfig":
        frames = self.convolutions[0].kernel[1]
        if frames < self.subsampling:
            raise ValueError(
                f"convolutions.0.kernel: {frames} frames, moved by subsampling={self.subsampling}, would skip frames; "
                f"make the kernel longer in time"
            )
        return self


def check_frequencies(model: ModelConfig, features: FeatureConfig, source: str, prefix: str = "") -> None:
    """Refuse features that are not bins alone for a ``cnn_tdnn``, which takes all values of a frame for frequencies.

    Parameters
    ----------
    source
        The file or the key that says which features they are, for the error message.
    prefix
        Of the key ``model``: ``lfmmi.`` for the LF-MMI network of a recipe.

    Raises
    ------
    Speech3Error
        They have derivatives, energy, pitch or spliced frames.
    """
    keys = ("deltas", "pitch", "left_context", "right_context", *(["use_energy"] if features.kind == "fbank" else []))
    found = [key for key in keys if getattr(features, key)]
    if found and isinstance(model, CnnTdnnConfig):
        raise Speech3Error(
            f"{prefix}model: a {model.family} convolves over neighbouring frequencies, but {source} has"
            f" {', '.join(found)} besides bins; take features without, such as fbank40_utt, or set {prefix}model=tdnn"
        )
