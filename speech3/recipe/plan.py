"""The steps of an experiment, in order, and for ``--dry-run`` how long they will take and how much disk they need.

Times are hours of speech multiplied by measured rates: those of `recipes/minilibri`, with models of its sizes, one
process per core of an AMD EPYC with AVX-512. DNNs and CNN-TDNNs of other sizes take longer in proportion to their
parameters; that larger GMMs take longer, too, is not in the figures. Disk space follows from the dimensions of the
features. The times for data, language models and graphs were not measured, and are not in the sums; nor are there rates
of GPUs.
"""

import shutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path

import soundfile

from speech3.config import NOT_COMPUTED, FeatureConfig, ModelConfig, check_frequencies
from speech3.corpora import AUDIO, commonvoice, librispeech
from speech3.data import files_below, lengths_s, read_datadir, sphere_length_s
from speech3.errors import SettingError, Speech3Error
from speech3.features import static_dim
from speech3.hmm import lfmmi_passes, triphone_leaves
from speech3.models import build
from speech3.recipe.experiment import (
    ADAPTED_STAGE,
    BMMI,
    FLAT,
    FLAT_HMM,
    LDA,
    LFMMI,
    LFMMI_HMM,
    SAT,
    SAT_DNN,
    SAT_LFMMI,
    SELF,
    UNTRANSCRIBED,
    Experiment,
    decode_step,
    most_workers,
    open_sizes,
    train_step,
)
from speech3.recipe.steps import Plan, Step, ended_ns, make_plan

DATA = "data"  # the first stage, after which the amount of speech is known
SELF_STAGE = "self"
CHOOSE = f"{SELF_STAGE}/choose"  # after it, it is known whether self-training has anything to train on
_HOURS = 2.02  # of minilibri's training speech: 2.24, less the tenth that is dev
# Seconds of one core for an hour of speech.
_FEATURES = 3600 / 1190  # tests/benchmarks/README.md, plp13_pitch1_d2_realtime, the slowest of ours
# recipes/minilibri/README.md, table of costs. The aligner was not measured by itself; it is similar to the monophones.
# lda and sat: CPU time of one run of each on minilibri, on a busy machine.
_HMM = {
    "mono": 46.0 / _HOURS, "aligner": 46.0 / _HOURS, "tri": 74.2 / _HOURS, "align": 13.9 / _HOURS,
    LDA: 188.0 / _HOURS, SAT: 231.0 / _HOURS,
}  # fmt: skip
# The same for one pass over the speech. dnn: from that table; cnn, lstm, blstm: upper bounds, from the table of
# families; cnn_tdnn, tdnn_lstm: by cross-entropy, measured beside another training, so upper bounds, too; lfmmi: 161
# updates, by AdamW 0.375 s each, by Muon 1.34 times as long (recipes/minilibri/RESULTS.md); bmmi: one iteration, on a
# core with AVX2.
_PASS = {
    "dnn": 53 / _HOURS, "cnn": 23.4 * 60 / 7 / _HOURS, "lstm": 20.6 * 60 / 10 / _HOURS,
    "blstm": 26.5 * 60 / 10 / _HOURS, "cnn_tdnn": 158 / _HOURS, "tdnn_lstm": 195 / _HOURS,
    LFMMI: 161 * 1.34 * 0.375 / _HOURS, BMMI: 105 / _HOURS,
}  # fmt: skip
# The networks whose rates these are: family and number of parameters. The time grows in proportion to the parameters.
_MEASURED = {"dnn": 1_878_816, "cnn_tdnn": 1_793_600, "tdnn_lstm": 2_130_304, LFMMI: 1_906_504}
# CPU time of decoding divided by the length of the speech, from the same three places. lda: as tri; sat: four such
# passes. Neither was measured.
_DECODING = {
    "mono": 0.08, "tri": 0.08, LDA: 0.08, SAT: 0.32, BMMI: 0.08,
    "dnn": 0.11, "cnn": 0.150, "lstm": 0.142, "blstm": 0.160, LFMMI: 0.050
}  # fmt: skip
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


