"""Acoustic models: one config class per family; `ModelConfig` stands for any of them."""

from collections.abc import Sequence
from typing import Any, ClassVar, Literal, Self, get_args

from pydantic import Field, PositiveInt, ValidatorFunctionWrapHandler, field_validator, model_validator

from speech3.config.base import Config
from speech3.config.features import FeatureConfig
from speech3.errors import SettingError

Activation = Literal["relu", "sigmoid"]
Normalization = Literal["none", "batch", "layer"]
_WIDTHS = "width of each hidden layer, as training.group_lasso leaves them; empty: all have `width`"


class ModelConfig(Config):
    """Keys of every acoustic model; `family` selects the class, here and in the registry of `speech3.models`."""

    families: ClassVar[dict[str, type["ModelConfig"]]] = {}

    family: Literal["dnn", "cnn", "lstm", "tdnn", "cnn_tdnn", "tdnn_lstm"] = "dnn"
    left_context: int = Field(5, ge=0, description="frames")
    right_context: int = Field(5, ge=0, description="frames")
    dropout: float = Field(0.0, ge=0, lt=1)
    subsampling: Literal[1, 3] | None = Field(
        None, description="frames per output; none: 3 with training.objective=lfmmi, else 1"
    )
    two_outputs: bool | None = Field(
        None,
        description="add a second output layer, for cross-entropy besides LF-MMI; none: where lfmmi.cross_entropy > 0",
    )

    @property
    def system(self) -> str:
        """Name of such a network, and of its directory, in a recipe."""
        return self.family

    @property
    def frames_per_output(self) -> int:
        return self.subsampling or 1

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        """Register a subclass under the only value of its key ``family``."""
        super().__pydantic_init_subclass__(**kwargs)
        (family,) = get_args(cls.model_fields["family"].annotation)
        cls.families[family] = cls

    @classmethod
    def of_family(cls, values: dict[str, Any]) -> type["ModelConfig"]:
        """The class for these keys; this class if the family is unknown."""
        family = values.get("family", "dnn")
        return cls.families.get(family, cls) if isinstance(family, str) else cls

    def __new__(cls, *_: Any, **values: Any) -> "ModelConfig":
        """Make ``ModelConfig(family="cnn", ...)`` a `CnnConfig`, as when it is read from a file."""
        return super().__new__(cls.of_family(values) if cls is ModelConfig else cls)

    @model_validator(mode="wrap")
    @classmethod
    def _dispatch(cls, values: Any, handler: ValidatorFunctionWrapHandler) -> Any:
        if cls is not ModelConfig or not isinstance(values, dict):
            return handler(values)
        found = cls.of_family(values)
        return handler({"family": values["family"]}) if found is cls else found.model_validate(values)


def check_sizes(sizes: tuple[int, ...], layers: int, key: str) -> None:
    """Raise ValueError unless there is one size for each layer, or none at all."""
    if sizes and len(sizes) != layers:
        raise ValueError(f"{key}={list(sizes)}: set a number for each of the layers={layers}, or remove it")


def _sees_every_frame(model: "DnnConfig | LstmConfig") -> None:
    if model.subsampling == 3 and not (model.left_context and model.right_context):
        raise ValueError("subsampling=3: needs left_context and right_context >= 1")


class DnnConfig(ModelConfig):
    """Fully connected layers over a window of frames."""

    family: Literal["dnn"] = "dnn"
    layers: int = Field(4, ge=0, description="hidden layers")
    width: int = Field(512, ge=0, description="0, in a recipe: chosen according to the amount of speech")
    widths: tuple[PositiveInt, ...] = Field((), description=_WIDTHS)
    activation: Activation = "relu"
    normalization: Normalization = "none"

    @property
    def hidden_widths(self) -> tuple[int, ...]:
        return self.widths or (self.width,) * self.layers

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        _sees_every_frame(self)
        check_sizes(self.widths, self.layers, "widths")
        return self


class ConvolutionConfig(Config):
    """One convolution over frequency and time, followed by max pooling over frequency."""

    maps: int = Field(ge=1)
    kernel: tuple[PositiveInt, PositiveInt] = Field(description="frequency x time, in bins and frames; no padding")
    pool: int = Field(1, ge=1, description="max pooling: size and stride, in bins of frequency")


