"""How long the steps of a recipe will take and how much disk they need, for ``--dry-run``.

Times are hours of speech multiplied by measured rates: those of `recipes/minilibri`, with models of its sizes, one
process per core of an AMD EPYC with AVX-512. DNNs and CNN-TDNNs of other sizes take longer in proportion to their
parameters; that larger GMMs take longer, too, is not in the figures. Disk space follows from the dimensions of the
features. The times for data, language models and graphs were not measured, and are not in the sums; nor are there rates
of GPUs.
"""

import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import soundfile

from speech3.config import FeatureConfig, ModelConfig, TrainingConfig
from speech3.corpora import AUDIO, commonvoice, librispeech
from speech3.data import files_below, lengths_s, read_datadir, sphere_length_s, without_background
from speech3.errors import Speech3Error
from speech3.evaluate import tables
from speech3.features import static_dim
from speech3.hmm import lfmmi_passes, triphone_leaves
from speech3.models import build
from speech3.recipe.experiment import (
    ADAPTED_STAGE,
    BMMI,
    LDA,
    LFMMI,
    LFMMI_ADAPTED,
    LFMMI_TAUGHT,
    SAT,
    SAT_LFMMI,
    SELF,
    Experiment,
    decode_step,
    rescore_step,
    train_step,
)
from speech3.recipe.sizes import most_workers
from speech3.recipe.steps import Plan

_HOURS = 2.02  # of minilibri's training speech: 2.24, less the tenth that is dev
# Seconds of one core for an hour of speech.
_FEATURES = 3600 / 1190  # tests/benchmarks/README.md, plp13_pitch1_d2_realtime, the slowest of ours
# recipes/minilibri/README.md, table of costs. The aligner was not measured by itself; it is similar to the monophones.
# lda and sat: CPU time of one run of each on minilibri, on a busy machine.
_HMM_S = {"mono": 46.0, "aligner": 46.0, "tri": 74.2, "align": 13.9, LDA: 188.0, SAT: 231.0}
_HMM = {name: seconds / _HOURS for name, seconds in _HMM_S.items()}
# The same for one pass over the speech. dnn: from that table; cnn, lstm, blstm: upper bounds, from the table of
# families; cnn_tdnn, tdnn_lstm: by cross-entropy, measured beside another training, so upper bounds, too; lfmmi: 161
# updates, by AdamW 0.375 s each, by Muon 1.34 times as long (recipes/minilibri/RESULTS.md); bmmi: one iteration, on a
# core with AVX2.
_PASS_S = {
    "dnn": 53,
    "cnn": 23.4 * 60 / 7,
    "lstm": 20.6 * 60 / 10,
    "blstm": 26.5 * 60 / 10,
    "cnn_tdnn": 158,
    "tdnn_lstm": 195,
    LFMMI: 161 * 1.34 * 0.375,
    BMMI: 105,
}
_PASS = {name: seconds / _HOURS for name, seconds in _PASS_S.items()}
_TAUGHT = 1.8  # how much longer a pass with two teachers takes (4.5 and 2.5 minibatches a second on a busy machine)
# The networks whose rates these are: family and number of parameters. The time grows in proportion to the parameters.
_MEASURED = {"dnn": 1_878_816, "cnn_tdnn": 1_793_600, "tdnn_lstm": 2_130_304, LFMMI: 1_906_504}
# CPU time of decoding divided by the length of the speech, from the same three places. lda: as tri; sat: four such
# passes. Neither was measured.
_DECODING = dict.fromkeys(("mono", "tri", LDA, BMMI), 0.08) | {SAT: 0.32}
_DECODING |= {"dnn": 0.11, "cnn": 0.150, "lstm": 0.142, "blstm": 0.160, LFMMI: 0.050}
_SEARCHES_OF_DEV = 3  # tuning needs two or three searches; the other scales and penalties are tried on lattices
_FRAMES = 360_000  # per hour
_SAMPLES = {".raw": 32_000.0}  # bytes per second of recordings without a header: 16 bits at 16 kHz
_SOUNDS = (*AUDIO, ".wv1", *_SAMPLES)
_CORES = (2, 16)
_BASIS = (
    "times: idle cores at the rates of recipes/minilibri/README.md, for its GMMs, and networks by their parameters; -:"
    " nothing was measured (data, language models, graphs, scores)"
)
_NO_GPU = "GPUs: no times, since none of these were measured there; training.device=cuda trains the networks on a GPU"
_OPENED = 20  # maximum number of recordings of each kind whose headers are read
_WIDTHS = {"float16": 2, "float32": 4}  # bytes of a packed value