def planned_steps(experiment: Experiment) -> list[Step]:
    """All steps of an experiment, in order."""
    from speech3.recipe import evaluation, stages

    e, recipe = experiment, experiment.recipe
    optional = {key: value for key in ("tier", "graphemes") if (value := getattr(recipe, key))}
    data = [Step(
        "data/corpus", partial(stages.make_data, e), 
        [recipe.corpus, recipe.corpus_options, recipe.seed, recipe.lang, recipe.lexicon, recipe.units, recipe.pieces,
         *([optional] if optional else [])],
        [e.data(split) / "wav.scp" for split in ("train", "dev", "test")] + [e.lexicon],
        inputs=[path for path in (e.source, recipe.graphemes and Path(recipe.graphemes)) if path], owns=e.out / "data",
        keys=("corpus", "corpus_options", "seed", "lang", "lexicon", "units", "pieces",
              *([""] if optional else [])),  # `optional` has its own keys
    )]  # fmt: skip
    if recipe.speed_perturb:
        data.append(Step("data/speed", partial(stages.perturb_train, e), recipe.speed_perturb,
                         [e.data(e.train) / "wav.scp"], ["data/corpus"], owns=e.data(e.train),
                         keys=("speed_perturb",), bulky=True))  # fmt: skip
    spoken = data[-1].name
    if recipe.augment:
        given = [Path(path) for path in (recipe.augment.noise_dir, recipe.augment.rir_dir) if path]
        data.append(Step("data/augment", partial(stages.augment_train, e), [recipe.augment.model_dump(), recipe.seed],
                         [e.data(e.augmented) / "wav.scp"], [spoken], given, owns=e.data(e.augmented),
                         keys=("augment", "seed"), bulky=True))  # fmt: skip
    extracted = [
        Step(_extracted(name), partial(stages.extract_features, e, name), config.model_dump(),
             [e.features(name, split) / "feats.scp" for split in e.splits], [spoken],
             owns=e.features(name, "train").parent, keys=(name,), bulky=True)
        for name, config in e.presets.items()
    ]  # fmt: skip
    if recipe.augment:
        scps = [e.features(name, e.augmented) / "feats.scp" for name in e.network_features]
        originals = map(_extracted, e.network_features)
        extracted += [
            Step("features/augmented", partial(stages.extract_augmented, e), None, scps, ["data/augment", *originals])
        ]
    lfmmi = _lfmmi_steps(e) if recipe.lfmmi else {}
    selftrained = _self_steps(e) if SELF in e.trained else {}
    bmmi = [_bmmi_step(e)] if BMMI in e.trained else []
    pretraining = _pretraining_steps(e)
    training = [step for network in e.networks for step in _network_steps(e, network)]
    rescoring = ["graph/rescore"] if isinstance(recipe.lm.rescore, int) else []
    settings, keys = e.decoding
    decoding = [
        Step(f"decode/{system}", partial(evaluation.decode_system, e, system), settings,
             [e.out / "decode" / system / "test" / "hyp.txt"],
             [*([f"train/{system}"] if system in e.trained else []), f"graph/{e.hmm_of(system)}", *rescoring],
             [e.rescoring_lm] if isinstance(recipe.lm.rescore, str) else [], owns=e.out / "decode" / system, keys=keys)
        for system in e.systems if system not in (SELF, *e.adapted)
    ]  # fmt: skip
    earlier = {name: _ended(e.out, decode_step(name)) for name in e.earlier}
    score = Step(
        "score", partial(evaluation.score_systems, e), [earlier or None, list(e.systems)],
        [e.out / "score" / system / "score.json" for system in e.systems],
        [decode_step(system) for system in e.systems],
        keys=("earlier systems", "systems"),
    )  # fmt: skip
    scores = [score]
    if recipe.corpus in evaluation.BOUNDARIES:
        scores.append(Step("score/boundaries", partial(evaluation.score_boundaries, e), None,
                           [e.out / "score" / "aligner" / "boundaries.json"], ["hmm/boundaries"]))  # fmt: skip
    report = Step("report", partial(evaluation.report, e), None, [e.out / "report.html"], ["score", "hmm/boundaries"])
    data += selftrained.get("data", [])
    extracted += selftrained.get("features", [])
    return [
        *data, *extracted, *_hmm_steps(e), *lfmmi.get("hmm", ()), *_graph_steps(e), *bmmi, *pretraining, *training,
        *lfmmi.get("train", ()), *decoding, *_adapted_steps(e), *selftrained.get("self", ()), *scores, report,
    ]  # fmt: skip


