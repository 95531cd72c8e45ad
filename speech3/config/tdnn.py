"""Time-delay networks: the config classes of the families ``tdnn``, ``cnn_tdnn`` and ``tdnn_lstm``."""

from collections.abc import Sequence
from typing import Any, Literal

from pydantic import Field, PositiveInt, field_validator, model_validator

from speech3.config.base import Config
from speech3.config.features import FeatureConfig
from speech3.config.models import LstmConfig, ModelConfig, check_cells, check_sizes
from speech3.errors import Speech3Error


class TdnnConfig(ModelConfig):
    """An affine layer over five frames, then factored time-delay layers (Povey et al. 2018).

    Times are counted in steps of three frames, whatever `subsampling` is: the same network has one output for every
    step or, with three times the computation, one for every frame.
    """

    family: Literal["tdnn"] = "tdnn"
    left_context: Literal[0] = Field(0, description="do not set: the layers determine it")
    right_context: Literal[0] = Field(0, description="do not set: the layers determine it")
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

    @field_validator("left_context", "right_context", mode="before")
    @classmethod
    def _not_set(cls, value: Any) -> Any:
        return _without_context(value)

    @property
    def layer_bottlenecks(self) -> tuple[int, ...]:
        """The bottleneck of each factored layer."""
        return self.bottlenecks or (self.bottleneck,) * self.layers

    @model_validator(mode="after")
    def _consistent(self) -> "TdnnConfig":
        check_sizes(self.bottlenecks, self.layers, "bottlenecks")
        for bottleneck in {self.bottleneck, *self.bottlenecks}:
            _narrows(self.width, bottleneck)
        return self


def _narrows(width: int, bottleneck: int) -> None:
    if width and bottleneck >= width:
        raise ValueError(f"bottleneck={bottleneck} must be below width={width}: it reduces the dimension")


def _without_context(value: Any) -> Any:
    if value != 0:
        raise ValueError("the layers of this family determine the context; leave it out")
    return value


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
        _sees_every_frame(self.convolutions, self.frames_per_output)
        return self


def _sees_every_frame(convolutions: Sequence[StridedConvolutionConfig], subsampling: int) -> None:
    frames = convolutions[0].kernel[1]
    if frames < subsampling:
        raise ValueError(
            f"convolutions.0.kernel: {frames} frames, moved by subsampling={subsampling}, would skip frames; "
            f"make the kernel longer in time"
        )


class TdnnLstmConfig(LstmConfig):
    """The first layers of a ``cnn_tdnn`` or, without `convolutions`, of a ``tdnn``, then layers of LSTM cells.

    `dropout` is that of the cells and of the layers after them.
    """

    family: Literal["tdnn_lstm"] = "tdnn_lstm"  # type: ignore[assignment]  # another family with the same keys and more
    left_context: Literal[0] = Field(0, description="do not set: the layers determine it")
    right_context: Literal[0] = Field(0, description="do not set: the layers determine it")
    input_layers: tuple[()] = Field((), description="do not set: the time-delay layers come before the cells")
    convolutions: tuple[StridedConvolutionConfig, ...] = Field(
        (), description="over frequency and time, before the time-delay layers"
    )
    time_layers: int = Field(5, ge=1, description="factored time-delay layers before the cells")
    width: int = Field(384, ge=1, description="of the time-delay layers")
    bottleneck: int = Field(96, ge=1, description="width between the two products of a factored layer")
    context: int = Field(1, ge=1, description="steps between the two times that each product of a layer sees")
    bypass: float = Field(0.66, ge=0, le=1, description="scale with which a layer's input is added to its output")
    time_dropout: float = Field(
        0.1, ge=0, lt=1, description="probability for units of factored layers, with one mask for a whole chunk"
    )

    @field_validator("left_context", "right_context", mode="before")
    @classmethod
    def _not_set(cls, value: Any) -> Any:
        return _without_context(value)

    @field_validator("input_layers", mode="before")
    @classmethod
    def _time_layers_instead(cls, value: Any) -> Any:
        if value:
            raise ValueError("the layers before the cells are time_layers; leave it out")
        return value

    @property
    def system(self) -> str:
        """See `ModelConfig.system`."""
        return "tdnn_blstm" if self.bidirectional else "tdnn_lstm"

    @property
    def before_cells(self) -> TdnnConfig:
        """The time-delay network whose first and factored layers come before the cells."""
        keys = {"subsampling": self.subsampling, "layers": self.time_layers, "dropout": self.time_dropout} | {
            key: getattr(self, key) for key in ("width", "bottleneck", "context", "bypass")
        }
        return CnnTdnnConfig(**keys, convolutions=self.convolutions) if self.convolutions else TdnnConfig(**keys)

    @model_validator(mode="after")
    def _consistent(self) -> "TdnnLstmConfig":
        check_cells(self)
        _narrows(self.width, self.bottleneck)
        if self.convolutions:
            _sees_every_frame(self.convolutions, self.frames_per_output)
        return self


TIME_DELAY = (TdnnConfig, TdnnLstmConfig)  # the networks with factored layers, which are trained on single chunks


def check_frequencies(model: ModelConfig, features: FeatureConfig, source: str, prefix: str = "") -> None:
    """Refuse features that are not bins alone for convolutions, which take all values of a frame for frequencies.

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
    if found and isinstance(model, CnnTdnnConfig | TdnnLstmConfig) and model.convolutions:
        instead = "model=tdnn" if isinstance(model, CnnTdnnConfig) else "model.convolutions=[]"
        raise Speech3Error(
            f"{prefix}model: a {model.family} convolves over neighbouring frequencies, but {source} has"
            f" {', '.join(found)} besides bins; take features without, such as fbank40_utt, or set {prefix}{instead}"
        )
