"""espeak-ng through ctypes: speech synthesis with the times of phones, and grapheme-to-phoneme conversion.

espeak-ng (GPL-3) is not part of speech3. The wheel ``espeakng-loader``, which the user installs, contains the library
and its data; both are loaded at run time.

Every call loads and unloads the library (4 ms). espeak keeps state between utterances that no call resets (the index
into its table of pitch flutter, positions of its oscillators), so an utterance differs if it is not the first of a
process; `espeak_Terminate` with `espeak_Initialize` does not help. With a freshly loaded library and seeded noise an
utterance is a pure function of its arguments, as long as nothing else in the process has the same library file loaded.
"""

import _ctypes
import ctypes
import difflib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

from speech3.errors import DataError, MachineError, MissingError, SettingError
from speech3.runtime import deferred_interrupt, progress

# Constants of espeak-ng's public interface (speak_lib.h), which is stable across its releases.
_SYNCHRONOUS = 2
_PHONEME_EVENTS, _PHONEME_IPA, _DONT_EXIT = 0x0001, 0x0002, 0x8000
_UTF8, _SSML = 0x01, 0x10
_RATE, _PITCH, _RANGE = 1, 3, 4
_EVENT_LIST_TERMINATED, _EVENT_WORD, _EVENT_END, _EVENT_PHONEME = 0, 1, 5, 7
_IPA_SEPARATED_BY = 0x02
_STRESS = "ˈˌ"
_SEPARATOR = "_"


class PhoneEvent(NamedTuple):
    """A phone (or pause) that lasts until the next event or the end of the samples."""

    start_s: float
    ipa: str
    """espeak's IPA symbol, cut at 8 bytes and then stripped of stress marks; empty for a pause."""
    word: int
    """Index of the word it belongs to, -1 for a pause."""


class Synthesis(NamedTuple):
    """What `synthesize` returns: samples (N,) float32 in [-1, 1), their rate, the phones in order of time."""

    samples: np.ndarray
    sample_rate_hz: int
    events: list[PhoneEvent]


class Voice(NamedTuple):
    """A voice of the installed espeak-ng: its name, as `synthesize` takes it, and its language tags, the best first."""

    name: str
    languages: tuple[str, ...]


class _Id(ctypes.Union):
    _fields_ = (("number", ctypes.c_int), ("name", ctypes.c_char_p), ("string", ctypes.c_char * 8))


class _Event(ctypes.Structure):
    _fields_ = (
        ("type", ctypes.c_int),
        ("unique_identifier", ctypes.c_uint),
        ("text_position", ctypes.c_int),
        ("length", ctypes.c_int),
        ("audio_position", ctypes.c_int),
        ("sample", ctypes.c_int),
        ("user_data", ctypes.c_void_p),
        ("id", _Id),
    )


class _Voice(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p),
        ("languages", ctypes.c_void_p),
        ("identifier", ctypes.c_char_p),
        ("gender", ctypes.c_ubyte),
        ("age", ctypes.c_ubyte),
        ("variant", ctypes.c_ubyte),
        ("xx1", ctypes.c_ubyte),
        ("score", ctypes.c_int),
        ("spare", ctypes.c_void_p),
    )


_Callback = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.POINTER(_Event))


@contextmanager
def _fresh_library() -> Iterator[tuple[Any, int]]:
    try:
        import espeakng_loader
    except ImportError as error:
        raise MachineError('the synthesiser espeak-ng is missing: pip install "speech3[espeak]"') from error
    try:
        library = ctypes.CDLL(espeakng_loader.get_library_path())
    except OSError as error:
        raise MachineError(
            f'espeak-ng cannot be loaded ({error}): pip install --force-reinstall "speech3[espeak]"'
        ) from error
    try:
        data = espeakng_loader.get_data_path()
        options = _PHONEME_EVENTS | _PHONEME_IPA | _DONT_EXIT
        rate = library.espeak_Initialize(_SYNCHRONOUS, 0, str(data).encode(), options)
        if rate <= 0:
            raise MachineError(
                f'{data}: espeak-ng finds no data there: pip install --force-reinstall "speech3[espeak]"'
            )
        # For breath and aspiration, espeak seeds one generator with the time of day and does not seed the C library's.
        library.espeak_ng_SetRandSeed(ctypes.c_long(1))
        ctypes.CDLL(None).srand(1)
        yield library, rate
        library.espeak_Terminate()
    finally:
        _ctypes.dlclose(library._handle)