def chose_nothing(experiment: Experiment) -> bool:
    """Whether self-training is up to date and found nothing to learn from, so that its later steps never run."""
    from speech3.recipe.selftrain import found_nothing

    if SELF not in experiment.trained or not found_nothing(experiment):
        return False
    plan = make_plan(planned_steps(experiment), experiment.out, None, None)
    chosen = next(place for place, each in enumerate(plan, 1) if each.step.name == CHOOSE)
    return not any(each.why for each in plan[:chosen])


def _extracted(preset: str) -> str:
    return f"features/{Path(preset).stem}"


def _packed(e: Experiment, preset: str) -> list[str]:
    """The steps whose features are packed for a network: those of augmented copies, too."""
    return [*(["features/augmented"] if e.recipe.augment else []), _extracted(preset)]


def _augmenting(e: Experiment) -> list[str]:
    """The key of augmentation, if there is any: without it, frames of an earlier run with copies are packed anew."""
    return ["augment"] if e.recipe.augment else []


def _packing(e: Experiment, dtype: str) -> str | list[object]:
    return [dtype, True] if e.recipe.augment else dtype


def _questions(e: Experiment) -> list[Path]:
    return [Path(e.recipe.hmm.extra_questions)] if e.recipe.hmm.extra_questions else []


def _ended(out: Path, name: str) -> str:
    return datetime.fromtimestamp((ended_ns(out, name) or 0) / 1e9).isoformat(" ", "milliseconds")


def _hmm_steps(e: Experiment) -> list[Step]:
    """The steps from words to an alignment, by GMMs or a network; and the aligner, whose alignments are inspected."""
    from speech3.recipe import stages

    recipe, lfmmi = e.recipe, e.recipe.lfmmi
    hmm = recipe.hmm.model_dump(exclude={"features", "aligner_features", "flat_start", "bmmi", "lda", "sat"})
    hmm["tri"].pop("discriminative")  # it does not affect these GMMs
    shared = {key: value for key, value in hmm.items() if key not in ("mono", "tri", "aligner")} | {"seed": recipe.seed}
    hmm_features, aligner_features = _extracted(recipe.hmm.features), _extracted(recipe.hmm.aligner_features)
    if e.bootstrap == FLAT:
        assert lfmmi is not None
        check_frequencies(recipe.flat.model, e.presets[lfmmi.features], f"lfmmi.features={lfmmi.features}", "flat.")
        steps = [
            Step("hmm/flat.frames", partial(stages.prepare_flat, e),
                 [shared, recipe.flat.longest_s, recipe.flat.training.dtype, lfmmi.longer_histories],
                 [e.model(FLAT_HMM) / "denominator.safetensors",
                  *(e.frames(FLAT) / f"{name}.frames" for name in ("train", "heldout"))],
                 [_extracted(lfmmi.features)], owns=e.frames(FLAT),
                 keys=("hmm", "flat.longest_s", "flat.training.dtype", "lfmmi.longer_histories")),
            Step("hmm/flat", partial(stages.train_flat, e),
                 [recipe.flat.model.model_dump(), recipe.flat.training.model_dump(), recipe.seed],
                 [e.model(FLAT) / "model.safetensors"], ["hmm/flat.frames"], owns=e.model(FLAT),
                 keys=("flat.model", "flat.training", "seed"),
                 open_keys=[f"flat.training.{key}" for key in NOT_COMPUTED], elastic=_elastic("flat.")),
        ]  # fmt: skip
    else:
        steps = [
            Step("hmm/mono", partial(stages.train_mono, e, "mono"), [shared, hmm["mono"]],
                 [e.model("mono") / "model.safetensors"], [hmm_features], owns=e.model("mono"),
                 keys=("hmm", "hmm.mono")),
            Step("hmm/tri", partial(stages.train_tri, e), hmm["tri"],
                 [e.model("tri") / "model.safetensors"], ["hmm/mono"], _questions(e), owns=e.model("tri"),
                 keys=("hmm.tri",)),
        ]  # fmt: skip
    first = e.bootstrap
    steps += _transformed_steps(e)
    return [
        *steps,
        Step("hmm/align", partial(stages.align_data, e, first, e.feature_preset(first), (e.train, "dev")), None,
             [e.alignment(first, split) / f"{name}.ark" for split in (e.train, "dev") for name in ("ali", "labels")],
             [f"hmm/{first}"]),
        Step("hmm/aligner", partial(stages.train_mono, e, "aligner"), [shared, hmm["aligner"]],
             [e.model("aligner") / "model.safetensors"], [aligner_features], owns=e.model("aligner"),
             keys=("hmm", "hmm.aligner")),
        Step("hmm/boundaries", partial(stages.align_data, e, "aligner", recipe.hmm.aligner_features, ("dev", "test")),
             None, [e.alignment("aligner", split) / "ali.ark" for split in ("dev", "test")], ["hmm/aligner"]),
    ]  # fmt: skip


