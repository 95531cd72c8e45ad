"""Parts of a self-contained HTML page: escaping, tables, interval bars, aligned words, short clips, the style sheet."""

import base64
import html
import io
import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import soundfile

from speech3.evaluate.wer import Utterance

_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]|[\ud800-\udfff]")

STYLE = """
:root { color-scheme: light dark; --paper: #fdfdfb; --card: #f3f3ee; --ink: #1d1f21; --quiet: #65696e; --rule: #d9d9d2;
  --c0: #1f63b5; --c1: #c2570c; --c2: #2c7a3f; --c3: #8a3fa0; --c4: #a8172d; --c5: #6b6410;
  --sub: #fbe3b6; --sub-ink: #6e4300; --del: #f8d3d3; --del-ink: #8c1111; --ins: #cfe3f8; --ins-ink: #0e4379; }
@media (prefers-color-scheme: dark) { :root { --paper: #17191c; --card: #212429; --ink: #e6e6e2; --quiet: #9ba1a8;
  --rule: #383d43; --c0: #79b0f0; --c1: #f29a59; --c2: #7cc98d; --c3: #cf9ce0; --c4: #f08a98; --c5: #d0c76a;
  --sub: #4f3a10; --sub-ink: #ffd98c; --del: #551f22; --del-ink: #ffb9b9; --ins: #17395c; --ins-ink: #b5d8ff; } }
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; text-size-adjust: 100%; }
body { margin: 0 auto; padding: 2rem 1.25rem 4rem; max-width: 66rem; background: var(--paper); color: var(--ink);
  font: 1rem/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", sans-serif; }
h1 { font-size: 1.7rem; line-height: 1.2; margin: 0 0 .5rem; }
h2 { font-size: 1.2rem; margin: 2.75rem 0 .5rem; padding-top: .75rem; border-top: 1px solid var(--rule); }
h3 { font-size: 1rem; margin: 1.5rem 0 .3rem; }
p { max-width: 44rem; margin: .4rem 0 .8rem; } .quiet { color: var(--quiet); font-size: .9rem; }
pre { font: .86rem/1.5 ui-monospace, "Cascadia Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace; }
pre { background: var(--card); padding: .8rem 1rem; border-radius: .4rem; overflow-x: auto; margin: .5rem 0; }
pre.command { white-space: pre-wrap; overflow-wrap: anywhere; }
.big { font-size: 1.35rem; margin: .8rem 0 0; max-width: none; } .big b { font-size: 2.6rem; line-height: 1.1; }
nav { font-size: .9rem; margin-top: 1rem; } nav a { margin-right: 1rem; white-space: nowrap; } a { color: var(--c0); }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .93rem; }
th { font-weight: 600; color: var(--quiet); font-size: .84rem; vertical-align: bottom; text-align: left; }
th, td { padding: .28rem .75rem .28rem 0; border-bottom: 1px solid var(--rule); vertical-align: top; }
td.t { overflow-wrap: anywhere; } td.n, th.n { text-align: right; white-space: nowrap; } td.l { white-space: nowrap; }
tr.best td { font-weight: 600; } 
.bar { display: inline-block; position: relative; width: 11rem; height: .9rem; vertical-align: middle; }
.bar i, .bar b { position: absolute; top: 0; height: 100%; border-radius: 2px; }
.bar i { background: var(--c0); opacity: .35; } .bar b { background: var(--c0); width: 3px; margin-left: -1.5px; }
.bar.plain i { opacity: .6; } .bar.plain { width: 6.5rem; }
.utt { margin: 0 0 1.1rem; padding: .6rem .9rem; background: var(--card); border-radius: .4rem; }
.utt .sound { margin: .3rem 0 0; max-width: none;
  display: flex; flex-wrap: wrap; gap: .3rem .8rem; align-items: center; }
.utt .sound .quiet { overflow-wrap: anywhere; } audio { height: 2rem; max-width: 100%; }
.utt header { font-size: .84rem; color: var(--quiet); margin-bottom: .3rem; overflow-wrap: anywhere; }
.w { display: inline-block; margin: 0 .4rem .35rem 0; vertical-align: top; line-height: 1.35; max-width: 100%;
  overflow-wrap: anywhere; }
.w span { display: block; padding: 0 .25rem; min-height: 1.35em; border-radius: .2rem; }
.w span + span { color: var(--quiet); }
.s span { background: var(--sub); } .s span + span { color: var(--sub-ink); font-weight: 600; }
.d span:first-child { background: var(--del); color: var(--del-ink); text-decoration: line-through; }
.i span + span { background: var(--ins); color: var(--ins-ink); font-weight: 600; text-decoration: underline; }
button.word { font: inherit; color: inherit; background: none; border: 0; padding: 0 .15rem; cursor: pointer;
  border-radius: .2rem; } button.word:hover { text-decoration: underline; }
mark { background: var(--sub); color: var(--sub-ink); border-radius: .2rem; }
.grid { display: grid; gap: 1rem 2rem; grid-template-columns: repeat(auto-fit, minmax(min(19rem, 100%), 1fr)); }
figure { margin: .5rem 0; } figure svg { display: block; max-width: 100%; height: auto; }
figure.scroll { overflow-x: auto; } figure.scroll svg { max-width: none; }
figcaption { color: var(--quiet); font-size: .88rem; margin-top: .3rem; }
details { margin: .5rem 0; } summary { cursor: pointer; color: var(--c0); }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .2rem 1rem; margin: .5rem 0; font-size: .93rem; }
dt { color: var(--quiet); } dd { margin: 0; overflow-wrap: anywhere; }
@media (max-width: 34rem) { body { padding: 1.25rem .9rem 3rem; } h1 { font-size: 1.4rem; } .big { font-size: 1.1rem; }
  .big b { font-size: 2.1rem; } .bar { width: 6rem; } dl { display: block; } dd { margin-bottom: .4rem; } }
@media print { nav { display: none; } details > * { display: block; } }
"""
MOST_BYTES = 100_000  # of a clip, as text in the page
_LEVELS = (0.0, 0.9)  # of MP3's compression: about 4.0 and 2.8 kB a second at 16 kHz
_MP3_RATES_HZ = (8000, 11025, 12000, 16000, 22050, 24000, 32000, 44100, 48000)


