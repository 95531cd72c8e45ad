"""Pretraining: from recordings without transcripts to a network that `speech3 train --init` starts from.

RUN/features/{network,targets}          features, removed when they are packed
RUN/frames/{train,heldout}.frames       packed frames with the labels of the task; made.json says from what
RUN/frames/clusters.safetensors         masked: the centres of the clusters
RUN/hmm                                 the number of outputs, which are no senones
RUN/model.safetensors, metrics.jsonl    as of any run (`speech3.train.run`)

Axes: N frames, T frames of an utterance, F feature bins, K clusters.
"""

import hashlib
import json
import shutil
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from speech3.config import FeatureConfig, ModelConfig, PretrainConfig, PretrainingConfig, TrainConfig, load_preset
from speech3.corpora import read_untranscribed
from speech3.data import AudioError, DataDir, info, read_datadir, split_by_speaker, split_by_utterance
from speech3.errors import DataError, OccupiedError, Speech3Error
from speech3.features import extract
from speech3.frames import cluster_frames, nearest_cluster, write_frames
from speech3.hmm import PdfsOnly
from speech3.io import FEATURES_FILE, MODEL_FILE, ArkReader, ComputedMapping, save_tensors
from speech3.runtime import check_output, progress, read_json, say, write_json
from speech3.train.run import train

_CLUSTERED = 100_000  # frames from which the clusters are estimated
_MADE, _CENTRES = "made.json", "clusters.safetensors"
_NO_SENONES = "the outputs of pretraining without transcripts are no senones; train a network with --init"


def pretrain(source: Path | DataDir, out: Path, config: PretrainConfig, *, restart: bool = False) -> dict[str, Any]:
    """Pretrain a network; resume what was killed.

    `source`: a folder of recordings, or a data directory. Recordings of another rate than that of the features (the
    first recording's, if the preset names none) are resampled, and channels are mixed.
    `out`: run directory, a model directory for ``--init`` when it is finished.
    `restart`: discard an earlier run there.

    Returns what `speech3.train.train` does; ``heldout_accuracy`` is, for masked prediction, the share of held-out
    frames whose cluster is predicted, and for the autoencoder the share of the variance of held-out windows that is
    explained.

    Raises Speech3Error: there are no recordings, or too few to hold some out; the task does not fit the network; as
    `train`.
    """
    data = source if isinstance(source, DataDir) else _read(source)
    if not data.utterances:
        raise DataError(f"{data.path}: holds no utterance; pass recordings, or a data directory with some")
    same = {key: getattr(config, key) for key in ("model", "training", "seed", "pretraining")}
    # Other frames and features there are not ours to remove: a recipe's, say.
    made = out / "frames" / _MADE
    check_output(
        out, [data.path], ("frames", "features", "hmm"), marks=[f"frames/{_MADE}", "features/network"], option="--out "
    )
    if (out / MODEL_FILE).exists() and not made.exists():
        raise OccupiedError(f"--out {out}: holds a model that is not from speech3 pretrain; choose another directory")
    run = TrainConfig(frames=str(out / "frames"), hmm=str(out / "hmm"), **same)
    settings = _settings(data, config)
    if restart or not made.exists():
        shutil.rmtree(out / "frames", ignore_errors=True)
        _pack(data, out, config)
        write_json(made, settings)
    elif differ := sorted(key for key, value in settings.items() if read_json(made).get(key) != value):
        raise OccupiedError(
            f"{out}: holds frames of other {' and '.join(differ)}; choose another --out, or --restart to begin again"
        )
    return train(run, out, restart=restart)


def _read(source: Path) -> DataDir:
    kaldi = any((source / name).is_file() for name in ("wav.scp", "feats.scp"))
    return read_datadir(source) if kaldi else read_untranscribed(source, [], "DIR")


def _settings(data: DataDir, config: PretrainConfig) -> dict[str, Any]:
    """What the packed frames depend on."""
    rows = [[u.id, data.recordings.get(u.recording), u.start_s, u.end_s] for u in data.utterances.values()]
    pretraining, masked = config.pretraining, config.pretraining.task == "masked"
    return {
        "utterances": hashlib.sha256(json.dumps(rows).encode()).hexdigest()[:16],
        "features": _features(config.features).model_dump(mode="json"),
        "labels": [pretraining.clusters, pretraining.targets] if masked else _window(config.model),
        "seed and share held out": [config.seed, config.heldout],
    }


