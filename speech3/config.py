"""The typed description of an experiment, read from YAML. Every default of the project stands here or in `conf/`.

A key that nobody knows is an error that names the file and the key. Presets are small YAML files in `conf/`:
wherever a config is expected, a preset's name, a YAML file's path or the keys themselves may stand.
"""

import math
from pathlib import Path
from typing import Any, Literal, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from speech3.errors import Speech3Error

_ROOT = Path(__file__).resolve().parent


class Config(BaseModel):
    """Base of all configs: unknown keys are errors, numbers are finite, values do not change."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


C = TypeVar("C", bound=Config)


class FeatureConfig(Config):
    """What is computed from a waveform, with Kaldi's option names and defaults (feat/feature-*.h).

    Two defaults differ: `dither` is 0 (Kaldi's 1 makes every run another), and deltas and CMVN, programs of
    their own in Kaldi, are keys here (without them, as without those programs, nothing is appended or normalised).
    """

    kind: Literal["fbank", "mfcc", "given"] = Field("fbank", description="given: the data directory's own feats.scp")
    sample_frequency: int | None = Field(None, gt=0, description="Hz; none: the rate of the data, which must be one")
    resample: bool = Field(False, description="resample recordings of another rate instead of refusing them")
    mix_channels: bool = Field(False, description="average the channels instead of refusing more than one")
    frame_length: float = Field(25.0, gt=0, description="ms")
    frame_shift: float = Field(10.0, gt=0, description="ms")
    dither: float = Field(0.0, ge=0, description="standard deviation, in units of 16-bit samples")
    preemphasis_coefficient: float = Field(0.97, ge=0, le=1)
    remove_dc_offset: bool = True
    window_type: Literal["povey", "hamming", "hanning", "sine", "rectangular", "blackman"] = "povey"
    blackman_coeff: float = 0.42
    round_to_power_of_two: bool = True
    snip_edges: bool = Field(True, description="only frames that fit; else frames centred, the edges mirrored")
    num_mel_bins: int = Field(23, ge=3)
    low_freq: float = Field(20.0, ge=0, description="Hz")
    high_freq: float = Field(0.0, description="Hz; zero or negative: offset from the Nyquist frequency")
    use_energy: bool = Field(
        False, description="fbank: log energy before the bins; mfcc: in place of C0 (default true)"
    )
    raw_energy: bool = Field(True, description="energy before preemphasis and window")
    energy_floor: float = Field(0.0, ge=0)
    use_log_fbank: bool = Field(True, description="fbank only")
    use_power: bool = Field(True, description="fbank only; false: magnitudes")
    num_ceps: int = Field(13, ge=1)
    cepstral_lifter: float = Field(22.0, ge=0)
    deltas: int = Field(0, ge=0, le=4, description="order of the derivatives appended")
    delta_window: int = Field(2, ge=1)
    cmvn: Literal["none", "utterance", "speaker"] = "none"
    norm_means: bool = True
    norm_vars: bool = False

    @model_validator(mode="before")
    @classmethod
    def _energy_default(cls, values: Any) -> Any:
        if isinstance(values, dict) and values.get("kind") == "mfcc":
            return {"use_energy": True, **values}
        return values

    @model_validator(mode="after")
    def _consistent(self) -> "FeatureConfig":
        if self.kind == "mfcc" and self.num_ceps > self.num_mel_bins:
            raise ValueError(f"num_ceps {self.num_ceps} must not exceed num_mel_bins {self.num_mel_bins}")
        if self.norm_vars and not self.norm_means:
            raise ValueError("norm_vars needs norm_means, as in Kaldi's apply-cmvn")
        if self.frame_shift > self.frame_length:
            raise ValueError("frame_shift must not exceed frame_length")
        return self


class MonophoneConfig(Config):
    """Flat-started context-independent GMMs (Kaldi's train_mono.sh)."""

    phone_iterations: int = Field(20, ge=0, description="first, with one Gaussian for all states of a phone")
    iterations: int = Field(40, ge=1)
    gaussians: int = Field(1000, ge=0, description="total of all pdfs at the end; 0: by the amount of speech")
    max_iteration_increase: int = Field(30, description="the last iteration that splits Gaussians")
    realign: tuple[int, ...] = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 14, 16, 18, 20, 23, 26, 29, 32, 35, 38)


class TriphoneConfig(Config):
    """Decision-tree-tied triphone GMMs (Kaldi's train_deltas.sh)."""

    iterations: int = Field(35, ge=1)
    leaves: int = Field(2000, ge=0, description="0: by the amount of speech")
    gaussians: int = Field(10000, ge=0, description="0: by the amount of speech")
    max_iteration_increase: int = 25
    realign: tuple[int, ...] = (10, 20, 30)
    min_leaf_frames: float = Field(100.0, ge=1, description="a split must leave that many frames on either side")


class HmmConfig(Config):
    """The bootstrap: from words to one senone per frame."""

    features: str = Field("mfcc13_d2", description="preset in conf/features")
    mono: MonophoneConfig = MonophoneConfig()
    tri: TriphoneConfig = TriphoneConfig()
    aligner_features: str = Field("mfcc13_cmvn", description="of the monophones that place the borders of phones")
    aligner: MonophoneConfig = MonophoneConfig(gaussians=200)
    silence_prob: float = Field(0.5, gt=0, lt=1, description="of the optional silence between words")
    position_dependent: bool = Field(
        False, description="phones are marked by their place in the word (not with pieces)"
    )
    extra_questions: str | None = Field(None, description="file with sets of phones the tree may ask for, one a line")
    lexicon_probs: bool = Field(False, description="pronunciations' and silences' probabilities from the alignment")
    power: float = Field(0.25, description="Gaussians are shared out by a pdf's count to this power")
    beam: float = Field(10.0, gt=0)
    retry_beam: float = Field(40.0, gt=0)


class ModelConfig(Config):
    """An acoustic model; the family names the class in the registry of `speech3.models`."""

    family: Literal["dnn"] = "dnn"
    left_context: int = Field(5, ge=0, description="frames")
    right_context: int = Field(5, ge=0, description="frames")
    layers: int = Field(4, ge=0, description="hidden layers")
    width: int = Field(512, ge=1)
    activation: Literal["relu", "sigmoid"] = "relu"
    normalization: Literal["none", "batch", "layer"] = "none"
    dropout: float = Field(0.0, ge=0, lt=1)


class AsgdConfig(Config):
    """Asynchronous SGD: how shards and server work together (the words are those of DESIGN.md's definitions)."""

    warm_start: float = Field(1.0, ge=0, description="passes of plain SGD on one worker before the first push")
    sync_every: int = Field(3, ge=1, description="minibatches that a shard computes between two syncs, at least")
    max_distance: int = Field(12, ge=1, description="minibatches since the last fetch at which a shard waits to sync")
    max_relative_distance: float | None = Field(
        None, gt=0, description="distance of a shard's own parameters from those it fetched at which it waits"
    )
    max_staleness: int | None = Field(None, ge=0, description="an older push is dropped; none: no push is")
    local_updates: bool = Field(True, description="a shard steps its own copy between syncs; else it adds up gradients")
    push_scale: float | Literal["1/accumulated", "1/workers"] = Field(
        "1/workers", description="by which a push is multiplied: a number above 0, 1/accumulated or 1/workers"
    )
    momentum: float = Field(0.0, ge=0, lt=1, description="of the server")
    projection: bool = Field(False, description="a push loses what goes against the server's momentum")
    decay: float = Field(1.0, gt=0, le=1, description="a push is multiplied by decay ** staleness")
    staleness_rate: bool = Field(False, description="a push is divided by its staleness, if that is above 1")
    adagrad: float = Field(0.0, ge=0, description="gamma of Adagrad on the server, in place of push_scale; 0: none")
    delay_compensation: float = Field(0.0, ge=0, description="lambda of DC-ASGD; 0: none")
    max_push: float = Field(
        1.0, gt=0, allow_inf_nan=True, description="a push longer than that share of the parameters is refused"
    )

    @model_validator(mode="after")
    def _consistent(self) -> "AsgdConfig":
        if self.max_distance < self.sync_every:
            raise ValueError(
                f"max_distance={self.max_distance} is below sync_every={self.sync_every}: a shard would have to wait "
                f"before it may sync; set max_distance to at least sync_every"
            )
        if self.projection and not self.momentum:
            raise ValueError(
                "projection takes from a push what goes against the momentum: set momentum, too (0.5, say)"
            )
        if self.max_relative_distance is not None and not self.local_updates:
            raise ValueError("max_relative_distance is that of a shard's own steps: it needs local_updates=true")
        if isinstance(self.push_scale, float) and not 0 < self.push_scale < math.inf:
            raise ValueError(f"push_scale={self.push_scale:g}: must be above 0, or no push would move the parameters")
        if self.max_staleness == 0 and (self.delay_compensation or self.staleness_rate or self.decay < 1):
            raise ValueError(
                "max_staleness=0 drops every stale push, so delay_compensation, staleness_rate and decay have none to "
                "act on: raise max_staleness, or take them away"
            )
        return self


class SimulationConfig(Config):
    """The virtual clock of the simulated world: times in seconds."""

    compute_s: float | tuple[float, ...] | None = Field(
        None, description="of a minibatch, for all workers or each; none: measured before training begins"
    )
    sync_s: float | None = Field(None, ge=0, description="that a sync holds the server; none: measured")
    jitter: float = Field(0.0, ge=0, lt=1, description="deviation of compute times, as a share of them")
    failures: tuple[tuple[int, float], ...] = Field((), description="worker (from 0) and time at which it dies")
    restart_s: float = Field(5.0, ge=0, description="until a dead worker's successor is there")
    synchronous: bool = Field(False, description="workers average their gradients and step together, for comparison")

    @model_validator(mode="after")
    def _possible(self) -> "SimulationConfig":
        times = self.compute_s if isinstance(self.compute_s, tuple) else (self.compute_s,)
        if not all(seconds is None or 0 < seconds < math.inf for seconds in times):
            raise ValueError(f"compute_s={self.compute_s}: the time of a minibatch must be above 0 seconds")
        if any(worker < 0 or not 0 <= time < math.inf for worker, time in self.failures):
            raise ValueError(f"failures={self.failures}: workers count from 0, times are seconds from 0")
        return self


class TrainingConfig(Config):
    """How parameters move."""

    world: Literal["sgd", "ddp", "simulated", "shared"] = "sgd"
    workers: int = Field(1, ge=1)
    device: str = "cpu"
    threads: int = Field(1, ge=1, description="of a worker; on a busy machine two wait for each other and lose")
    minibatch: int = Field(256, ge=1, description="frames")
    learning_rate: float = Field(0.1, gt=0, description="per minibatch mean gradient")
    momentum: float = Field(0.0, ge=0, lt=1, description="of plain SGD, so also of the warm start, and of ddp")
    weight_decay: float = Field(0.0, ge=0)
    frequency_warp: float = Field(0.0, ge=0, lt=0.5, description="largest share by which frequencies are warped")
    chunk_frames: int = Field(0, ge=0, description="shuffle within chunks of so many frames; 0: the whole corpus")
    max_epochs: int = Field(20, ge=1)
    schedule: Literal["halving", "exponential", "constant"] = "halving"
    halve_below: float = Field(0.005, description="gain in held-out frame accuracy under which the rate is halved")
    stop_below: float = Field(0.001, description="gain under which training stops once the rate is being halved")
    final_rate: float = Field(0.01, gt=0, le=1, description="exponential: the last rate as a share of the first")
    warmup: float = Field(0.0, ge=0, description="epochs over which the rate rises from a tenth")
    evaluations: int = Field(1, ge=1, description="times an epoch that held-out accuracy is taken, for the curves")
    keep_checkpoints: int = Field(3, ge=1)
    checkpoint_s: float = Field(60.0, ge=0, description="seconds of training between checkpoints inside an epoch")
    dtype: Literal["float16", "float32"] = Field("float32", description="of the packed frames")
    asgd: AsgdConfig = AsgdConfig()
    simulation: SimulationConfig = SimulationConfig()


class LmConfig(Config):
    """The language model, exactly one of an n-gram from the training text, an ARPA file, a grammar; and its graph."""

    order: int | None = Field(None, ge=1, le=6, description="interpolated Kneser-Ney from the text")
    text: str | None = Field(None, description="file with one sentence a line; none: the transcripts of train")
    arpa: str | None = None
    grammar: Literal["one-word"] | None = Field(None, description="one-word: exactly one word of the lexicon")
    self_loop_scale: float = Field(
        0.1, ge=0, description="of the transitions' log probabilities in the graph, as mkgraph.sh has it"
    )

    @model_validator(mode="after")
    def _one(self) -> "LmConfig":
        if sum(value is not None for value in (self.order, self.arpa, self.grammar)) != 1:
            raise ValueError(
                "give exactly one of order, arpa, grammar; null takes one back: lm.order=null lm.arpa=FILE"
            )
        return self


class DecodeConfig(Config):
    """Search, and the grid from which the acoustic scale and the word penalty are picked on dev."""

    beam: float = Field(15.0, gt=0)
    max_active: int = Field(7000, ge=1)
    tuning_max_active: int = Field(2000, ge=1, description="in place of max_active while scale and penalty are tuned")
    acoustic_scales: tuple[float, ...] = (0.03, 0.045, 0.06, 0.08, 0.1, 0.14, 0.2, 0.28)
    word_penalties: tuple[float, ...] = (-1.0, -0.5, 0.0, 0.5, 1.0)


class TrainConfig(Config):
    """What `speech3 train CONF` reads."""

    data: str = Field(description="directory with packed frames: train.frames, heldout.frames")
    hmm: str = Field(description="model directory whose senones label the frames")
    model: ModelConfig
    training: TrainingConfig
    init: str | None = Field(None, description="model directory, or model.safetensors, to begin with")
    seed: int = 1


class RecipeConfig(Config):
    """What `recipes/run.sh CORPUS` reads from `recipes/CORPUS/recipe.yaml`."""

    corpus: str
    corpus_options: dict[str, Any] = Field({}, description="arguments of the corpus module")
    speed_perturb: tuple[float, ...] = Field((), description="also train on copies at these speeds, such as 0.9, 1.1")
    seed: int = 1
    jobs: int = Field(0, ge=0, description="processes; 0: one per core")
    features: str = Field("fbank40_d2", description="preset in conf/features for the neural network")
    lang: str | None = Field(None, description="espeak-ng's code of the language, for words without a pronunciation")
    lexicon: Literal["espeak", "graphemes"] = Field(
        "espeak", description="graphemes: words are spelled by their letters"
    )
    units: Literal["words", "sentencepiece"] = Field("words", description="what language model and graph are made of")
    pieces: int = Field(500, ge=30, description="SentencePiece vocabulary, if units is sentencepiece")
    metric: Literal["WER", "CER"] = "WER"
    hmm: HmmConfig = HmmConfig()
    model: ModelConfig = ModelConfig()
    training: TrainingConfig = TrainingConfig()
    realign: int = Field(0, ge=0, le=3, description="times that the network aligns anew and a new one is trained on it")
    lm: LmConfig
    decode: DecodeConfig = DecodeConfig()


def shipped(kind: Literal["conf", "recipes", "data"]) -> Path:
    """Directory of files that come with speech3, in a checkout or in an installed wheel."""
    installed = _ROOT / f"_{kind}"
    return installed if installed.is_dir() else _ROOT.parent / kind


def presets(kind: str) -> list[str]:
    """Names of the presets in ``conf/<kind>/``."""
    return sorted(path.stem for path in (shipped("conf") / kind).glob("*.yaml"))


def read_yaml(path: Path | str) -> dict[str, Any]:
    """Read a YAML mapping; errors name the file."""
    try:
        value = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise Speech3Error(f"{path}: no such file") from error
    except OSError as error:
        raise Speech3Error(f"{path}: cannot be read ({error.strerror})") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise Speech3Error(f"{path}: not valid YAML: {error}") from error
    if not isinstance(value, dict):
        raise Speech3Error(f"{path}: expected `key: value` lines, found {type(value).__name__}")
    return value


def parse(cls: type[C], values: dict[str, Any], source: Path | str) -> C:
    """Check `values` against the config class; every fault is listed with `source` and its key."""
    try:
        return cls.model_validate(values)
    except ValidationError as error:
        lines = [_explain(cls, fault, source) for fault in error.errors()]
        raise Speech3Error("\n".join(lines)) from error


def _explain(cls: type[Config], fault: Any, source: Path | str) -> str:
    key = ".".join(str(part) for part in fault["loc"]) or "(whole file)"
    if fault["type"] == "extra_forbidden":
        return f"{source}: unknown key {key!r}; known here: {', '.join(_keys_at(cls, fault['loc'][:-1]))}"
    if fault["type"] == "value_error" and isinstance(fault["input"], dict):  # several keys, which the message names
        return f"{source}: {key}: {fault['ctx']['error']}"
    message = "Input should be a list, as in [0.9,1.1]" if fault["type"] == "tuple_type" else fault["msg"]
    got = "" if fault["type"] == "missing" else f" (got {fault['input']!r})"  # else the whole file
    return f"{source}: {key}: {message}{got}"


def _keys_at(cls: type[Config], path: tuple[Any, ...]) -> list[str]:
    for part in path:
        annotation = cls.model_fields[str(part)].annotation if str(part) in cls.model_fields else None
        if not (isinstance(annotation, type) and issubclass(annotation, Config)):
            break
        cls = annotation
    return sorted(cls.model_fields)


def load_preset(cls: type[C], kind: str, name: str) -> C:
    """Read preset `name` of ``conf/<kind>/``, or a YAML file if `name` is a path."""
    path = Path(name) if name.endswith((".yaml", ".yml")) else shipped("conf") / kind / f"{name}.yaml"
    if not path.exists():
        raise Speech3Error(f"{name}: neither a YAML file nor a preset of conf/{kind} ({', '.join(presets(kind))})")
    return parse(cls, read_yaml(path), path)


def load_config(cls: type[C], path: Path | str, overrides: list[str] | None = None) -> C:
    """Read a config file and apply ``key.sub=value`` overrides.

    A string under ``model`` or ``training`` is the name of a preset in ``conf/models`` or ``conf/training``; an
    override below it (``model.width=64``) changes that preset's value.
    """
    values = read_yaml(path)
    for override in overrides or []:
        key, separator, text = override.partition("=")
        if not separator or not key:
            raise Speech3Error(f"{override}: an override has the form key=value, as in training.max_epochs=5")
        try:
            value = yaml.safe_load(text)
        except yaml.YAMLError as error:
            raise Speech3Error(f"{override}: not valid YAML: {error}") from error
        _set(values, key.split("."), value, override)
    for key in ("model", "training"):
        if isinstance(values.get(key), str):
            values[key] = _expand(key, values[key])
    return parse(cls, values, f"{path} with {' '.join(overrides)}" if overrides else path)


def _expand(key: str, name: str) -> dict[str, Any]:
    if key == "model":
        return load_preset(ModelConfig, "models", name).model_dump()
    return load_preset(TrainingConfig, "training", name).model_dump()


def _set(values: dict[str, Any], keys: list[str], value: Any, override: str) -> None:
    here = values
    for index, key in enumerate(keys[:-1]):
        if isinstance(here.get(key), str) and index == 0 and key in ("model", "training"):
            here[key] = _expand(key, here[key])
        here = here.setdefault(key, {})
        if not isinstance(here, dict):
            raise Speech3Error(f"{override}: {'.'.join(keys[: index + 1])} is a value, not a group of keys")
    here[keys[-1]] = value
