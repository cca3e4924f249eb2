// Kernels of the fake runtime: it knows each by its name, has it done by a function of its own on
// the CPU, and looks at its arguments as a device would at the addresses.

#include <array>
#include <cstring>
#include <functional>
#include <iterator>

#include "snapshot/cuda_checksum_kernel.h"
#include "snapshot/cuda_probe_kernel.h"
#include "tests/fakes/cudart/fake_cuda.h"
#include "tests/fakes/cudart/world.h"
#include "tests/gpu/out_of_bounds_kernel.h"

namespace unreft::fake_cudart {
namespace {

namespace probing = snapshot::probing;
using snapshot::checksum::Piece;

World& world() { return World::Get(); }

// Byte by byte, as in RFC 3720: not by the tables that the kernel uses.
uint32_t RemainderOf(const Piece& piece) {
  static const std::array<uint32_t, 256> kTable = [] {
    std::array<uint32_t, 256> table{};
    for (uint32_t value = 0; value < 256; ++value) {
      uint32_t state = value;
      for (int bit = 0; bit < 8; ++bit) {
        state = (state >> 1) ^ ((state & 1) != 0 ? 0x82f63b78U : 0U);
      }
      table[value] = state;
    }
    return table;
  }();
  const auto* bytes = reinterpret_cast<const unsigned char*>(piece.address);
  uint32_t state = 0;
  for (uint64_t i = 0; i < piece.bytes; ++i) {
    state = (state >> 8) ^ kTable[(state ^ bytes[i]) & 255];
  }
  return state;
}

// Looks at all addresses at once, so that no lock orders streams when it runs (world.h).
std::function<void()> Checksum(void** arguments) {
  const Piece* pieces = *static_cast<const Piece**>(arguments[0]);
  auto* remainders = *static_cast<uint32_t**>(arguments[1]);
  const uint32_t count = *static_cast<uint32_t*>(arguments[2]);
  std::lock_guard lock(world().mutex);
  if (World::Holds(world().pinned_memory, pieces, count * sizeof(Piece)) == nullptr) {
    world().ViolationLocked("pieces that a kernel is given are not pinned");
    return nullptr;
  }
  if (World::Holds(world().device_memory, remainders, count * sizeof(uint32_t)) == nullptr) {
    world().ViolationLocked("a kernel writes beyond an allocation of the device");
    return nullptr;
  }
  for (uint32_t i = 0; i < count; ++i) {
    const auto* at = reinterpret_cast<const void*>(pieces[i].address);
    if (World::Holds(world().device_memory, at, pieces[i].bytes) != nullptr) continue;
    world().ViolationLocked("a kernel reads beyond an allocation of the device");
    return nullptr;
  }
  return [=] {
    const uint32_t wrong = world().wrong_kernel.load(std::memory_order_relaxed);
    for (uint32_t i = 0; i < count; ++i) remainders[i] = RemainderOf(pieces[i]) ^ wrong;
  };
}

// By the kernel's own functions, which are tested without it: its digests are compared with each
// other alone. Addresses as above.
std::function<void()> Probe(void** arguments) {
  const auto* shards = *static_cast<const probing::Shard**>(arguments[0]);
  auto* digests = *static_cast<uint64_t**>(arguments[1]);
  auto* began = *static_cast<uint32_t**>(arguments[2]);
  const uint32_t count = *static_cast<uint32_t*>(arguments[3]);
  const uint32_t lines = *static_cast<uint32_t*>(arguments[4]);
  const uint64_t step = *static_cast<uint64_t*>(arguments[5]);
  std::lock_guard lock(world().mutex);
  const auto& pinned = world().pinned_memory;
  if (World::Holds(pinned, shards, count * sizeof(*shards)) == nullptr ||
      World::Holds(pinned, digests, count * sizeof(*digests)) == nullptr ||
      World::Holds(pinned, began, sizeof(*began)) == nullptr) {
    world().ViolationLocked("what a kernel is given, or where it writes, is not pinned");
    return nullptr;
  }
  for (uint32_t i = 0; i < count; ++i) {
    const auto* at = reinterpret_cast<const void*>(shards[i].address);
    if (World::Holds(world().device_memory, at, shards[i].bytes) != nullptr) continue;
    if (World::Holds(pinned, at, shards[i].bytes) != nullptr) continue;
    world().ViolationLocked("a kernel looks beyond an allocation");
    return nullptr;
  }
  return [=] {
    std::atomic_ref(*began).store(1, std::memory_order_relaxed);
    const uint32_t wrong = world().wrong_kernel.load(std::memory_order_relaxed);
    for (uint32_t i = 0; i < count; ++i) {
      digests[i] = probing::DigestShard(shards[i], step, lines) ^ wrong;
    }
  };
}

// Breaks the context when it runs, as a device does.
std::function<void()> OutOfBounds(void** /*arguments*/) {
  return [device = Self().device] {
    std::lock_guard lock(world().mutex);
    world().sticky[device] = cudaErrorIllegalAddress;
    world().DropLocked(device, cudaErrorIllegalAddress);
  };
}

struct Kernel {
  const char* name;
  std::function<void()> (*make)(void** arguments);
};
const Kernel kKernels[] = {{snapshot::checksum::kKernelName, &Checksum},
                           {probing::kKernelName, &Probe},
                           {kOutOfBoundsKernel, &OutOfBounds}};

const Kernel* Find(const void* kernel) {
  const auto* found = static_cast<const Kernel*>(kernel);
  const bool known = found >= std::begin(kKernels) && found < std::end(kKernels);
  return known ? found : nullptr;
}

}  // namespace
}  // namespace unreft::fake_cudart

