"""Checks of a training config before any network is trained, and the precision for ``training.precision=auto``."""

from pathlib import Path

from speech3.config import TIME_DELAY, LstmConfig, TrainConfig, TrainingConfig
from speech3.errors import MissingError, OccupiedError, SettingError
from speech3.hmm import PdfsOnly, load_outputs
from speech3.io import A_LANGUAGE_MODEL, CARD_FILE, FEATURES_FILE, HMM_FILE, METRICS_FILE, RUN_FILE
from speech3.models import BF16_WORTH_IT, bf16_over_float32, has_units
from speech3.runtime import check_output, read_json, say
from speech3.sequence import check_tree
from speech3.train.rundir import GRAPHS


def check_group_lasso(config: TrainConfig) -> None:
    """Refuse models and strategies in which group lasso cannot remove units."""
    training, model = config.training, config.model
    key = f"training.group_lasso={training.group_lasso:g}"
    if not has_units(model):
        raise SettingError(
            f"{key}: removes hidden units or cells of layers that are not normalised over them (set "
            f"model.normalization or cell_normalization to batch or none), and this {model.family} has none; "
            f"remove the key"
        )
    if training.schedule == "halving":
        raise SettingError(
            f"{key}: with training.schedule=halving an epoch that raises the held-out loss is undone, but removing "
            f"units raises it; choose cosine or exponential"
        )
    if training.pushes_gradients:
        raise SettingError(f"{key}: is applied to the shards' own parameters; set training.asgd.local_updates=true")
    if training.model_partitions > 1:
        raise SettingError(
            f"{key}: each of training.model_partitions={training.model_partitions} processes has only some of a unit's "
            f"weights; set it to 1 and more training.workers"
        )
    if training.by_sandblaster:
        raise SettingError(f"{key}: not with sandblaster, which takes no steps of its own; choose another world")


def check_sequences(config: TrainConfig) -> None:
    """Refuse keys that do not fit MMI and sMBR."""
    training = config.training
    key = f"training.objective={training.objective}"
    if config.init is None:
        raise SettingError(
            f"{key}: continues a network that was trained by cross-entropy; pass it with --init (or the key init)"
        )
    if (subsampling := read_json(Path(config.hmm) / HMM_FILE).get("subsampling", 1)) != 1:
        raise SettingError(
            f"{key}: needs senones at every frame, but {config.hmm} has one score per {subsampling} frames; pass the "
            f"HMM of the network's senones, or train with training.objective=lfmmi"
        )
    if training.objective == "smbr" and training.discriminative.boost:
        raise SettingError(
            f"training.discriminative.boost={training.discriminative.boost:g}: only for training.objective=mmi; set it "
            f"to 0"
        )
    if training.sequence == 0:
        raise SettingError(f"training.sequence=0: {key} needs chunks of one length; use 150, or remove it")
    if isinstance(load_outputs(Path(config.hmm)), PdfsOnly):
        say(f"{key}: {config.hmm} does not say which senones are silence, so silence counts like speech")
    if training.cuda_graph:
        raise SettingError(f"{key}: cannot be recorded as a CUDA graph; set training.cuda_graph=false")


def with_precision(config: TrainConfig, earlier: Path | None) -> TrainConfig:
    """The config with ``training.precision=auto`` replaced: that of the run in `earlier`, or of this processor.

    That is bf16 on CPUs that multiply faster in it, in worlds that support it; float32 otherwise, and on GPUs.
    """
    training = config.training
    if training.precision != "auto":
        return config
    possible = training.device == "cpu" and not training.by_sandblaster and training.model_partitions == 1
    precision = "float32"
    if earlier and (earlier / RUN_FILE).exists():
        precision = read_json(earlier / RUN_FILE).get("training", {}).get("precision", precision)
    elif possible and (faster := bf16_over_float32()) > BF16_WORTH_IT:
        precision = "bf16"
        say(f"using bf16 ({faster:.1f} x faster here than float32)")
    return config.model_copy(update={"training": training.model_copy(update={"precision": precision})})


def check_out(config: TrainConfig, out: Path) -> None:
    """Refuse as run directory one that training reads from: a run would replace what it begins with."""
    read = {"hmm": config.hmm, "frames": config.frames, "--init": config.init}
    read["training.lfmmi.teacher"] = config.training.lfmmi.teacher
    for name, path in read.items():
        if not path:
            continue
        directory = Path(path).parent if Path(path).is_file() else Path(path)
        if directory.resolve() == out.resolve():
            raise OccupiedError(f"{out}: is also {name}, which the new model would replace; choose another --out")
    replaced = (HMM_FILE, FEATURES_FILE, METRICS_FILE, "checkpoints", CARD_FILE, *GRAPHS)
    check_output(out, [], replaced, marks=[RUN_FILE], not_in=[A_LANGUAGE_MODEL])


