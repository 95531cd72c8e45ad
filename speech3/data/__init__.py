"""Data directories and recordings: what was said, by whom, in which file.

`datadir` reads and writes Kaldi's data directories; `paths` finds recordings that lines of wav.scp name, or runs their
commands. `audio` reads recordings of any format (`containers`, `bitstreams`, `pcm`), `resampling` changes their rate.
`validation` finds every fault and mends what can be mended (`lost_bytes`); `subsets` splits, selects and combines;
`stats` counts; `transcripts` normalises text, `markup` takes out what is not said; `phones` has classes of phones.
`augment/` adds noise, rooms, speed and telephone channels.
"""

from typing import TYPE_CHECKING

from speech3.runtime.door import door

if TYPE_CHECKING:
    from speech3.data import audio as audio, paths as paths
    from speech3.data.audio import (
        END_TOLERANCE_S as END_TOLERANCE_S,
        AudioError as AudioError,
        AudioInfo as AudioInfo,
        info as info,
        write_wav as write_wav,
    )
    from speech3.data.augment.augmenter import (
        Augmenter as Augmenter,
        add_background as add_background,
        augment_data as augment_data,
        copy_prefix as copy_prefix,
        has_no_background as has_no_background,
        make_augmenter as make_augmenter,
        perturb_speed as perturb_speed,
        seed_of as seed_of,
        without_background as without_background,
    )
    from speech3.data.augment.negatives import (
        NEGATIVE_S as NEGATIVE_S,
        separate_speakers as separate_speakers,
        write_negatives as write_negatives,
    )
    from speech3.data.augment.noises import (
        active_rms as active_rms,
        add_noise as add_noise,
        babble as babble,
        colored_noise as colored_noise,
        hum as hum,
        resample as resample,
        reverberate as reverberate,
        room_response as room_response,
        utterance_sounds as utterance_sounds,
    )
    from speech3.data.datadir import (
        DATADIR_FILES as DATADIR_FILES,
        IN_FOLDERS as IN_FOLDERS,
        NOISE as NOISE,
        OTHER_SPEECH as OTHER_SPEECH,
        SYMBOLS as SYMBOLS,
        DataDir as DataDir,
        Fault as Fault,
        Utterance as Utterance,
        check_new_datadir as check_new_datadir,
        is_datadir as is_datadir,
        read_datadir as read_datadir,
        segment_name as segment_name,
        symbols_in as symbols_in,
        without_faulty_audio as without_faulty_audio,
        write_datadir as write_datadir,
    )
    from speech3.data.lost_bytes import find_damage as find_damage, write_mended as write_mended
    from speech3.data.markup import without_markup as without_markup
    from speech3.data.paths import (
        entry_of_any_case as entry_of_any_case,
        files_below as files_below,
        is_sync_conflict as is_sync_conflict,
        matching_paths as matching_paths,
        moved_value as moved_value,
        refuse_commands as refuse_commands,
        resolve_path as resolve_path,
    )
    from speech3.data.pcm import (
        PcmDecoder as PcmDecoder,
        arriving_bytes as arriving_bytes,
        sound_format as sound_format,
    )
    from speech3.data.phones import (
        SILENCE as SILENCE,
        broad_class as broad_class,
        folded as folded,
        is_arpabet as is_arpabet,
        is_silence as is_silence,
        phones61 as phones61,
    )
    from speech3.data.resampling import (
        OnlineResampler as OnlineResampler,
        checked_rate as checked_rate,
        checked_samples as checked_samples,
    )
    from speech3.data.stats import (
        Stats as Stats,
        channel_mixes as channel_mixes,
        describe_corpus as describe_corpus,
        lengths_s as lengths_s,
        measure_corpus as measure_corpus,
        read_headers as read_headers,
        sphere_length_s as sphere_length_s,
        warn_of_problems as warn_of_problems,
    )
    from speech3.data.subsets import (
        check_apart as check_apart,
        combine as combine,
        parse_shares as parse_shares,
        read_list as read_list,
        seconds_of as seconds_of,
        split_by_speaker as split_by_speaker,
        split_by_utterance as split_by_utterance,
        subset as subset,
    )
    from speech3.data.transcripts import (
        APOSTROPHES as APOSTROPHES,
        MARKS as MARKS,
        STDIN as STDIN,
        TRN_LINE as TRN_LINE,
        Lines as Lines,
        case_doubts as case_doubts,
        case_fold as case_fold,
        case_folded as case_folded,
        has_case_rules as has_case_rules,
        looks_like_ids as looks_like_ids,
        lower_case as lower_case,
        marked_at_edge as marked_at_edge,
        normalize_text as normalize_text,
        other_format as other_format,
        parse_steps as parse_steps,
        plain_words as plain_words,
        read_lines as read_lines,
        read_sentences as read_sentences,
        sentences_of_file as sentences_of_file,
        upper_case as upper_case,
        with_progress as with_progress,
        words_in_spelling as words_in_spelling,
        words_with_sharp_s as words_with_sharp_s,
    )
    from speech3.data.validation import (
        fix_datadir as fix_datadir,
        some_of_each_kind as some_of_each_kind,
        validate as validate,
    )
else:
    __getattr__ = door(__file__)