def _adapted_values(read: str) -> Any:
    return Field(
        0,
        ge=0,
        exclude_if=lambda values: values == 0,  # older runs have no such key
        description=f"last values of a frame, which are features adapted to speakers: {read}, beside what the"
        " convolutions make of the others; they are neither warped nor masked",
    )


class CnnConfig(DnnConfig):
    """Convolutions over frequency and time of a window of frames, then fully connected layers."""

    family: Literal["cnn"] = "cnn"  # type: ignore[assignment]  # another family with the same keys and more
    channels: int = Field(3, ge=1, description="blocks of bins in a frame: static, first and second derivatives")
    convolutions: tuple[ConvolutionConfig, ...] = Field(
        (ConvolutionConfig(maps=128, kernel=(9, 9), pool=3), ConvolutionConfig(maps=256, kernel=(4, 3))), min_length=1
    )
    layers: int = Field(2, ge=0, description="fully connected hidden layers")
    width: int = Field(1024, ge=1)
    adapted: int = _adapted_values("the fully connected layers read them, of all frames of the window")


class LstmConfig(ModelConfig):
    """Layers of LSTM cells, optionally with fully connected layers before and after them."""

    family: Literal["lstm"] = "lstm"
    left_context: int = Field(0, ge=0, description="preceding frames that each step also sees")
    right_context: int = Field(0, ge=0, description="following frames that each step also sees")
    input_layers: tuple[int, ...] = Field((), description="widths of fully connected layers before the cells")
    layers: int = Field(2, ge=1, description="layers of cells")
    cells: int = Field(320, ge=1, description="cells of each layer and direction")
    layer_cells: tuple[PositiveInt, ...] = Field(
        (), description="cells of each layer, as training.group_lasso leaves them; empty: all have `cells`"
    )
    projection: int = Field(0, ge=0, description="recurrent outputs of a layer and direction (LSTMP); 0: all cells")
    peepholes: bool = Field(False, description="gates see the cells (diagonal)")
    bidirectional: bool = False
    cell_clip: float = Field(
        50.0, gt=0, allow_inf_nan=True, description="cells are clipped to +- this value; .inf: no clipping"
    )
    delay: int = Field(0, ge=0, description="frames by which outputs lag behind their inputs")
    lookahead: int = Field(
        0, ge=0, description="bidirectional: frames after a chunk that the backward layers read first"
    )
    output_layers: tuple[int, ...] = Field((), description="widths of fully connected layers after the cells")
    cell_normalization: Normalization = Field("none", description="of the outputs of each layer of cells")
    dropout_per_chunk: bool = Field(
        False, description="dropout after layers of cells has one mask for all steps of a chunk, not one for each step"
    )
    activation: Activation = Field("relu", description="of the fully connected layers")
    normalization: Normalization = Field("none", description="of the fully connected layers")

    @property
    def system(self) -> str:
        return "blstm" if self.bidirectional else "lstm"

    @property
    def cells_of_layers(self) -> tuple[int, ...]:
        return self.layer_cells or (self.cells,) * self.layers

    @model_validator(mode="after")
    def _consistent(self) -> "LstmConfig":
        check_cells(self)
        _sees_every_frame(self)
        return self


def check_cells(model: LstmConfig) -> None:
    """Raise ValueError unless the keys of the cells, and of the layers around them, fit each other."""
    if model.projection >= model.cells:
        raise ValueError(f"projection={model.projection} must be below cells={model.cells}: it reduces their number")
    if model.bidirectional and model.delay:
        raise ValueError("delay is for unidirectional layers; for bidirectional layers set lookahead")
    if model.lookahead and not model.bidirectional:
        raise ValueError("lookahead is for bidirectional layers; for unidirectional layers set delay")
    check_sizes(model.layer_cells, model.layers, "layer_cells")
    if any(width < 1 for width in (*model.input_layers, *model.output_layers)):
        raise ValueError("input_layers and output_layers are widths, at least 1 each")