def _transformed_steps(e: Experiment) -> list[Step]:
    from speech3.recipe import speakers

    trained = {LDA: (speakers.train_lda_system, "tri"), SAT: (speakers.train_sat_system, LDA)}
    return [
        Step(f"hmm/{name}", partial(train, e), getattr(e.recipe.hmm, name).model_dump(exclude={"least_minutes"}),
             [e.model(name) / "model.safetensors"], [f"hmm/{before}"], _questions(e), owns=e.model(name),
             keys=(f"hmm.{name}",))
        for name, (train, before) in trained.items() if name in e.gmms
    ]  # fmt: skip


def _adapted_steps(e: Experiment) -> list[Step]:
    """The steps after decoding with `sat`: its adapted features, and the networks that learn from them."""
    from speech3.recipe import speakers

    if SAT not in e.gmms:
        return []
    features = Step(f"{ADAPTED_STAGE}/features", partial(speakers.write_adapted_features, e), None,
                    [e.features(SAT, split) / "feats.scp" for split in e.splits], [f"decode/{SAT}"],
                    owns=e.features(SAT, "train").parent, bulky=True)  # fmt: skip
    steps = [features]
    if SAT_DNN in e.adapted:
        aligned, packed = f"{ADAPTED_STAGE}/align", f"{ADAPTED_STAGE}/{SAT_DNN}.frames"
        steps += [
            Step(aligned, partial(speakers.align_adapted, e), None,
                 [e.alignment(SAT, split) / "ali.ark" for split in (e.train, "dev")], [features.name]),
            Step(packed, partial(speakers.pack_adapted, e), e.training.dtype,
                 [e.frames(SAT_DNN) / f"{name}.frames" for name in ("train", "heldout")], [aligned],
                 owns=e.frames(SAT_DNN), keys=("training.dtype",), bulky=True),
            Step(train_step(SAT_DNN), partial(speakers.train_adapted, e),
                 [e.recipe.model.model_dump(), _training_settings(e), e.recipe.seed],
                 [e.model(SAT_DNN) / "model.safetensors"], [packed], owns=e.model(SAT_DNN),
                 keys=("model", "training", "seed"), open_keys=_open_training(e), elastic=_elastic("")),
            _adapted_decoding(e, SAT_DNN),
        ]  # fmt: skip
    if SAT_LFMMI in e.adapted:
        lfmmi, packed = e.recipe.lfmmi, f"{ADAPTED_STAGE}/{SAT_LFMMI}.frames"
        assert lfmmi is not None
        steps += [
            Step(packed, partial(speakers.pack_adapted_lfmmi, e), lfmmi.training.dtype,
                 [e.frames(SAT_LFMMI) / f"{name}.frames" for name in ("train", "heldout")],
                 [features.name, "hmm/lfmmi", _extracted(lfmmi.features)],
                 owns=e.frames(SAT_LFMMI), keys=("lfmmi.training.dtype",), bulky=True),
            _lfmmi_training(e, SAT_LFMMI, partial(speakers.train_adapted_lfmmi, e), [packed]),
            _adapted_decoding(e, SAT_LFMMI),
        ]  # fmt: skip
    return steps


def _adapted_decoding(e: Experiment, system: str) -> Step:
    from speech3.recipe import evaluation

    settings, keys = e.decoding
    rescoring = ["graph/rescore"] if isinstance(e.recipe.lm.rescore, int) else []
    return Step(decode_step(system), partial(evaluation.decode_system, e, system), settings,
                [e.out / "decode" / system / "test" / "hyp.txt"],
                [train_step(system), f"graph/{e.hmm_of(system)}", *rescoring], owns=e.out / "decode" / system,
                keys=keys)  # fmt: skip


def _bmmi_step(e: Experiment) -> Step:
    from speech3.recipe import stages

    return Step(f"train/{BMMI}", partial(stages.train_bmmi, e), e.recipe.hmm.bmmi.model_dump(),
                [e.model(BMMI) / "model.safetensors"], ["hmm/align"], owns=e.model(BMMI),
                keys=("hmm.bmmi",))  # fmt: skip


