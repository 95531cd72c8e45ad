"""The model card: one page about a trained network for people who receive its directory (Mitchell et al. 2019).

It is generated from the contents of the directory: `speech3.train.run` writes it when training ends, and a recipe
writes it again when the test sets are scored. Cards are always regenerated, never edited.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from speech3.config import FeatureConfig, TrainingConfig
from speech3.errors import MissingError
from speech3.frames import PackedFrames
from speech3.hmm import Hmm, PdfsOnly, load_outputs
from speech3.io import CARD_FILE
from speech3.models import (
    ModelInfo,
    features_of_model,
    layer_table,
    model_facts,
    model_info,
    parameters_of,
    per_cent,
    workers_in_words,
)
from speech3.runtime import write_text

_EPOCHS = 8  # rows of the table of epochs, at most
_BEST_BY = {"mmi": "highest held-out log posterior of the alignment", "smbr": "highest expected held-out accuracy"}


@dataclass(frozen=True)
class Scored:
    """Error rates on a test set, as fractions with 95 % intervals, and the settings of the decoder."""

    name: str
    utterances: int
    words: int
    wer: float
    wer_ci95: tuple[float, float]
    cer: float
    cer_ci95: tuple[float, float]
    settings: Mapping[str, Any]


@dataclass(frozen=True)
class Subject:
    """The model that a card describes, as found in its directory."""

    name: str
    info: ModelInfo
    outputs: Hmm | PdfsOnly
    features: FeatureConfig | None
    tested: Sequence[Scored] = ()


def write_card(directory: Path, tested: Sequence[Scored] = ()) -> None:
    """Write ``MODEL_CARD.md`` into the directory of a trained model.

    `tested`: results on test sets that were decoded with exactly this model.

    Raises Speech3Error: `directory` holds no network, or one written by another version of speech3.
    """
    info = model_info(directory)
    trained = next(iter(info.members.values()))
    if missing := {"info", "history", "versions"} - trained.keys():
        raise MissingError(
            f"{info.path}: lacks {', '.join(sorted(missing))}, so no model card can be written; pass the directory of "
            f"a trained network"
        )
    subject = Subject(directory.resolve().name, info, load_outputs(directory), features_of_model(directory), tested)
    write_text(directory / CARD_FILE, card(subject))


def is_card(path: Path) -> bool:
    """Whether a file is a card that `write_card` wrote, perhaps changed by hand."""
    with path.open("rb") as stream:
        return b": acoustic model" in stream.readline()


def counted(packed: Mapping[str, PackedFrames]) -> dict[str, dict[str, int]]:
    """Utterances and frames of each part, to be stored with the model."""
    return {name: {"utterances": len(each.offsets_U1) - 1, "frames": len(each)} for name, each in packed.items()}


def card(subject: Subject) -> str:
    members = subject.info.members
    about = next(iter(members.values()))
    corpus = about["info"].get("corpus") or about["info"].get("data")
    sections = {
        f"{subject.name}: acoustic model{f' trained on {corpus}' if corpus else ''}": _opening(subject),
        "Results": _results(subject),
        "Use": _use(subject),
        **{_of("Data", name): _data(each, subject.features) for name, each in members.items()},
        "Model": _model(subject.info),
        **{_of("Training", name): _training(each) for name, each in members.items()},
        "Limits": "\n".join(f"- {limit}" for limit in _limits(subject)),
        "Versions": ", ".join(f"{name} {version}" for name, version in about["versions"].items()),
    }
    return (
        "\n\n".join(f"{'##' if n else '#'} {head}\n\n{text}" for n, (head, text) in enumerate(sections.items())) + "\n"
    )


def _of(head: str, name: str) -> str:
    return f"{head} of {name}" if name else head


def _opening(subject: Subject) -> str:
    members, outputs = subject.info.members, subject.outputs
    about = next(iter(members.values()))
    what = f"{'An' if subject.info.system.startswith('l') else 'A'} {subject.info.system.upper()}"
    if len(members) > 1:
        what = f"A mean of the networks {' and '.join(members)}"
    if isinstance(outputs, Hmm):
        lexicon = outputs.lexicon
        words = len({each.word for each in lexicon.pronunciations})
        meant = f"states of {len(lexicon.phones)} phones, with a dictionary of {words:,} words"
    else:
        meant = "known by number only; they belong to the decoding graph that was imported with them"
    often = "frame"
    if about.get("objective") == "lfmmi":
        often = "third frame (trained with LF-MMI)"
    return (
        f"{what} that scores, for every {often}, how well each of "
        f"{subject.info.senones:,} senones fits the audio. It is the acoustic model of a hybrid recogniser, in which "
        f"hidden Markov models turn these scores into words. The senones are {meant}. Trained by speech3 "
        f"{about['versions']['speech3']}."
    )


def _last_is_best(about: dict[str, Any]) -> bool:
    return TrainingConfig.model_construct(**about["training"]).last_is_best


def _accuracy(about: dict[str, Any]) -> str:
    when = f"after {parameters_of(about)}" if about["best_epoch"] else "before training"
    if about.get("averaged_epochs"):
        when = f"by the {parameters_of(about)}"
    best = f"parameters with the {_BEST_BY.get(about.get('objective', ''), 'lowest held-out cross-entropy')}"
    if _last_is_best(about):
        best = "last ones, after group lasso has removed units"
    accuracy = (
        f"{per_cent(about['heldout_accuracy'])} of the held-out frames are classified correctly {when}; these are the "
        f"{best}"
    )
    if about.get("objective") == "lfmmi":
        accuracy = (
            f"for {per_cent(about['heldout_accuracy'])} of the held-out outputs {when} the best senone is the best of "
            f"those that fit the transcript"
        )
    if about.get("heldout_per") is not None:
        accuracy += f"; held-out phone error rate with a phone loop {per_cent(about['heldout_per'])}"
    if about["train_accuracy"] is not None:
        accuracy += f"; {per_cent(about['train_accuracy'])} of the training frames, during that epoch"
    return accuracy


def _results(subject: Subject) -> str:
    found = [f"{name}: {_accuracy(each)}" if name else _accuracy(each) for name, each in subject.info.members.items()]
    accuracy = ".\n\n".join(found)
    if not subject.tested:
        return f"{accuracy}.\n\nWord error rate: not measured."
    rows = [("test set", "utterances", "words", "WER %", "95 % interval", "CER %", "95 % interval", "decoded with")]
    for test in subject.tested:
        settings = ", ".join(f"{name} {value:g}" for name, value in test.settings.items())
        rates = _rate(test.wer), _interval(test.wer_ci95), _rate(test.cer), _interval(test.cer_ci95)
        rows.append((test.name, f"{test.utterances:,}", f"{test.words:,}", *rates, settings))
    return f"{_table(rows, left=1)}\n\n{accuracy}."


def _use(subject: Subject) -> str:
    lines = [
        f"speech3 transcribe {subject.name} recording.wav    # text; --ctm: with times",
        f"speech3 decode {subject.name} DIR OUT              # a Kaldi data directory",
        f"speech3 align {subject.name} DIR OUT               # times of phones and words",
        f"speech3 train my.yaml --init {subject.name}        # fine-tune it on other speech",
    ]
    if len(subject.info.members) > 1:  # only one network can be trained further
        lines.pop()
    if not subject.tested:
        lines.insert(0, f"speech3 tune {subject.name} DEV    # once, before decoding: finds the acoustic scale")
    features = subject.features
    rate = ""
    if features and features.sample_frequency:
        rate = f"Recordings with another sample rate are resampled to {features.sample_frequency:,} Hz. "
    return f"```sh\n{_aligned(lines)}\n```\n\n{rate}The directory is self-contained and can be copied anywhere."


def _data(about: dict[str, Any], features: FeatureConfig | None) -> str:
    rows = [("part", "utterances", "frames", "hours", "digest")]
    for name, part in about.get("data", {}).items():
        hours = f"{part['frames'] * features.frame_shift / 3.6e6:.2f}" if features else "?"
        rows.append((name, f"{part['utterances']:,}", f"{part['frames']:,}", hours, about["frames"][name]))
    noted = {"corpus": "Corpus", "data": "Data directory", "alignment": "Labels from the alignment by"}
    noted["speed_perturb"] = "Also trained on copies at the speeds"
    lines = [f"{head}: {about['info'][key]}." for key, head in noted.items() if about["info"].get(key)]
    if about["info"].get("background"):
        lines.append("Also trained on a copy of each utterance with background noise before, in and after it.")
    if augment := about["info"].get("augment"):
        shares = ", ".join(f"{key} {share:g}" for key, share in augment.items() if key.endswith("_prob") and share)
        lines.append(f"Also trained on an augmented copy of each utterance: {shares}.")
    senones = f"Senones: those of {about['hmm']}."
    return f"{' '.join([*lines, senones])}\n\n{_table(rows, left=1)}"


def _model(info: ModelInfo) -> str:
    header, *rows = layer_table(info)
    shown = [(name, kind, shapes, output, parameters, flops) for name, kind, parameters, shapes, output, flops in rows]
    head = (header[0], header[1], header[3], header[4], header[2], header[5])
    config = {name or "model": about["model"] for name, about in info.members.items()}
    return f"{_pairs(model_facts(info))}\n\n{_table([head, *shown], left=4)}\n\n{_keys(config)}"


def _training(about: dict[str, Any]) -> str:
    training, history = about["training"], about["history"]
    text = (
        f"{len(history)} epochs in {about['seconds']:,.0f} s, world {training['world']}, {workers_in_words(training)}"
    )
    if training["world"] == "simulated":
        text += " (virtual seconds)"
    if about["before"]:
        before = about["before"]
        text += f"; started from {before.get('path')}, held-out accuracy {per_cent(before['heldout_accuracy'])}"
    rows = [("epoch", "train %", "held-out %", "held-out loss", "held-out PER %", "learning rate")]
    for r in _few(history, about["best_epoch"]):
        accuracies, loss = (_rate(r["train_accuracy"]), _rate(r["heldout_accuracy"])), f"{r['heldout_loss']:.4f}"
        rows.append((str(r["epoch"]), *accuracies, loss, _rate(r.get("heldout_per")), f"{r['learning_rate']:.3g}"))
    default = TrainingConfig().model_dump(mode="json")
    keys = {"seed": about["seed"], "training": _differing(training, default)}
    return f"{text}. Keys that are not listed have their default values.\n\n{_keys(keys)}\n\n{_table(rows, left=0)}"


def _limits(subject: Subject) -> list[str]:
    found = [
        "It was trained on the speakers, rooms, microphones and language of its data: evaluate it on yours "
        "(`speech3 score`)."
    ]
    if not all(map(_last_is_best, subject.info.members.values())):
        found.append(
            "The epoch was selected on the held-out frames, so results on them are slightly better than on "
            "other speech."
        )
    if not subject.tested:
        found.insert(0, "Word error rates have not been measured yet, and frame accuracy does not predict them.")
    else:
        found.insert(0, "The intervals cover only chance in the choice of test speakers or utterances.")
    features = subject.features
    if features and features.cmvn in ("utterance", "speaker"):
        found.append(
            f"Its features are normalised per {features.cmvn}: with very little speech there are more errors"
            + (", and every utterance must name the right speaker." if features.cmvn == "speaker" else ".")
        )
    if features and features.cmvn == "global":
        found.append(
            "Its features are normalised by statistics of its training data, so another microphone causes more errors."
        )
    if features and features.sample_frequency:
        found.append(f"Expect more errors on recordings with a sample rate below {features.sample_frequency:,} Hz.")
    if subject.info.latency_frames is None:
        found.append("It needs the whole utterance before it produces scores, so it cannot be used for live captions.")
    if isinstance(subject.outputs, Hmm):
        found.append("Words that are not in its dictionary cannot be recognised.")
    return found


def _few(history: Sequence[Mapping[str, Any]], best: int) -> list[Mapping[str, Any]]:
    """The first, the last and the best epoch, and others at equal intervals."""
    if len(history) <= _EPOCHS:
        return list(history)
    places = {round(k * (len(history) - 1) / (_EPOCHS - 2)) for k in range(_EPOCHS - 1)}
    return [record for place, record in enumerate(history) if place in places or record["epoch"] == best]


def _differing(values: Mapping[str, Any], default: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in values.items():
        known = default.get(key)
        if value != known:
            found[key] = _differing(value, known) if isinstance(value, dict) and isinstance(known, dict) else value
    return found


def _keys(values: Mapping[str, Any]) -> str:
    """The values as YAML in a code block, one line for each unless it is too long."""
    lines = [
        yaml.safe_dump({key: value}, sort_keys=False, default_flow_style=True, width=110).strip()[1:-1]
        for key, value in values.items()
    ]
    return "\n".join(("```yaml", *lines, "```"))


def _pairs(values: Mapping[str, str]) -> str:
    return "\n".join(f"- {name}: {value}" for name, value in values.items())


def _table(rows: Sequence[Sequence[str]], left: int) -> str:
    """A table in Markdown; the first `left` columns hold text, the others numbers."""
    rule = [":--" if column < left else "--:" for column in range(len(rows[0]))]
    return "\n".join(f"| {' | '.join(row)} |" for row in (rows[0], rule, *rows[1:]))


def _aligned(lines: Sequence[str]) -> str:
    parts = [line.partition("#") for line in lines]
    width = max(len(command.rstrip()) for command, _, _ in parts)
    return "\n".join(f"{command.rstrip():<{width}}   # {comment.strip()}" for command, _, comment in parts)


def _rate(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.2f}"


def _interval(shares: tuple[float, float]) -> str:
    return f"[{_rate(shares[0])}, {_rate(shares[1])}]"
