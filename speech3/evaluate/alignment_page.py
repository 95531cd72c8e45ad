"""The page of an alignment: what should be checked, to be heard, seen and read, in a browser and without a server.

Recordings are not copied into the page: it names them by their paths relative to its own.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import numpy as np
import torch

from speech3.config import FeatureConfig, load_preset
from speech3.errors import counted
from speech3.evaluate import figures, html
from speech3.evaluate.figures import AlignedUtterance
from speech3.evaluate.html import escape
from speech3.features import static_features
from speech3.hmm import Segment
from speech3.runtime import write_text

# A click on a word plays it, and stops where it ends.
_SCRIPT = """<script>
document.addEventListener("click", event => {
  const word = event.target.closest("button.word"); if (!word) return;
  const sound = word.closest(".utt").querySelector("audio"); if (!sound) return;
  clearTimeout(sound.ending);
  sound.currentTime = word.dataset.start; sound.play();
  sound.ending = setTimeout(() => sound.pause(), 1000 * (word.dataset.end - word.dataset.start) + 50);
});
</script>"""


@dataclass(frozen=True)
class Checked:
    """An utterance on the page."""

    name: str
    speaker: str
    why: str  # why it should be checked; empty: an example of the others
    audio: str  # path of its recording, relative to the page; empty: no browser could play it
    start_s: float
    end_s: float
    words: Sequence[Segment]  # with times in the recording; empty if it was not aligned
    marked: str  # the transcript, or a part of it, with * around doubtful words
    confidence: float | None
    picture: AlignedUtterance | None = None


def drawn(
    name: str,
    wave_N: np.ndarray,
    rate_hz: int,
    phones: Sequence[Segment],
    words: Sequence[Segment],
    recognised: Sequence[Segment] = (),
    start_s: float = 0.0,
) -> AlignedUtterance:
    """The picture of an utterance that begins at `start_s` of the times of its segments."""
    config = load_preset(FeatureConfig, "features", "fbank40")
    feats_1TF, _ = static_features(torch.from_numpy(wave_N)[None], torch.tensor([len(wave_N)]), config, rate_hz)
    tracks = (
        [(s.start_s - start_s, s.end_s - start_s, s.label) for s in track] for track in (phones, words, recognised)
    )
    return AlignedUtterance(name, wave_N, rate_hz, np.asarray(feats_1TF[0]), config.frame_shift, *tracks)


def write_alignment_page(
    path: Path, title: str, summary: Sequence[str], doubtful: Sequence[Checked], others: Sequence[Checked]
) -> None:
    """Write the page: the doubtful utterances in the given order, then examples of the others."""
    parts = [f"<h1>{escape(title)}</h1>", *(f"<p>{escape(line.strip())}</p>" for line in summary)]
    parts.append('<p class="quiet">Click a word to hear it. Doubtful words are <mark>marked</mark>.</p>')
    if doubtful:
        parts.append(f"<h2>To be checked: {counted(len(doubtful), 'utterance')}, the worst first</h2>")
        parts += [_block(each) for each in doubtful]
    else:
        parts.append("<h2>No utterance is suspicious</h2>")
    if others:
        parts.append("<h2>The least confident of the others</h2>")
        parts += [_block(each) for each in others]
    write_text(path, html.page(title, "\n".join([*parts, _SCRIPT])))


def _block(each: Checked) -> str:
    speaker = f", {each.speaker}" if each.speaker and each.speaker not in each.name else ""
    sure = "" if each.confidence is None else f", confidence {each.confidence:.2f}"
    why = f": {each.why}" if each.why else ""
    parts = [f"<header>{escape(f'{each.name}{speaker}{sure}{why}')}</header>", f"<p>{_transcript(each)}</p>"]
    times = f"{each.start_s:.2f} to {each.end_s:.2f} s"
    if each.audio:
        source = f"{quote(each.audio)}#t={each.start_s:.3f},{each.end_s:.3f}"
        player = f'<audio controls preload="metadata" src="{source}"></audio> '
        parts.append(f'<p class="sound">{player}<span class="quiet">{escape(each.audio)}, {times}</span></p>')
    else:
        parts.append(f'<p class="quiet">{times}; the recording cannot be played here</p>')
    if each.picture:
        svg = figures.alignment(each.picture, small=True)
        parts.append(html.folded("words and phones", f'<figure class="scroll">{svg}</figure>', opened=True))
    return f'<div class="utt">{"".join(parts)}</div>'


def _transcript(each: Checked) -> str:
    """The words, each of which can be clicked if its times are known."""
    marked = each.marked.split()
    bare = [word[1:-1] if len(word) > 2 and word[0] == word[-1] == "*" else word for word in marked]
    if bare != [word.label for word in each.words]:
        return " ".join(_marked(word, escape(text)) for word, text in zip(marked, bare, strict=True))
    buttons = (
        f'<button class="word" data-start="{word.start_s:.3f}" data-end="{word.end_s:.3f}">'
        f"{escape(word.label)}</button>"
        for word in each.words
    )
    return " ".join(_marked(word, button) for word, button in zip(marked, buttons, strict=True))


def _marked(word: str, shown: str) -> str:
    return f"<mark>{shown}</mark>" if len(word) > 2 and word[0] == word[-1] == "*" else shown