def _check_convolutions(model: ModelConfig, features: FeatureConfig, prefix: str = "") -> None:
    """Refuse convolutions that do not fit the features, before these are extracted and aligned."""
    from speech3.models import build

    if features.kind != "given" and getattr(model, "convolutions", None) and getattr(model, "width", 1):
        try:
            build(model, dim_of(features), 1, seed=0)
        except Speech3Error as error:
            raise error.restated(f"{prefix}{error}") from error


def _check_outputs(model: ModelConfig) -> None:
    """Refuse a network that cannot learn the triphones' senones, before they are made."""
    for key, wrong in (("subsampling=3", model.subsampling == 3), ("two_outputs=true", model.two_outputs)):
        if wrong:
            raise SettingError(
                f"model.{key}: only for LF-MMI, whose network is lfmmi.model; model learns the triphones' senones, by"
                " cross-entropy, with one output for every frame: remove the key"
            )


def _network_steps(e: Experiment, network: str) -> list[Step]:
    from speech3.recipe import stages

    recipe, source = e.recipe, e.label_source(network)
    check_frequencies(recipe.model, e.presets[recipe.features], f"features={recipe.features}")
    _check_outputs(recipe.model)
    _check_convolutions(recipe.model, e.presets[recipe.features])
    realign = [] if source == "tri" else [
        Step(f"train/{network}.align", partial(stages.align_data, e, source, recipe.features, (e.train, "dev")), None,
             [e.alignment(source, split) / "ali.ark" for split in (e.train, "dev")], [f"train/{source}"])
    ]  # fmt: skip
    return [
        *realign,
        Step(f"train/{e.frames_name(network)}.frames", partial(stages.pack_frames, e, network),
             _packing(e, e.training.dtype), [e.frames(network) / f"{name}.frames" for name in ("train", "heldout")],
             [realign[0].name if realign else "hmm/align", *_packed(e, recipe.features)],
             owns=e.frames(network), keys=("training.dtype", *_augmenting(e)), bulky=True),
        Step(f"train/{network}", partial(stages.train_network, e, network),
             [recipe.model.model_dump(), _training_settings(e), recipe.seed],
             [e.model(network) / "model.safetensors"],
             [f"train/{e.frames_name(network)}.frames", *_pretrained(e, network)], _started(e, network),
             owns=e.model(network), keys=("model", "training", "seed"),
             open_keys=_open_training(e), elastic=_elastic(""),
             beside=network == e.networks[-1] and _one_core_each(e)),
    ]  # fmt: skip


def _pretrained(e: Experiment, system: str) -> list[str]:
    return [f"train/pretrained.{path.name}"] if (path := e.pretrained(system)) else []


def _pretraining_steps(e: Experiment) -> list[Step]:
    """The steps that pretrain a network of each kind, on recordings without transcripts."""
    from speech3.recipe import stages

    given, steps = e.recipe.pretrain, list[Step]()
    for system in (*e.networks[:1], *([LFMMI] if e.recipe.lfmmi else [])):
        path, preset = e.pretrained(system), e.feature_preset(system)
        if given is None or path is None:
            continue
        model, group = (e.recipe.lfmmi.model, "lfmmi.") if e.recipe.lfmmi and system == LFMMI else (e.recipe.model, "")
        steps.append(
            Step(f"train/pretrained.{path.name}", partial(stages.pretrain_network, e, system),
                 [given.model_dump(), model.model_dump(), e.recipe.seed], [path / "model.safetensors"],
                 ["data/corpus", _extracted(preset)], [Path(given.recordings)], owns=path,
                 keys=("pretrain", f"{group}model", "seed"), open_keys=open_sizes(e.recipe))
        )  # fmt: skip
    return steps


def _open_training(e: Experiment) -> list[str]:
    return [*open_sizes(e.recipe), *(f"training.{key}" for key in NOT_COMPUTED)]


def _elastic(prefix: str) -> list[str]:
    """The keys of training that may change when a killed run is resumed."""
    return [f"{prefix}training.{key}" for key in (*NOT_COMPUTED, "workers")]


def _one_core_each(e: Experiment) -> bool:
    """Whether the network that learns senones and the LF-MMI network are each trained by one process on the CPU."""
    both = [e.training, *([e.recipe.lfmmi.training] if e.recipe.lfmmi else [])]
    return e.jobs > 1 and len(both) > 1 and all(each.workers == 1 and each.device == "cpu" for each in both)