@dataclass(frozen=True)
class Speech:
    """Hours of each split; if not `exact`, they are estimated from the source, and all counted as train."""

    train: float
    dev: float = 0.0
    test: float = 0.0
    exact: bool = True
    without_background: float = 0.0  # of train, by which sizes are chosen; 0: all

    def __str__(self) -> str:
        if self.exact:
            return f"speech: train {self.train:.2f} h, dev {self.dev:.2f} h, test {self.test:.2f} h"
        return f"speech: about {self.train:.3g} h in --source (by its recordings), all counted as training speech"


@dataclass(frozen=True)
class Cost:
    """The expected cost of a step: seconds of one core, maximum number of processes (0: any), bytes of disk."""

    seconds: float = 0.0
    processes: int = 1
    size: float = 0.0

    def wall_s(self, cores: int) -> float:
        return self.seconds / min(self.processes or cores, cores)


def hours_of_speech(e: Experiment, plan: Sequence[Plan]) -> Speech | None:
    """Hours of speech; None if they are not known before the stage `data` has run."""
    try:
        if not any(each.why for each in plan if each.step.stage == "data"):
            data = read_datadir(e.data(e.speech))
            train_s, spoken = lengths_s(data), without_background(data).utterances
            dev, test = (sum(lengths_s(read_datadir(e.data(split))).values()) / 3600 for split in ("dev", "test"))
            spoken_h = sum(seconds for key, seconds in train_s.items() if key in spoken) / 3600
            return Speech(sum(train_s.values()) / 3600, dev, test, without_background=spoken_h)
        hours = _hours_of(e, e.source) if e.source else 0.0
    except Speech3Error:
        return None
    copies = 1 + sum(1 / speed for speed in e.recipe.speed_perturb) + bool(e.recipe.background)
    return Speech(hours * copies, exact=False) if hours else None


