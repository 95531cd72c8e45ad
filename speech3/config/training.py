"""How parameters move: the worlds, asynchronous SGD, the virtual clock."""

import math
from typing import Literal

from pydantic import Field, model_validator

from speech3.config.base import Config
from speech3.config.models import LstmConfig


class AsgdConfig(Config):
    """Asynchronous SGD: how shards and server work together (the words are those of DESIGN.md's definitions)."""

    warm_start: float = Field(1.0, ge=0, description="passes of plain SGD on one worker before the first push")
    sync_every: int = Field(3, ge=1, description="minibatches that a shard computes between two pushes, at least")
    fetch_every: int | None = Field(
        None, ge=1, description="minibatches between two fetches, at least; none: at every push"
    )
    partitions: int = Field(1, ge=1, le=256, description="of the server, each with its own version and lock")
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
    adagrad: float = Field(0.0, ge=0, description="gamma of Adagrad on the server, in place of push_scale; 0: none")
    delay_compensation: float = Field(0.0, ge=0, description="lambda of DC-ASGD; 0: none")
    max_push: float = Field(
        1.0,
        gt=0,
        allow_inf_nan=True,
        description="a push that would move the parameters by more than this share of them is refused",
    )

    @model_validator(mode="after")
    def _consistent(self) -> "AsgdConfig":
        if self.max_distance < self.sync_every:
            raise ValueError(
                f"max_distance={self.max_distance} is below sync_every={self.sync_every}: a shard would have to wait "
                f"before it may sync; set max_distance to at least sync_every"
            )
        if self.fetch_every and self.max_distance < self.fetch_every:
            raise ValueError(
                f"max_distance={self.max_distance} is below fetch_every={self.fetch_every}: a shard would have to wait "
                f"before it may fetch; set max_distance to at least fetch_every"
            )
        if self.fetch_every not in (None, self.sync_every) and self.delay_compensation:
            raise ValueError(
                "delay_compensation goes by the parameters at which a push was computed: it needs a fetch with every "
                "push; take fetch_every away"
            )
        if self.fetch_every not in (None, self.sync_every) and self.max_relative_distance is not None:
            raise ValueError(
                "max_relative_distance goes by the parameters that were fetched, which a shard keeps only until it "
                "pushes: it needs a fetch with every push; take fetch_every away"
            )
        if self.projection and not self.momentum:
            raise ValueError(
                "projection takes from a push what goes against the momentum: set momentum, too (0.5, say)"
            )
        if self.max_relative_distance is not None and not self.local_updates:
            raise ValueError("max_relative_distance is that of a shard's own steps: it needs local_updates=true")
        if isinstance(self.push_scale, float) and not 0 < self.push_scale < math.inf:
            raise ValueError(f"push_scale={self.push_scale:g}: must be above 0, or no push would move the parameters")
        if self.max_staleness == 0 and (self.delay_compensation or self.decay < 1):
            raise ValueError(
                "max_staleness=0 drops every stale push, so delay_compensation and decay have none to act on: raise "
                "max_staleness, or take them away"
            )
        return self


class LbfgsConfig(Config):
    """Sandblaster L-BFGS (`speech3.engine.sandblaster.world`)."""

    history: int = Field(10, ge=1, description="pairs of steps and gradient differences that are remembered")
    batches: int = Field(1, ge=1, description="equal parts of an epoch, each an objective; 1: all of the data")
    iterations: int = Field(10, ge=1, description="on each of them, in an epoch")


class CodecConfig(Config):
    """How gradients are sent (`speech3.engine.codecs`); the name of a codec alone is enough: ``codec: ternary``."""

    kind: Literal["none", "bf16", "ternary", "topk"] = Field("none", description="none: as float32")
    share: float = Field(0.01, gt=0, le=1, description="topk: of the values, the largest, that are sent")
    down: Literal["float32", "ternary"] = Field(
        "float32", description="what a shard fetches; ternary: the difference from what it has"
    )
    clip: float = Field(2.5, gt=0, description="ternary: standard deviations at which values are clipped")
    bucket: int = Field(0, ge=0, description="ternary: values that share a scale; 0: a tensor's")
    float_below: int = Field(0, ge=0, description="ternary: tensors of fewer values are sent as float32")
    float_last: bool = Field(False, description="ternary: the softmax layer is sent as float32")

    @model_validator(mode="before")
    @classmethod
    def _by_name(cls, value: object) -> object:
        return {"kind": value} if isinstance(value, str) else value