def _started(e: Experiment, system: str) -> list[Path]:
    return [start.file] if (start := e.start(system)) else []


def _training_settings(e: Experiment) -> dict[str, object]:
    """The training config, without workers that the machine determines: on another machine nothing is trained again."""
    training = e.training.model_dump()
    return {**training, "workers": 0, "world": "sgd"} if e.workers_chosen else training


def _lfmmi_steps(e: Experiment) -> dict[str, list[Step]]:
    from speech3.recipe import stages

    system = e.recipe.lfmmi
    assert system is not None
    check_frequencies(system.model, e.presets[system.features], f"lfmmi.features={system.features}", "lfmmi.")
    _check_convolutions(system.model, e.presets[system.features], "lfmmi.")
    hmm, frames = e.model(LFMMI_HMM), [e.frames(LFMMI) / f"{name}.frames" for name in ("train", "heldout")]
    flat = e.bootstrap == FLAT  # otherwise tri has needed these
    questions, tree_features = (_questions(e), [_extracted(e.recipe.hmm.features)]) if flat else ([], [])
    return {
        "hmm": [
            Step("hmm/lfmmi", partial(stages.train_lfmmi_hmm, e), [system.leaves, system.longer_histories],
                 [hmm / "denominator.safetensors", hmm / "hmm.json"],
                 ["hmm/align", *tree_features], questions, owns=hmm,
                 keys=("lfmmi.leaves", "lfmmi.longer_histories")),
        ],
        "train": [
            Step(f"train/{LFMMI}.frames", partial(stages.pack_lfmmi_frames, e, e.frames(LFMMI)),
                 _packing(e, system.training.dtype), frames, ["hmm/lfmmi", *_packed(e, system.features)],
                 owns=e.frames(LFMMI), keys=("lfmmi.training.dtype", *_augmenting(e)), bulky=True),
            _lfmmi_training(e, LFMMI, partial(stages.train_lfmmi, e),
                            [f"train/{LFMMI}.frames", *_pretrained(e, LFMMI)], _started(e, LFMMI)),
        ],
    }  # fmt: skip


def _lfmmi_training(
    e: Experiment, system: str, train: Callable[[], None], needs: list[str], started: Sequence[Path] = ()
) -> Step:
    lfmmi = e.recipe.lfmmi
    assert lfmmi is not None
    not_computed = [f"lfmmi.training.{key}" for key in NOT_COMPUTED]
    if lfmmi.passes is not None:
        not_computed.append("lfmmi.training.max_epochs")  # passes replaces it
    return Step(train_step(system), train,
                [lfmmi.model.model_dump(), lfmmi.training.model_dump(), lfmmi.passes, e.recipe.seed],
                [e.model(system) / "model.safetensors"], needs, list(started), owns=e.model(system),
                keys=("lfmmi.model", "lfmmi.training", "lfmmi.passes", "seed"),
                open_keys=[*open_sizes(e.recipe), *not_computed], elastic=_elastic("lfmmi."))  # fmt: skip


def _self_steps(e: Experiment) -> dict[str, list[Step]]:
    from speech3.recipe import evaluation, selftrain

    given, system, out = e.recipe.untranscribed, e.recipe.lfmmi, e.out / "self"
    assert given is not None and system is not None
    return {
        "data": [
            Step(f"data/{UNTRANSCRIBED}", partial(selftrain.make_data, e), None, [e.data(UNTRANSCRIBED) / "wav.scp"],
                 ["data/corpus"], [Path(given.recordings)], owns=e.data(UNTRANSCRIBED)),
        ],
        "features": [
            Step(f"features/{UNTRANSCRIBED}", partial(selftrain.extract_features, e), None,
                 [e.features(system.features, UNTRANSCRIBED) / "feats.scp"],
                 [f"data/{UNTRANSCRIBED}", _extracted(system.features)]),
        ],
        "self": [
            Step("self/transcribe", partial(selftrain.transcribe, e), None, [out / "hyp.ctm"],
                 [f"decode/{LFMMI}", f"features/{UNTRANSCRIBED}"], owns=out),
            Step(CHOOSE, partial(selftrain.choose, e), given.confidence, [out / "labels.ark"],
                 ["self/transcribe"], keys=("untranscribed.confidence",)),
            Step("self/frames", partial(selftrain.pack_frames, e), None,
                 [e.frames(SELF) / f"{name}.frames" for name in ("train", "heldout")],
                 ["self/choose", f"train/{LFMMI}.frames"], owns=e.frames(SELF), bulky=True),
            Step("self/train", partial(selftrain.train_network, e), None, [e.model(SELF) / "model.safetensors"],
                 ["self/frames", f"train/{LFMMI}"], owns=e.model(SELF), elastic=_elastic("lfmmi.")),
            Step(decode_step(SELF), partial(evaluation.decode_system, e, SELF), None,
                 [e.out / "decode" / SELF / "test" / "hyp.txt"], ["self/train", f"decode/{LFMMI}"],
                 owns=e.out / "decode" / SELF),
        ],
    }  # fmt: skip


