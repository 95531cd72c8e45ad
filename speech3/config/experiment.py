"""Whole experiments: what `speech3 train` and `recipes/run.sh` read."""

from typing import Any, Literal

from pydantic import Field, SerializeAsAny, ValidationError, model_validator

from speech3.config.base import Config
from speech3.config.models import TIME_DELAY, CnnConfig, DnnConfig, LstmConfig, ModelConfig
from speech3.config.reading import load_preset
from speech3.config.stages import AugmentConfig, DecodeConfig, HmmConfig, LmConfig
from speech3.config.training import TrainingConfig

LETTERS = 6  # chosen on the dev set of the field corpus in recipes/any/README.md


class PretrainingConfig(Config):
    """A task without transcripts (`speech3.frames.pretraining`); its name is enough: ``pretraining: autoencoder``."""

    task: Literal["masked", "autoencoder"] = Field(
        "masked",
        description="masked: predict the clusters of hidden frames; autoencoder: reconstruct windows from damaged ones"
        " (families dnn and cnn)",
    )
    clusters: int = Field(256, ge=2, description="masked: number of clusters")
    targets: str = Field("mfcc13_d2_cmvn", description="masked: preset in conf/features whose frames are clustered")
    mask_frames: int = Field(10, ge=1, description="masked: frames of a hidden stretch; at most half of a window")
    mask_share: float = Field(
        0.5,
        gt=0,
        le=1,
        description="masked: about the share of hidden frames; of windows, of those with a hidden middle",
    )
    noise: float = Field(0.2, ge=0, lt=1, description="autoencoder: share of a window's values that is removed")
    sparsity: float = Field(0.1, ge=0, description="autoencoder: weight of the sparsity of the last hidden layer")

    @model_validator(mode="before")
    @classmethod
    def _by_name(cls, value: object) -> object:
        return {"task": value} if isinstance(value, str) else value

    @property
    def unused(self) -> dict[str, str]:
        """The keys of the other task, and its name."""
        if self.task == "masked":
            return dict.fromkeys(("noise", "sparsity"), "autoencoder")
        return dict.fromkeys(("clusters", "targets", "mask_frames", "mask_share"), "masked")


class TrainConfig(Config):
    """What `speech3 train CONF` reads."""

    frames: str = Field(description="directory with packed frames: train.frames, heldout.frames")
    hmm: str = Field(description="model directory whose senones label the frames")
    model: SerializeAsAny[ModelConfig]
    training: TrainingConfig
    init: str | None = Field(None, description="model directory, or model.safetensors, to start from")
    seed: int = Field(1, ge=0)
    pretraining: PretrainingConfig | None = Field(None, description="set by `speech3 pretrain`, which packs its frames")

    @model_validator(mode="before")
    @classmethod
    def _for_objective(cls, values: Any) -> Any:
        return _completed(values)

    @model_validator(mode="after")
    def _sized(self) -> "TrainConfig":
        if open_keys := [*unsized("model", self.model), *unsized("training", self.training)]:
            raise ValueError(f"{open_keys[0]}=0: automatic size works only in recipes; set it to at least 1")
        return self


class _ByFamily(Config):
    """The training of models that `training` is not for; `speech3.config.reading` puts it in place of that."""

    recurrent: TrainingConfig = Field(
        default_factory=lambda: load_preset(TrainingConfig, "training", "lstm"),
        description="replaces training if the model is an LSTM without time-delay layers",
    )
    time_delay: TrainingConfig = Field(
        default_factory=lambda: load_preset(TrainingConfig, "training", "chunks"),
        description="replaces training if the model has time-delay layers",
    )


class PretrainConfig(_ByFamily):
    """What `speech3 pretrain` reads: ``conf/pretrain.yaml`` and the changes to it."""

    features: str = Field(description="preset in conf/features, or the features.yaml of a model")
    pretraining: PretrainingConfig = PretrainingConfig()
    model: SerializeAsAny[ModelConfig]
    training: TrainingConfig
    heldout: float = Field(0.05, gt=0, lt=1, description="share of the hours that is held out")
    jobs: int = Field(0, ge=0, description="number of processes; 0: one per core")
    seed: int = Field(1, ge=0)