class ClusterConfig(Config):
    """World cluster: shards and server partitions as Ray actors, on any host."""

    address: str | None = Field(
        None, description="HOST:PORT of Ray's head node, or auto: that of this host; none: a Ray is started here"
    )


class SimulationConfig(Config):
    """The virtual clock of the simulated world: times in seconds."""

    compute_s: float | tuple[float, ...] | None = Field(
        None, description="of a minibatch, for all workers or each; none: measured before training begins"
    )
    sync_s: float | None = Field(None, ge=0, description="that a sync holds the server; none: measured")
    jitter: float = Field(0.0, ge=0, lt=1, description="deviation of compute times, as a share of them")
    failures: tuple[tuple[int, float], ...] = Field(
        (), description="worker (from 0) and seconds of training at which it dies; not in the warm start"
    )
    restart_s: float = Field(5.0, ge=0, description="until a dead worker's successor is there")
    bandwidth: float | None = Field(None, description="bytes per second of each link; none: no limit")
    latency_s: float = Field(0.0, ge=0, lt=math.inf, description="of a message")
    method: Literal["asgd", "synchronous", "sandblaster"] = Field(
        "asgd", description="asgd: as world shared; synchronous: workers step together, as ddp's; sandblaster: L-BFGS"
    )

    @model_validator(mode="after")
    def _possible(self) -> "SimulationConfig":
        times = self.compute_s if isinstance(self.compute_s, tuple) else (self.compute_s,)
        if not all(seconds is None or 0 < seconds < math.inf for seconds in times):
            raise ValueError(f"compute_s={self.compute_s}: the time of a minibatch must be above 0 seconds")
        if any(worker < 0 or not 0 <= time < math.inf for worker, time in self.failures):
            raise ValueError(f"failures={self.failures}: workers count from 0, times are seconds from 0")
        if self.bandwidth is not None and self.bandwidth <= 0:
            raise ValueError(
                f"bandwidth={self.bandwidth:g}: nothing would ever arrive; give bytes per second above 0 (1.25e8 is "
                f"1 Gbit/s), or take it away for a network without a limit"
            )
        return self


class LfMmiConfig(Config):
    """The criterion of whole sentences (`speech3.sequence.lfmmi`)."""

    leak: float = Field(0.1, gt=0, lt=1, description="probability of the leaky HMM of the denominator")
    numerators: Literal["alignment", "transcripts"] = Field(
        "alignment",
        description="transcripts: whole utterances, without an alignment; all pronunciations (a flat start)",
    )
    tolerance: int = Field(2, ge=1, description="outputs by which a phone may begin earlier or later than aligned")
    cross_entropy: float = Field(0.1, ge=0, description="weight of cross-entropy on the second output")
    l2: float = Field(5e-5, ge=0, description="weight of half the sum of squares of a frame's outputs")