def _graph_steps(e: Experiment) -> list[Step]:
    from speech3.recipe import language

    lm = e.recipe.lm
    given = [Path(path) for path in (lm.text, lm.arpa) if path]
    arpa = [] if lm.grammar else [e.out / "lm" / "lm.arpa.gz"]
    letters = [e.recipe.letters] if e.recipe.letters else []
    settings = [lm.model_dump(exclude={"self_loop_scale", "rescore", "letters", "filler"}),
                "the lexicon's words; dev's sentences apart", *letters]  # fmt: skip
    keys = ("lm", "text", *(["lm.letters"] if letters else []))
    model = Step("graph/lm", partial(language.make_lm, e), settings, arpa, ["data/corpus"], given, keys=keys)
    second = Step("graph/rescore", partial(language.make_rescoring_lm, e), [*settings, lm.rescore], [e.rescoring_lm],
                  ["graph/lm"], given, keys=(*keys, "lm.rescore"))  # fmt: skip
    return [model, *([second] if isinstance(lm.rescore, int) else [])] + [
        Step(f"graph/{name}", partial(language.make_graphs, e, name),
             [lm.grammar, lm.self_loop_scale, lm.filler],
             [e.model(name) / "graph" / "HCLG.fst"], ["graph/lm", f"hmm/{after}"],
             keys=("lm.grammar", "lm.self_loop_scale", "lm.filler"))
        for name, after in [*((gmm, gmm) for gmm in e.gmms), *([(LFMMI_HMM, LFMMI)] if e.recipe.lfmmi else [])]
    ]  # fmt: skip


@dataclass(frozen=True)
class Speech:
    """Hours of each split; if not `exact`, they are estimated from the source, and all counted as train."""

    train: float
    dev: float = 0.0
    test: float = 0.0
    exact: bool = True

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
            train, dev, test = (sum(lengths_s(read_datadir(e.data(split))).values()) / 3600 for split in e.splits)
            return Speech(train, dev, test)
        hours = _hours_of(e, e.source) if e.source else 0.0
    except Speech3Error:
        return None
    faster = 1 + sum(1 / speed for speed in e.recipe.speed_perturb)
    return Speech(hours * faster, exact=False) if hours else None