def check_objective(config: TrainConfig) -> None:
    """Refuse a network that cannot be trained with `training.objective`, or keys that do not fit the two."""
    training, model = config.training, config.model
    if not (Path(config.hmm) / HMM_FILE).exists():
        raise MissingError(f"{config.hmm}: has no hmm.json; set hmm to the model directory that labels the frames")
    if training.lfmmi.teaching is not None and training.lfmmi.teacher is None:
        raise SettingError(
            f"training.lfmmi.teaching={training.lfmmi.teaching:g}: there is no teacher; set training.lfmmi.teacher,"
            " too, or remove it"
        )
    if training.of_sequences:
        check_sequences(config)
    if isinstance(model, TIME_DELAY):
        _check_time_delay(training)
    if training.group_lasso:
        check_group_lasso(config)
    if config.pretraining:
        _check_pretraining(config)
    about = read_json(Path(config.hmm) / HMM_FILE)
    if training.objective == "lfmmi":
        check_tree(config.hmm)
    subsampling = about.get("subsampling", 1)
    if model.frames_per_output != subsampling:
        raise SettingError(
            f"model.subsampling={model.frames_per_output}: {config.hmm} has one score per {subsampling} frames; set "
            f"model.subsampling to the same number"
        )
    if model.two_outputs and training.objective != "lfmmi":
        raise SettingError(
            f"model.two_outputs=true: the second output is for training.objective=lfmmi; set it to false for "
            f"{training.objective.replace('_', '-')}"
        )
    # Keys that belong to one objective only.
    if training.objective == "lfmmi":
        if training.schedule == "halving":
            raise SettingError(
                "training.schedule=halving: it halves the rate when the held-out loss stops falling, but with LF-MMI "
                "most of that loss comes from phone sequences not seen in training; choose cosine or exponential"
            )
        if training.lfmmi.cross_entropy and not model.two_outputs:
            raise SettingError(
                f"training.lfmmi.cross_entropy={training.lfmmi.cross_entropy:g}: needs a second output; set "
                f"model.two_outputs=true, or training.lfmmi.cross_entropy=0"
            )
    if training.objective != "cross_entropy":
        if training.label_smoothing:
            raise SettingError(
                f"training.label_smoothing={training.label_smoothing:g}: only for training.objective=cross_entropy; "
                f"remove it"
            )
        if training.model_partitions > 1:
            raise SettingError(
                f"training.model_partitions={training.model_partitions}: only for training.objective=cross_entropy; "
                f"set it to 1 and more training.workers"
            )
    # Keys that exclude each other.
    if training.speeds and training.model_partitions > 1:
        raise SettingError(
            f"training.speeds={list(training.speeds)}: not with training.model_partitions={training.model_partitions}; "
            f"remove one of them"
        )
    if training.label_smoothing and training.model_partitions > 1:
        raise SettingError(
            f"training.label_smoothing={training.label_smoothing:g}: not with training.model_partitions="
            f"{training.model_partitions}, whose processes each have some of the senones; remove one of them"
        )
    if training.targets_inside and (not isinstance(model, LstmConfig) or of_chunks(config) or not model.delay):
        raise SettingError(
            "training.targets_inside=true: only for a recurrent network with a model.delay, trained on consecutive "
            "chunks; remove it (single chunks, as for LF-MMI or training.speeds, always hold their targets)"
        )
    if of_chunks(config) and training.chunk_frames:
        raise SettingError(
            f"training.chunk_frames={training.chunk_frames}: only minibatches of windows are shuffled within "
            f"chunks; remove it"
        )


def of_chunks(config: TrainConfig) -> bool:
    """Whether a network is trained on single chunks (`speech3.frames.chunks`), as any is with several speeds."""
    model, training = config.model, config.training
    masked = config.pretraining is not None and isinstance(model, LstmConfig)
    one_length = masked or training.of_sequences or bool(training.speeds)
    return isinstance(model, TIME_DELAY) or model.subsampling == 3 or one_length


def _check_pretraining(config: TrainConfig) -> None:
    """Refuse networks that cannot do the task, and keys of training that need senones."""
    assert config.pretraining is not None
    training, task = config.training, f"pretraining={config.pretraining.task}"
    wrong = {
        f"training.objective={training.objective}": training.objective != "cross_entropy",
        f"training.label_smoothing={training.label_smoothing:g}": training.label_smoothing > 0,
        f"training.group_lasso={training.group_lasso:g}": training.group_lasso > 0,
        f"training.model_partitions={training.model_partitions}": training.model_partitions > 1,
    }
    if keys := [key for key, is_wrong in wrong.items() if is_wrong]:
        raise SettingError(f"{', '.join(keys)}: not with {task}; set it in the run with --init")
    if config.pretraining.task == "autoencoder" and (config.model.family not in ("dnn", "cnn") or of_chunks(config)):
        raise SettingError(
            f"{task}: reconstructs single windows, so only dnn and cnn can do it, with an output for every frame"
            " and without training.speeds; set model=dnn, or pretraining=masked"
        )


def _check_time_delay(training: TrainingConfig) -> None:
    """Refuse training strategies that do not work for time-delay networks, whose forward pass changes their layers."""
    if training.pushes_gradients:
        raise SettingError(
            "training.asgd.local_updates=false: pushes of gradients do not include the step that keeps the layers of a "
            "time-delay network semi-orthogonal; set it to true"
        )
    if training.by_sandblaster:
        raise SettingError(
            "world sandblaster: its line search needs a network that a forward pass does not change, but the forward "
            "pass of a time-delay network keeps its layers semi-orthogonal; choose another world"
        )
