"""What any program needs: worker processes, progress, interrupts, atomic writes, text files, compiled code.

`parallel` runs functions in worker processes and explains what a machine or container limits. `reporting` prints
messages and progress, writes metrics, defers Ctrl-C and suits the terminal's encoding. `files` replaces files whole,
locks directories and follows files that grow. `text` reads text in any Unicode encoding, compressed or not, and
`unicode_form` composes its letters. `native` has what concerns compiled code, memory and devices; `door` makes the
doors of packages.
"""

from typing import TYPE_CHECKING

from speech3.runtime.door import door

if TYPE_CHECKING:
    from speech3.runtime.files import (
        Tail,
        atomic_path,
        explained_disk_errors,
        locked_directory,
        read_json,
        write_json,
        write_lines,
        write_text,
    )
    from speech3.runtime.native import announce_compiling, jit, keep_freed_memory, to_device
    from speech3.runtime.parallel import (
        NOT_BEGUN,
        ONE_THREAD,
        START_METHOD,
        Surroundings,
        allow_open_files,
        available_jobs,
        container_limit,
        end_processes,
        end_with_parent,
        explained_limit,
        explained_limits,
        memory_left,
        out_of_memory,
        parallel_map,
        processes_work,
        starting_workers,
        without_shared_memory,
        worker_context,
        worker_pool,
    )
    from speech3.runtime.reporting import (
        Interrupt,
        Metrics,
        be_quiet,
        console,
        deferred_interrupt,
        progress,
        read_metrics,
        restart_in_utf8,
        say,
        suit_terminals,
    )
    from speech3.runtime.text import (
        UNREADABLE,
        NotTextError,
        decode,
        has_nul,
        not_utf8,
        open_text,
        read_bytes,
        read_utf8,
        text_stream,
        to_utf8,
    )
    from speech3.runtime.unicode_form import compatibility_words, composed, to_one_form
else:
    __getattr__ = door(__file__)

__all__ = [
    "NOT_BEGUN",
    "ONE_THREAD",
    "START_METHOD",
    "UNREADABLE",
    "Interrupt",
    "Metrics",
    "NotTextError",
    "Surroundings",
    "Tail",
    "allow_open_files",
    "announce_compiling",
    "atomic_path",
    "available_jobs",
    "be_quiet",
    "compatibility_words",
    "composed",
    "console",
    "container_limit",
    "decode",
    "deferred_interrupt",
    "end_processes",
    "end_with_parent",
    "explained_disk_errors",
    "explained_limit",
    "explained_limits",
    "has_nul",
    "jit",
    "keep_freed_memory",
    "locked_directory",
    "memory_left",
    "not_utf8",
    "open_text",
    "out_of_memory",
    "parallel_map",
    "processes_work",
    "progress",
    "read_bytes",
    "read_json",
    "read_metrics",
    "read_utf8",
    "restart_in_utf8",
    "say",
    "starting_workers",
    "suit_terminals",
    "text_stream",
    "to_device",
    "to_one_form",
    "to_utf8",
    "without_shared_memory",
    "worker_context",
    "worker_pool",
    "write_json",
    "write_lines",
    "write_text",
]