def expected_costs(e: Experiment, speech: Speech) -> dict[str, Cost]:
    """The expected cost of each step that has a measured rate, or takes much disk."""
    e = e.sized(speech.train)
    recipe = e.recipe
    hours, all_hours = speech.train, speech.train + speech.dev + speech.test
    copies = 2 if recipe.augment else 1
    packed_hours = copies * hours + speech.dev
    found = {f"hmm/{name}": Cost(rate * hours, 0) for name, rate in _HMM.items()}
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
    for network in e.networks:
        training = e.training
        workers = most_workers(hours) if e.workers_chosen else training.workers
        preset, width = e.presets[recipe.features], 2 if training.dtype == "float16" else 4
        found[f"train/{e.frames_name(network)}.frames"] = Cost(size=packed_hours * _bytes(preset, width))
        leaves = recipe.hmm.tri.leaves or round(triphone_leaves(hours))
        rate = _PASS.get(recipe.model.system, 0.0) * _larger(recipe.model.system, recipe.model, preset, leaves)
        found[f"train/{network}"] = Cost(rate * hours * copies * training.max_epochs, workers)
        if e.label_source(network) != "tri":
            found[f"train/{network}.align"] = Cost(_HMM["align"] * hours, 0)
    if SAT in e.gmms:
        assert recipe.hmm.lda is not None
        width = 2 if e.training.dtype == "float16" else 4
        adapted = FeatureConfig(num_mel_bins=recipe.hmm.lda.dim, frame_shift=e.presets[recipe.hmm.features].frame_shift)
        found[f"{ADAPTED_STAGE}/features"] = Cost(size=all_hours * _bytes(adapted, 4))
    if SAT_DNN in e.adapted:
        rate = _PASS["dnn"] * _larger("dnn", recipe.model, adapted, round(triphone_leaves(hours)))
        found[f"{ADAPTED_STAGE}/align"] = Cost(_HMM["align"] * (hours + speech.dev), 0)
        # Utterances of training are packed with and without their speaker's transform.
        found[f"{ADAPTED_STAGE}/{SAT_DNN}.frames"] = Cost(size=(2 * hours + speech.dev) * _bytes(adapted, width))
        found[train_step(SAT_DNN)] = Cost(rate * 2 * hours * e.training.max_epochs, e.training.workers)
    if recipe.lfmmi and (system := recipe.lfmmi):
        preset, width = e.presets[system.features], 2 if system.training.dtype == "float16" else 4
        found[f"train/{LFMMI}.frames"] = Cost(size=packed_hours * _bytes(preset, width))
        passes = (
            system.training.max_epochs
            if system.passes is None
            else system.passes or lfmmi_passes(copies * hours, started=e.start(LFMMI) is not None)
        )
        leaves = system.leaves or round(0.625 * triphone_leaves(hours))
        rate = _PASS[LFMMI] * _larger(LFMMI, system.model, preset, leaves)
        found[f"train/{LFMMI}"] = Cost(rate * hours * copies * passes, system.training.workers)
        if SAT_LFMMI in e.adapted:  # twice the speech, half the passes; without augmented copies
            size = (2 * hours + speech.dev) * (_bytes(preset, width) + _bytes(adapted, width))
            found[f"{ADAPTED_STAGE}/{SAT_LFMMI}.frames"] = Cost(size=size)
            found[train_step(SAT_LFMMI)] = Cost(rate * hours * passes, system.training.workers)
    for system_name in e.systems:
        family = (
            LFMMI
            if system_name in (SELF, SAT_LFMMI)
            else system_name
            if system_name in _DECODING
            else recipe.model.system
        )
        tuned_h = min(speech.dev, recipe.decode.tuning_minutes / 60) * _SEARCHES_OF_DEV
        found[decode_step(system_name)] = Cost(_DECODING.get(family, 0.0) * 3600 * (tuned_h + speech.test), 0)
    return {name: cost for name, cost in found.items() if cost.seconds or cost.size}


def _larger(measured_as: str, model: ModelConfig, features: FeatureConfig, outputs: int) -> float:
    """Parameters of a network, divided by those of the network in `_MEASURED` whose rate was measured."""
    measured = _MEASURED.get(measured_as)
    if measured is None or features.kind == "given":
        return 1.0
    network = build(model, dim_of(features), max(1, outputs), seed=0)
    return sum(tensor.numel() for tensor in network.parameters()) / measured


def dim_of(config: FeatureConfig) -> int:
    return static_dim(config) * (1 + config.deltas) * (1 + config.left_context + config.right_context)


def _bytes(config: FeatureConfig, width: int) -> float:
    """Bytes of an hour of features with `width` bytes per value."""
    return 0.0 if config.kind == "given" else 3.6e6 / config.frame_shift * dim_of(config) * width


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
        found = [(expected.get(step.name, Cost()), step.beside) for step in running if step.stage == stage]
        times_s, size = [_stage_s(found, count) for count in cores], sum(cost.size for cost, _ in found)
        total_s, total_size = [a + b for a, b in zip(total_s, times_s, strict=True)], total_size + size
        rows.append(_row(stage, times_s, size))
    rows.append(_row("all", total_s, total_size))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    table = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    place = next(path for path in (e.out, *e.out.parents) if path.exists())
    return "\n".join([*table, f"free on the disk: {_size(shutil.disk_usage(place).free)}", _BASIS, _NO_GPU])


def _stage_s(found: Sequence[tuple[Cost, bool]], cores: int) -> float:
    """Seconds of a stage; those of its steps that may run beside the others do so if there are several cores."""
    beside, others = (sum(cost.wall_s(cores) for cost, flag in found if flag == wanted) for wanted in (True, False))
    return max(beside, others) if cores > 1 else beside + others


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