def expected_costs(e: Experiment, speech: Speech) -> dict[str, Cost]:
    """The expected cost of each step that has a measured rate, or takes much disk."""
    e = e.sized(speech.without_background or speech.train)
    recipe = e.recipe
    hours = speech.train * (1 + (recipe.negatives.share if recipe.negatives else 0))
    all_hours = hours + speech.dev + speech.test
    copies = 2 if recipe.augment else 1
    packed_hours = copies * hours + speech.dev
    found = {f"hmm/{name}": Cost(rate * hours, 0) for name, rate in _HMM.items()}
    # GMMs and alignments; data and features, which take disk space.
    found["hmm/boundaries"] = Cost(_HMM["align"] * (speech.dev + speech.test), 0)
    wav = 2.0 * (recipe.sample_rate or 16000) * 3600
    if recipe.speed_perturb:
        found["data/speed"] = Cost(0, 0, wav * hours * (1 - 1 / (1 + sum(1 / s for s in recipe.speed_perturb))))
    if recipe.augment:
        found["data/augment"] = Cost(0, 0, wav * hours)
    for name, preset in e.presets.items():
        found[f"features/{Path(name).stem}"] = Cost(_FEATURES * all_hours, 0, all_hours * _bytes(preset, 4))
    if recipe.augment:
        size = sum(hours * _bytes(e.presets[name], 4) for name in e.network_features)
        found["features/augmented"] = Cost(_FEATURES * hours * len(e.network_features), 0, size)
    if BMMI in e.trained:
        found[f"train/{BMMI}"] = Cost(_PASS[BMMI] * hours * recipe.hmm.bmmi.iterations, 0)
    # Networks: packed frames, and passes over them.
    workers = _workers(e, "training", e.training, hours)
    width = _WIDTHS[e.training.dtype]
    for network in e.networks:
        preset = e.presets[recipe.features]
        found[f"train/{e.frames_name(network)}.frames"] = Cost(size=packed_hours * _bytes(preset, width))
        leaves = recipe.hmm.tri.leaves or round(triphone_leaves(hours))
        rate = _PASS.get(recipe.model.system, 0.0) * _larger(recipe.model.system, recipe.model, preset, leaves)
        found[f"train/{network}"] = Cost(rate * hours * copies * e.training.max_epochs, workers)
        if e.label_source(network) != "tri":
            found[f"train/{network}.align"] = Cost(_HMM["align"] * hours, 0)
    if SAT in e.gmms:
        assert recipe.hmm.lda is not None
        dim = recipe.hmm.lda.dim
        adapted = FeatureConfig(num_mel_bins=dim, frame_shift=e.presets[recipe.hmm.features].frame_shift)
        found[f"{ADAPTED_STAGE}/features"] = Cost(size=all_hours * _bytes(adapted, 4))
        if e.adapts_to_lfmmi:
            decoded = speech.dev + speech.test
            found[f"{ADAPTED_STAGE}/words"] = Cost(2 * _HMM["align"] * decoded, 0, decoded * _bytes(adapted, 4))
    if (network := e.sat_network) in e.adapted:
        model, bins = e.sat_model(dim), e.presets[recipe.features]
        reads = bins.model_copy(update={"adapted": dim}) if e.reads_bins else adapted
        rate = _PASS.get(model.system, 0.0) * _larger(model.system, model, reads, round(triphone_leaves(hours)))
        found[f"{ADAPTED_STAGE}/align"] = Cost(_HMM["align"] * (hours + speech.dev), 0)
        # Utterances of training are packed with and without their speaker's transform.
        packed = f"{ADAPTED_STAGE}/{e.frames_name(network)}.frames"
        found[packed] = Cost(size=(2 * hours + speech.dev) * _bytes(reads, width))
        found[train_step(network)] = Cost(rate * 2 * hours * e.training.max_epochs, workers)
    if recipe.lfmmi and (system := recipe.lfmmi):
        preset, passes = e.presets[system.features], system.training.max_epochs
        size = packed_hours * _bytes(preset, _WIDTHS[system.training.dtype])
        found[f"train/{LFMMI}.frames"] = Cost(size=size)
        if system.passes is not None:
            passes = system.passes or lfmmi_passes(copies * hours, started=e.start(LFMMI) is not None)
        leaves = system.leaves or round(0.625 * triphone_leaves(hours))
        rate = _PASS[LFMMI] * _larger(LFMMI, system.model, preset, leaves)
        workers = _workers(e, "lfmmi.training", system.training, hours)
        found[f"train/{LFMMI}"] = Cost(rate * hours * copies * passes, workers)
        if SAT_LFMMI in e.adapted:  # twice the speech, half the passes; without augmented copies
            values = _bytes(preset, _WIDTHS[system.training.dtype]) + _bytes(adapted, _WIDTHS[system.training.dtype])
            found[f"{ADAPTED_STAGE}/{SAT_LFMMI}.frames"] = Cost(size=(2 * hours + speech.dev) * values)
            found[train_step(SAT_LFMMI)] = Cost(rate * hours * passes, workers)
            if LFMMI_TAUGHT in e.trained:
                found[train_step(LFMMI_TAUGHT)] = Cost(_TAUGHT * rate * hours * passes, workers)
    # Decoding, with tuning on dev.
    for system_name in e.systems:
        family = LFMMI if system_name in (SELF, *LFMMI_ADAPTED) else system_name
        family = family if family in _DECODING else recipe.model.system
        tuned_h = min(speech.dev, recipe.decode.tuning_minutes / 60) * _SEARCHES_OF_DEV
        rate = 3600 * _DECODING.get(family, 0.0)
        found[decode_step(system_name)] = Cost(rate * (tuned_h + speech.test), 0)
        if recipe.lm.rescore is not None and rate:
            once = 3600 * _DECODING["tri"] if system_name == SAT else rate  # with the transforms of the passes before
            found[rescore_step(system_name)] = Cost(once * (speech.dev + speech.test), 0)
    return {name: cost for name, cost in found.items() if cost.seconds or cost.size}


def _workers(e: Experiment, group: str, training: TrainingConfig, hours: float) -> int:
    """Workers of a network on a machine with many cores."""
    return most_workers(hours) if f"{group}.workers" in e.workers_chosen else training.workers


def _larger(measured_as: str, model: ModelConfig, features: FeatureConfig, outputs: int) -> float:
    """Parameters of a network, divided by those of the network in `_MEASURED` whose rate was measured."""
    measured = _MEASURED.get(measured_as)
    if measured is None or features.kind == "given":
        return 1.0
    network = build(model, values_per_frame(features), max(1, outputs), seed=0)
    return sum(tensor.numel() for tensor in network.parameters()) / measured