using namespace unreft::fake_cudart;  // NOLINT: the file is the C face of that namespace

extern "C" {

// A fat binary begins with its magic; what is in it is not looked at.
cudaError_t cudaLibraryLoadData(cudaLibrary_t* library, const void* code, cudaJitOption*, void**,
                                unsigned int, cudaLibraryOption*, void**, unsigned int) {
  if (cudaError_t error = world().EnterUnsafe("cudaLibraryLoadData"); error != cudaSuccess) {
    return error;
  }
  constexpr unsigned char kFatBinary[] = {0x50, 0xed, 0x55, 0xba};
  std::lock_guard lock(world().mutex);
  if (std::memcmp(code, kFatBinary, sizeof(kFatBinary)) != 0) {
    return world().FailLocked(cudaErrorInvalidKernelImage);
  }
  ++world().libraries;
  *library = reinterpret_cast<cudaLibrary_t>(&world());
  return cudaSuccess;
}

cudaError_t cudaLibraryUnload(cudaLibrary_t) {
  if (cudaError_t error = world().EnterUnsafe("cudaLibraryUnload"); error != cudaSuccess) {
    return error;
  }
  std::lock_guard lock(world().mutex);
  if (--world().libraries < 0) world().ViolationLocked("a library is unloaded twice");
  return cudaSuccess;
}

cudaError_t cudaLibraryGetKernel(cudaKernel_t* kernel, cudaLibrary_t, const char* name) {
  if (cudaError_t error = world().Enter("cudaLibraryGetKernel"); error != cudaSuccess) return error;
  for (const Kernel& known : kKernels) {
    if (std::strcmp(known.name, name) != 0) continue;
    *kernel = reinterpret_cast<cudaKernel_t>(const_cast<Kernel*>(&known));
    return cudaSuccess;
  }
  return world().Fail(cudaErrorSymbolNotFound);
}

cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void* function,
                                void** arguments) {
  if (cudaError_t error = world().Enter("cudaLaunchKernelExC"); error != cudaSuccess) return error;
  const Kernel* kernel = Find(function);
  if (kernel == nullptr) return world().Fail(cudaErrorInvalidDeviceFunction);
  const bool right = config->gridDim.x > 0 && config->blockDim.x > 0 && config->numAttrs == 0;
  if (!right) return world().Fail(cudaErrorInvalidConfiguration);
  std::function<void()> run = kernel->make(arguments);
  std::lock_guard lock(world().mutex);
  if (run == nullptr) return world().FailLocked(cudaErrorInvalidValue);
  Stream* stream = world().FindStreamLocked(config->stream);
  if (stream == nullptr) return world().FailLocked(cudaErrorInvalidResourceHandle);
  if (!world().CapturesLocked(*stream)) stream->Push(std::move(run));
  return cudaSuccess;
}

void fakecuda_break_kernels(unsigned wrong_bits) { world().wrong_kernel = wrong_bits; }

int fakecuda_libraries(void) {
  std::lock_guard lock(world().mutex);
  return world().libraries;
}

void fakecuda_flip_bit(const void* at) { world().flip_at = reinterpret_cast<uintptr_t>(at); }
}
