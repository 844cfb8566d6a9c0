"""A fork into other namespaces that copies the process once.

A pid namespace holds only the children of whoever has entered it, and whoever has entered another user
namespace cannot come back. So a fork takes two processes: one that passes through the doors, and its child,
which stays. Made by `os.fork`, both are copies of all our memory, and one of them for a moment only. Here the
first one shares our memory, as it is with `vfork`, and we stand still until it has ended. It must not write
to that memory then: not to the stack, and not to a single reference count. Hence it runs no Python and no C,
but these few instructions, which need nothing but registers:

    long pass(const int doors[][2], int *thread_id)

        push  %rbx                          # ours again at the end
        push  %rbp
        mov   %rdi, %rbx                    # the doors: a descriptor and a flag each, the last below zero
        mov   %rsi, %rbp
        mov   $56, %eax                     # clone(CLONE_VM | CLONE_VFORK): whoever goes through the doors
        mov   $0x4100, %edi
        xor   %esi, %esi
        xor   %edx, %edx
        xor   %r10d, %r10d
        xor   %r8d, %r8d
        syscall
        test  %rax, %rax
        jnz   back                          # ourselves, when it has ended
    next:
        mov   (%rbx), %edi
        test  %edi, %edi
        js    through
        mov   4(%rbx), %esi
        mov   $308, %eax                    # setns(descriptor, flag)
        syscall
        test  %eax, %eax
        jnz   fail
        add   $8, %rbx
        jmp   next
    through:
        mov   $56, %eax                     # clone(SETTID | CLEARTID), as libc's fork; its end is told to
        mov   $0x01200000, %edi             # whoever adopts it, and not to who is about to end
        xor   %esi, %esi
        xor   %edx, %edx
        mov   %rbp, %r10
        xor   %r8d, %r8d
        syscall
        test  %rax, %rax
        jz    back                          # the copy, which returns 0 on a stack like ours
        js    fail
        xor   %eax, %eax
    fail:
        mov   %eax, %edi                    # exit(0), or exit(errno)
        neg   %edi
        mov   $60, %eax
        syscall
    back:
        pop   %rbp
        pop   %rbx
        ret

For a process with one thread only: a lock that another one holds would be held for ever in the copy. There is
nobody to tell of the fork then, so Python's hooks are not called, and the copy is all the more exact.
"""

import ctypes
import os
import platform
from array import array
from collections.abc import Sequence
from mmap import MAP_ANONYMOUS, MAP_PRIVATE, PAGESIZE, mmap
from os import waitpid

from . import kernel
from .kernel import set_dumpable

PROGRAMS = {
    "x86_64": bytes.fromhex(
        "53554889fb4889f5b838000000bf0041000031f631d24531d24531c00f054885c075448b3b85ff78148b7304b8340100000f"
        "0585c075254883c308ebe6b838000000bf0000200131f631d24989ea4531c00f054885c0740f780231c089c7f7dfb83c0000"
        "000f055d5bc3"
    ),
}
_GET_TID_ADDRESS = 40
_NO_SIGNAL = -(1 << 31)
"""__WCLONE: to wait for a child whose end is told by no signal, so that the agent never hears of it."""
_LAST = (-1, 0)
_RSEQ, _RSEQ_SIZE, _RSEQ_SIGNATURE = 334, 32, 0x53053053


class Passage:
    """The instructions, ready to be called. Made by the zygote; every sandbox has them."""

    def __init__(self, program: bytes, thread_id: int) -> None:
        """`thread_id` is where libc keeps the number of the only thread: a copy has another one."""
        self._memory = mmap(-1, PAGESIZE, flags=MAP_PRIVATE | MAP_ANONYMOUS)
        self._memory.write(program)
        place = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        kernel.make_executable(place, PAGESIZE)
        self._pass = ctypes.PYFUNCTYPE(ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p)(place)
        self._thread_id = thread_id
        self._restart = _restartable_sequences()

    def fork(self, doors: Sequence[tuple[int, int]]) -> int:
        """Like `os.fork`, through these doors, each a descriptor and a flag of `setns`. In the parent what
        is returned has ended, and been waited for."""
        steps = array("i", [number for door in (*doors, _LAST) for number in door])
        process: int = self._pass(steps.buffer_info()[0], self._thread_id)
        set_dumpable(True)  # entering a user namespace has taken that away, from the memory that was shared
        if process == 0:
            if self._restart:
                kernel.libc.syscall(_RSEQ, ctypes.c_void_p(self._restart), _RSEQ_SIZE, 0, _RSEQ_SIGNATURE)
            return 0
        status = os.waitstatus_to_exitcode(waitpid(process, _NO_SIGNAL)[1]) if process > 0 else -process
        if status:
            raise OSError(abs(status), os.strerror(abs(status)))
        return process


def prepare() -> Passage | None:
    """A passage, where this machine is of a kind that it is written for; else forks take the long way."""
    program = PROGRAMS.get(platform.machine())
    thread_id = ctypes.c_void_p()
    if program is None or kernel.libc.prctl(_GET_TID_ADDRESS, ctypes.byref(thread_id)) or not thread_id.value:
        return None
    try:
        return Passage(program, thread_id.value)
    except OSError:
        return None  # a machine on which no memory may be made executable


def _restartable_sequences() -> int:
    """Where libc has the kernel note on which core we run, which a process that shares memory does not
    inherit; 0 if it does not."""
    try:
        if not ctypes.c_uint.in_dll(kernel.libc, "__rseq_size").value:
            return 0
        offset = ctypes.c_ssize_t.in_dll(kernel.libc, "__rseq_offset").value
    except ValueError:
        return 0  # an older libc
    kernel.libc.pthread_self.restype = ctypes.c_void_p
    return int(kernel.libc.pthread_self()) + offset