def values_per_frame(config: FeatureConfig) -> int:
    return static_dim(config) * (1 + config.deltas) * (1 + config.left_context + config.right_context) + config.adapted


def _bytes(config: FeatureConfig, width: int) -> float:
    """Bytes of an hour of features with `width` bytes per value."""
    return 0.0 if config.kind == "given" else 3.6e6 / config.frame_shift * values_per_frame(config) * width


def cost_remarks(expected: dict[str, Cost], cores: int) -> dict[str, str]:
    """For each step, what the plan prints about its cost: ``; about 5 min, 1.2 GB``."""
    return {name: f"; {_remark(cost, cores)}" for name, cost in expected.items()}


def _remark(cost: Cost, cores: int) -> str:
    time = [f"about {_time(cost.wall_s(cores))}"] if cost.seconds else []
    return ", ".join([*time, *([_size(cost.size)] if cost.size else [])])


def totals_table(expected: dict[str, Cost], plan: Sequence[Plan], e: Experiment) -> str:
    """A table of the stages that would run: their times on 2 and on 16 cores, and with `jobs`; and their disk space."""
    cores = sorted({*_CORES, e.jobs})
    running = [each.step for each in plan if each.why]
    rows = [("stage", *(f"{count} {'core' if count == 1 else 'cores'}" for count in cores), "disk")]
    total_s, total_size = [0.0] * len(cores), 0.0
    for stage in dict.fromkeys(step.stage for step in running):
        found = [expected.get(step.name, Cost()) for step in running if step.stage == stage]
        times_s = [sum(cost.wall_s(count) for cost in found) for count in cores]
        size = sum(cost.size for cost in found)
        total_s, total_size = [a + b for a, b in zip(total_s, times_s, strict=True)], total_size + size
        rows.append(_row(stage, times_s, size))
    rows.append(_row("all", total_s, total_size))
    place = next(path for path in (e.out, *e.out.parents) if path.exists())
    return "\n".join(
        [tables.grid(rows, len(rows[0])), f"free on the disk: {_size(shutil.disk_usage(place).free)}", _BASIS, _NO_GPU]
    )


def _row(stage: str, times_s: Sequence[float], size: float) -> tuple[str, ...]:
    return (stage, *(_time(time_s) if time_s else "-" for time_s in times_s), _size(size) if size else "-")


def _time(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def _size(count: float) -> str:
    unit, divisor = ("GB", 1e9) if count >= 1e9 else ("MB", 1e6)
    return f"{count / divisor:.3g} {unit}"


def _hours_in(files: Iterable[Path]) -> float:
    """Hours of the recordings among the files: their sizes, divided by the bytes per second of a few of each kind."""
    kinds: dict[str, list[tuple[Path, int]]] = {}
    for path in files:
        if path.name.lower().endswith(_SOUNDS):
            kinds.setdefault(path.suffix.lower(), []).append((path, path.stat().st_size))
    seconds = 0.0
    for suffix, found in kinds.items():
        some = found[:: max(1, len(found) // _OPENED)][:_OPENED]
        known = [(size, length) for path, size in some if (length := _length_s(path))]
        rate = sum(size for size, _ in known) / sum(s for _, s in known) if known else _SAMPLES.get(suffix)
        seconds += sum(size for _, size in found) / rate if rate else 0.0
    return seconds / 3600


def _hours_of(e: Experiment, source: Path) -> float:
    """Hours of the corpus: of its data directories, or of the recordings that the recipe uses."""
    given = [
        path for path in (source, *(source / part for part in ("train", "dev", "test"))) if (path / "wav.scp").is_file()
    ]
    if given:
        return sum(sum(lengths_s(read_datadir(path)).values()) for path in given) / 3600
    if e.recipe.corpus == "commonvoice":
        return _hours_in(commonvoice.recordings_in_use(source))
    if e.recipe.corpus == "librispeech":
        options = {key: value for key, value in e.recipe.corpus_options.items() if key in ("train", "dev", "test")}
        return _hours_in(librispeech.recordings_in_use(source, **options))
    return _hours_in(files_below(source))


def _length_s(path: Path) -> float | None:
    try:
        return float(soundfile.info(str(path)).duration)
    except (soundfile.SoundFileError, RuntimeError, TypeError):
        return sphere_length_s(path)  # compressed by shorten