def _set_voice(library: Any, voice: str) -> None:
    if library.espeak_SetVoiceByName(voice.encode()) != 0:
        raise MissingError(f"espeak-ng has no voice {voice!r}; speech3.language.espeak.voices() lists its voices")


def synthesize(
    text: str, voice: str, rate_wpm: int = 175, pitch: int = 50, pitch_range: int = 50, *, ssml: bool = False
) -> Synthesis:
    """Synthesise `text`; the same arguments make the same samples, in any process and in any order.

    Parameters
    ----------
    voice
        A name from `voices` (``en-us``, ``cmn``), optionally with a variant after a plus sign (``en-us+f3``).
    rate_wpm
        Words per minute, 80 to 450.
    pitch, pitch_range
        0 to 99; 50 is the voice's default.
    ssml
        `text` is SSML: ``<break time="200ms"/>`` is a pause, ``&amp;`` an ampersand.

    Returns
    -------
    Synthesis
        The event of a phone is at the sample where its sound begins (checked on the waveform, there is no offset). Two
        properties matter when alignments are compared: the event of a stop is at its release, and the closure before it
        (samples that are exactly zero) counts as the end of the previous phone; a voiceless fricative is preceded by
        12 ms of such zeros. Glides without a name, which espeak inserts between vowels, prolong the phone before.

    Raises
    ------
    Speech3Error
        espeakng-loader is not installed, the voice is unknown, or nothing was spoken.
    """
    chunks: list[np.ndarray] = []
    raw: list[tuple[int, int, str]] = []

    def receive(samples: Any, count: int, events: Any) -> int:
        if count > 0:
            chunks.append(np.ctypeslib.as_array(samples, (count,)).copy())
        index = 0
        while (kind := events[index].type) != _EVENT_LIST_TERMINATED:
            name = events[index].id.string.decode("utf-8", "ignore") if kind == _EVENT_PHONEME else ""
            raw.append((kind, events[index].sample, name))
            index += 1
        return 0

    callback = _Callback(receive)  # this reference keeps it alive while espeak calls it
    encoded = text.encode()
    with _fresh_library() as (library, sample_rate_hz):
        library.espeak_SetSynthCallback(callback)
        _set_voice(library, voice)
        for parameter, value in ((_RATE, rate_wpm), (_PITCH, pitch), (_RANGE, pitch_range)):
            library.espeak_SetParameter(parameter, value, 0)
        flags = _UTF8 | (_SSML if ssml else 0)
        with deferred_interrupt() as interrupt:  # ctypes drops an exception in a callback, and the samples with it
            status = library.espeak_Synth(encoded, ctypes.c_size_t(len(encoded) + 1), 0, 0, 0, flags, None, None)
        if interrupt:
            raise KeyboardInterrupt
    events = _phone_events(raw, sample_rate_hz)
    if status != 0 or not any(event.ipa for event in events):
        raise DataError(f"espeak-ng said nothing for {text!r} with voice {voice}; use a text with words")
    return Synthesis(np.concatenate(chunks).astype(np.float32) / 32768, sample_rate_hz, events)