def _without_context(value: Any) -> Any:
    if value != 0:
        raise ValueError("the layers of this family determine the context; leave it out")
    return value


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

    _not_set = field_validator("left_context", "right_context", mode="before")(_without_context)

    @property
    def layer_bottlenecks(self) -> tuple[int, ...]:
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
    adapted: int = _adapted_values("the affine layer reads them, of three frames")

    @model_validator(mode="after")
    def _sees_every_frame(self) -> "CnnTdnnConfig":
        _layers_see_every_frame(self.convolutions, self.frames_per_output, self.adapted)
        return self


def _layers_see_every_frame(convolutions: Sequence[StridedConvolutionConfig], subsampling: int, adapted: int) -> None:
    frames = convolutions[0].kernel[1]
    if adapted and frames < 3:
        raise ValueError("adapted: is read of three frames, so convolutions.0.kernel needs at least 3 in time")
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
    adapted: int = _adapted_values("the affine layer reads them, of three frames")
    time_layers: int = Field(5, ge=1, description="factored time-delay layers before the cells")
    width: int = Field(384, ge=1, description="of the time-delay layers")
    bottleneck: int = Field(96, ge=1, description="width between the two products of a factored layer")
    context: int = Field(1, ge=1, description="steps between the two times that each product of a layer sees")
    bypass: float = Field(0.66, ge=0, le=1, description="scale with which a layer's input is added to its output")
    time_dropout: float = Field(
        0.1, ge=0, lt=1, description="probability for units of factored layers, with one mask for a whole chunk"
    )

    _not_set = field_validator("left_context", "right_context", mode="before")(_without_context)

    @field_validator("input_layers", mode="before")
    @classmethod
    def _time_layers_instead(cls, value: Any) -> Any:
        if value:
            raise ValueError("the layers before the cells are time_layers; leave it out")
        return value

    @property
    def system(self) -> str:
        return "tdnn_blstm" if self.bidirectional else "tdnn_lstm"

    @property
    def before_cells(self) -> TdnnConfig:
        """The time-delay network whose first and factored layers come before the cells."""
        keys = {"subsampling": self.subsampling, "layers": self.time_layers, "dropout": self.time_dropout} | {
            key: getattr(self, key) for key in ("width", "bottleneck", "context", "bypass")
        }
        if not self.convolutions:
            return TdnnConfig(**keys)
        return CnnTdnnConfig(**keys, convolutions=self.convolutions, adapted=self.adapted)

    @model_validator(mode="after")
    def _consistent(self) -> "TdnnLstmConfig":
        check_cells(self)
        _narrows(self.width, self.bottleneck)
        if self.convolutions:
            _layers_see_every_frame(self.convolutions, self.frames_per_output, self.adapted)
        elif self.adapted:
            raise ValueError("adapted: is for values beside convolutions; without these, leave it out")
        return self


TIME_DELAY = (TdnnConfig, TdnnLstmConfig)  # the networks with factored layers, which are trained on single chunks


def check_frequencies(model: ModelConfig, features: FeatureConfig, source: str, prefix: str = "") -> None:
    """Refuse features that are not bins alone for convolutions, which take all values of a frame for frequencies.

    Values that are adapted to speakers may follow if the model knows their number. `source`: the file or key that says
    which features they are. `prefix`: of the key ``model``, such as ``lfmmi.``.
    """
    adapted = getattr(model, "adapted", 0)
    if getattr(model, "convolutions", ()) and adapted != features.adapted:
        raise SettingError(
            f"{prefix}model.adapted={adapted}: of the last values of a frame, {source} has {features.adapted} that are"
            f" adapted to speakers, which convolutions must not read: set {prefix}model.adapted={features.adapted}"
        )
    keys = ("deltas", "pitch", "left_context", "right_context", *(["use_energy"] if features.kind == "fbank" else []))
    found = [key for key in keys if getattr(features, key)]
    if found and isinstance(model, CnnTdnnConfig | TdnnLstmConfig) and model.convolutions:
        instead = "model=tdnn" if isinstance(model, CnnTdnnConfig) else "model.convolutions=[]"
        raise SettingError(
            f"{prefix}model: a {model.family} convolves over neighbouring frequencies, but {source} has"
            f" {', '.join(found)} besides bins; use features without, such as fbank40_utt, or set {prefix}{instead}"
        )
