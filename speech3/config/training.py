"""Training: the worlds, asynchronous SGD, gradient codecs, L-BFGS and the virtual clock."""

import math
from typing import Literal

from pydantic import Field, model_validator

from speech3.config.base import Config
from speech3.config.models import LstmConfig

# Keys of `TrainingConfig` that do not affect the result, and may change when a run is resumed.
MAY_CHANGE_ON_RESUME = {"device", "cuda_graph", "cluster", "keep_checkpoints", "checkpoint_s"}


class AsgdConfig(Config):
    """Asynchronous SGD: how shards and server work together (`speech3/engine`: shard.py, server_optimizer.py)."""

    warm_start: float = Field(1.0, ge=0, description="epochs on one worker before the first push")
    sync_every: int = Field(3, ge=1, description="minimum number of minibatches of a shard between two pushes")
    fetch_every: int | None = Field(
        None, ge=1, description="minimum number of minibatches between two fetches; none: a fetch at every push"
    )
    partitions: int = Field(1, ge=1, le=256, description="partitions of the server, each with its own version and lock")
    max_distance: int = Field(12, ge=1, description="minibatches since the last fetch at which a shard waits to sync")
    max_relative_distance: float | None = Field(
        None, gt=0, description="relative distance of a shard's parameters from those it fetched at which it waits"
    )
    max_staleness: int | None = Field(
        None, ge=0, description="a push with a greater staleness is dropped; none: no push is dropped"
    )
    local_updates: bool = Field(
        True, description="a shard updates its own copy between syncs; false: it accumulates gradients"
    )
    push_scale: float | Literal["1/accumulated", "1/workers"] = Field(
        "1/workers", description="factor applied to a push: a number above 0, 1/accumulated or 1/workers"
    )
    momentum: float = Field(
        0.0, ge=0, lt=1, description="momentum of the server and of the warm start; 0: that of training.momentum"
    )
    projection: bool = Field(False, description="remove from a push its component that opposes the server's momentum")
    decay: float = Field(1.0, gt=0, le=1, description="a push is multiplied by decay ** staleness")
    adagrad: float = Field(0.0, ge=0, description="gamma of Adagrad on the server, replaces push_scale; 0: no Adagrad")
    max_push: float = Field(
        1.0,
        gt=0,
        allow_inf_nan=True,
        description="a push that would change the parameters by more than this share of their norm is refused",
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
        if self.fetch_every not in (None, self.sync_every) and self.max_relative_distance is not None:
            raise ValueError(
                "max_relative_distance uses the fetched parameters, which a shard keeps only until it pushes, so it "
                "needs a fetch with every push; remove fetch_every"
            )
        if self.projection and not self.momentum:
            raise ValueError(
                "projection removes from a push what opposes the server's momentum: set momentum, too (0.5, say)"
            )
        if self.max_relative_distance is not None and not self.local_updates:
            raise ValueError("max_relative_distance measures a shard's own updates: it needs local_updates=true")
        if isinstance(self.push_scale, float) and not 0 < self.push_scale < math.inf:
            raise ValueError(f"push_scale={self.push_scale:g}: must be above 0, or no push would change the parameters")
        if self.max_staleness == 0 and self.decay < 1:
            raise ValueError(
                "max_staleness=0 drops every stale push, so decay has no effect: raise max_staleness, or remove decay"
            )
        return self


class LbfgsConfig(Config):
    """Sandblaster L-BFGS (`speech3.engine.papers.sandblaster`)."""

    history: int = Field(10, ge=1, description="number of stored pairs of steps and gradient differences")
    batches: int = Field(1, ge=1, description="equal parts of an epoch, each an objective of its own; 1: all the data")
    iterations: int = Field(10, ge=1, description="iterations on each batch in an epoch")


class CodecConfig(Config):
    """How gradients are sent (`speech3.engine.codecs`); the name of a codec alone is enough: ``codec: ternary``."""

    kind: Literal["none", "bf16", "ternary", "topk", "rows"] = Field(
        "none", description="none: float32; rows: float32 of the rows of matrices that are not zero, as of embeddings"
    )
    share: float = Field(0.01, gt=0, le=1, description="topk: share of the values that is sent, the largest ones")
    down: Literal["float32", "ternary"] = Field(
        "float32", description="coding of what a shard fetches; ternary: of the difference from its own parameters"
    )
    clip: float = Field(2.5, gt=0, description="ternary: standard deviations at which values are clipped")
    bucket: int = Field(0, ge=0, description="ternary: number of values that share a scale; 0: one scale per tensor")
    float_below: int = Field(0, ge=0, description="ternary: tensors with fewer values are sent as float32")
    float_last: bool = Field(False, description="ternary: the softmax layer is sent as float32")

    @model_validator(mode="before")
    @classmethod
    def _by_name(cls, value: object) -> object:
        return {"kind": value} if isinstance(value, str) else value


class ClusterConfig(Config):
    """World cluster: shards and server partitions as Ray actors, on any host."""

    address: str | None = Field(
        None, description="HOST:PORT of Ray's head node, or auto (Ray running on this host); none: start Ray here"
    )


class SimulationConfig(Config):
    """The virtual clock of the simulated world; times are in seconds."""

    compute_s: float | tuple[float, ...] | None = Field(
        None, description="time of a minibatch, for all workers or for each; none: measured before training begins"
    )
    sync_s: float | None = Field(None, ge=0, description="time for which a sync occupies the server; none: measured")
    jitter: float = Field(0.0, ge=0, lt=1, description="standard deviation of the logarithm of compute times")
    failures: tuple[tuple[int, float], ...] = Field(
        (), description="worker (from 0) and seconds of training at which it fails; not in the warm start"
    )
    restart_s: float = Field(5.0, ge=0, description="time until a failed worker is replaced")
    bandwidth: float | None = Field(None, description="bytes per second of each link; none: no limit")
    latency_s: float = Field(0.0, ge=0, lt=math.inf, description="latency of a message")
    strategy: Literal["asgd", "synchronous", "sandblaster"] = Field(
        "asgd", description="asgd: as world shared; synchronous: workers step together, as in ddp; sandblaster: L-BFGS"
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
                f"bandwidth={self.bandwidth:g}: nothing would ever arrive; use bytes per second above 0 (1.25e8 is "
                f"1 Gbit/s), or remove it for unlimited bandwidth"
            )
        return self


class LfMmiConfig(Config):
    """The LF-MMI criterion (`speech3.sequence.lfmmi`)."""

    leaky_hmm_coefficient: float = Field(0.1, gt=0, lt=1, description="leak probability of the denominator's leaky HMM")
    numerators: Literal["alignment", "transcripts"] = Field(
        "alignment",
        description="transcripts: whole utterances without an alignment, with all pronunciations (a flat start)",
    )
    tolerance: int = Field(
        2, ge=1, description="number of outputs by which a phone may begin earlier or later than aligned"
    )
    cross_entropy: float = Field(0.1, ge=0, description="weight of cross-entropy on the second output")
    l2: float = Field(5e-5, ge=0, description="weight of half the sum of squares of a frame's outputs")
    teacher: str | None = Field(
        None,
        min_length=1,
        description="model directory of one network, or of several (lfmmi_mean), with the same pdfs, from whose outputs"
        " this network also learns; one that reads fewer features than the frames have reads the first ones",
    )
    teaching: float | None = Field(
        None, ge=0, le=1, description="share of the teacher's posteriors in the targets; none: 0.7"
    )


class DiscriminativeConfig(Config):
    """MMI and sMBR of senone sequences (`speech3.sequence.discriminative`)."""

    acoustic_scale: float = Field(0.2, gt=0, description="scale of the scores, as in decoding")
    boost: float = Field(
        0.0, ge=0, description="mmi: cost of each correct frame of a path in the denominator (boosted MMI)"
    )
    cross_entropy: float = Field(0.1, ge=0, description="weight of frame cross-entropy, in addition to the criterion")
    leaky_hmm_coefficient: float = Field(
        0.01, gt=0, lt=1, description="leak probability of the denominator's leaky HMM"
    )
    extra_lm_states: int = Field(
        5000, ge=0, description="number of histories of two senones in the denominator, besides all single senones"
    )


class TrainingConfig(Config):
    world: Literal["sgd", "ddp", "simulated", "shared", "cluster", "sandblaster"] = "sgd"
    workers: int = Field(
        1, ge=0, description="0, or neither this nor world, in a recipe: chosen according to the amount of speech"
    )
    model_partitions: int = Field(
        1,
        ge=1,
        description="world shared: processes of a worker, each on its own device with a share of the units of all "
        "layers",
    )
    objective: Literal["cross_entropy", "mmi", "smbr", "lfmmi"] = Field(
        "cross_entropy",
        description="cross-entropy of frames; mmi or smbr of chunks, to continue a network trained by it (init); or "
        "lattice-free MMI of chunks",
    )
    discriminative: DiscriminativeConfig = DiscriminativeConfig()
    lfmmi: LfMmiConfig = LfMmiConfig()
    device: str = "cpu"
    threads: int = Field(1, ge=1, description="threads of each worker; on a busy machine more than one is slower")
    precision: Literal["float32", "tf32", "bf16", "auto"] = Field(
        "float32",
        description="of products and convolutions; tf32: on GPUs that have it; bf16: autocast of forward and backward "
        "pass, with parameters, gradients and updates in float32; auto: bf16 on a CPU that "
        "multiplies faster in it, else float32",
    )
    cuda_graph: bool = Field(
        False,
        description="on a GPU, for models of windows: record forward and backward pass once and replay them as a graph",
    )
    minibatch: int = Field(256, ge=0, description="frames; 0, in a recipe: chosen according to the amount of speech")
    sequence: int | None = Field(
        None,
        ge=0,
        description="frames of a chunk; 0: whole utterances. None: 20 for recurrent models, or twice the lookahead if "
        "that is more; 150 with time-delay layers, mmi, smbr, outputs at a third of the frames or speeds, or less if "
        "nine in ten utterances are shorter",
    )
    targets_inside: bool = Field(
        False,
        description="recurrent networks with a delay: the input of a chunk is longer by as many steps, so that the "
        "outputs for its last frames train the steps that read these frames",
    )
    chunk_context: int = Field(
        40,
        ge=0,
        description="recurrent networks with time-delay layers, mmi, smbr, outputs at a third of the frames or speeds: "
        "frames before a chunk that they read first, rounded up to whole outputs",
    )
    learning_rate: float = Field(0.1, gt=0, description="applied to the mean gradient of a minibatch")
    optimizer: Literal["sgd", "adamw", "muon"] = Field(
        "sgd", description="optimizer of every worker; muon: for the matrices of hidden layers, AdamW for the rest"
    )
    betas: tuple[float, float] = Field(
        (0.9, 0.98), description="AdamW and Muon: decay of the averages of the gradient and of its square"
    )
    momentum: float = Field(
        0.0, ge=0, lt=1, description="momentum of SGD; with asynchronous workers it is the server's (asgd.momentum)"
    )
    weight_decay: float = Field(0.0, ge=0)
    group_lasso: float = Field(
        0.0,
        ge=0,
        description="penalty on the weights that read a hidden unit (time-delay networks: a unit of a bottleneck); at "
        "the end of training unused units are pruned (`speech3.models.groups`)",
    )
    label_smoothing: float = Field(
        0.0, ge=0, lt=1, description="cross-entropy: probability that is spread evenly over all senones in training"
    )
    gradient_clip: float | None = Field(
        None, gt=0, description="norm to which the gradient of a minibatch is clipped; none: no clipping"
    )
    frequency_warp: float = Field(0.0, ge=0, lt=0.5, description="largest relative warp of frequencies")
    speeds: tuple[float, ...] = Field(
        (),
        description="speeds, one of which is drawn for a chunk in each epoch (1: unchanged); minibatches of windows "
        "and of consecutive chunks then become minibatches of single chunks of `sequence` frames",
    )
    time_masks: int = Field(0, ge=0, description="SpecAugment: time masks in each window or chunk")
    time_mask_frames: int = Field(10, ge=1, description="longest time mask; never more than half of the window")
    frequency_masks: int = Field(0, ge=0, description="SpecAugment: frequency masks in each window or utterance")
    frequency_mask_bins: int = Field(8, ge=1, description="widest frequency mask, in mel bins")
    chunk_frames: int = Field(
        0, ge=0, description="shuffle within chunks of this many frames; 0: over the whole corpus (always for LSTMs)"
    )
    max_epochs: int = Field(20, ge=0, description="0, in a recipe: chosen according to the amount of speech")
    schedule: Literal["halving", "exponential", "cosine", "constant"] = "halving"
    halve_below: float = Field(
        0.01, description="relative decrease of held-out cross-entropy below which the rate is halved"
    )
    stop_below: float = Field(
        0.001, description="relative decrease below which training stops, once the rate is being halved"
    )
    final_rate: float = Field(0.01, gt=0, le=1, description="exponential: the last rate as a share of the first")
    warmup: float = Field(0.0, ge=0, description="epochs over which the rate rises from a tenth of its value")
    average: int = Field(
        0,
        ge=0,
        description="number of last epochs whose mean parameters are the result if their held-out loss is no higher "
        "than that of the best epoch; 0: the best epoch is the result",
    )
    evaluations: int = Field(1, ge=1, description="evaluations on held-out data per epoch, for the curves")
    keep_checkpoints: int = Field(3, ge=1)
    checkpoint_s: float = Field(60.0, ge=0, description="seconds of training between checkpoints within an epoch")
    dtype: Literal["float16", "float32"] = Field("float32", description="data type of the packed frames")
    codec: CodecConfig = CodecConfig()
    asgd: AsgdConfig = AsgdConfig()
    lbfgs: LbfgsConfig = LbfgsConfig()
    cluster: ClusterConfig = ClusterConfig()
    simulation: SimulationConfig = SimulationConfig()

    @model_validator(mode="after")
    def _fits(self) -> "TrainingConfig":
        if any(not 0.5 <= speed <= 2 for speed in self.speeds):
            raise ValueError(f"speeds={list(self.speeds)}: must be from 0.5 to 2 (1 leaves a recording unchanged)")
        if self.labels == "words" and self.sequence is not None:
            raise ValueError(
                f"sequence={self.sequence}: lfmmi.numerators=transcripts trains on whole utterances; remove sequence"
            )
        if self.lfmmi.teacher is not None and self.labels != "phones":
            raise ValueError(
                f"lfmmi.teacher={self.lfmmi.teacher}: only with objective=lfmmi and lfmmi.numerators=alignment; remove"
                " it, or set these"
            )
        if not all(0 <= beta < 1 for beta in self.betas):
            raise ValueError(f"betas={list(self.betas)}: each must be at least 0 and below 1")
        if self.average == 1:
            raise ValueError("average=1: the mean of one epoch is that epoch; use at least 2, or 0 for no average")
        if self.optimizer != "sgd" and self.momentum:
            raise ValueError(f"momentum={self.momentum:g} is for SGD; for optimizer={self.optimizer} set betas instead")
        if self.optimizer != "sgd" and not self.asgd.local_updates:
            raise ValueError(
                f"optimizer={self.optimizer} updates the shards' own parameters: it needs asgd.local_updates=true"
            )
        if self.optimizer == "muon" and self.model_partitions > 1:
            raise ValueError("optimizer=muon needs whole matrices; use model_partitions=1, or optimizer=adamw")
        return self

    @property
    def labels(self) -> Literal["senones", "phones", "words"]:
        """The kind of labels that packed frames have (the times of words are not those in the recording)."""
        if self.objective != "lfmmi":
            return "senones"
        return "words" if self.lfmmi.numerators == "transcripts" else "phones"

    @property
    def of_sequences(self) -> bool:
        """Whether the objective is one of senone sequences, which continues a network trained by cross-entropy."""
        return self.objective in ("mmi", "smbr")

    @property
    def server(self) -> AsgdConfig:
        """`asgd`, with `momentum` where `asgd.momentum` is 0.

        The warm start uses the same momentum, so the size of steps does not change when it ends.
        """
        return self.asgd.model_copy(update={"momentum": self.asgd.momentum or self.momentum})

    @property
    def unused(self) -> dict[str, str]:
        """The keys, and groups of keys, that have no effect together with the others, and what each of them is for."""
        keys = {
            "asgd": ("asynchronous workers (world shared, with 2 or more)", self.asynchronous),
            "lbfgs": ("sandblaster", self.by_sandblaster),
            "cluster": ("world cluster", self.world == "cluster"),
            "simulation": ("world simulated", self.world == "simulated"),
            "lfmmi": ("objective lfmmi", self.objective == "lfmmi"),
            "discriminative": ("objective mmi or smbr", self.of_sequences),
            "betas": ("optimizer adamw or muon", self.optimizer != "sgd"),
            "final_rate": ("schedule exponential", self.schedule == "exponential"),
            "halve_below": ("schedule halving", self.schedule == "halving"),
            "stop_below": ("schedule halving", self.schedule == "halving"),
            "time_mask_frames": ("time_masks", self.time_masks > 0),
            "frequency_mask_bins": ("frequency_masks", self.frequency_masks > 0),
        }
        return {name: purpose for name, (purpose, used) in keys.items() if not used}

    @property
    def by_sandblaster(self) -> bool:
        """Whether the world, or the strategy of its simulation, is L-BFGS: no worker takes steps of its own."""
        simulated = self.world == "simulated" and self.simulation.strategy == "sandblaster"
        return self.world == "sandblaster" or simulated

    @property
    def asynchronous(self) -> bool:
        """Whether shards push to a server, each in its own time."""
        simulated = self.world == "simulated" and self.simulation.strategy == "asgd"
        return self.world in ("shared", "cluster") or simulated

    @property
    def pushes_gradients(self) -> bool:
        """Whether shards push sums of gradients instead of changing parameters of their own."""
        return self.asynchronous and not self.asgd.local_updates

    @property
    def last_is_best(self) -> bool:
        """Whether the last epoch counts as the best, whatever its held-out loss (`speech3.train.rundir`)."""
        return self.group_lasso > 0 or (self.objective == "lfmmi" and self.schedule == "cosine")

    def sequence_of(self, model: LstmConfig) -> int:
        """`sequence` for a recurrent model, or its default if none is given."""
        return max(20, 2 * model.lookahead) if self.sequence is None else self.sequence
