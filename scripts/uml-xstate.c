// Preloaded into user-mode Linux on processors whose extended state is larger than its kernel knows, such as those with AMX.
//
// User-mode Linux 6.1 writes the registers of its processes with PTRACE_SETREGSET from a buffer of fixed size. The host refuses any size but
// that of the whole state, and the kernel dies when it starts its first process. Here the buffer is padded with zeros, which is what the
// missing parts hold: no program inside has asked for AMX.

#include <cpuid.h>
#include <elf.h>
#include <errno.h>
#include <stdarg.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

// Not on the stack, which is that of a kernel thread. One thread of the host makes all calls.
static char whole[65536] __attribute__((aligned(64)));

// The size of the state with all features of the processor.
static size_t whole_size(void) {
    unsigned a, b, size, d;
    __cpuid_count(0xd, 0, a, b, size, d);
    return size;
}

long ptrace(enum __ptrace_request request, ...) {
    va_list arguments;
    va_start(arguments, request);
    long pid = va_arg(arguments, long);
    void *address = va_arg(arguments, void *);
    void *data = va_arg(arguments, void *);
    va_end(arguments);

    struct iovec padded = {whole, 0};
    if (request == PTRACE_SETREGSET && (long)address == NT_X86_XSTATE) {
        struct iovec *given = data;
        padded.iov_len = whole_size();
        if (given->iov_len < padded.iov_len && padded.iov_len <= sizeof whole) {
            memset(whole, 0, padded.iov_len);
            memcpy(whole, given->iov_base, given->iov_len);
            data = &padded;
        }
    }
    // As in the C library: what these requests read is the result.
    if (request == PTRACE_PEEKTEXT || request == PTRACE_PEEKDATA || request == PTRACE_PEEKUSER) {
        long word;
        long result = syscall(SYS_ptrace, request, pid, address, &word);
        if (result < 0) return result;
        errno = 0;
        return word;
    }
    return syscall(SYS_ptrace, request, pid, address, data);
}
