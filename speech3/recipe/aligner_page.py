"""``OUT/index.html`` of `speech3 align`: the utterances that should be checked, from the results of all."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from speech3.data import DataDir, audio
from speech3.errors import Speech3Error
from speech3.evaluate import Checked, drawn, write_alignment_page
from speech3.recipe.aligner_files import ALIGNED, PAGE, UtteranceResult, worst_first
from speech3.recipe.aligner_source import Target

_SHOWN, _OTHERS, _PICTURES = 200, 3, 30  # utterances on the page; of these, with pictures
_LONGEST_PICTURE_S = 30.0
_PLAYED = (".wav", ".flac", ".mp3", ".ogg", ".oga", ".opus")  # by browsers


def write_page(
    out: Path, source: str, summary: Sequence[str], data: DataDir, targets: Mapping[str, Target],
    results: Sequence[UtteranceResult],
) -> None:  # fmt: skip
    """Write the page of the suspicious utterances and of those that were not aligned, the worst first."""
    ranked = worst_first(results)
    doubtful = [each for each in ranked if each.status != ALIGNED][:_SHOWN]
    others = [each for each in ranked if each.status == ALIGNED][:_OTHERS]
    shown = [*doubtful, *others]
    pictured = {each.id for each in shown[: _PICTURES - len(others)] if each.words} | {each.id for each in others}
    blocks = {each.id: _checked(out, data, targets[each.recording], each, pictured) for each in shown}
    write_alignment_page(
        out / PAGE, f"Alignment of {source}", summary, [blocks[each.id] for each in doubtful],
        [blocks[each.id] for each in others],
    )  # fmt: skip


def _checked(out: Path, data: DataDir, target: Target, each: UtteranceResult, pictured: set[str]) -> Checked:
    file, picture = Path(target.audio), None
    if each.id in pictured and each.end_s - each.start_s <= _LONGEST_PICTURE_S:
        try:
            wave_N, rate_hz = audio.load(data, each.id, mix_channels=True)
            picture = drawn(each.id, wave_N, rate_hz, each.phones, each.words, start_s=each.start_s)
        except (Speech3Error, OSError):
            pass  # it was aligned from earlier results, and is gone
    played = file.is_file() and file.suffix.lower() in _PLAYED
    return Checked(
        each.id, each.speaker, each.reason, os.path.relpath(file, out) if played else "", each.start_s, each.end_s,
        each.words, each.marked or each.text, each.confidence, picture,
    )  # fmt: skip
