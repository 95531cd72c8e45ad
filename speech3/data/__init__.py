"""Data directories and recordings: what was said, by whom, in which file.

`datadir` reads and writes Kaldi's data directories; `paths` finds recordings that lines of wav.scp name, or runs their
commands. `audio` reads recordings of any format (`containers`, `bitstreams`, `pcm`), `resampling` changes their rate.
`validation` finds every fault and mends what can be mended (`lost_bytes`); `subsets` splits, selects and combines;
`stats` counts; `transcripts` normalises text. `augment/` adds noise, rooms, speed and telephone channels.
"""

from typing import TYPE_CHECKING

from speech3.runtime.door import door

if TYPE_CHECKING:
    from speech3.data import audio, paths
    from speech3.data.audio import END_TOLERANCE_S, AudioError, AudioInfo, info, write_wav
    from speech3.data.augment.augmenter import (
        Augmenter,
        augment_data,
        copy_prefix,
        make_augmenter,
        perturb_speed,
        seed_of,
    )
    from speech3.data.augment.negatives import NEGATIVE_S, separate_speakers, write_negatives
    from speech3.data.augment.noises import (
        active_rms,
        add_noise,
        babble,
        colored_noise,
        hum,
        resample,
        reverberate,
        room_response,
        utterance_sounds,
    )
    from speech3.data.broad_classes import SILENCE, broad_class, folded, is_arpabet, is_silence
    from speech3.data.datadir import (
        DATADIR_FILES,
        IN_FOLDERS,
        NOISE,
        OTHER_SPEECH,
        SYMBOLS,
        DataDir,
        Fault,
        Utterance,
        is_datadir,
        read_datadir,
        segment_name,
        symbols_in,
        without_faulty_audio,
        write_datadir,
    )
    from speech3.data.lost_bytes import find_damage, write_mended
    from speech3.data.markup import without_markup
    from speech3.data.paths import (
        entry_of_any_case,
        files_below,
        is_sync_conflict,
        matching_paths,
        moved_value,
        refuse_commands,
        resolve_path,
    )
    from speech3.data.pcm import PcmDecoder, arriving_bytes, sound_format
    from speech3.data.resampling import OnlineResampler, checked_rate, checked_samples
    from speech3.data.stats import (
        Stats,
        channel_mixes,
        describe_corpus,
        lengths_s,
        measure_corpus,
        read_headers,
        sphere_length_s,
        warn_of_problems,
    )
    from speech3.data.subsets import (
        check_apart,
        combine,
        parse_shares,
        read_list,
        seconds_of,
        split_by_speaker,
        split_by_utterance,
        subset,
    )
    from speech3.data.transcripts import (
        APOSTROPHES,
        STDIN,
        Lines,
        case_doubts,
        looks_like_ids,
        lower_case,
        marked_at_edge,
        normalize_text,
        other_format,
        parse_steps,
        phones61,
        plain_words,
        read_lines,
        read_sentences,
        sentences_of_file,
        with_progress,
        words_with_sharp_s,
    )
    from speech3.data.validation import fix_datadir, some_of_each_kind, validate
else:
    __getattr__ = door(__file__)

__all__ = [
    "APOSTROPHES",
    "DATADIR_FILES",
    "END_TOLERANCE_S",
    "IN_FOLDERS",
    "NEGATIVE_S",
    "NOISE",
    "OTHER_SPEECH",
    "SILENCE",
    "STDIN",
    "SYMBOLS",
    "AudioError",
    "AudioInfo",
    "Augmenter",
    "DataDir",
    "Fault",
    "Lines",
    "OnlineResampler",
    "PcmDecoder",
    "Stats",
    "Utterance",
    "active_rms",
    "add_noise",
    "arriving_bytes",
    "audio",
    "augment_data",
    "babble",
    "broad_class",
    "case_doubts",
    "channel_mixes",
    "check_apart",
    "checked_rate",
    "checked_samples",
    "colored_noise",
    "combine",
    "copy_prefix",
    "describe_corpus",
    "entry_of_any_case",
    "files_below",
    "find_damage",
    "fix_datadir",
    "folded",
    "hum",
    "info",
    "is_arpabet",
    "is_datadir",
    "is_silence",
    "is_sync_conflict",
    "lengths_s",
    "looks_like_ids",
    "lower_case",
    "make_augmenter",
    "marked_at_edge",
    "matching_paths",
    "measure_corpus",
    "moved_value",
    "normalize_text",
    "other_format",
    "parse_shares",
    "parse_steps",
    "paths",
    "perturb_speed",
    "phones61",
    "plain_words",
    "read_datadir",
    "read_headers",
    "read_lines",
    "read_list",
    "read_sentences",
    "refuse_commands",
    "resample",
    "resolve_path",
    "reverberate",
    "room_response",
    "seconds_of",
    "seed_of",
    "segment_name",
    "sentences_of_file",
    "separate_speakers",
    "some_of_each_kind",
    "sound_format",
    "sphere_length_s",
    "split_by_speaker",
    "split_by_utterance",
    "subset",
    "symbols_in",
    "utterance_sounds",
    "validate",
    "warn_of_problems",
    "with_progress",
    "without_faulty_audio",
    "without_markup",
    "words_with_sharp_s",
    "write_datadir",
    "write_mended",
    "write_negatives",
    "write_wav",
]