def unsized(name: str, config: Config) -> list[str]:
    """The keys of a group, called `name`, that a recipe is to choose by the amount of speech."""
    keys = ("width",) if isinstance(config, ModelConfig) else ("minibatch", "max_epochs", "workers")
    return [f"{name}.{key}" for key in keys if getattr(config, key, None) == 0]


def for_objective(model: ModelConfig, training: TrainingConfig) -> ModelConfig | dict[str, Any]:
    """The model with the keys set that it leaves to the training objective: valid, or keys that are yet to be checked.

    For LF-MMI it gets an output for every third frame, and the second output layer that ``lfmmi.cross_entropy`` needs.
    A step of a recurrent network then sees at least its own three frames.
    """
    if training.objective != "lfmmi":
        return model
    found: dict[str, Any] = {}
    if model.subsampling is None:
        found["subsampling"] = 3
        if isinstance(model, LstmConfig) and not isinstance(model, TIME_DELAY):
            found |= {key: max(1, getattr(model, key)) for key in ("left_context", "right_context")}
    if model.two_outputs is None:
        found["two_outputs"] = training.lfmmi.cross_entropy > 0
    return {**model.model_dump(), **found}


def _completed(values: Any, model: str | None = None, training: str | None = None) -> Any:
    """The keys of a config that has a model and its training, the model's completed by `for_objective`.

    What does not fit is left as it is: errors are reported where the fields are checked.

    `model` and `training`: presets that are used where `values` has none.
    """
    if not isinstance(values, dict):
        return values
    if model and "model" not in values:
        values = {**values, "model": load_preset(ModelConfig, "models", model)}
    if training and "training" not in values:
        values = {**values, "training": load_preset(TrainingConfig, "training", training)}
    try:
        found = ModelConfig.model_validate(values["model"]), TrainingConfig.model_validate(values["training"])
    except (KeyError, TypeError, ValidationError):
        return values
    return {**values, "model": for_objective(*found)}


class LfmmiSystemConfig(Config):
    """The system of a recipe that is trained with LF-MMI."""

    model: SerializeAsAny[ModelConfig] = Field(description="of any family; default: preset cnn_tdnn")
    training: TrainingConfig = Field(description="default: preset lfmmi")
    features: str = Field(
        "fbank40_utt",
        description="preset in conf/features; for a cnn of three channels the default is fbank40_d2_utt, with deltas",
    )
    min_minutes: float = Field(
        0,
        ge=0,
        description="minutes of training speech below which this system is not trained; at most 1 with a network to"
        " start from (init)",
    )
    leaves: int = Field(
        0, ge=0, description="leaves of the left-biphone tree; 0: chosen according to the amount of speech"
    )
    passes: int | None = Field(
        None,
        ge=0,
        description="overrides training.max_epochs; 0: chosen according to the amount of speech (the less, the more)",
    )
    extra_lm_states: int = Field(
        2000, ge=0, description="number of three-phone histories of the phone language model, besides all phone pairs"
    )
    adapted: bool = Field(
        False,
        description="also train sat_lfmmi, which reads features adapted to speakers as well; for a cnn_tdnn, with"
        " hmm.sat and without init",
    )
    taught: bool = Field(
        False,
        description="with adapted: also train lfmmi_taught, a network like sat_lfmmi that also learns from the mean of"
        " lfmmi and sat_lfmmi (training.lfmmi.teaching)",
    )

    @model_validator(mode="before")
    @classmethod
    def _for_objective(cls, values: Any) -> Any:
        return _completed(values, "cnn_tdnn", "lfmmi")

    @model_validator(mode="before")
    @classmethod
    def _with_derivatives(cls, values: Any) -> Any:
        try:
            model = ModelConfig.model_validate(values["model"])
        except (KeyError, TypeError, ValidationError):
            return values
        channels = isinstance(model, CnnConfig) and model.channels == 3
        return {"features": "fbank40_d2_utt", **values} if channels else values

    @model_validator(mode="after")
    def _of_lfmmi(self) -> "LfmmiSystemConfig":
        if self.training.objective != "lfmmi":
            raise ValueError(
                f"needs a network trained with objective=lfmmi, not with {self.training.objective}: set "
                f"lfmmi.training=lfmmi"
            )
        return self