def _phone_events(raw: list[tuple[int, int, str]], sample_rate_hz: int) -> list[PhoneEvent]:
    """Convert espeak's events to phones; one without a name is a pause at the end of a clause, else part of a phone."""
    events: list[PhoneEvent] = []
    word, pause_start = -1, None
    for kind, sample, name in raw:
        if kind == _EVENT_WORD:
            word, pause_start = word + 1, None
        elif kind == _EVENT_END and pause_start is not None:
            events.append(PhoneEvent(pause_start / sample_rate_hz, "", -1))
            pause_start = None
        elif kind == _EVENT_PHONEME and (ipa := name.strip(_STRESS)):
            events.append(PhoneEvent(sample / sample_rate_hz, ipa, word))
            pause_start = None
        elif kind == _EVENT_PHONEME and pause_start is None:
            pause_start = sample
    return events


def voices() -> list[Voice]:
    """The voices of the installed espeak-ng, without variants, sorted by name."""
    found = []
    with _fresh_library() as (library, _):
        library.espeak_ListVoices.restype = ctypes.POINTER(ctypes.POINTER(_Voice))
        table = library.espeak_ListVoices(None)
        index = 0
        while table[index]:
            found.append(Voice(table[index][0].identifier.decode(), tuple(_tags(table[index][0].languages))))
            index += 1
    return sorted(found)


def _tags(address: int) -> Iterator[str]:
    """Read espeak's list of language tags: a priority byte, the tag, a zero byte; ended by a zero priority."""
    while ctypes.string_at(address, 1) != b"\0":
        tag = ctypes.string_at(address + 1)
        yield tag.decode()
        address += len(tag) + 2


def voice_of(language: str) -> str:
    """Name of the voice for a language tag (``cy``, ``en-us``, ``zh``) or for a voice's own name.

    Raises Speech3Error: espeak-ng does not know the language; the message lists near matches.
    """
    tags = [(voice.name, (voice.name.rpartition("/")[2], *voice.languages)) for voice in voices()]
    known: dict[str, str] = {}
    for number in range(5):  # a voice's first tag counts before another's second
        for name, of_voice in tags:
            if number < len(of_voice):
                known.setdefault(of_voice[number].lower(), name)
    wanted = language.lower().replace("_", "-")
    if wanted in known:
        return known[wanted]
    alike = [tag for tag in known if tag.split("-")[0] in (wanted.split("-")[0], wanted[:2])]
    near = list(dict.fromkeys(difflib.get_close_matches(wanted, known, 5, 0.6) + sorted(alike)))
    raise SettingError(
        f"lang={language}: espeak-ng does not know this language; "
        + (f"near matches: {', '.join(near[:8])}" if near else f"it knows: {', '.join(sorted(known))}")
        + "; or set lexicon=graphemes, which spells words by their letters"
    )


def check_english(language: str | None, corpus: str) -> None:
    """Raise an error if the language given for an English corpus is another one, as it would pass in silence."""
    if language and not language.lower().startswith("en"):
        raise SettingError(f"lang={language}: {corpus} is in English; set lang=en-us, or remove it")


def pronounce(texts: Sequence[str], voice: str) -> list[list[list[str]]]:
    """Pronounce each text separately, all with one loaded library (60,000 words per second).

    Returns: for each text its words as espeak groups them, each a list of espeak's IPA symbols with leading stress
    marks; empty if there is nothing to pronounce. A symbol such as ``(en)`` marks a change of language.
    """
    mode = _IPA_SEPARATED_BY | ord(_SEPARATOR) << 8
    found: list[list[list[str]]] = []
    with _fresh_library() as (library, _):
        _set_voice(library, voice)
        library.espeak_TextToPhonemes.restype = ctypes.c_char_p
        for text in progress(texts, len(texts), f"espeak-ng ({voice})"):
            buffer = ctypes.create_string_buffer(text.encode())
            rest = ctypes.c_void_p(ctypes.addressof(buffer))
            words: list[str] = []
            while rest.value:  # one clause per call
                clause = library.espeak_TextToPhonemes(ctypes.byref(rest), _UTF8, mode) or b""
                words += clause.decode("utf-8", "replace").split()
            found.append([[phone for phone in word.split(_SEPARATOR) if phone] for word in words])
    return found
