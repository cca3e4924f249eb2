// What a test can do to the fake CUDA runtime besides calling it.
//
// The fake is a shared library with the name and the symbol versions of the real one. It keeps
// device memory on the heap, gives each stream a thread, and holds callers to the rules: a copy
// whose memory is not allocated, not pinned or pinned in two parts, a handle that was destroyed, an
// unpinned mapping are violations, which a test expects none of.
//
// It knows kernels by their names alone and does what they do on the CPU; other work on a stream is
// cudaMemsetAsync, copies and cudaLaunchHostFunc, which the real runtime has too. Thread-safe.
#pragma once

#include <driver_types.h>

#include <cstddef>

extern "C" {

// As a new process would find it, with `devices` devices. No stream of the caller's may live.
void fakecuda_restart(int devices);
// What cudaDriverGetVersion says; below 13000 no device can be used, as with a driver too old.
void fakecuda_set_driver(int version);

// The `nth` call of `function` from now on fails with `error` and does nothing else.
void fakecuda_fail(const char* function, int nth, cudaError_t error);
// From now on each call of `function` fails; cudaSuccess ends it.
void fakecuda_fail_always(const char* function, cudaError_t error);
// As if a kernel of the job had gone wrong on the current device: what streams have left to do is
// dropped, and every call says `error` until the device is reset.
void fakecuda_break(cudaError_t error);
// Calls of this thread do not fail for the sake of these two, and are not counted.
void fakecuda_exempt_thread(int exempt);
// How many bytes cudaHostRegister may pin in all.
void fakecuda_limit_pinned(size_t bytes);

// Copies from device to host wait until they are released, each batch as a whole.
void fakecuda_hold_copies(void);
void fakecuda_release_copies(void);
// Every operation of a stream is delayed by up to so long, drawn from `seed`; 0 ends it.
void fakecuda_delay(unsigned microseconds_max, unsigned seed);

// The next copy between device and host that reads or writes the byte at `at` brings it with its
// lowest bit flipped; null ends it.
void fakecuda_flip_bit(const void* at);
// From now on what kernels of ours compute on the device is wrong by these bits.
void fakecuda_break_kernels(unsigned wrong_bits);

int fakecuda_calls(const char* function);
size_t fakecuda_pinned_bytes(void);
// Operations that a capturing stream was given.
int fakecuda_captured(cudaStream_t stream);
// Of device code that was loaded and is not unloaded.
int fakecuda_libraries(void);
// Of streams that wait for nobody's legacy default stream.
int fakecuda_non_blocking_streams(void);
// Lines of what was done against the rules, empty when nothing was; valid until the next call.
const char* fakecuda_violations(void);
}