class FlatStartConfig(Config):
    """The network of ``hmm.flat_start=lfmmi``: it makes the alignment for the LF-MMI system and shares its features."""

    model: SerializeAsAny[ModelConfig] = Field(description="of any family; default: preset tdnn_flat")
    training: TrainingConfig = Field(description="default: preset lfmmi_flat")
    longest_s: float = Field(20.0, gt=0, description="seconds; longer utterances are left out of its training")

    @model_validator(mode="before")
    @classmethod
    def _for_objective(cls, values: Any) -> Any:
        return _completed(values, "tdnn_flat", "lfmmi_flat")


class _RecordingsConfig(Config):
    recordings: str = Field(description="folder of recordings, or Kaldi data directory")

    @model_validator(mode="before")
    @classmethod
    def _by_directory(cls, value: object) -> object:
        return {"recordings": value} if isinstance(value, str) else value


class UntranscribedConfig(_RecordingsConfig):
    """Recordings without transcripts, for a second LF-MMI network; ``untranscribed: DIR`` is enough."""

    confidence: float = Field(
        0.7, ge=0, le=1, description="lowest mean confidence of its words at which a recognised utterance is used"
    )


class NegativesConfig(_RecordingsConfig):
    """Training utterances in which nobody says a word of the domain; ``negatives: DIR`` is enough."""

    recordings: str | None = Field(  # type: ignore[assignment]
        None,
        description="folder of recordings of other speech, or Kaldi data directory; none: the corpus's own speech in"
        " shuffled pieces",
    )
    share: float = Field(0.5, gt=0, le=10, description="length of the negatives by that of the training speech")


class PretrainedConfig(_RecordingsConfig):
    """Recordings without transcripts on which the networks of a recipe are pretrained; ``pretrain: DIR`` is enough."""

    pretraining: PretrainingConfig = PretrainingConfig()
    max_epochs: int = Field(8, ge=1, description="passes over the recordings")


