"""What any program needs: worker processes, progress, interrupts, atomic writes, text files, compiled code.

`parallel` runs functions in worker processes and explains what a machine or container limits. `reporting` prints
messages and progress, defers Ctrl-C and suits the terminal's encoding. `files` replaces files whole, appends records
and follows them, locks directories, and refuses outputs that would replace inputs or files of another kind. `text`
reads text in any Unicode encoding, compressed or not, and composes its letters. `native` has what concerns compiled
code, memory and devices, `compiled_cache` the place of compiled code; `door` makes the doors of packages.
"""

from typing import TYPE_CHECKING

from speech3.runtime.door import door

if TYPE_CHECKING:
    from speech3.runtime.compiled_cache import keep_compiled_code as keep_compiled_code
    from speech3.runtime.files import (
        Metrics as Metrics,
        Tail as Tail,
        atomic_path as atomic_path,
        check_output as check_output,
        content_digest as content_digest,
        explained_disk_errors as explained_disk_errors,
        locked_directory as locked_directory,
        read_json as read_json,
        read_metrics as read_metrics,
        write_json as write_json,
        write_lines as write_lines,
        write_text as write_text,
    )
    from speech3.runtime.native import (
        announce_compiling as announce_compiling,
        jit as jit,
        keep_freed_memory as keep_freed_memory,
        to_device as to_device,
    )
    from speech3.runtime.parallel import (
        NOT_BEGUN as NOT_BEGUN,
        ONE_THREAD as ONE_THREAD,
        START_METHOD as START_METHOD,
        Surroundings as Surroundings,
        allow_open_files as allow_open_files,
        available_jobs as available_jobs,
        container_limit as container_limit,
        end_processes as end_processes,
        end_with_parent as end_with_parent,
        explained_limit as explained_limit,
        explained_limits as explained_limits,
        memory_left as memory_left,
        out_of_memory as out_of_memory,
        parallel_map as parallel_map,
        processes_work as processes_work,
        starting_workers as starting_workers,
        without_shared_memory as without_shared_memory,
        worker_context as worker_context,
        worker_pool as worker_pool,
    )
    from speech3.runtime.reporting import (
        Interrupt as Interrupt,
        be_quiet as be_quiet,
        console as console,
        deferred_interrupt as deferred_interrupt,
        progress as progress,
        quietly as quietly,
        restart_in_utf8 as restart_in_utf8,
        say as say,
        suit_terminals as suit_terminals,
    )
    from speech3.runtime.text import (
        UNREADABLE as UNREADABLE,
        NotTextError as NotTextError,
        check_standard_input as check_standard_input,
        compatibility_words as compatibility_words,
        composed as composed,
        decode as decode,
        foreign_content as foreign_content,
        has_nul as has_nul,
        not_utf8 as not_utf8,
        numbered_lines as numbered_lines,
        open_text as open_text,
        read_bytes as read_bytes,
        read_utf8 as read_utf8,
        text_stream as text_stream,
        to_one_form as to_one_form,
        to_utf8 as to_utf8,
    )
else:
    __getattr__ = door(__file__)