class TrainingConfig(Config):
    """How parameters move."""

    world: Literal["sgd", "ddp", "simulated", "shared", "cluster", "sandblaster"] = "sgd"
    workers: int = Field(1, ge=1)
    model_partitions: int = Field(
        1,
        ge=1,
        description="world shared: processes of a worker, on as many devices, each with its units of all layers",
    )
    objective: Literal["cross_entropy", "lfmmi"] = Field(
        "cross_entropy", description="of single frames, or lattice-free MMI of chunks (time-delay networks)"
    )
    lfmmi: LfMmiConfig = LfMmiConfig()
    device: str = "cpu"
    threads: int = Field(1, ge=1, description="of a worker; on a busy machine two wait for each other and lose")
    precision: Literal["float32", "tf32", "bf16"] = Field(
        "float32",
        description="of products and convolutions; tf32: on GPUs that have it; bf16: forward and backward by autocast, "
        "with parameters, gradients and steps in float32",
    )
    cuda_graph: bool = Field(
        False, description="on a GPU, models of windows: forward and backward recorded once, replayed by one call"
    )
    minibatch: int = Field(256, ge=1, description="frames")
    sequence: int | None = Field(
        None,
        ge=0,
        description="frames of a chunk; none: 20, or twice the lookahead, for recurrent models, where 0 is whole "
        "utterances; 150 for time-delay networks",
    )
    learning_rate: float = Field(0.1, gt=0, description="per minibatch mean gradient")
    optimizer: Literal["sgd", "adamw"] = Field("sgd", description="of every worker")
    betas: tuple[float, float] = Field((0.9, 0.98), description="AdamW: decay of the averages of gradient and square")
    momentum: float = Field(0.0, ge=0, lt=1, description="of plain SGD, so also of the warm start, and of ddp")
    weight_decay: float = Field(0.0, ge=0)
    gradient_clip: float | None = Field(
        None, gt=0, description="length to which a minibatch's gradient is cut down; none: it is not"
    )
    frequency_warp: float = Field(0.0, ge=0, lt=0.5, description="largest share by which frequencies are warped")
    speeds: tuple[float, ...] = Field(
        (), description="time-delay networks: a chunk is given at one of them, drawn anew in each epoch (1 is as it is)"
    )
    time_masks: int = Field(0, ge=0, description="SpecAugment: stretches hidden in each window, or chunk")
    time_mask_frames: int = Field(10, ge=1, description="longest of them; never more than half of the window")
    frequency_masks: int = Field(0, ge=0, description="SpecAugment: bands hidden in each window, or utterance")
    frequency_mask_bins: int = Field(8, ge=1, description="widest of them, in mel bins")
    chunk_frames: int = Field(
        0, ge=0, description="shuffle within chunks of so many frames; 0: the whole corpus (as for LSTMs)"
    )
    max_epochs: int = Field(20, ge=1)
    schedule: Literal["halving", "exponential", "cosine", "constant"] = "halving"
    halve_below: float = Field(
        0.01, description="fall of held-out cross-entropy, as a share of it, under which the rate is halved"
    )
    stop_below: float = Field(0.001, description="the same, under which training stops once the rate is being halved")
    final_rate: float = Field(0.01, gt=0, le=1, description="exponential: the last rate as a share of the first")
    warmup: float = Field(0.0, ge=0, description="epochs over which the rate rises from a tenth")
    evaluations: int = Field(1, ge=1, description="times an epoch that held-out accuracy is taken, for the curves")
    keep_checkpoints: int = Field(3, ge=1)
    checkpoint_s: float = Field(60.0, ge=0, description="seconds of training between checkpoints inside an epoch")
    dtype: Literal["float16", "float32"] = Field("float32", description="of the packed frames")
    codec: CodecConfig = CodecConfig()
    asgd: AsgdConfig = AsgdConfig()
    lbfgs: LbfgsConfig = LbfgsConfig()
    cluster: ClusterConfig = ClusterConfig()
    simulation: SimulationConfig = SimulationConfig()

    @model_validator(mode="after")
    def _fits(self) -> "TrainingConfig":
        if any(not 0.5 <= speed <= 2 for speed in self.speeds):
            raise ValueError(f"speeds={list(self.speeds)}: from 0.5 to 2; 1 is the recording as it is")
        if self.labels == "words" and self.sequence:
            raise ValueError(
                f"sequence={self.sequence}: lfmmi.numerators=transcripts are of whole utterances; take sequence away"
            )
        if not all(0 <= beta < 1 for beta in self.betas):
            raise ValueError(f"betas={list(self.betas)}: at least 0 and below 1 each")
        if self.optimizer == "adamw" and self.momentum:
            raise ValueError(f"momentum={self.momentum:g} is that of SGD; for optimizer=adamw give betas")
        if self.optimizer == "adamw" and not self.asgd.local_updates:
            raise ValueError("optimizer=adamw steps the shards' own parameters: it needs asgd.local_updates=true")
        return self

    @property
    def labels(self) -> Literal["senones", "phones", "words"]:
        """What labels the packed frames; the times of words are not those of the recording."""
        if self.objective == "cross_entropy":
            return "senones"
        return "words" if self.lfmmi.numerators == "transcripts" else "phones"

    def sequence_of(self, model: LstmConfig) -> int:
        """`sequence` for a recurrent model, where none is given."""
        return max(20, 2 * model.lookahead) if self.sequence is None else self.sequence