class RecipeConfig(_ByFamily):
    """What `recipes/run.sh CORPUS` reads from `recipes/CORPUS/recipe.yaml`."""

    corpus: str
    corpus_options: dict[str, Any] = Field({}, description="arguments of the corpus module")
    speed_perturb: tuple[float, ...] = Field((), description="also train on copies at these speeds, such as 0.9, 1.1")
    background: bool | None = Field(
        None,
        description="also train on copies with background noise before, in and after the speech; null: where recordings"
        " begin and end with speech",
    )
    augment: AugmentConfig | None = Field(
        None, description="also train the networks on augmented copies: a preset in conf/augment, or keys"
    )
    negatives: NegativesConfig | None = Field(
        None,
        description="also train on noises and other speech, so that the models recognise no words in them: {}, or a"
        " directory of other speech",
    )
    seed: int = Field(1, ge=0)
    jobs: int = Field(0, ge=0, description="number of processes; 0: one per core")
    features: str = Field("fbank40_d2", description="preset in conf/features for the neural network")
    min_minutes: float = Field(
        0, ge=0, description="minutes of training speech below which GMMs are trained, but no networks"
    )
    sample_rate: int | None = Field(
        None,
        ge=1000,
        le=768_000,
        description="Hz, to which recordings are resampled, channels made one; none: all must have one rate",
    )
    lang: str | None = Field(None, description="language code of espeak-ng, for words without a pronunciation")
    lexicon: Literal["espeak", "graphemes"] = Field(
        "espeak", description="graphemes: the letters of a word are its pronunciation"
    )
    units: Literal["words", "sentencepiece"] = Field("words", description="units of the language model and the graph")
    graphemes: str | None = Field(
        None, description="file of graphemes of several letters, one per line, if words are spelled by their letters"
    )
    tier: str | None = Field(
        None,
        description="tier of TextGrid or ELAN files that holds the transcript; several separated by commas; *: all,"
        " each of a speaker",
    )
    pieces: int = Field(500, ge=30, description="size of the SentencePiece vocabulary, if units is sentencepiece")
    metric: Literal["WER", "CER", "PER"] = Field(
        "WER", description="PER: words are TIMIT's phones, of which 39 classes are counted"
    )
    hmm: HmmConfig = HmmConfig()
    model: SerializeAsAny[ModelConfig] = DnnConfig()
    training: TrainingConfig = TrainingConfig()
    init: str | None = Field(
        None,
        description="directory of a trained network, perhaps of another language, or of a recipe's run: each"
        " network of the recipe starts from the one of its kind there, with its architecture and new output layers",
    )
    pretrain: PretrainedConfig | None = Field(
        None, description="recordings without transcripts: networks start from parameters that were pretrained on them"
    )
    realign: int = Field(
        0, ge=0, le=3, description="number of times that the network realigns the data and a new network is trained"
    )
    lfmmi: LfmmiSystemConfig | None = Field(None, description="the system trained with LF-MMI; null: none")
    untranscribed: UntranscribedConfig | None = Field(
        None,
        description="recordings without transcripts: what the LF-MMI network recognises in them trains another one",
    )
    flat: FlatStartConfig = Field(
        default_factory=lambda: FlatStartConfig.model_validate({}), description="the network of hmm.flat_start=lfmmi"
    )
    lm: LmConfig
    decode: DecodeConfig = DecodeConfig()
    decode_mono: bool = Field(False, description="also decode with the monophones, the first step of the bootstrap")

    @model_validator(mode="after")
    def _at_other_speeds(self) -> "RecipeConfig":
        speeds = self.speed_perturb
        if len(set(speeds)) < len(speeds) or any(speed == 1 or not 0.5 <= speed <= 2 for speed in speeds):
            raise ValueError(f"speed_perturb={list(speeds)}: use different speeds from 0.5 to 2, without 1")
        return self

    @model_validator(mode="after")
    def _aligned(self) -> "RecipeConfig":
        if self.augment and self.augment.speed:
            raise ValueError(
                "augment.speed: a copy has the alignment of its original, so its timing must not change; use"
                " speed_perturb instead"
            )
        if self.hmm.flat_start == "lfmmi" and self.lfmmi is None:
            raise ValueError(
                "hmm.flat_start=lfmmi: it makes the alignment for the LF-MMI system, and there is none; set "
                "lfmmi={}, too"
            )
        if self.hmm.flat_start == "lfmmi" and self.augment:
            raise ValueError(
                "hmm.flat_start=lfmmi: augmented copies are only for a network that learns senones, and none is "
                "trained; set augment=null"
            )
        if self.hmm.flat_start == "lfmmi" and self.hmm.tri.discriminative:
            raise ValueError(
                f"hmm.tri.discriminative={self.hmm.tri.discriminative}: with hmm.flat_start=lfmmi there are no GMMs to"
                " be trained further; set it to null"
            )
        if self.pretrain and self.init:
            raise ValueError(f"pretrain: networks start from init={self.init} already; remove one of the two")
        if self.untranscribed and self.lfmmi is None:
            raise ValueError("untranscribed: an LF-MMI network transcribes the recordings; set lfmmi={}, too")
        if self.flat.training.labels != "words":
            raise ValueError(
                "flat.training: it starts without an alignment; set flat.training.lfmmi.numerators=transcripts"
            )
        if self.lm.letters and not self._spells:
            raise ValueError(
                "lm.letters: words are spelled where their letters are their phones and the language model is an n-gram"
                " of words: set lexicon=graphemes units=words, without lm.grammar; or set lm.letters=0"
            )
        if self.lm.filler == "spelled" and (self.negatives or self.lexicon == "graphemes"):
            raise ValueError(
                "lm.filler=spelled: spells words from the phones of speech; with negatives use lm.filler=true, with"
                " lexicon=graphemes lm.letters, which spells them from their letters"
            )
        for key in ("lm.filler",) * bool(self.lm.filler) + ("negatives",) * (self.negatives is not None):
            if not self.letters and self.units == "words":
                continue
            raise ValueError(
                f"{key}: a filler takes the place of whole words, and here words are spelled by letters or pieces:"
                f" set {key}={'false' if self.lm.filler else 'null'}, or lm.letters=0 and units=words"
            )
        return self

    @property
    def _spells(self) -> bool:
        return self.lexicon == "graphemes" and self.units == "words" and self.lm.grammar is None

    @property
    def letters(self) -> int:
        """The order of the model of letters that spells unseen words; 0: there is none."""
        return self.lm.letters if self.lm.letters is not None else LETTERS * self._spells