def escape(text: object) -> str:
    """Escape text for an element or an attribute; control characters, which HTML forbids, become U+FFFD."""
    return html.escape(_CONTROL.sub("\ufffd", str(text)))


def page(title: str, body: str) -> str:
    """A whole page, with the style sheet."""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n<link rel="icon" href="data:,">\n'
        f"<title>{escape(title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n{body}\n</body>\n</html>\n"
    )


def table(
    header: Sequence[str], rows: Sequence[Sequence[str]], *, best: int | None = None, wrapped: bool = False
) -> str:
    """A table of cells that are already HTML; row `best` is emphasised.

    The first column is left-aligned, the others are numbers; with `wrapped`, texts of any length.
    """
    kinds = ["l", *("t" if wrapped else "n" for _ in header[1:])]
    head = "".join(f'<th class="{kind}" scope="col">{cell}</th>' for kind, cell in zip(kinds, header, strict=True))
    lines = []
    for index, row in enumerate(rows):
        cells = "".join(f'<td class="{kind}">{cell}</td>' for kind, cell in zip(kinds, row, strict=True))
        lines.append(f"<tr{' class=best' if index == best else ''}>{cells}</tr>")
    body = "\n".join(lines)
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody></table></div>'


def interval_bar(value: float, low: float, high: float, full: float) -> str:
    """A point and its interval on a scale from zero to `full`."""
    left, right, middle = (100 * min(x / full, 1.0) for x in (low, high, value))
    return (
        f'<span class="bar" aria-hidden="true"><i style="left:{left:.1f}%;width:{max(right - left, 0.5):.1f}%"></i>'
        f'<b style="left:{middle:.1f}%"></b></span>'
    )


def plain_bar(value: float, full: float) -> str:
    return f'<span class="bar plain" aria-hidden="true"><i style="left:0;width:{100 * value / full:.1f}%"></i></span>'


def pairs(items: dict[str, str]) -> str:
    return "<dl>" + "".join(f"<dt>{escape(k)}</dt><dd>{escape(v)}</dd>" for k, v in items.items()) + "</dl>"


def folded(summary: str, content: str, *, opened: bool = False) -> str:
    return f"<details{' open' if opened else ''}><summary>{escape(summary)}</summary>{content}</details>"


def aligned(utterance: Utterance) -> str:
    """Reference above hypothesis, aligned word by word, with errors coloured and struck through or underlined."""
    titles = {"substitute": "substitution", "delete": "deletion", "insert": "insertion"}
    words = []
    for kind, ref, hyp in utterance.alignment():
        mark = "" if kind == "equal" else f' {kind[0]}" title="{titles[kind]}'
        words.append(f'<span class="w{mark}"><span>{escape(ref)}</span><span>{escape(hyp)}</span></span>')
    return "\n".join(words)


@dataclass(frozen=True)
class Clip:
    """An encoded recording."""

    kind: str  # such as "audio/mpeg"
    data: bytes

    @property
    def address(self) -> str:
        return f"data:{self.kind};base64,{base64.b64encode(self.data).decode()}"


def encode_clip(wave_N: np.ndarray, sample_rate_hz: int) -> Clip | None:
    """Encode samples in [-1, 1) as MP3, or as FLAC at rates that MP3 lacks; None if that takes over `MOST_BYTES`."""
    mp3 = sample_rate_hz in _MP3_RATES_HZ and "MP3" in soundfile.available_formats()
    for level in _LEVELS if mp3 else (None,):
        stream = io.BytesIO()
        if level is None:
            soundfile.write(stream, wave_N, sample_rate_hz, format="FLAC", subtype="PCM_16")
        else:
            soundfile.write(stream, wave_N, sample_rate_hz, format="MP3", compression_level=level)
        found = Clip("audio/flac" if level is None else "audio/mpeg", stream.getvalue())
        if len(found.address) <= MOST_BYTES:
            return found
    return None