def _features(preset: str) -> FeatureConfig:
    found = load_preset(FeatureConfig, "features", preset).for_training
    return found.model_copy(update={"resample": True, "mix_channels": True})


def _window(model: ModelConfig) -> int:
    return model.left_context + 1 + model.right_context


def _pack(data: DataDir, out: Path, config: PretrainConfig) -> None:
    """Extract features, label their frames, and pack them in two parts."""
    features, pretraining = out / "features", config.pretraining
    report = extract(data, features / "network", _features(config.features), config.jobs, relative=True)
    _say_rates(data, report.config.sample_frequency)
    feats: Mapping[str, np.ndarray] = ArkReader(features / "network" / "feats.scp")
    if pretraining.task == "masked":
        rate = {"sample_frequency": report.config.sample_frequency, "resample": True, "mix_channels": True}
        targets = load_preset(FeatureConfig, "features", pretraining.targets).model_copy(update=rate)
        extract(data, features / "targets", targets, config.jobs, relative=True)
        clustered = ArkReader(features / "targets" / "feats.scp")
        labels, outputs = _clusters(clustered, pretraining, config.seed, out / "frames"), pretraining.clusters
    else:
        outputs = report.values * _window(config.model)  # every value of a window is an output, and no label is used
        labels = ComputedMapping(dict.fromkeys(feats), lambda key: np.zeros(len(feats[key]), np.int32))
    shares = {"heldout": config.heldout, "train": 1 - config.heldout}
    used = data.subset(key for key in data.utterances if key in feats)
    try:
        parts = split_by_speaker(used, shares, config.seed)
    except Speech3Error:  # so few speakers that a part would have none
        parts = split_by_utterance(used, shares, config.seed)
    for name, part in parts.items():
        path, info = out / "frames" / f"{name}.frames", {"data": str(data.path), "labels": pretraining.task}
        utterances, dtype = list(part.utterances), config.training.dtype
        write_frames(path, feats, labels, outputs, utterances=utterances, dtype=dtype, info=info)
    shutil.copyfile(features / "network" / FEATURES_FILE, out / "frames" / FEATURES_FILE)
    (out / "hmm").mkdir(exist_ok=True)
    PdfsOnly(outputs, _NO_SENONES).save(out / "hmm")
    shutil.rmtree(features)


def _say_rates(data: DataDir, rate_hz: int | None) -> None:
    rates: Counter[int] = Counter()
    for value in data.recordings.values() if rate_hz else ():
        try:
            rates[info(value, directory=data.path).sample_rate_hz] += 1
        except AudioError:  # named by the extraction
            continue
    if others := {each: count for each, count in sorted(rates.items()) if each != rate_hz}:
        words = ", ".join(f"{count:,} at {each:,} Hz" for each, count in others.items())
        say(f"{data.path}: recordings at other rates are resampled to {rate_hz:,} Hz: {words}")


def _clusters(
    feats: Mapping[str, np.ndarray], pretraining: PretrainingConfig, seed: int, out: Path
) -> Mapping[str, np.ndarray]:
    """Estimate the clusters on a sample of the frames; the cluster (T,) of each frame, computed on access."""
    generator, lengths = np.random.default_rng(seed), {key: len(feats_TF) for key, feats_TF in feats.items()}
    share = min(1.0, _CLUSTERED / max(1, sum(lengths.values())))
    sample = []
    for key in progress(lengths, len(lengths), "frames to cluster"):
        sample.append(feats[key][generator.random(lengths[key]) < share])
    centre_KF = cluster_frames(np.concatenate(sample), pretraining.clusters, seed)
    save_tensors(out / _CENTRES, {"centres": centre_KF}, {"kind": "clusters", "features": pretraining.targets})
    return ComputedMapping(lengths, lambda key: nearest_cluster(feats[key], centre_KF))
